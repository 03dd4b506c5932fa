"""The asyncio loop around a plan: admit, save, look, act; collect, save, look; until nothing more may happen."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from interlock.actions.checkpoint import ActionState, SchedulerCheckpoint, StopReason
from interlock.actions.dispatch import CancellationSignal, DispatchOutcome, GuardedDispatcher, RunSignal
from interlock.actions.identifiers import RunId
from interlock.actions.plan import Plan
from interlock.actions.stopwatch import NANOSECONDS, Stopwatch

SaveCheckpoint = Callable[[SchedulerCheckpoint], Awaitable[None] | None]

_LOOK_SECONDS: Final = 0.01
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
    """One execution of a plan, in one task. Its own dispatches, and one save at a time, are its only other tasks.

    What stops it first is its stop reason. A save that fails outweighs that, and is the last one.
    """

    def __init__(
        self, plan: Plan, run_id: RunId, host: Collaborators, elapsed_ns: int, caller: CancellationSignal
    ) -> None:
        """Prepare a run that has been running for `elapsed_ns` before."""
        self.plan = plan
        self.stop: StopReason | None = None
        self.left: dict[int, asyncio.Task[None]] = {}
        """The dispatches that outlived the drain, by rank."""
        self._run_id = run_id
        self._host = host
        self._dispatch = host.dispatcher.dispatch
        self._stopwatch = Stopwatch(host.clock, elapsed_ns)
        self._caller = caller
        self._signal = RunSignal(caller)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._uninvoked: dict[asyncio.Task[None], int] = {}
        self._finished: deque[tuple[int, ActionState]] = deque()
        self._admitted: int | None = None
        self._saves = True
        self._saving: asyncio.Future[object] | None = None
        self._at_rest = False
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        owner = asyncio.current_task()
        self._cancelling: Callable[[], int] = int if owner is None else owner.cancelling
        self._cancelled_before = self._cancelling()
        self._interrupts = 0
        self._passed_on = 0
        self._waiter: asyncio.Future[None] | None = None
        self._overdue = False
        self._timer: asyncio.TimerHandle | None = None
        # A signal that answers for itself may change without a word, as a clock of the caller's own does.
        answers_itself = type(caller).cancelled is not CancellationSignal.cancelled
        self._looks_often = answers_itself and not isinstance(caller, RunSignal)

    async def execute(self) -> SchedulerCheckpoint:
        """Go from the first admission to the final checkpoint, and raise a cancellation of the task only then."""
        forget = self._caller.observe(self._hear)
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
            self._signal.release()
            self._disarm()
            self._request_stop()
        if self._interrupts:
            raise asyncio.CancelledError
        if self._cancelling() > self._cancelled_before:
            await asyncio.sleep(0)  # raises the cancellation that came while nothing was awaited
        return result

    async def _advance(self) -> None:
        """Proceed whenever something has happened, until something stops the run."""
        self._proceed()
        while self.stop is None:
            self._at_rest = self._saving is None
            if self._at_rest:
                self._arm()
            await self._sleep()
            self._at_rest = False
            if self._saving is None:
                self._look()
            self._proceed()

    def _proceed(self) -> None:
        """Collect before admitting, admit before waiting, until there is something to wait for, or a stop.

        Peers that finished while an admission was saved come before its dispatch: the verdict of one may stop the run.
        """
        while self._is_saved():
            if self.stop is not None:
                self._withdraw()
                break
            if self._finished:
                self._collect()
            elif self._admitted is not None:
                self._begin(self._admitted)
            elif (rank := self.plan.admit()) is not None:
                self._admitted = rank
                self._save(self.plan.snapshot(self._stopwatch.elapsed_ns))
            elif self._tasks:
                break
            else:
                self._halt(self.plan.conclusion)

    def _begin(self, rank: int) -> None:
        """Start the dispatch of an admission that is saved."""
        self._admitted = None
        task = self._loop.create_task(self._invoke(rank))
        self._tasks[rank] = task
        self._uninvoked[task] = rank
        task.add_done_callback(self._end_uninvoked)

    async def _invoke(self, rank: int) -> None:
        """Call the dispatcher, unless the run was stopped between the admission and this first step."""
        task = self._tasks[rank]
        del self._uninvoked[task]
        task.remove_done_callback(self._end_uninvoked)
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

    def _end_uninvoked(self, task: asyncio.Task[None]) -> None:
        """Report for a task that was cancelled before its first step: such a one runs none of its code."""
        self._report(self._uninvoked.pop(task), None)

    def _report(self, rank: int, outcome: object) -> None:
        """Take a result in the instant that it is there; a bad one stops peers that were not invoked yet."""
        if rank in self.left:
            return
        state, reason = _VERDICTS[outcome] if type(outcome) is DispatchOutcome else _UNCERTAIN
        self._finished.append((rank, state))
        if reason is not None:
            self._halt(StopReason.CANCELLED if self._is_stopping() else reason)
        # With a peer in flight the run waits for its turn on the loop: the peer may finish in this one.
        if self._at_rest and len(self._tasks) == 1:
            self._context.run(self._proceed_at_once)
        else:
            self._wake()

    def _proceed_at_once(self) -> None:
        """Proceed from where the only dispatch in flight has ended, which spares the loop a turn."""
        self._at_rest = False
        self._look()
        self._proceed()
        self._at_rest = self.stop is None and self._saving is None
        if not self._at_rest:
            self._wake()

    def _collect(self) -> None:
        """Settle one finished action and save that, before anything that follows from it."""
        rank, state = self._finished.popleft()
        self._tasks.pop(rank, None)
        self.plan.settle(rank, state)
        self._save(self.plan.snapshot(self._stopwatch.elapsed_ns))

    async def _drain(self) -> None:
        """Wait for what runs to end, having asked it to, and no longer than the caller allows."""
        await self._until_saved()
        self._withdraw()
        self._disarm()
        if self._tasks:
            self._request_stop()
            if self._host.drain_timeout_ns is not None:
                self._timer = self._loop.call_later(self._host.drain_timeout_ns / NANOSECONDS, self._give_up)
        while self._tasks or self._finished:
            if self._finished:
                self._collect()
                await self._until_saved()
            elif self._overdue:
                self._leave()
            else:
                await self._linger()

    def _withdraw(self) -> None:
        """Give up an admission that is saved and was not begun. To whoever reads the save it is uncertain."""
        if self._admitted is not None:
            self._finished.append((self._admitted, ActionState.REVIEW_REQUIRED))
            self._admitted = None

    async def _linger(self) -> None:
        """Wait in the drain. A further cancellation is passed on: a dispatch may have swallowed the one before."""
        if self._interrupts == self._passed_on:
            await self._sleep()
        if self._interrupts > self._passed_on:
            self._request_stop()

    def _leave(self) -> None:
        """Give up waiting. What still runs is uncertain; what it says later changes nothing any more."""
        self.left, self._tasks = self._tasks, {}
        self._finished.extend((rank, ActionState.REVIEW_REQUIRED) for rank in sorted(self.left))

    async def _conclude(self) -> SchedulerCheckpoint:
        """The final checkpoint. Where it cannot be saved, it says that."""
        result = self.plan.snapshot(self._stopwatch.elapsed_ns, self.stop)
        self._save(result)
        await self._until_saved()
        if self.stop is not result.stop_reason:
            return self.plan.snapshot(self._stopwatch.elapsed_ns, self.stop)
        return result

    def _look(self) -> None:
        """Look at the signal and at the clock."""
        readable = self._stopwatch.read()
        if self.stop is not None:
            return
        if self._is_stopping():
            self._halt(StopReason.CANCELLED)
        elif not readable:
            self._halt(StopReason.CLOCK_FAILED)
        elif self._stopwatch.elapsed_ns >= self.plan.limits.max_elapsed_ns:
            self._halt(StopReason.BUDGET_EXHAUSTED)

    def _is_stopping(self) -> bool:
        """Whether the run has stopped, or is wanted to."""
        return self._signal.cancelled or self._interrupts > 0 or self._cancelling() > self._cancelled_before

    def _halt(self, reason: StopReason) -> None:
        """Stop for the first reason there is. Every dispatch reads it from its signal at once."""
        if self.stop is None:
            self.stop = reason
            self._signal.cancel()

    def _save(self, checkpoint: SchedulerCheckpoint) -> None:
        """Hand over one snapshot. Where it gives something to wait for, nothing happens until `_is_saved`."""
        if not self._saves:
            return
        try:
            pending: object = self._host.save_checkpoint(checkpoint)
            if pending is not None:
                self._saving = _as_future(pending)
                self._saving.add_done_callback(self._wake)
                return
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the store is the caller's own code
            self._save_no_more()
        self._look()

    def _is_saved(self) -> bool:
        """Whether no save is in flight. One that was is judged here, before anything that follows from it."""
        save = self._saving
        if save is None:
            return True
        if not save.done():
            return False
        self._saving = None
        if save.cancelled() or save.exception() is not None or save.result() is not None:
            self._save_no_more()
        self._look()
        return True

    async def _until_saved(self) -> None:
        """Wait for a save to end. It is a task of its own, so a cancellation of this one does not reach it."""
        while not self._is_saved():
            await self._sleep()

    def _save_no_more(self) -> None:
        """After a save that failed nobody knows what is stored: nothing may follow it."""
        self._saves = False
        self.stop = StopReason.CHECKPOINT_FAILED
        self._signal.cancel()

    async def _sleep(self) -> None:
        """Wait until something happens. A cancellation is only counted: whoever slept looks, and acts on it.

        Whatever wakes also leaves something to see. Nothing is awaited between seeing none of that and sleeping, so no
        wake-up is lost.
        """
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._interrupts += 1
        self._waiter = None

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hear(self) -> None:
        # A signal belongs to the run's loop; one that is set from another thread is heard all the same.
        self._loop.call_soon_threadsafe(self._wake)

    def _request_stop(self) -> None:
        self._passed_on = self._interrupts
        for task in self._tasks.values():
            task.cancel()

    def _arm(self) -> None:
        """Have the clock looked at again: when the time is up, or soon where that cannot be waited for."""
        if self._timer is None:
            seconds = self._stopwatch.seconds_until(self.plan.limits.max_elapsed_ns)
            wait = _LOOK_SECONDS if self._looks_often or seconds is None else seconds
            self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake()

    def _give_up(self) -> None:
        self._overdue = True
        self._wake()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _as_future(pending: object) -> asyncio.Future[object]:
    """The task or future of an awaited save.

    Raises:
        TypeError: It is nothing that can be awaited.
        ValueError: It belongs to another loop.
    """
    if not inspect.isawaitable(pending):
        raise TypeError
    future: asyncio.Future[object] = asyncio.ensure_future(pending)
    if future.get_loop() is not asyncio.get_running_loop():
        raise ValueError
    return future
