"""The asyncio loop around a plan: admit, save, look, act, collect, save, look, until nothing more may happen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from interlock.actions.checkpoint import ActionState, SchedulerCheckpoint, StopReason
from interlock.actions.dispatch import CancellationSignal, DispatchOutcome, GuardedDispatcher, RunSignal
from interlock.actions.identifiers import RunId
from interlock.actions.plan import Plan
from interlock.actions.stopwatch import Stopwatch
from interlock.clock import monotonic_ns
from interlock.telemetry import Event, emit

SaveCheckpoint = Callable[[SchedulerCheckpoint], Awaitable[None] | None]

POLL_SECONDS: Final = 0.01
NANOSECONDS: Final = 1_000_000_000
_UNCERTAIN: Final = (ActionState.REVIEW_REQUIRED, StopReason.REVIEW_REQUIRED)
_VERDICTS: Final = {
    DispatchOutcome.COMMITTED: (ActionState.COMMITTED, None),
    DispatchOutcome.FAILED: (ActionState.FAILED, StopReason.DISPATCH_FAILED),
    DispatchOutcome.REVIEW_REQUIRED: _UNCERTAIN,
}


@dataclass(frozen=True, slots=True)
class Collaborators:
    """What a run is given to act with."""

    dispatcher: GuardedDispatcher
    save_checkpoint: SaveCheckpoint
    clock: Callable[[], int]
    drain_timeout_ns: int | None


class Run:
    """One execution of a plan, in one task. Its own dispatches are its only other tasks."""

    def __init__(
        self,
        plan: Plan,
        run_id: RunId,
        host: Collaborators,
        elapsed_ns: int,
        caller: CancellationSignal,
    ) -> None:
        """Prepare a run that has been running for `elapsed_ns` before."""
        self.plan = plan
        self.stop: StopReason | None = None
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """The dispatches that have not reported, by rank. What is left in it when the run ends outlived its drain."""
        self._run_id = run_id
        self._name = run_id.serialize()
        self._host = host
        self._dispatch = host.dispatcher.dispatch
        self._watch = Stopwatch(host.clock, elapsed_ns)
        self._caller = caller
        self._signal = RunSignal(caller)
        self._finished: deque[tuple[int, ActionState]] = deque()
        self._loop = asyncio.get_running_loop()
        owner = asyncio.current_task()
        self._cancelling: Callable[[], int] = int if owner is None else owner.cancelling
        self._cancelled_before = self._cancelling()
        self._interrupted = False
        self._saves = True
        self._draining = False
        self._overdue = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The default clock is the loop's own, so one timer is exact. Any other clock, and a signal that answers for
        # itself, can only be looked at.
        self._timed = host.clock is monotonic_ns
        self._polled = not self._timed or type(caller).cancelled is not CancellationSignal.cancelled

    async def execute(self) -> SchedulerCheckpoint:
        """Go from the first admission to the final checkpoint, and raise a cancellation of the task only then."""
        forget = self._caller.observe(self._on_cancel)
        try:
            if self.plan.unresolved:
                self.plan.abandon()
                self._halt(StopReason.REVIEW_REQUIRED)
            self._look()
            await self._advance()
            await self._drain()
            result = await self._conclude()
        finally:
            forget()
            self._disarm()
            self._cancel_tasks()
        if self._interrupted:
            raise asyncio.CancelledError
        if self._cancelling() > self._cancelled_before:
            await asyncio.sleep(0)  # raises the cancellation that came while nothing was awaited
        return result

    async def _advance(self) -> None:
        """Collect before admitting, admit before waiting, until something stops the run."""
        while self.stop is None:
            if self._finished:
                await self._collect()
            elif (rank := self.plan.admit()) is not None:
                await self._begin(rank)
            elif self.tasks:
                await self._wait()
                self._look()
            else:
                self._halt(self.plan.conclusion)

    async def _begin(self, rank: int) -> None:
        """Save an admission ahead of its dispatch, and start it unless something has stopped the run meanwhile."""
        await self._save(self.plan.snapshot(self._watch.elapsed_ns))
        emit(Event.ACTION_ADMITTED, run_id=self._name, action_id=self.plan.action_id(rank))
        self._look()
        if self.stop is not None:
            self._finished.append((rank, ActionState.REVIEW_REQUIRED))
            return
        task = self._loop.create_task(self._invoke(rank))
        self.tasks[rank] = task
        # A task that is cancelled before its first step runs none of its code, and so cannot report.
        task.add_done_callback(partial(self._report, rank))

    async def _invoke(self, rank: int) -> None:
        """Call the dispatcher, unless the run was stopped between the admission and this first step."""
        outcome: object = None
        try:
            if not self._is_stopping():
                outcome = await self._dispatch(self._run_id, self.plan.node(rank), self._signal)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001, S110 - whatever it was, the work is uncertain, and its text is nobody's
            pass
        finally:
            self._report(rank, outcome)

    def _report(self, rank: int, outcome: object) -> None:
        """Take a result in the instant that it is there; a bad one stops peers that were not invoked yet."""
        if self.tasks.pop(rank, None) is None:
            return
        state, reason = _VERDICTS[outcome] if type(outcome) is DispatchOutcome else _UNCERTAIN
        self._finished.append((rank, state))
        if reason is not None:
            self._halt(StopReason.CANCELLED if self._is_stopping() else reason)
        self._wake()

    async def _collect(self) -> None:
        """Settle one finished action and save that, before anything that follows from it."""
        rank, state = self._finished.popleft()
        self.plan.settle(rank, state)
        self._look()
        await self._save(self.plan.snapshot(self._watch.elapsed_ns))
        emit(Event.ACTION_ENDED, run_id=self._name, action_id=self.plan.action_id(rank), state=state.value)
        self._look()

    async def _drain(self) -> None:
        """Wait for what runs to end, having asked it to, and no longer than the caller allows."""
        if self.tasks:
            self._draining = True
            self._cancel_tasks()
            self._disarm()
            if self._host.drain_timeout_ns is not None:
                self._timer = self._loop.call_later(self._host.drain_timeout_ns / NANOSECONDS, self._give_up)
        while self._finished or (self.tasks and not self._overdue):
            if self._finished:
                await self._collect()
            else:
                await self._sleep()
        for rank in self.tasks:
            self.plan.settle(rank, ActionState.REVIEW_REQUIRED)

    async def _conclude(self) -> SchedulerCheckpoint:
        """The final checkpoint. Where it cannot be saved, it says that."""
        self._watch.read()
        result = self.plan.snapshot(self._watch.elapsed_ns, self.stop)
        await self._save(result)
        if self.stop is not result.stop_reason:
            result = self.plan.snapshot(self._watch.elapsed_ns, self.stop)
        emit(Event.RUN_ENDED, run_id=self._name, stop_reason=str(self.stop))
        return result

    def _look(self) -> None:
        """Look at the signal and at the clock."""
        self._watch.read()
        if self.stop is not None:
            return
        if self._is_stopping():
            self._halt(StopReason.CANCELLED)
        elif self._watch.failed:
            self._halt(StopReason.CLOCK_FAILED)
        elif self._watch.elapsed_ns >= self.plan.limits.max_elapsed_ns:
            self._halt(StopReason.BUDGET_EXHAUSTED)

    def _is_stopping(self) -> bool:
        """Whether the run has stopped, or is wanted to."""
        return self._signal.cancelled or self._interrupted or self._cancelling() > self._cancelled_before

    def _halt(self, reason: StopReason) -> None:
        """Stop for the first reason there is. Every dispatch reads it from its signal at once."""
        if self.stop is None:
            self.stop = reason
            self._signal.cancel()

    async def _save(self, checkpoint: SchedulerCheckpoint) -> None:
        """Hand over one snapshot and see it through. After a failure nobody knows what is stored: nothing follows."""
        if not self._saves:
            return
        try:
            pending: object = self._host.save_checkpoint(checkpoint)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the store is the caller's own code
            saved = False
        else:
            saved = pending is None or await self._is_saved(pending)
        if not saved:
            self._saves = False
            self.stop = StopReason.CHECKPOINT_FAILED
            self._signal.cancel()

    async def _is_saved(self, pending: object) -> bool:
        """Wait for an awaited save to end, whoever is cancelled meanwhile."""
        if not isinstance(pending, Awaitable):
            return False
        future: asyncio.Future[object] = asyncio.ensure_future(pending)
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError:
                self._interrupt()
        return not future.cancelled() and future.exception() is None and future.result() is None

    async def _wait(self) -> None:
        """Sleep until something happens or time is up."""
        poll = self._loop.call_later(POLL_SECONDS, self._wake) if self._polled else None
        if self._timed and self._timer is None:
            remaining_ns = self.plan.limits.max_elapsed_ns - self._watch.elapsed_ns
            self._timer = self._loop.call_later(remaining_ns / NANOSECONDS, self._on_deadline)
        await self._sleep()
        if poll is not None:
            poll.cancel()

    async def _sleep(self) -> None:
        """Sleep until `_wake`, or until the task is cancelled."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._interrupt()
        self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _interrupt(self) -> None:
        """Note a cancellation of the task. During the drain it is passed on again."""
        self._interrupted = True
        if self._draining:
            self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        for task in self.tasks.values():
            task.cancel()

    def _on_cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _on_deadline(self) -> None:
        self._timer = None
        self._wake()

    def _give_up(self) -> None:
        self._overdue = True
        self._wake()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
