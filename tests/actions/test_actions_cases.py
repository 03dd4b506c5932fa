"""Cases of `docs/cases.md` that go through a run, its reviews and its restarts at once."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actions.killed_run import store_of
from actions.stage import COMMITTED, REVIEW, RUN, ManualClock, Stage, effect, finished, limits, read, turns
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    ActionState,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    SchedulerCheckpoint,
    SqliteCheckpoints,
    StopReason,
)
from interlock.errors import Conflict


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settled(stopped: SchedulerCheckpoint, key: str) -> SchedulerCheckpoint:
    """What a host prepares once somebody has said that this action took place."""
    states = tuple((each, ActionState.COMMITTED if each == key else state) for each, state in stopped.states)
    return replace(stopped, states=states, stop_reason=None)


@pytest.mark.contract("A-85", "A-86", "A-99")
async def test_r1_r6_each_of_three_reviews_goes_on_with_the_next_action_and_repeats_none(
    kind: str, tmp_path: Path
) -> None:
    graph = [effect("a"), effect("b", "a"), effect("c", "b"), effect("d", "c"), effect("e", "d")]
    stage = Stage({"b": REVIEW, "c": REVIEW, "d": REVIEW}, otherwise=COMMITTED)
    for doubtful in ("b", "c", "d"):
        with store_of(kind, tmp_path).claim(RUN) as saves:
            last = await finished(graph, limits(actions=5, units=5), stage, saves, checkpoint=saves.checkpoint)
            assert last.stop_reason is StopReason.REVIEW_REQUIRED
            again = await finished(graph, limits(actions=5, units=5), stage, saves, checkpoint=last)
            assert again is last
            saves.restate(settled(last, doubtful))
    with store_of(kind, tmp_path).claim(RUN) as saves:
        last = await finished(graph, limits(actions=5, units=5), stage, saves, checkpoint=saves.checkpoint)
    assert (last.stop_reason, stage.invoked) == (StopReason.COMPLETED, ["a", "b", "c", "d", "e"])


@pytest.mark.contract("A-84", "A-86")
async def test_r2_a_nested_run_that_was_committed_dispatches_nothing_when_the_outer_one_goes_on(
    kind: str, tmp_path: Path
) -> None:
    inner = Stage(otherwise=COMMITTED)
    nested = RunId.generate()

    class Nesting:
        """Each of its actions is a run of two, of one run id for all attempts."""

        async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
            del run_id
            with store_of(kind, tmp_path / node.action_id).claim(nested) as saves:
                scheduler = ActionScheduler([effect("x"), effect("y")], limits(), Inner(), saves)
                last = await scheduler.run(nested, cancellation=cancellation, checkpoint=saves.checkpoint)
            return COMMITTED if last.stop_reason is StopReason.COMPLETED else REVIEW

    class Inner:
        async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
            assert run_id == nested
            return await inner.dispatch(RUN, node, cancellation)

    nesting: Any = Nesting()
    kept: list[SchedulerCheckpoint] = []
    with store_of(kind, tmp_path).claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            if len(kept) == 2:
                raise OSError
            saves(checkpoint)
            kept.append(checkpoint)

        await finished([effect("p"), effect("q", "p")], limits(), nesting, save)
    assert inner.invoked == ["x", "y"]
    with store_of(kind, tmp_path).claim(RUN) as saves:
        graph = [effect("p"), effect("q", "p")]
        await finished(graph, limits(), nesting, saves, checkpoint=saves.checkpoint)
    assert inner.invoked == ["x", "y"] * 2, "those of q, and none of p again"
    # The nested run itself, asked for again, is what it was.
    assert await nesting.dispatch(RUN, ActionNode("p", "tool:example.agent/act"), CancellationSignal()) is COMMITTED
    assert inner.invoked == ["x", "y"] * 2


@pytest.mark.contract("A-86", "A-76")
async def test_r5_results_belong_to_their_ids_in_whatever_order_they_came() -> None:
    graph = [read("a"), read("b"), read("c"), effect("d", "a", "b", "c")]
    for order in ("abc", "cba", "bca"):
        stage, kept = Stage(), list[SchedulerCheckpoint]()
        run = asyncio.create_task(finished(graph, limits(), stage, kept.append))
        await turns()
        for key in order:
            stage.end(key)
            await turns()
        stage.end("d")
        await run
        clean = next(save for save in kept if dict(save.states)["d"] is ActionState.RUNNING)
        before = kept[kept.index(clean) - 1]
        fresh = Stage(otherwise=COMMITTED)
        await finished(graph, limits(), fresh, checkpoint=before)
        assert fresh.invoked == ["d"]


@pytest.mark.contract("A-95", "A-90")
async def test_r53_somebody_who_has_not_read_to_the_end_holds_up_no_save(tmp_path: Path) -> None:
    store = SqliteCheckpoints(tmp_path / "checkpoints.db")
    with store.claim(RUN) as saves:
        await finished([effect("a")], limits(), Stage(otherwise=COMMITTED), saves)
    reader = sqlite3.connect(store.path)
    listing = reader.execute("SELECT run_id, sequence FROM saves ORDER BY run_id, sequence")
    assert listing.fetchone() == (RUN.serialize(), 1)
    other = RunId.generate()
    with store.claim(other) as saves:
        checkpoint = SchedulerCheckpoint(other, "sha256:" + "0" * 64, (), 0, 0, 0)
        for number in range(50):
            saves(replace(checkpoint, elapsed_ns=number))
    assert len(listing.fetchall()) == 2
    reader.close()
    assert store.load(other) == replace(checkpoint, elapsed_ns=49)


@pytest.mark.contract("A-99", "A-28", "A-52")
async def test_r63_a_review_gives_back_neither_actions_nor_units_nor_time(kind: str, tmp_path: Path) -> None:
    clock = ManualClock()
    graph = [effect("a", units=3), effect("b", "a", units=3), effect("c", "b", units=3)]
    bounds = limits(actions=2, units=9, elapsed_ns=100)

    def spend(_: SchedulerCheckpoint) -> None:
        clock.advance(10)

    with store_of(kind, tmp_path).claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            saves(checkpoint)
            spend(checkpoint)

        stopped = await finished(graph, bounds, Stage({"a": REVIEW}), save, clock=clock)
        prepared = settled(stopped, "a")
        for refund in (
            replace(prepared, admitted_actions=0),
            replace(prepared, reserved_units=0),
            replace(prepared, elapsed_ns=0),
        ):
            with pytest.raises(Conflict):
                saves.restate(refund)
        saves.restate(prepared)
    clock.advance(10**9)
    stage = Stage(otherwise=COMMITTED)
    with store_of(kind, tmp_path).claim(RUN) as saves:
        last = await finished(graph, bounds, stage, saves, clock=clock, checkpoint=saves.checkpoint)
    assert (last.stop_reason, stage.invoked) == (StopReason.BUDGET_EXHAUSTED, ["b"])
    assert (last.admitted_actions, last.reserved_units) == (2, 6)
    assert last.elapsed_ns == stopped.elapsed_ns > 0
