"""A waiting run costs nothing: no timer wakes it before its deadline."""

from __future__ import annotations

import asyncio

import pytest

from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
)

RUNS = 1_000
HOUR_NS = 3_600_000_000_000


class Waiting:
    """A dispatcher whose one action waits for the test."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        del run_id, node, cancellation
        self.begun.release()
        await self.go.wait()
        return DispatchOutcome.COMMITTED


def unsaved(checkpoint: SchedulerCheckpoint) -> None:
    del checkpoint


@pytest.mark.contract("A-53")
async def test_a_thousand_waiting_runs_arm_no_timer_before_their_deadlines() -> None:
    dispatcher = Waiting()
    limits = SchedulerLimits(1, 1, 1, 1, HOUR_NS)
    actions = [ScheduledAction(ActionNode("only", "tool:example.agent/wait"))]
    runs = [
        asyncio.create_task(ActionScheduler(actions, limits, dispatcher, unsaved).run(RunId.generate()))
        for _ in range(RUNS)
    ]
    for _ in runs:
        await dispatcher.begun.acquire()
    loop = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert [timer for timer in timers if timer.when() - loop.time() < 3_000] == []
    # With nothing due and nobody ready, a turn of the loop finds no work that a run has made for itself.
    await asyncio.sleep(0)
    assert len(loop._ready) == 0  # type: ignore[attr-defined]
    dispatcher.go.set()
    assert {str((await run).stop_reason) for run in runs} == {"completed"}
