"""The checkpoints of one run: numbered and passed to the ledger, and what the last of them says."""

from __future__ import annotations

import json

from interlock.actions import RunId, SchedulerCheckpoint, StopReason
from interlock.errors import Conflict, LeaseSuperseded
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import RunSave
from interlock.guard.lease import LeaseWatch
from interlock.telemetry import Event, emit


class RunSaver:
    """Saves the checkpoints of one run. `sequence` is that of its last stored one, 0 for a fresh run."""

    def __init__(
        self, ledger: AttemptLedger, watch: LeaseWatch, run_id: str, parent_run_id: str | None, sequence: int = 0
    ) -> None:
        self._ledger = ledger
        self._watch = watch
        self._run_id = run_id
        self._parent_run_id = parent_run_id
        self._sequence = sequence
        self._failed = False

    async def __call__(self, checkpoint: SchedulerCheckpoint) -> None:
        """Store a checkpoint: the first one of a run whole, each later one as what changed since the one before.

        Raises:
            Conflict: An earlier save failed. Nobody knows what is stored, so that a difference says nothing.
        """
        if self._failed:
            message = "an earlier save of this run failed: nothing may follow it"
            raise Conflict(message)
        text = checkpoint.to_json() if self._sequence == 0 else difference(checkpoint)
        self._failed = True
        try:
            await self._ledger.save(RunSave(self._run_id, self._parent_run_id, self._sequence + 1, text))
        except LeaseSuperseded:
            self._watch.lost = True
            raise
        self._failed = False
        self._sequence += 1


def difference(checkpoint: SchedulerCheckpoint) -> str:
    """What changed since the snapshot before, as JSON. All states, where a snapshot knows of none before it."""
    states = checkpoint.states if checkpoint.changed is None else checkpoint.changed
    reason = checkpoint.stop_reason
    said = {
        "plan_digest": checkpoint.plan_digest,
        "changed": [[action, state.value] for action, state in states],
        "admitted_actions": checkpoint.admitted_actions,
        "reserved_units": checkpoint.reserved_units,
        "elapsed_ns": checkpoint.elapsed_ns,
        "stop_reason": None if reason is None else reason.value,
    }
    return json.dumps(said, separators=(",", ":"))


def ended(run_id: RunId, last: SchedulerCheckpoint) -> StopReason:
    """Tell of a run's end, and give its reason. A run that gave none cannot be relied on."""
    reason = last.stop_reason or StopReason.CHECKPOINT_FAILED
    emit(Event.RUN_ENDED, run_id=run_id.serialize(), stop_reason=reason.value)
    return reason
