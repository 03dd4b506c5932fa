"""A ledger in memory, with the rules of a real one: for tests of tools, agents and runners.

A `MemoryRecord` is what is durable of one task; each attempt gets a `MemoryLedger` of it. Beginning an attempt
supersedes the one before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from interlock.clock import Clock, SystemClock, new_id
from interlock.errors import Conflict, LeaseSuperseded, NotFound, ReportConflict
from interlock.fleet.checkpoints import BEFORE, difference, regression, whole
from interlock.fleet.model import (
    AttemptId,
    DeviceRef,
    Ending,
    EntryState,
    HandOver,
    History,
    HostId,
    JournalEntry,
    RunSave,
    Settlement,
)

DEVICE = DeviceRef(HostId("host"), "device")


@dataclass
class MemoryRecord:
    """What outlives the attempts of one task: runs in their order, journal, outputs and the ending.

    `runs` has the whole snapshot after each save of a run, and `last_saves` the last one as it was sent.
    """

    clock: Clock = field(default_factory=SystemClock)
    runs: dict[str, list[RunSave]] = field(default_factory=dict)
    last_saves: dict[str, RunSave] = field(default_factory=dict)
    journal: dict[tuple[str, str], JournalEntry] = field(default_factory=dict)
    nonces: dict[tuple[str, str], str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    live: AttemptId | None = None

    def attempt(self, device: DeviceRef = DEVICE) -> MemoryLedger:
        """Begin another attempt. The one before has lost its lease."""
        self.live = AttemptId(new_id("att"))
        return MemoryLedger(self, self.live, device)

    def supersede(self) -> None:
        """Take the lease from the live attempt."""
        self.live = None

    def history(self) -> History:
        """What the next attempt is given."""
        return History(tuple(saves[-1] for saves in self.runs.values()), tuple(self.journal.values()))


class MemoryLedger:
    """One attempt's `AttemptLedger` on a `MemoryRecord`."""

    def __init__(self, record: MemoryRecord, attempt: AttemptId, device: DeviceRef) -> None:
        self.record = record
        self.attempt = attempt
        self.device = device

    async def save(self, save: RunSave) -> None:
        """See `AttemptLedger.save`."""
        self._check_lease()
        if save == self.record.last_saves.get(save.run_id):
            return
        saves = self.record.runs.get(save.run_id, [])
        if save.sequence != len(saves) + 1:
            message = f"save number {len(saves) + 1} is next"
            raise Conflict(message)
        snapshot = _extended(saves[-1], save) if saves else _first(save)
        self.record.last_saves[save.run_id] = save
        self.record.runs[save.run_id] = [*saves, replace(save, checkpoint=snapshot)]

    async def hand_over(self, entry: HandOver) -> None:
        """See `AttemptLedger.hand_over`. The run's last save must have the action `running`."""
        self._check_lease()
        key = (entry.run_id, entry.action_id)
        if not self._is_running(entry.run_id, entry.action_id):
            message = "the run's checkpoint does not admit this action"
            raise Conflict(message)
        before = self.record.journal.get(key)
        if before is not None:
            if entry.nonce and entry.nonce == self.record.nonces.get(key) and self._has_handed_over(before):
                return
            message = "this effect was handed over before"
            raise Conflict(message)
        self.record.journal[key] = JournalEntry(
            run_id=entry.run_id,
            action_id=entry.action_id,
            tool_id=entry.tool_id,
            arguments_digest=entry.arguments_digest,
            attempt_id=self.attempt,
            device=self.device,
            state=EntryState.HANDED_OVER,
            handed_over_at=self.record.clock.now(),
        )
        self.record.nonces[key] = entry.nonce

    async def withdraw(self, run_id: str, action_id: str) -> None:
        """See `AttemptLedger.withdraw`. Also a probe's answer that an effect of an earlier attempt did not happen."""
        self._check_lease()
        entry = self._open_entry(run_id, action_id, EntryState.WITHDRAWN)
        self._close(entry, state=EntryState.WITHDRAWN)

    async def settle(self, settlement: Settlement) -> None:
        """See `AttemptLedger.settle`. Also a probe's answer that an effect of an earlier attempt happened."""
        self._check_lease()
        key = (settlement.run_id, settlement.action_id)
        if settlement.effect:
            entry = self._open_entry(*key, EntryState.SETTLED)
            said = {"outcome": settlement.outcome, "evidence": settlement.evidence}
            if entry.state is EntryState.SETTLED and (entry.outcome, entry.evidence) != tuple(said.values()):
                message = "another outcome is on record"
                raise Conflict(message)
            self._close(entry, state=EntryState.SETTLED, **said)
        elif not self._is_running(*key) or key in self.record.journal:
            message = "this is no read in flight"
            raise Conflict(message)
        if settlement.output is not None:
            self.record.outputs[settlement.action_id] = settlement.output

    async def output(self, action_id: str) -> object:
        """See `AttemptLedger.output`."""
        self._check_lease()
        if action_id not in self.record.outputs:
            message = f"{action_id} has left no output"
            raise NotFound(message)
        return json.loads(self.record.outputs[action_id])

    async def finish(self, ending: Ending) -> None:
        """See `AttemptLedger.finish`."""
        if self.record.ending is not None and self.record.live == self.attempt:
            if ending != self.record.ending:
                message = "another outcome was reported"
                raise ReportConflict(message)
            return
        self._check_lease()
        self.record.ending = ending

    def _check_lease(self) -> None:
        if self.record.live != self.attempt:
            message = "the lease is lost"
            raise LeaseSuperseded(message)

    def _has_handed_over(self, entry: JournalEntry) -> bool:
        return entry.attempt_id == self.attempt and entry.state is EntryState.HANDED_OVER

    def _is_running(self, run_id: str, action_id: str) -> bool:
        saves = self.record.runs.get(run_id)
        said = whole(saves[-1].checkpoint) if saves else None
        return said is not None and said.states.get(action_id) == "running"

    def _open_entry(self, run_id: str, action_id: str, target: EntryState) -> JournalEntry:
        """The entry, where it is handed over, or where it is so closed already: the same again is the same answer."""
        entry = self.record.journal.get((run_id, action_id))
        if entry is None or entry.state not in {EntryState.HANDED_OVER, target}:
            message = "this effect is not handed over"
            raise Conflict(message)
        return entry

    def _close(self, entry: JournalEntry, **changes: Any) -> None:
        closed = replace(entry, settled_at=self.record.clock.now(), **changes)
        self.record.journal[entry.run_id, entry.action_id] = closed


def _first(save: RunSave) -> str:
    """A run's first save, which is whole."""
    if whole(save.checkpoint) is None:
        message = "the checkpoint is none: it lacks its states, charges or plan"
        raise Conflict(message)
    return save.checkpoint


def _extended(last: RunSave, save: RunSave) -> str:
    """The whole snapshot after a save that has what changed since the one before."""
    before, after = whole(last.checkpoint), difference(save.checkpoint)
    if before is None or after is None or save.parent_run_id != last.parent_run_id:
        message = "the save is none of this run"
        raise Conflict(message)
    fault = regression(before, after)
    if fault is not None:
        raise Conflict(fault)
    if any(BEFORE.get(state) != before.states.get(action, "") for action, state in after.states.items()):
        message = "an action cannot have come to be there"
        raise Conflict(message)
    states = sorted({**before.states, **after.states}.items())
    now = {"states": [list(pair) for pair in states], **after.charges, "stop_reason": after.stop_reason}
    return json.dumps({**json.loads(last.checkpoint), **now}, separators=(",", ":"))
