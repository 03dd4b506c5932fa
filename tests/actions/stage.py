"""What the tests of the run level share: graphs in a line, and dispatchers, stores and clocks that the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from interlock.actions import (
    ActionNode,
    ActionScheduler,
    ActionState,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
)

TOOL = "tool:example.agent/act"
RUN = RunId.parse("run_" + "5" * 32)
COMMITTED, FAILED, REVIEW = DispatchOutcome.COMMITTED, DispatchOutcome.FAILED, DispatchOutcome.REVIEW_REQUIRED


def effect(key: str, *needs: str, units: int = 1) -> ScheduledAction:
    return ScheduledAction(ActionNode(key, TOOL, needs), resource_units=units)


def read(key: str, *needs: str, units: int = 1) -> ScheduledAction:
    return ScheduledAction(ActionNode(key, TOOL, needs), read_only=True, resource_units=units)


def limits(
    *,
    concurrency: int = 4,
    actions: int = 100,
    inflight: int = 100,
    units: int = 1_000,
    elapsed_ns: int = 10**15,
    parallel: bool = True,
) -> SchedulerLimits:
    return SchedulerLimits(concurrency, actions, inflight, units, elapsed_ns, parallel_reads=parallel)


async def turns(count: int = 20) -> None:
    """Let the loop go round until everything that can happen by itself has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


class ManualClock:
    """Nanoseconds that stand still until the test moves them."""

    def __init__(self, now: object = 1_000) -> None:
        self.now = now
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now  # type: ignore[return-value]  # some tests give what no clock may

    def advance(self, nanoseconds: int) -> None:
        assert isinstance(self.now, int)
        self.now += nanoseconds


Answer = DispatchOutcome | BaseException | object


class Stage:
    """A dispatcher whose invocations wait until the test ends them, unless `script` has their answer already."""

    def __init__(self, script: dict[str, Answer] | None = None, *, otherwise: Answer | None = None) -> None:
        self.invoked: list[str] = []
        self.running: set[str] = set()
        self.cancelled: list[str] = []
        self.signals: dict[str, CancellationSignal] = {}
        self.log: list[str] = []
        self._script = script or {}
        self._otherwise = otherwise
        self._gates: dict[str, asyncio.Future[Answer]] = {}

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        assert run_id == RUN
        key = node.action_id
        self.invoked.append(key)
        self.log.append(f"dispatch {key}")
        self.signals[key] = cancellation
        self.running.add(key)
        try:
            answer = self._script.get(key, self._otherwise)
            if answer is None:
                gate = self._gates[key] = asyncio.get_running_loop().create_future()
                answer = await gate
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        finally:
            self.running.discard(key)
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # some tests answer what no dispatcher may

    def end(self, key: str, answer: Answer = COMMITTED) -> None:
        self._gates[key].set_result(answer)


class Saves:
    """A synchronous store in memory. `fail_at` is the number of the save that raises, from 1."""

    def __init__(self, stage: Stage | None = None, *, fail_at: int = 0) -> None:
        self.all: list[SchedulerCheckpoint] = []
        self.before: Callable[[SchedulerCheckpoint], object] = lambda _: None
        self._log = [] if stage is None else stage.log
        self._fail_at = fail_at
        self.calls = 0

    def __call__(self, checkpoint: SchedulerCheckpoint) -> None:
        self.calls += 1
        self.before(checkpoint)
        if self.calls == self._fail_at:
            message = "canary-store"
            raise OSError(message)
        self.all.append(checkpoint)
        changed = " ".join(f"{key}={state}" for key, state in checkpoint.changed or ())
        self._log.append(f"save {checkpoint.stop_reason or changed}")

    @property
    def last(self) -> SchedulerCheckpoint:
        return self.all[-1]


class SlowSaves:
    """An awaited store: each save waits for the test."""

    def __init__(self) -> None:
        self.begun: list[SchedulerCheckpoint] = []
        self.ended = 0
        self.cancelled = 0
        self.next = asyncio.Event()
        self._gate: asyncio.Future[object] | None = None

    async def __call__(self, checkpoint: SchedulerCheckpoint) -> None:
        assert len(self.begun) == self.ended, "two saves in flight"
        self.begun.append(checkpoint)
        self.next.set()
        self._gate = asyncio.get_running_loop().create_future()
        try:
            answer = await self._gate
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # some tests answer what no store may

    @property
    def waiting(self) -> bool:
        return self._gate is not None and not self._gate.done()

    async def end(self, answer: object = None) -> None:
        """End the save in flight, and see what that leads to."""
        await turns()
        assert self._gate is not None
        self._gate.set_result(answer)
        await turns()

    async def end_all(self) -> None:
        await turns()
        while self.waiting:
            await self.end()


def states(checkpoint: SchedulerCheckpoint) -> dict[str, ActionState]:
    return dict(checkpoint.states)


def state_words(checkpoint: SchedulerCheckpoint) -> str:
    """The states by their initials, in the order of the ids: p, r, c, f, or v for review."""
    letters = {ActionState.REVIEW_REQUIRED: "v"}
    return "".join(letters.get(state, state.value[0]) for _, state in checkpoint.states)


async def finished(
    actions: Iterable[ScheduledAction],
    bounds: SchedulerLimits,
    stage: Stage,
    saves: Callable[[SchedulerCheckpoint], Awaitable[None] | None] | None = None,
    **more: object,
) -> SchedulerCheckpoint:
    """Run a graph to its end."""
    clock = more.pop("clock", None)
    extra = {} if clock is None else {"clock": clock}
    scheduler = ActionScheduler(actions, bounds, stage, saves or Saves(stage), **extra)  # type: ignore[arg-type]
    return await scheduler.run(RUN, **more)  # type: ignore[arg-type]
