from __future__ import annotations

import asyncio

import pytest

from actions.stage import COMMITTED, RUN, Stage, limits, read, state_words, turns
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    SchedulerCheckpoint,
)


class Stubborn(Stage):
    """Its `b` swallows one cancellation and goes on; everything else ends at the first."""

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        try:
            return await super().dispatch(run_id, node, cancellation)
        except asyncio.CancelledError:
            if node.action_id != "b":
                raise
        return await super().dispatch(run_id, node, cancellation)


@pytest.mark.contract("A-64", "A-74")
async def test_r39_a_second_cancel_during_a_save_of_the_drain_still_reaches_what_swallowed_the_first() -> None:
    stage, saved = Stubborn(), list[SchedulerCheckpoint]()
    held, released = asyncio.Event(), asyncio.Event()

    async def save(checkpoint: SchedulerCheckpoint) -> None:
        if state_words(checkpoint) == "vr":
            held.set()
            await released.wait()
        saved.append(checkpoint)

    run = asyncio.create_task(ActionScheduler([read("a"), read("b")], limits(), stage, save).run(RUN))
    await turns()
    run.cancel()
    await held.wait()
    run.cancel()
    await turns()
    released.set()
    await asyncio.wait({run}, timeout=10)
    assert run.cancelled()
    assert stage.cancelled == ["a", "b", "b"]
    assert (state_words(saved[-1]), str(saved[-1].stop_reason)) == ("vv", "cancelled")


@pytest.mark.contract("A-63")
async def test_a_cancel_that_comes_during_the_last_save_is_raised_by_the_run_itself() -> None:
    saved = list[SchedulerCheckpoint]()

    def save(checkpoint: SchedulerCheckpoint) -> None:
        saved.append(checkpoint)
        if checkpoint.stop_reason is not None:
            run.cancel()

    async def reports_how_it_ended() -> str:
        try:
            await ActionScheduler([read("a")], limits(), Stage(otherwise=COMMITTED), save).run(RUN)
        except asyncio.CancelledError:
            return "raised"
        return "returned"

    run = asyncio.create_task(reports_how_it_ended())
    assert await run == "raised"
    assert str(saved[-1].stop_reason) == "completed"
