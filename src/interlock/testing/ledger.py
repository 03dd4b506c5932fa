"""A ledger in memory, with the rules of a real one: for tests of tools, agents and runners.

A `MemoryRecord` is what is durable of one task; each attempt gets a `MemoryLedger` of it. Beginning an attempt
supersedes the one before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from interlock.clock import Clock, SystemClock, new_id
from interlock.errors import Conflict, LeaseSuperseded, NotFound, ReportConflict
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
_FINAL = frozenset({"committed", "failed", "review_required"})
_CHARGES = ("admitted_actions", "reserved_units", "elapsed_ns")


@dataclass
class MemoryRecord:
    """What outlives the attempts of one task: runs in their order, journal, outputs and the ending."""

    clock: Clock = field(default_factory=SystemClock)
    runs: dict[str, list[RunSave]] = field(default_factory=dict)
    journal: dict[tuple[str, str], JournalEntry] = field(default_factory=dict)
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
        saves = self.record.runs.get(save.run_id, [])
        if saves and save == saves[-1]:
            return
        fault = _regression(saves[-1], save) if saves else None
        if save.sequence != len(saves) + 1:
            fault = f"save number {len(saves) + 1} is next"
        if fault is not None:
            raise Conflict(fault)
        self.record.runs[save.run_id] = [*saves, save]

    async def hand_over(self, entry: HandOver) -> None:
        """See `AttemptLedger.hand_over`. The run's last save must have the action `running`."""
        self._check_lease()
        key = (entry.run_id, entry.action_id)
        saves = self.record.runs.get(entry.run_id)
        if not saves or _states(saves[-1]).get(entry.action_id) != "running":
            message = "the run's checkpoint does not admit this action"
            raise Conflict(message)
        if key in self.record.journal:
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

    async def withdraw(self, run_id: str, action_id: str) -> None:
        """See `AttemptLedger.withdraw`. Also a probe's answer that an effect of an earlier attempt did not happen."""
        self._check_lease()
        entry = self._open_entry(run_id, action_id, EntryState.WITHDRAWN)
        self._close(entry, state=EntryState.WITHDRAWN)

    async def settle(self, settlement: Settlement) -> None:
        """See `AttemptLedger.settle`. Also a probe's answer that an effect of an earlier attempt happened."""
        self._check_lease()
        if settlement.effect:
            entry = self._open_entry(settlement.run_id, settlement.action_id, EntryState.SETTLED)
            said = {"outcome": settlement.outcome, "evidence": settlement.evidence}
            if entry.state is EntryState.SETTLED and (entry.outcome, entry.evidence) != tuple(said.values()):
                message = "another outcome is on record"
                raise Conflict(message)
            self._close(entry, state=EntryState.SETTLED, **said)
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


def _states(save: RunSave) -> Mapping[str, str]:
    return dict(json.loads(save.checkpoint)["states"])


def _regression(last: RunSave, save: RunSave) -> str | None:
    """Why a save does not extend the one before, or None where it does."""
    before, after = json.loads(last.checkpoint), json.loads(save.checkpoint)
    if save.parent_run_id != last.parent_run_id or before["plan_digest"] != after["plan_digest"]:
        return "it is of another plan"
    if any(after[charge] < before[charge] for charge in _CHARGES):
        return "its charges are lower"
    if before["stop_reason"] not in {None, after["stop_reason"]}:
        return "the run has stopped"
    states = _states(save)
    if any(states.get(key) != state for key, state in _states(last).items() if state in _FINAL):
        return "an action's end has changed"
    return None
