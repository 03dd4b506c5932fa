"""The loop of a run: order, verdicts, budgets and the clock, with saves that return at once."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from actions.stage import (
    COMMITTED,
    FAILED,
    REVIEW,
    RUN,
    ManualClock,
    Saves,
    SlowSaves,
    Stage,
    effect,
    finished,
    limits,
    read,
    state_words,
    states,
    turns,
)
from actions.test_actions_values import code_of
from interlock.actions import (
    ActionScheduler,
    ActionState,
    CancellationSignal,
    Cause,
    DispatchOutcome,
    RunId,
    SchedulerCheckpoint,
    SchedulerError,
    StopReason,
)


@pytest.mark.contract("A-70", "A-40")
async def test_there_is_one_save_before_each_dispatch_and_one_after_each_completion() -> None:
    stage = Stage(otherwise=COMMITTED)
    last = await finished([effect("a"), effect("b", "a")], limits(), stage)
    assert stage.log == [
        "save a=running",
        "dispatch a",
        "save a=committed",
        "save b=running",
        "dispatch b",
        "save b=committed",
        "save completed",
    ]
    assert last.stop_reason is StopReason.COMPLETED
    assert (last.admitted_actions, last.reserved_units) == (2, 2)


@pytest.mark.contract("A-70")
async def test_peers_are_each_saved_before_they_start_and_each_when_they_end() -> None:
    stage = Stage(otherwise=COMMITTED)
    await finished([read("a"), read("b")], limits(), stage)
    assert stage.log[:4] == ["save a=running", "save b=running", "dispatch a", "dispatch b"]
    assert stage.log[4:] == ["save a=committed", "save b=committed", "save completed"]


@pytest.mark.contract("A-21", "A-23", "A-24")
async def test_independent_branches_overlap_and_their_join_runs_alone() -> None:
    stage = Stage()
    saves = Saves(stage)
    scheduler = ActionScheduler([effect("join", "left", "right"), read("right"), read("left")], limits(), stage, saves)
    run = asyncio.create_task(scheduler.run(RUN))
    await turns()
    assert stage.running == {"left", "right"}
    assert scheduler.why("join").cause is Cause.DEPENDENCIES
    stage.end("right")
    await turns()
    assert stage.running == {"left"}
    stage.end("left")
    await turns()
    assert stage.running == {"join"}
    stage.end("join")
    assert (await run) == saves.last
    assert state_words(saves.last) == "ccc"
    assert scheduler.why("join").cause is Cause.SETTLED


@pytest.mark.contract("A-41", "A-44", "A-71")
@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (FAILED, ActionState.FAILED, StopReason.DISPATCH_FAILED),
        (REVIEW, ActionState.REVIEW_REQUIRED, StopReason.REVIEW_REQUIRED),
    ],
)
async def test_r71_a_bad_verdict_stops_independent_work_too(
    answer: object, state: ActionState, reason: StopReason
) -> None:
    stage = Stage()
    run = asyncio.create_task(
        finished([read("a"), read("b"), effect("c"), effect("d", "a")], limits(concurrency=2), stage)
    )
    await turns()
    stage.end("a", answer)
    last = await run
    assert stage.cancelled == ["b"]
    assert stage.signals["b"].cancelled
    assert last.stop_reason is reason
    assert states(last)["a"] is state
    assert state_words(last)[1:] == "vpp"


@pytest.mark.contract("A-42", "A-43", "A-45")
@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("canary-text"),
        asyncio.CancelledError("canary-text"),
        BaseExceptionGroup("canary-text", [ValueError("canary-text")]),
        GeneratorExit("canary-text"),
        "committed",
        True,
        0,
        [],
        ActionState.COMMITTED,
    ],
    ids=repr,
)
async def test_what_is_no_verdict_is_uncertain_and_its_text_is_nowhere(answer: object) -> None:
    stage, saves = Stage({"a": answer}), Saves()
    last = await finished([effect("a"), effect("b")], limits(), stage, saves)
    assert (last.stop_reason, state_words(last)) == (StopReason.REVIEW_REQUIRED, "vp")
    assert stage.invoked == ["a"]
    assert all("canary" not in save.to_json() + repr(save) for save in saves.all)


@pytest.mark.contract("A-43")
async def test_an_exception_is_told_to_nobody_not_even_to_the_loop() -> None:
    class Failing:
        async def dispatch(self, *_: object) -> DispatchOutcome:
            message = "canary-text"
            raise RuntimeError(message)

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    failing: Any = Failing()
    await finished([effect("a")], limits(), failing, Saves())
    await turns()
    gc.collect()
    assert told == []


@pytest.mark.contract("A-50", "A-31", "A-73")
async def test_time_that_is_up_during_an_awaited_save_holds_its_dispatch_back() -> None:
    clock, stage, saves = ManualClock(), Stage(), SlowSaves()
    run = asyncio.create_task(finished([effect("a")], limits(elapsed_ns=10), stage, saves, clock=clock))
    await turns()
    clock.advance(10)
    await saves.end_all()
    last = await run
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.BUDGET_EXHAUSTED, "v", [])


@pytest.mark.contract("A-42")
async def test_a_dispatch_that_cannot_be_awaited_is_uncertain() -> None:
    class Plain:
        def dispatch(self, *_: object) -> object:
            return COMMITTED

    plain: Any = Plain()
    last = await finished([effect("a")], limits(), plain, Saves())
    assert (last.stop_reason, state_words(last)) == (StopReason.REVIEW_REQUIRED, "v")


@pytest.mark.contract("A-42")
async def test_a_dispatch_task_that_somebody_cancels_is_uncertain_whether_or_not_it_has_begun() -> None:
    for rounds in (0, 3):
        stage = Stage()
        before = asyncio.all_tasks()
        run = asyncio.create_task(finished([effect("a"), effect("b")], limits(), stage))
        await asyncio.sleep(0)
        await turns(rounds)
        (dispatch,) = asyncio.all_tasks() - before - {run}
        dispatch.cancel()
        last = await run
        assert (last.stop_reason, state_words(last)) == (StopReason.REVIEW_REQUIRED, "vp")
        assert stage.invoked == ["a"] * (rounds > 0)


@pytest.mark.contract("A-30")
async def test_a_finished_peers_review_blocks_what_another_peer_would_let_go() -> None:
    stage = Stage()
    run = asyncio.create_task(finished([read("a"), read("b"), read("c", "a"), read("d")], limits(concurrency=3), stage))
    await turns()
    stage.end("a")
    stage.end("b", REVIEW)
    last = await run
    assert stage.invoked == ["a", "b", "d"]
    assert state_words(last) == "cvpv"


@pytest.mark.contract("A-31")
async def test_a_peer_that_was_admitted_and_not_yet_invoked_when_a_verdict_comes_is_never_invoked() -> None:
    stage = Stage({"a": FAILED}, otherwise=COMMITTED)
    last = await finished([read("a"), read("b"), read("c")], limits(), stage)
    assert stage.invoked == ["a"]
    assert (last.stop_reason, state_words(last)) == (StopReason.DISPATCH_FAILED, "fvv")
    assert last.admitted_actions == 3


@pytest.mark.contract("A-31", "A-73")
async def test_an_admission_during_whose_save_a_verdict_comes_is_never_invoked() -> None:
    stage, saves = Stage(), SlowSaves()
    run = asyncio.create_task(finished([read("a"), read("b")], limits(), stage, saves))
    await saves.end()
    assert stage.invoked == ["a"]
    stage.end("a", FAILED)
    await turns()
    await saves.end_all()
    last = await run
    assert stage.invoked == ["a"]
    assert state_words(last) == "fv"


@pytest.mark.contract("A-29", "A-28")
@pytest.mark.parametrize("bounds", [limits(actions=2), limits(units=2)], ids=["actions", "units"])
async def test_a_used_up_budget_lets_what_runs_finish(bounds: Any) -> None:
    stage = Stage()
    run = asyncio.create_task(finished([read("a"), read("b"), read("c")], bounds, stage))
    await turns()
    assert stage.running == {"a", "b"}
    stage.end("a")
    await turns()
    assert not stage.signals["b"].cancelled
    stage.end("b")
    last = await run
    assert (last.stop_reason, state_words(last)) == (StopReason.BUDGET_EXHAUSTED, "ccp")
    assert stage.cancelled == []


@pytest.mark.contract("A-27")
async def test_an_action_too_large_to_go_alone_ends_the_run_and_is_not_charged() -> None:
    last = await finished([effect("a", units=5)], limits(inflight=4), Stage())
    assert (last.stop_reason, last.admitted_actions, last.reserved_units) == (StopReason.BUDGET_EXHAUSTED, 0, 0)


@pytest.mark.contract("A-50")
async def test_time_that_is_up_before_an_admission_stops_the_run() -> None:
    clock, stage = ManualClock(), Stage(otherwise=COMMITTED)
    saves = Saves()
    saves.before = lambda save: clock.advance(5) if state_words(save) == "cp" and save.stop_reason is None else None
    last = await finished([effect("a"), effect("b")], limits(elapsed_ns=5), stage, saves, clock=clock)
    assert (last.stop_reason, state_words(last), last.elapsed_ns) == (StopReason.BUDGET_EXHAUSTED, "cp", 5)


@pytest.mark.contract("A-50", "A-31")
async def test_time_that_is_up_after_the_save_of_an_admission_holds_its_dispatch_back() -> None:
    clock, stage, saves = ManualClock(), Stage(), Saves()
    saves.before = lambda _: clock.advance(10)
    last = await finished([effect("a")], limits(elapsed_ns=10), stage, saves, clock=clock)
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.BUDGET_EXHAUSTED, "v", [])


@pytest.mark.contract("A-50", "A-53", "A-61")
async def test_time_that_is_up_while_waiting_stops_what_runs() -> None:
    clock, stage = ManualClock(), Stage()
    run = asyncio.create_task(finished([effect("a")], limits(elapsed_ns=10), stage, clock=clock))
    await turns()
    clock.advance(9)
    await asyncio.wait({run}, timeout=0.05)
    assert stage.running == {"a"}
    clock.advance(1)
    last = await run
    assert (last.stop_reason, state_words(last)) == (StopReason.BUDGET_EXHAUSTED, "v")
    assert stage.signals["a"].cancelled
    assert stage.cancelled == ["a"]


@pytest.mark.contract("A-53", "A-50")
async def test_the_default_clock_is_waited_on_by_one_timer_that_is_exact() -> None:
    stage = Stage()
    run = asyncio.create_task(finished([effect("a")], limits(elapsed_ns=60_000_000), stage))
    await turns()
    loop: Any = asyncio.get_running_loop()
    (timer,) = [each for each in loop._scheduled if not each.cancelled()]
    assert 0 < timer.when() - loop.time() <= 0.06
    started = loop.time()
    last = await run
    assert last.stop_reason is StopReason.BUDGET_EXHAUSTED
    assert last.elapsed_ns >= 60_000_000
    assert loop.time() - started < 1


@pytest.mark.contract("A-53")
async def test_r40_a_waiting_run_is_woken_by_nothing_but_events() -> None:
    stage = Stage()
    run = asyncio.create_task(finished([effect("a")], limits(), stage))
    await turns()
    loop: Any = asyncio.get_running_loop()
    looks: list[float] = []
    run_once = loop._run_once
    loop._run_once = lambda: (looks.__iadd__([loop.time()]), run_once())
    try:
        await asyncio.wait({run}, timeout=0.1)
    finally:
        del loop._run_once
    assert len(looks) <= 3
    stage.end("a")
    await run


@pytest.mark.contract("A-51")
@pytest.mark.parametrize("bad", [-1, True, 1.5, None, "9", 999, 2**63, RuntimeError("canary")], ids=repr)
async def test_a_clock_that_is_wrong_or_goes_back_stops_the_run(bad: object) -> None:
    clock, stage, saves = ManualClock(), Stage(), Saves()

    def spoil(_: SchedulerCheckpoint) -> None:
        clock.now = bad

    saves.before = spoil
    last = await finished([effect("a")], limits(), stage, saves, clock=clock)
    assert (last.stop_reason, state_words(last), stage.invoked) == (StopReason.CLOCK_FAILED, "v", [])
    assert last.elapsed_ns == 0


@pytest.mark.contract("A-51")
async def test_a_clock_that_is_wrong_from_the_start_lets_nothing_begin() -> None:
    stage, saves = Stage(), Saves()
    last = await finished([effect("a")], limits(), stage, saves, clock=ManualClock(-1))
    assert (last.stop_reason, state_words(last), saves.all) == (StopReason.CLOCK_FAILED, "p", [last])


@pytest.mark.contract("A-51", "A-60")
async def test_a_clock_that_fails_while_waiting_drains_what_runs() -> None:
    clock, stage = ManualClock(), Stage()
    run = asyncio.create_task(finished([effect("a")], limits(), stage, clock=clock))
    await turns()
    clock.now = 1
    last = await run
    assert (last.stop_reason, state_words(last), stage.cancelled) == (StopReason.CLOCK_FAILED, "v", ["a"])


@pytest.mark.contract("A-52", "A-86")
async def test_r64_a_restart_adds_to_the_time_that_was_saved_and_counts_no_stop() -> None:
    clock, stage, saves = ManualClock(), Stage(otherwise=COMMITTED), Saves()
    saves.before = lambda _: clock.advance(3)
    graph = [effect("a"), effect("b", "a"), effect("c", "b")]
    await finished(graph, limits(elapsed_ns=20), stage, saves, clock=clock)
    middle = next(save for save in saves.all if state_words(save) == "cpp")
    assert middle.elapsed_ns == 3
    again, fresh = Saves(), ManualClock(10**12)
    again.before = lambda _: fresh.advance(8)
    last = await finished(graph, limits(elapsed_ns=20), stage, again, clock=fresh, checkpoint=middle)
    assert (last.stop_reason, state_words(last)) == (StopReason.BUDGET_EXHAUSTED, "ccv")
    assert last.elapsed_ns == 3 + 8 * 4


@pytest.mark.contract("A-71", "A-08")
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 5])
async def test_a_save_that_raises_stops_the_run_and_is_the_last_one(fail_at: int) -> None:
    stage = Stage(otherwise=COMMITTED)
    saves = Saves(stage, fail_at=fail_at)
    last = await finished([effect("a"), effect("b", "a")], limits(), stage, saves)
    assert last.stop_reason is StopReason.CHECKPOINT_FAILED
    assert saves.calls == fail_at
    assert stage.invoked == ["a", "b"][: fail_at // 2]
    assert state_words(last) == ["vp", "cp", "cv", "cc", "cc"][fail_at - 1]
    assert "canary" not in last.to_json()


@pytest.mark.contract("A-71", "A-44")
async def test_a_failed_save_stops_what_runs_and_collects_it() -> None:
    stage = Stage()
    saves = Saves(fail_at=3)
    run = asyncio.create_task(finished([read("a"), read("b"), read("c")], limits(concurrency=2), stage, saves))
    await turns()
    stage.end("a")
    last = await run
    assert (last.stop_reason, state_words(last), stage.cancelled) == (StopReason.CHECKPOINT_FAILED, "cvp", ["b"])
    assert stage.signals["b"].cancelled


@pytest.mark.contract("A-75")
@pytest.mark.parametrize("answer", [True, 0, "saved", {}], ids=repr)
async def test_a_save_that_returns_anything_is_a_failed_one(answer: object) -> None:
    stage, odd = Stage(), []

    def save(checkpoint: SchedulerCheckpoint) -> Any:
        odd.append(checkpoint)
        return answer

    last = await finished([effect("a")], limits(), stage, save)
    assert (last.stop_reason, len(odd), stage.invoked) == (StopReason.CHECKPOINT_FAILED, 1, [])


@pytest.mark.contract("A-84")
@pytest.mark.parametrize("reason", list(StopReason))
async def test_a_stopped_checkpoint_is_returned_as_it_is(reason: StopReason) -> None:
    complete = reason is StopReason.COMPLETED
    stage, saves = Stage({"a": COMMITTED, "b": COMMITTED if complete else FAILED}), Saves()
    done = await finished([effect("a"), effect("b")], limits(), stage, saves)
    stopped = SchedulerCheckpoint.from_dict({**done.to_dict(), "stop_reason": reason.value})
    fresh, untouched = Stage(), Saves()
    scheduler = ActionScheduler([effect("a"), effect("b")], limits(), fresh, untouched)
    assert await scheduler.run(RUN, checkpoint=stopped) is stopped
    assert (fresh.invoked, untouched.all) == ([], [])


@pytest.mark.contract("A-85", "A-70")
@pytest.mark.parametrize(("answer", "words"), [(FAILED, "fp"), (REVIEW, "vp"), (None, "rp")])
async def test_a_checkpoint_with_unsettled_work_dispatches_nothing(answer: object, words: str) -> None:
    stage, saves = Stage({"a": answer or COMMITTED}, otherwise=COMMITTED), Saves()
    await finished([effect("a"), effect("b")], limits(), stage, saves)
    unsettled = next(save for save in saves.all if state_words(save) == words)
    fresh, again = Stage(), Saves()
    last = await finished([effect("a"), effect("b")], limits(), fresh, again, checkpoint=unsettled)
    assert (last.stop_reason, fresh.invoked) == (StopReason.REVIEW_REQUIRED, [])
    assert state_words(last) == words.replace("r", "v")
    assert again.all == [last]
    assert last.admitted_actions == unsettled.admitted_actions


@pytest.mark.contract("A-86", "A-88", "A-80")
async def test_r49_every_clean_snapshot_goes_on_to_the_same_end_and_stays_as_it_was() -> None:
    graph = [effect("a"), read("b", "a"), read("c", "a"), effect("d", "b", "c")]
    whole, saves = Stage(otherwise=COMMITTED), Saves()
    done = await finished(graph, limits(actions=4, units=4), whole, saves)
    clean = [save for save in saves.all if set(state_words(save)) <= set("cp")]
    assert len(clean) == 4
    for save in clean:
        stage, before = Stage(otherwise=COMMITTED), save.to_json()
        last = await finished(
            graph, limits(actions=4, units=4), stage, checkpoint=SchedulerCheckpoint.from_dict(save.to_dict())
        )
        assert last.states == done.states
        assert last.stop_reason is StopReason.COMPLETED
        assert last.admitted_actions == 4
        assert stage.invoked == [key for key, state in save.states if state is ActionState.PENDING]
        await finished(graph, limits(actions=4, units=4), Stage(otherwise=COMMITTED), checkpoint=save)
        assert save.to_json() == before


@pytest.mark.contract("A-87")
async def test_r56_a_second_run_at_once_is_refused_and_the_first_goes_on() -> None:
    stage = Stage()
    scheduler = ActionScheduler([effect("a")], limits(), stage, Saves())
    first = asyncio.create_task(scheduler.run(RUN))
    await turns()
    with pytest.raises(SchedulerError, match=r"^scheduler_already_running$"):
        await scheduler.run(RUN)
    stage.end("a")
    assert (await first).stop_reason is StopReason.COMPLETED


@pytest.mark.contract("A-87")
async def test_r50_a_refused_resume_leaves_nothing_behind_for_the_next_run() -> None:
    stage, saves = Stage(otherwise=COMMITTED), Saves()
    scheduler = ActionScheduler([effect("a")], limits(), stage, saves)
    with pytest.raises(SchedulerError, match=r"^invalid_action$"):
        scheduler.why("a")
    done = await scheduler.run(RUN)
    other = SchedulerCheckpoint.from_dict({**done.to_dict(), "run_id": RunId.generate().serialize()})
    with pytest.raises(SchedulerError, match=r"^checkpoint_identity_mismatch$"):
        await scheduler.run(RUN, checkpoint=other)
    saves.all.clear()
    again = await scheduler.run(RUN)
    assert (again, state_words(saves.all[0])) == (saves.last, "r")
    assert again.states == done.states
    assert scheduler.why("a").cause is Cause.SETTLED


@pytest.mark.contract("A-08", "A-87")
async def test_the_arguments_of_a_run_are_held_to_their_types() -> None:
    scheduler: Any = ActionScheduler([effect("a")], limits(), Stage(), Saves())
    for arguments, named, code in (
        (("run_" + "a" * 32,), {}, "invalid_run_id"),
        ((RUN,), {"cancellation": True}, "invalid_cancellation"),
        ((RUN,), {"checkpoint": {}}, "invalid_checkpoint"),
    ):
        coroutine = scheduler.run(*arguments, **named)
        assert code_of(coroutine.send, None) == code


@pytest.mark.contract("A-40")
async def test_a_read_passes_the_dispatcher_like_any_effect_and_each_is_asked_for_once() -> None:
    stage = Stage(otherwise=COMMITTED)
    await finished([read("a"), effect("b"), read("c", "a")], limits(), stage)
    assert stage.invoked == ["a", "b", "c"]
    assert all(isinstance(signal, CancellationSignal) for signal in stage.signals.values())


@pytest.mark.contract("A-45", "A-72")
async def test_r52_what_a_run_leaves_behind_is_nothing_but_its_last_snapshot() -> None:
    stage = Stage(otherwise=COMMITTED)
    tasks = asyncio.all_tasks()
    await finished([read(f"n{number}") for number in range(50)], limits(), stage)
    await turns()
    gc.collect()
    assert asyncio.all_tasks() == tasks
    loop: Any = asyncio.get_running_loop()
    assert [each for each in loop._scheduled if not each.cancelled()] == []


async def test_dispatches_that_begin_and_end_while_they_are_created_are_collected_all_the_same() -> None:
    loop, signal = asyncio.get_running_loop(), CancellationSignal()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))  # from Python 3.12 on
    stage = Stage(otherwise=COMMITTED)
    last = await finished([read("a"), read("b"), effect("c", "a")], limits(), stage, cancellation=signal)
    assert (last.stop_reason, stage.invoked) == (StopReason.COMPLETED, ["a", "b", "c"])
