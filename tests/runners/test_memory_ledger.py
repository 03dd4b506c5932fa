"""What every attempt's ledger must do. The memory passes it; a real store passes the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.errors import Conflict, LeaseSuperseded, NotFound, ReportConflict
from interlock.fleet.model import Ending, EndKind, EntryState, HandOver, RunSave, Settlement
from interlock.testing.ledger import MemoryLedger, MemoryRecord

RUN = "run_" + "1" * 32
OTHER = "run_" + "2" * 32


def save(sequence: int, state: str = "running", run: str = RUN, **changes: Any) -> RunSave:
    document = {
        "plan_digest": "sha256:0",
        "states" if sequence == 1 else "changed": [["a", state]],
        "admitted_actions": 1,
        "reserved_units": 1,
        "elapsed_ns": 5,
        "stop_reason": None,
    }
    return RunSave(run, None, sequence, json.dumps(document | changes))


def hand_over(run: str = RUN, action: str = "a") -> HandOver:
    return HandOver(run, action, "tool:example.agent/send", "sha256:0")


def settled(outcome: str = "committed") -> Settlement:
    return Settlement(RUN, "a", outcome, effect=True, output="1", evidence="proof")


@pytest.fixture
def record() -> MemoryRecord:
    return MemoryRecord()


@pytest.fixture
def ledger(record: MemoryRecord) -> MemoryLedger:
    return record.attempt()


async def test_saves_are_numbered_without_gaps_and_can_be_repeated(ledger: MemoryLedger, record: MemoryRecord) -> None:
    with pytest.raises(Conflict):
        await ledger.save(save(2))
    await ledger.save(save(1))
    await ledger.save(save(1))
    for refused in (save(1, "committed"), save(3)):
        with pytest.raises(Conflict):
            await ledger.save(refused)
    await ledger.save(save(2, "committed"))
    (last,) = record.history().runs
    assert (last.sequence, json.loads(last.checkpoint)["states"]) == (2, [["a", "committed"]])


@pytest.mark.parametrize(
    "changes",
    [
        {"elapsed_ns": 4},
        {"admitted_actions": 0},
        {"reserved_units": 0},
        {"plan_digest": "sha256:1"},
        {"changed": [["a", "pending"]]},
        {"changed": [["a", "running"]]},
        {"changed": [["b", "running"]]},
        {"changed": [["a", "done"]]},
    ],
)
async def test_a_save_that_does_not_extend_the_last_is_refused(ledger: MemoryLedger, changes: dict[str, Any]) -> None:
    await ledger.save(save(1))
    with pytest.raises(Conflict):
        await ledger.save(save(2, "committed", **changes))


async def test_a_stopped_run_stays_stopped(ledger: MemoryLedger) -> None:
    await ledger.save(save(1))
    await ledger.save(save(2, "committed", stop_reason="completed"))
    with pytest.raises(Conflict):
        await ledger.save(save(3, changed=[]))


async def test_an_effect_is_handed_over_once_and_only_when_admitted(ledger: MemoryLedger, record: MemoryRecord) -> None:
    with pytest.raises(Conflict):
        await ledger.hand_over(hand_over())
    await ledger.save(save(1, "pending"))
    with pytest.raises(Conflict):
        await ledger.hand_over(hand_over())
    await ledger.save(save(2))
    await ledger.hand_over(hand_over())
    with pytest.raises(Conflict):
        await ledger.hand_over(hand_over())
    (entry,) = record.history().journal
    assert (entry.state, entry.attempt_id, entry.device) == (EntryState.HANDED_OVER, ledger.attempt, ledger.device)


async def test_a_hand_over_can_be_asked_again_by_its_nonce_and_its_attempt(
    ledger: MemoryLedger, record: MemoryRecord
) -> None:
    await ledger.save(save(1))
    entry = HandOver(RUN, "a", "tool:example.agent/send", "sha256:0", "n1")
    await ledger.hand_over(entry)
    await ledger.hand_over(entry)
    later = record.attempt()
    for refused in (later.hand_over(entry), later.hand_over(hand_over())):
        with pytest.raises(Conflict):
            await refused


async def test_only_what_is_handed_over_can_be_settled_or_withdrawn(ledger: MemoryLedger, record: MemoryRecord) -> None:
    await ledger.save(save(1))
    for refused in (ledger.settle(settled()), ledger.withdraw(RUN, "a")):
        with pytest.raises(Conflict):
            await refused
    assert record.outputs == {}
    await ledger.hand_over(hand_over())
    await ledger.settle(settled())
    await ledger.settle(settled())
    for refused in (ledger.settle(settled("failed")), ledger.withdraw(RUN, "a")):
        with pytest.raises(Conflict):
            await refused
    assert (record.journal[RUN, "a"].outcome, record.outputs) == ("committed", {"a": "1"})


async def test_what_was_withdrawn_stays_so(ledger: MemoryLedger, record: MemoryRecord) -> None:
    await ledger.save(save(1))
    await ledger.hand_over(hand_over())
    await ledger.withdraw(RUN, "a")
    await ledger.withdraw(RUN, "a")
    with pytest.raises(Conflict):
        await ledger.settle(settled())
    assert record.journal[RUN, "a"].state is EntryState.WITHDRAWN


async def test_a_read_has_an_output_alone_and_outputs_outlive_the_attempt(
    ledger: MemoryLedger, record: MemoryRecord
) -> None:
    with pytest.raises(NotFound):
        await ledger.output("a")
    read = Settlement(RUN, "a", "committed", effect=False, output='{"x":1}')
    with pytest.raises(Conflict):
        await ledger.settle(read)
    await ledger.save(save(1))
    await ledger.settle(read)
    assert record.journal == {}
    assert await record.attempt().output("a") == {"x": 1}


async def test_what_was_handed_over_is_not_settled_as_a_read(ledger: MemoryLedger) -> None:
    await ledger.save(save(1))
    await ledger.hand_over(hand_over())
    with pytest.raises(Conflict):
        await ledger.settle(Settlement(RUN, "a", "committed", effect=False, output="1"))


async def test_a_later_attempt_can_answer_for_an_effect_in_doubt(ledger: MemoryLedger, record: MemoryRecord) -> None:
    for run in (RUN, OTHER):
        await ledger.save(save(1, run=run))
        await ledger.hand_over(hand_over(run))
    later = record.attempt()
    await later.settle(settled())
    await later.withdraw(OTHER, "a")
    assert [entry.state for entry in record.history().journal] == [EntryState.SETTLED, EntryState.WITHDRAWN]


async def test_a_superseded_attempt_writes_and_reads_nothing(ledger: MemoryLedger, record: MemoryRecord) -> None:
    await ledger.save(save(1))
    await ledger.hand_over(hand_over())
    before = repr(record.history())
    record.supersede()
    for refused in (
        ledger.save(save(2)),
        ledger.hand_over(hand_over()),
        ledger.settle(settled()),
        ledger.withdraw(RUN, "a"),
        ledger.output("a"),
        ledger.finish(Ending(EndKind.DONE, "completed")),
    ):
        with pytest.raises(LeaseSuperseded):
            await refused
    assert repr(record.history()) == before
    assert record.ending is None


async def test_the_same_report_again_is_the_same_answer_and_another_is_not(
    ledger: MemoryLedger, record: MemoryRecord
) -> None:
    await ledger.finish(Ending(EndKind.DONE, "completed"))
    await ledger.finish(Ending(EndKind.DONE, "completed"))
    with pytest.raises(ReportConflict):
        await ledger.finish(Ending(EndKind.FAILED, "review_required"))
    assert record.ending == Ending(EndKind.DONE, "completed")
