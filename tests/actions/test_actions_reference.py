"""Random graphs, limits, verdicts, orders, cancellations, clock steps and failing saves, against a plain reference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actions.reference import Reference, Script, ended_together
from actions.stage import COMMITTED, FAILED, REVIEW, RUN, ManualClock, effect, read, state_words, turns
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
_ROUNDS = 400


class Scripted:
    """The real run under a script: its dispatcher, its store, its clock and its events."""

    def __init__(
        self, actions: list[ScheduledAction], bounds: SchedulerLimits, script: Script, *, awaited: bool
    ) -> None:
        self.trace: list[str] = []
        self.clock = ManualClock(0)
        self.signal = CancellationSignal()
        self._script = script
        self._awaited = awaited
        self._saved = 0
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._saving = False
        self._scheduler = ActionScheduler(actions, bounds, self, self.save, clock=self.clock)

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        assert run_id == RUN
        assert not cancellation.cancelled
        key = node.action_id
        self.trace.append(f"dispatch {key}")
        gate = self._gates[key] = asyncio.get_running_loop().create_future()
        try:
            await gate
        except asyncio.CancelledError:
            if key not in self._script.swallows:
                raise
        finally:
            del self._gates[key]
        word = self._script.answers[key]
        if word == "raises":
            raise RuntimeError
        answer: DispatchOutcome = ANSWERS[word]
        return answer

    def save(self, checkpoint: SchedulerCheckpoint) -> Awaitable[None] | None:
        if self._awaited:
            return self._save_slowly(checkpoint)
        self._save(checkpoint)
        return None

    async def _save_slowly(self, checkpoint: SchedulerCheckpoint) -> None:
        assert not self._saving
        self._saving = True
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            self._save(checkpoint)
        finally:
            self._saving = False

    def _save(self, checkpoint: SchedulerCheckpoint) -> None:
        self._saved += 1
        happens = self._script.saves.get(self._saved)
        if happens == "fail":
            raise OSError
        words = f"{state_words(checkpoint)} {checkpoint.admitted_actions} {checkpoint.reserved_units}"
        self.trace.append(f"save {words} {checkpoint.stop_reason}")
        if happens == "cancel":
            self.signal.cancel()
        elif isinstance(happens, int):
            self.clock.advance(happens)

    async def run(self) -> SchedulerCheckpoint | None:
        """Play the script to its end. None where the task was interrupted."""
        run = asyncio.create_task(self._scheduler.run(RUN, cancellation=self.signal))
        events = list(self._script.events)
        for _ in range(_ROUNDS):
            seen = -1
            while seen < len(self.trace) or self._saving:
                seen = len(self.trace)
                await turns(15)
            if run.done():
                break
            self._play(events, run)
            if self._waits_for_time(events):
                await asyncio.wait({run}, timeout=0.011)
        assert run.done()
        return None if run.cancelled() else run.result()

    def _play(self, events: list[tuple[str, int]], run: asyncio.Task[SchedulerCheckpoint]) -> None:
        kind, number = events.pop(0) if events else ("end", 0)
        running = [key for key, gate in self._gates.items() if not gate.done()]
        if kind == "end" and running:
            for key in ended_together(running, number) if events else running[:1]:
                self._gates[key].set_result(None)
        elif kind == "time":
            self.clock.advance(number)
            self._moved = True
        elif kind == "cancel":
            self.signal.cancel()
        elif kind == "interrupt":
            run.cancel()

    _moved = False

    def _waits_for_time(self, _: object) -> bool:
        moved, self._moved = self._moved, False
        return moved


@st.composite
def plays(draw: st.DrawFn) -> tuple[list[ScheduledAction], SchedulerLimits, Script]:
    keys = [f"n{number}" for number in range(draw(st.integers(1, 7)))]
    actions = []
    for place, key in enumerate(keys):
        needs = draw(st.lists(st.sampled_from(keys[:place]), max_size=2, unique=True)) if place else []
        kind = draw(st.sampled_from([read, read, effect]))
        actions.append(kind(key, *needs, units=draw(st.integers(1, 3))))
    often = st.sampled_from(["committed"] * 8 + ["failed", "review", "raises", "odd"])
    event = st.one_of(
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.sampled_from([("time", 3), ("time", 30), ("cancel", 0), ("interrupt", 0)]),
    )
    bounds = SchedulerLimits(
        max_concurrency=draw(st.integers(1, 4)),
        max_actions=draw(st.sampled_from([2, 4, 100])),
        max_inflight_units=draw(st.integers(2, 6)),
        max_total_units=draw(st.sampled_from([5, 100])),
        max_elapsed_ns=20,
        parallel_reads=draw(st.sampled_from([True, True, False])),
    )
    script = Script(
        answers={key: draw(often) for key in keys},
        events=tuple(draw(st.lists(event, max_size=5))),
        saves=draw(st.dictionaries(st.integers(1, 12), st.sampled_from(["fail", "cancel", 1, 25]), max_size=1)),
        swallows=frozenset(draw(st.sets(st.sampled_from(keys), max_size=2))),
    )
    return actions, bounds, script


# One read makes room for two, and the save of the second one's admission cancels the run: neither was invoked.
STOPPED_BETWEEN_TWO_ADMISSIONS = (
    [read("n0", units=2), read("n1"), read("n2")],
    SchedulerLimits(2, 4, 2, 5, 20, parallel_reads=True),
    Script(
        answers=dict.fromkeys(("n0", "n1", "n2"), "committed"), events=(), saves={4: "cancel"}, swallows=frozenset()
    ),
)


@pytest.mark.contract(
    "A-20", "A-21", "A-25", "A-26", "A-28", "A-30", "A-31", "A-41", "A-50", "A-60", "A-61", "A-70", "A-71"
)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "awaited"])
@settings(max_examples=4 * settings().max_examples)
@given(play=plays())
@example(play=STOPPED_BETWEEN_TWO_ADMISSIONS)
def test_a_run_saves_and_invokes_what_the_reference_does_in_the_same_order(awaited: bool, play: Any) -> None:  # noqa: FBT001 - a parameter of the test
    actions, bounds, script = play
    told = Reference(actions, bounds, script, awaited)
    told.run()
    scripted = Scripted(actions, bounds, script, awaited=awaited)
    last = asyncio.run(scripted.run())
    assert scripted.trace == told.trace
    assert (last is None) == told.interrupted
    if last is not None:
        assert (last.stop_reason, last.elapsed_ns <= told.now) == (told.reason, True)
        assert {key: state.value for key, state in last.states} == told.states
