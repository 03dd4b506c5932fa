"""Cancellation: the signal, the task, the drain, and awaited saves in the middle of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actions.stage import (
    COMMITTED,
    FAILED,
    REVIEW,
    RUN,
    Saves,
    SlowSaves,
    Stage,
    effect,
    finished,
    limits,
    read,
    state_words,
    turns,
)
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    SchedulerCheckpoint,
    StopReason,
)


class Stubborn:
    """A dispatcher that swallows this many cancellations before it gives its answer."""

    def __init__(self, swallows: int, answer: DispatchOutcome = COMMITTED) -> None:
        self.swallowed = 0
        self.release = asyncio.Event()
        self.ended = False
        self._swallows = swallows
        self._answer = answer

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        del run_id, node, cancellation
        while self.swallowed < self._swallows and not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.swallowed += 1
        self.ended = True
        return self._answer


@pytest.mark.contract("A-60", "A-61", "A-62", "A-44")
async def test_r32_r72_a_cancelled_run_stops_what_runs_and_waits_for_it() -> None:
    stage, signal = Stage(), CancellationSignal()
    tasks = asyncio.all_tasks()
    run = asyncio.create_task(
        finished([read("a"), read("b"), read("c"), effect("d")], limits(), stage, cancellation=signal)
    )
    await turns()
    stage.end("a")
    await turns()
    signal.cancel()
    assert stage.signals["b"].cancelled
    last = await run
    assert (last.stop_reason, state_words(last)) == (StopReason.CANCELLED, "cvvp")
    assert stage.cancelled == ["b", "c"]
    assert asyncio.all_tasks() == tasks


@pytest.mark.contract("A-66")
async def test_a_run_that_is_cancelled_beforehand_dispatches_nothing() -> None:
    stage, saves, signal = Stage(), Saves(), CancellationSignal()
    signal.cancel()
    last = await finished([effect("a")], limits(), stage, saves, cancellation=signal)
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.CANCELLED, "p", [])
    assert saves.all == [last]


@pytest.mark.contract("A-31", "A-60")
async def test_a_cancel_during_the_save_of_an_admission_holds_its_dispatch_back() -> None:
    stage, saves, signal = Stage(), Saves(), CancellationSignal()
    saves.before = lambda _: signal.cancel()
    last = await finished([effect("a")], limits(), stage, saves, cancellation=signal)
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.CANCELLED, "v", [])


@pytest.mark.contract("A-31", "A-62")
async def test_a_cancel_between_admission_and_first_step_holds_the_dispatch_back() -> None:
    stage, signal = Stage(), CancellationSignal()
    saves = Saves()
    saves.before = lambda _: asyncio.get_running_loop().call_soon(signal.cancel) and None
    last = await finished([effect("a")], limits(), stage, saves, cancellation=signal)
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.CANCELLED, "v", [])


@pytest.mark.contract("A-62", "A-44")
async def test_the_callers_signal_is_never_set_by_a_run_that_stops() -> None:
    stage, signal = Stage(), CancellationSignal()
    run = asyncio.create_task(finished([read("a"), read("b")], limits(), stage, cancellation=signal))
    await turns()
    assert stage.signals["b"] is not signal
    stage.end("a", REVIEW)
    await run
    assert stage.signals["b"].cancelled
    assert not signal.cancelled
    assert signal._observers == []


@pytest.mark.contract("A-62")
async def test_a_signal_that_answers_for_itself_is_heard_too() -> None:
    class Flag(CancellationSignal):
        raised = False

        @property
        def cancelled(self) -> bool:
            return self.raised

    stage, flag = Stage(), Flag()
    run = asyncio.create_task(finished([effect("a")], limits(), stage, cancellation=flag))
    await turns()
    flag.raised = True
    assert stage.signals["a"].cancelled
    assert (await run).stop_reason is StopReason.CANCELLED


@pytest.mark.contract("A-62", "A-60")
async def test_r38_a_nested_run_stops_with_the_run_that_it_is_in() -> None:
    inner, signal = Stage(), CancellationSignal()

    class Nesting:
        async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
            del run_id, node
            graph = [effect("x"), effect("y")]
            last = await ActionScheduler(graph, limits(), inner, Saves()).run(RUN, cancellation=cancellation)
            assert last.stop_reason is StopReason.CANCELLED
            return REVIEW

    nesting: Any = Nesting()
    run = asyncio.create_task(finished([effect("a")], limits(), nesting, Saves(), cancellation=signal))
    await turns()
    assert inner.running == {"x"}
    signal.cancel()
    assert (await run).stop_reason is StopReason.CANCELLED
    assert inner.invoked == ["x"]


@pytest.mark.contract("A-62", "A-74")
async def test_r38_a_nested_run_stops_at_once_also_while_the_outer_one_waits_for_a_save() -> None:
    inner, saves, signal = Stage(), SlowSaves(), CancellationSignal()

    class Nesting:
        async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
            del run_id, node
            await ActionScheduler([effect("x")], limits(), inner, Saves()).run(RUN, cancellation=cancellation)
            return REVIEW

    nesting: Any = Nesting()
    run = asyncio.create_task(finished([read("a"), read("b")], limits(), nesting, saves, cancellation=signal))
    await saves.end()
    assert (inner.running, saves.waiting) == ({"x"}, True)
    signal.cancel()
    await turns()
    assert (inner.running, saves.waiting) == (set(), True)
    await saves.end_all()
    assert (await run).stop_reason is StopReason.CANCELLED


@pytest.mark.contract("A-61", "A-60")
async def test_a_verdict_that_comes_in_the_drain_is_kept_and_the_reason_too() -> None:
    for answer, word in ((COMMITTED, "c"), (FAILED, "f"), (REVIEW, "v")):
        stubborn, signal = Stubborn(1, answer), CancellationSignal()
        saves = Saves()
        dispatcher: Any = stubborn
        run = asyncio.create_task(
            finished([effect("a"), effect("b")], limits(), dispatcher, saves, cancellation=signal)
        )
        await turns()
        signal.cancel()
        last = await run
        assert (last.stop_reason, state_words(last)) == (StopReason.CANCELLED, word + "p")
        assert [state_words(save) for save in saves.all] == ["rp", word + "p", word + "p"]


@pytest.mark.contract("A-61", "A-60")
async def test_a_cancel_that_its_own_dispatch_asks_for_outweighs_the_verdict_that_follows() -> None:
    signal = CancellationSignal()

    class Losing:
        async def dispatch(self, *_: object) -> DispatchOutcome:
            signal.cancel()
            return REVIEW

    losing: Any = Losing()
    last = await finished([effect("a")], limits(), losing, Saves(), cancellation=signal)
    assert (last.stop_reason, state_words(last)) == (StopReason.CANCELLED, "v")


@pytest.mark.contract("A-63", "A-60")
async def test_r39_cancelling_the_task_drains_saves_and_then_goes_on() -> None:
    stage, saves = Stage(), Saves()
    counts = []

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await finished([effect("a"), effect("b")], limits(), stage, saves)
        finally:
            counts.append(task.cancelling())

    run = asyncio.create_task(caller())
    await turns()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (saves.last.stop_reason, state_words(saves.last)) == (StopReason.CANCELLED, "vp")
    assert (stage.cancelled, stage.running, counts) == (["a"], set(), [1])


@pytest.mark.contract("A-63")
async def test_a_timeout_around_a_run_is_a_timeout_and_leaves_the_task_uncancelled() -> None:
    stage, saves = Stage(), Saves()
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await finished([effect("a")], limits(), stage, saves)
    assert task.cancelling() == 0
    assert saves.last.stop_reason is StopReason.CANCELLED


@pytest.mark.contract("A-63")
async def test_a_cancellation_that_comes_while_nothing_is_awaited_is_heeded() -> None:
    stage, saves = Stage(), Saves()
    task: asyncio.Task[SchedulerCheckpoint]
    saves.before = lambda _: task.cancel() and None
    task = asyncio.create_task(finished([effect("a")], limits(), stage, saves))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (saves.last.stop_reason, state_words(saves.last), stage.invoked) == (StopReason.CANCELLED, "v", [])


@pytest.mark.contract("A-63")
async def test_a_cancellation_that_comes_with_the_last_save_does_not_wait_for_what_the_caller_awaits_next() -> None:
    saves, returned = Saves(), []
    saves.before = lambda save: save.stop_reason and task.cancel()

    async def caller() -> None:
        returned.append(await finished([effect("a")], limits(), Stage(otherwise=COMMITTED), saves))

    task = asyncio.create_task(caller())
    await asyncio.wait({task})
    assert task.cancelled()
    assert returned == []
    assert saves.last.stop_reason is StopReason.COMPLETED


@pytest.mark.contract("A-63")
async def test_a_run_inside_a_task_that_was_cancelled_before_goes_its_way() -> None:
    saves = Saves()

    async def cleanup() -> SchedulerCheckpoint:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return await finished([effect("a")], limits(), Stage(otherwise=COMMITTED), saves)
        raise AssertionError

    task = asyncio.create_task(cleanup())
    await turns()
    task.cancel()
    assert (await task).stop_reason is StopReason.COMPLETED


@pytest.mark.contract("A-64", "A-63")
async def test_r39_a_second_cancellation_ends_a_dispatch_that_swallowed_the_first() -> None:
    stubborn, saves = Stubborn(2, REVIEW), Saves()
    dispatcher: Any = stubborn
    run = asyncio.create_task(finished([effect("a")], limits(), dispatcher, saves))
    await turns()
    run.cancel()
    await turns()
    assert (stubborn.swallowed, run.done()) == (1, False)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert stubborn.ended
    assert (saves.last.stop_reason, state_words(saves.last)) == (StopReason.CANCELLED, "v")


@pytest.mark.contract("A-65")
async def test_r36_r40_a_dispatch_that_will_not_stop_is_left_behind_after_the_drain() -> None:
    stubborn, saves, signal = Stubborn(99), Saves(), CancellationSignal()
    dispatcher: Any = stubborn
    graph = [effect("a"), effect("b")]
    scheduler = ActionScheduler(graph, limits(), dispatcher, saves, drain_timeout_ns=20_000_000)
    run = asyncio.create_task(scheduler.run(RUN, cancellation=signal))
    await turns()
    signal.cancel()
    last = await run
    assert (last.stop_reason, state_words(last)) == (StopReason.CANCELLED, "vp")
    assert scheduler.undrained == ("a",)
    assert "undrained" not in last.to_json()
    before, kept = last.to_json(), len(saves.all)
    assert len(scheduler._outliving) == 1
    stubborn.release.set()
    await turns()
    assert stubborn.ended
    assert (last.to_json(), len(saves.all)) == (before, kept)
    assert scheduler._outliving == set()
    stubborn.release.set()
    assert (await scheduler.run(RUN)).stop_reason is StopReason.COMPLETED
    assert not scheduler.undrained


@pytest.mark.contract("A-62")
async def test_an_observer_that_raises_keeps_the_stop_from_nobody() -> None:
    stage, signal = Stage(), CancellationSignal()

    def fail() -> None:
        raise RuntimeError

    signal.observe(fail)
    run = asyncio.create_task(finished([effect("a")], limits(), stage, cancellation=signal))
    await turns()
    signal.cancel()
    assert (await run).stop_reason is StopReason.CANCELLED


@pytest.mark.contract("A-65", "A-53")
async def test_a_drain_that_ends_in_time_leaves_no_timer_behind() -> None:
    stage, signal = Stage(), CancellationSignal()
    scheduler = ActionScheduler([effect("a")], limits(), stage, Saves(), drain_timeout_ns=10**12)
    run = asyncio.create_task(scheduler.run(RUN, cancellation=signal))
    await turns()
    signal.cancel()
    await run
    loop: Any = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
    assert not scheduler.undrained


@pytest.mark.contract("A-65", "A-73")
async def test_r34_what_a_dispatch_left_behind_says_during_the_last_saves_changes_nothing() -> None:
    stubborn, saves, signal = Stubborn(99), SlowSaves(), CancellationSignal()
    dispatcher: Any = stubborn
    scheduler = ActionScheduler([effect("a")], limits(), dispatcher, saves, drain_timeout_ns=0)
    run = asyncio.create_task(scheduler.run(RUN, cancellation=signal))
    await saves.end()
    saves.next.clear()
    signal.cancel()
    async with asyncio.timeout(5):
        await saves.next.wait()
    stubborn.release.set()
    await saves.end_all()
    last = await run
    assert (state_words(last), scheduler.undrained) == ("v", ("a",))


@pytest.mark.contract("A-65", "A-63")
async def test_a_cancelled_task_leaves_a_stubborn_dispatch_behind_too() -> None:
    stubborn, saves = Stubborn(99), Saves()
    dispatcher: Any = stubborn
    scheduler = ActionScheduler([effect("a")], limits(), dispatcher, saves, drain_timeout_ns=1_000_000)
    run = asyncio.create_task(scheduler.run(RUN))
    await turns()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert scheduler.undrained == ("a",)
    assert saves.last.stop_reason is StopReason.CANCELLED
    stubborn.release.set()
    await turns()


@pytest.mark.contract("A-73", "A-70")
async def test_nothing_is_collected_or_admitted_while_a_save_is_in_flight() -> None:
    stage, saves = Stage(), SlowSaves()
    run = asyncio.create_task(finished([read("a"), read("b"), read("c", "a")], limits(), stage, saves))
    await turns()
    assert (len(saves.begun), stage.invoked) == (1, [])
    await saves.end()
    assert (len(saves.begun), stage.invoked) == (2, ["a"])
    stage.end("a")
    await turns()
    assert len(saves.begun) == 2
    await saves.end()
    assert [state_words(save) for save in saves.begun] == ["rpp", "rrp", "crp"]
    assert stage.invoked == ["a"]
    await saves.end()
    assert stage.invoked == ["a", "b"]
    await saves.end()
    assert stage.invoked == ["a", "b", "c"]
    stage.end("b")
    stage.end("c")
    await saves.end_all()
    last = await run
    words = ["rpp", "rrp", "crp", "crr", "ccr", "ccc", "ccc"]
    assert [state_words(save) for save in saves.begun] == words
    assert (last, saves.ended) == (saves.begun[-1], 7)


@pytest.mark.contract("A-74", "A-63")
async def test_r44_a_cancellation_of_the_task_waits_for_the_save_in_flight() -> None:
    stage, saves = Stage(), SlowSaves()
    run = asyncio.create_task(finished([effect("a")], limits(), stage, saves))
    await turns()
    run.cancel()
    await turns()
    run.cancel()
    await turns()
    assert (saves.cancelled, saves.waiting, run.done()) == (0, True, False)
    await saves.end_all()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (saves.cancelled, stage.invoked) == (0, [])
    assert [state_words(save) for save in saves.begun] == ["r", "v", "v"]
    assert saves.begun[-1].stop_reason is StopReason.CANCELLED


@pytest.mark.contract("A-74", "A-62")
async def test_a_signal_during_a_save_is_read_at_once_and_heeded_after_it() -> None:
    stage, saves, signal = Stage(), SlowSaves(), CancellationSignal()
    run = asyncio.create_task(finished([read("a"), read("b")], limits(), stage, saves, cancellation=signal))
    await saves.end()
    signal.cancel()
    await turns()
    assert stage.signals["a"].cancelled
    assert (stage.cancelled, len(saves.begun)) == ([], 2)
    await saves.end()
    assert (stage.cancelled, stage.invoked) == (["a"], ["a"])
    await saves.end_all()
    assert state_words(await run) == "vv"


@pytest.mark.contract("A-75", "A-71")
@pytest.mark.parametrize("answer", [OSError("canary"), asyncio.CancelledError(), True, "saved"], ids=repr)
async def test_an_awaited_save_that_fails_or_says_anything_stops_the_run(answer: object) -> None:
    stage, saves = Stage(), SlowSaves()
    run = asyncio.create_task(finished([effect("a")], limits(), stage, saves))
    await saves.end(answer)
    last = await run
    assert (last.stop_reason, len(saves.begun), stage.invoked) == (StopReason.CHECKPOINT_FAILED, 1, [])


@pytest.mark.contract("A-75")
async def test_a_future_of_another_loop_is_a_failed_save() -> None:
    other = asyncio.new_event_loop()
    try:
        last = await finished([effect("a")], limits(), Stage(), lambda _: other.create_future())
    finally:
        other.close()
    assert last.stop_reason is StopReason.CHECKPOINT_FAILED


@pytest.mark.contract("A-73")
async def test_a_save_that_is_over_already_is_as_good_as_an_awaited_one() -> None:
    def save(_: SchedulerCheckpoint) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    last = await finished([effect("a")], limits(), Stage(otherwise=COMMITTED), save)
    assert last.stop_reason is StopReason.COMPLETED
