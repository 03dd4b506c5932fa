"""Random graphs, limits, verdicts, orders, cancellations, clock steps and failing saves, against a plain reference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from actions.graphs import MOST_ACTIONS, graphs
from actions.reference import Event, Reference, Script, ended_together
from actions.stage import COMMITTED, FAILED, REVIEW, RUN, ManualClock, read, state_words, turns
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

ANSWERS: dict[str, Any] = {"committed": COMMITTED, "failed": FAILED, "review": REVIEW, "odd": "committed"}
_MOST_MOMENTS = 400
_BEGIN_NS = 1_000
_BROKEN_CLOCKS = (_BEGIN_NS - 1, True, 1.5, None, 2**63, RuntimeError("canary"))


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose timers are due when the test says so: a clock of the caller's own is looked at every 10 ms."""

    seconds = 0.0

    def time(self) -> float:
        return self.seconds


class Scripted:
    """The real run under a script: its dispatcher, its store, its clock and its events."""

    def __init__(
        self,
        actions: list[ScheduledAction],
        bounds: SchedulerLimits,
        script: Script,
        restored: SchedulerCheckpoint | None = None,
    ) -> None:
        self.trace: list[str] = []
        self.kept: list[SchedulerCheckpoint] = []
        self.task: asyncio.Task[SchedulerCheckpoint] | None = None
        self._clock = ManualClock(_BEGIN_NS)
        self._signal = CancellationSignal()
        self._script = script
        self._restored = restored
        self._saved = 0
        self._running: list[str] = []
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._saving = False
        drain_timeout_ns = None if script.drains else 0
        self.scheduler = ActionScheduler(
            actions, bounds, self, self.save, clock=self._clock, drain_timeout_ns=drain_timeout_ns
        )

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        assert run_id == RUN
        assert not cancellation.cancelled
        key = node.action_id
        self.trace.append(f"dispatch {key}")
        self._running.append(key)
        try:
            try:
                await self._gate(key)
            except asyncio.CancelledError:
                manner = self._script.stubborn.get(key)
                if manner is None:
                    raise
                if manner == "stays":
                    await self._gate(key)
        finally:
            self._running.remove(key)
        word = self._script.answers[key]
        if word == "raises":
            raise RuntimeError
        answer: DispatchOutcome = ANSWERS[word]
        return answer

    async def _gate(self, key: str) -> None:
        self._gates[key] = asyncio.get_running_loop().create_future()
        await self._gates[key]

    def save(self, checkpoint: SchedulerCheckpoint) -> Awaitable[None] | None:
        self._saved += 1
        if self._script.awaits(self._saved):
            return self._save_slowly(checkpoint)
        self._save(checkpoint)
        return None

    async def _save_slowly(self, checkpoint: SchedulerCheckpoint) -> None:
        assert not self._saving
        self._saving = True
        try:
            await turns(3)
            self._save(checkpoint)
            if self._script.saves.get(self._saved) == "end" and self._running:
                self._gates[self._running[0]].set_result(None)
                await turns(3)
        finally:
            self._saving = False

    def _save(self, checkpoint: SchedulerCheckpoint) -> None:
        happens = self._script.saves.get(self._saved)
        if happens == "fail":
            raise OSError
        numbers = f"{checkpoint.admitted_actions} {checkpoint.reserved_units} {checkpoint.elapsed_ns}"
        self.trace.append(f"save {state_words(checkpoint)} {numbers} {checkpoint.stop_reason}")
        self.kept.append(checkpoint)
        if happens == "cancel":
            self._signal.cancel()
        elif happens == "break":
            self._break_clock(self._saved)
        elif isinstance(happens, int):
            self._pass_time(happens)

    def _pass_time(self, nanoseconds: int) -> None:
        if type(self._clock.now) is int and self._clock.now >= _BEGIN_NS:
            self._clock.advance(nanoseconds)

    def _break_clock(self, number: int) -> None:
        self._clock.now = _BROKEN_CLOCKS[number % len(_BROKEN_CLOCKS)]

    async def begin(self) -> None:
        self.task = asyncio.create_task(self.scheduler.run(RUN, cancellation=self._signal, checkpoint=self._restored))
        await self._come_to_rest()

    async def happen(self, event: Event) -> None:
        """Let one event come, and everything that follows from it."""
        assert self.task is not None
        kind, number = event
        if kind == "end":
            for key in ended_together(self._running, number):
                self._gates[key].set_result(None)
        elif kind == "time":
            self._pass_time(number)
        elif kind == "break":
            self._break_clock(number)
        elif kind == "cancel":
            self._signal.cancel()
        else:
            self.task.cancel()
        await self._come_to_rest()
        if kind in {"time", "break"}:
            asyncio.get_running_loop().seconds += 0.011  # type: ignore[attr-defined]  # it is a SteppedLoop
            await self._come_to_rest()

    async def _come_to_rest(self) -> None:
        seen = -1
        while seen < len(self.trace) or self._saving:
            seen = len(self.trace)
            await turns(15)

    async def let_go(self) -> None:
        """End what the run left behind."""
        for key in self._running:
            self._gates[key].set_result(None)
        await self._come_to_rest()

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()


def bounds_of(draw: st.DrawFn, size: int) -> SchedulerLimits:
    return SchedulerLimits(
        max_concurrency=draw(st.sampled_from([1, 2, 4, 16])),
        max_actions=draw(st.sampled_from([100, 100, 100, 2, max(size - 1, 1)])),
        max_inflight_units=draw(st.sampled_from([3, 4, 5, 9, 30, 2])),
        max_total_units=draw(st.sampled_from([200, 200, 200, size + 10, 5])),
        max_elapsed_ns=draw(st.sampled_from([20, 90])),
        parallel_reads=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def plays(draw: st.DrawFn) -> tuple[list[ScheduledAction], SchedulerLimits, Script]:
    actions = draw(graphs())
    keys = [action.node.action_id for action in actions]
    few = st.sampled_from(keys)
    spoilt = draw(st.dictionaries(few, st.sampled_from(["failed", "review", "raises", "odd"]), max_size=2))
    happens: st.SearchStrategy[str | int] = st.sampled_from(["end", "end", "end", 1, 25, "fail", "cancel", "break"])
    script = Script(
        answers=dict.fromkeys(keys, "committed") | spoilt,
        saves=draw(st.dictionaries(st.integers(1, 2 * len(keys) + 1), happens, max_size=2)),
        stubborn=draw(st.dictionaries(few, st.sampled_from(["says", "stays"]), max_size=3)),
        awaited=tuple(draw(st.sampled_from([[False], [True], [True, False], [False, False, True]]))),
        drains=draw(st.sampled_from([True, True, False])),
    )
    return actions, bounds_of(draw, len(keys)), script


class SideBySide(RuleBasedStateMachine):
    """One run and its reference, event by event; and after its end, a run that is restored from one of its saves."""

    _loop: SteppedLoop | None = None

    @initialize(play=plays(), disturbed=st.sampled_from([False, True]))
    def start(self, play: tuple[list[ScheduledAction], SchedulerLimits, Script], disturbed: Any) -> None:
        self._disturbed = disturbed
        self.open(play)

    def open(self, play: tuple[list[ScheduledAction], SchedulerLimits, Script]) -> None:
        self._loop = SteppedLoop()
        self._play = play
        self._begin(None)

    def _begin(self, restored: SchedulerCheckpoint | None) -> None:
        self._told = Reference(*self._play, restored)
        self._moments = self._told.run()
        self._real = Scripted(*self._play, restored)
        self._told_all = next(self._moments, self) is self
        self._step(self._real.begin())
        self._compare()

    def _happen(self, event: Event) -> None:
        try:
            self._moments.send(event)
        except StopIteration:
            self._told_all = True
        self._step(self._real.happen(event))
        self._compare()

    @property
    def trace(self) -> list[str]:
        return self._real.trace

    def _step(self, what: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        self._loop.run_until_complete(what)

    def _compare(self) -> None:
        told, real = self._told, self._real
        assert real.trace == told.trace
        assert real.over == self._told_all
        task = real.task
        if not real.over or task is None:
            return
        assert task.cancelled() == told.interrupted
        assert list(real.scheduler.undrained) == told.left
        if not told.interrupted:
            last = task.result()
            assert (last.stop_reason, last.elapsed_ns) == (told.reason, told.elapsed)
            assert {key: state.value for key, state in last.states} == told.states

    @property
    def _goes_on(self) -> bool:
        return not self._real.over

    @precondition(lambda self: self._goes_on)
    @rule(number=st.integers(0, 19))
    def some_dispatches_end_together(self, number: int) -> None:
        self._happen(("end", number))

    @precondition(lambda self: self._goes_on and self._disturbed)
    @rule(nanoseconds=st.sampled_from([1, 3, 30]))
    def time_passes(self, nanoseconds: int) -> None:
        self._happen(("time", nanoseconds))

    @precondition(lambda self: self._goes_on and self._disturbed)
    @rule(number=st.integers(0, len(_BROKEN_CLOCKS) - 1))
    def the_clock_breaks(self, number: int) -> None:
        self._happen(("break", number))

    @precondition(lambda self: self._goes_on and self._disturbed)
    @rule(event=st.sampled_from([("cancel", 0), ("interrupt", 0)]))
    def somebody_cancels(self, event: Event) -> None:
        self._happen(event)

    @precondition(lambda self: not self._goes_on)
    @rule(number=st.integers(0, 2 * MOST_ACTIONS))
    def the_run_is_restored_or_begun_anew(self, number: int) -> None:
        self._step(self._real.let_go())
        kept = [None, *self._real.kept]
        self._begin(kept[number % len(kept)])

    def teardown(self) -> None:
        if self._loop is None:
            return
        try:
            for _ in range(_MOST_MOMENTS):
                if self._real.over:
                    break
                self._happen(("end", 0))
            assert self._real.over
        finally:
            self._step(self._real.let_go())
            self._loop.close()


@pytest.mark.contract("A-31")
def test_two_admissions_of_which_the_save_of_the_second_one_cancels_the_run_are_both_not_invoked() -> None:
    graph = [read("n0", units=2), read("n1"), read("n2")]  # the first makes room for two
    script = Script(dict.fromkeys(("n0", "n1", "n2"), "committed"), saves={4: "cancel"}, stubborn={})
    sides = SideBySide()
    sides.open((graph, SchedulerLimits(2, 4, 2, 5, 20, parallel_reads=True), script))
    sides.teardown()
    assert sides.trace[-1] == "save cvv 3 4 0 cancelled"


@pytest.mark.contract(
    *("A-20", "A-21", "A-25", "A-26", "A-28", "A-30", "A-31", "A-41", "A-50", "A-51", "A-60", "A-61"),
    *("A-64", "A-65", "A-70", "A-71", "A-73", "A-84", "A-85", "A-86"),
)
@pytest.mark.hypothesis
def test_a_run_saves_and_invokes_what_the_reference_does_in_the_same_order() -> None:
    run_state_machine_as_test(SideBySide, settings=settings(settings(), max_examples=4 * settings().max_examples))
