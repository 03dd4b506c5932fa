"""The checkpoints of one run: numbered and passed to the ledger, and what the last of them says."""

from __future__ import annotations

from interlock.actions import RunId, SchedulerCheckpoint, StopReason
from interlock.errors import LeaseSuperseded
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

    async def __call__(self, checkpoint: SchedulerCheckpoint) -> None:
        """Store a checkpoint. Only a stored one takes its number, so that a failed save can be followed by another."""
        save = RunSave(self._run_id, self._parent_run_id, self._sequence + 1, checkpoint.to_json())
        try:
            await self._ledger.save(save)
        except LeaseSuperseded:
            self._watch.lost = True
            raise
        self._sequence += 1


def ended(run_id: RunId, last: SchedulerCheckpoint) -> StopReason:
    """Tell of a run's end, and give its reason. A run that gave none cannot be relied on."""
    reason = last.stop_reason or StopReason.CHECKPOINT_FAILED
    emit(Event.RUN_ENDED, run_id=run_id.serialize(), stop_reason=reason.value)
    return reason
