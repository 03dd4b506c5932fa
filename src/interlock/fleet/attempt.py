"""One attempt on this host: its lease is renewed, its worker is ended when it must be, and its end is reported."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from interlock.clock import Clock, jitter
from interlock.errors import InterlockError, LeaseSuperseded, ReportConflict, Unavailable
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, Ending, EndKind, GoalWork, HandOver, LeaseId, RunSave, Settlement
from interlock.fleet.service import HostService
from interlock.fleet.transitions import AttemptEnd
from interlock.telemetry import Event, emit

RETRY_SECONDS = 0.25
MARGIN_SHARE = 0.15
GRACE_SECONDS = 60.0
YEAR_SECONDS = 365 * 86_400.0


class Worker(Protocol):
    """The process of one attempt, and all that it started."""

    def tell_deadline(self, deadline: float) -> None:
        """Nothing may begin after this, in seconds of `Clock.elapsed()`."""
        ...

    def tell_cancel(self) -> None:
        """A person wants the task cancelled."""
        ...

    def tell_lost(self) -> None:
        """The lease is lost."""
        ...

    def hold(self) -> None:
        """Let an effect in flight finish, then withhold every answer, so that the run stands still at a clean point."""
        ...

    async def ended(self) -> Ending | None:
        """Wait until the worker has reported, stands still, or is gone: its report, or None where there is none."""
        ...

    async def stop(self, seconds: float) -> bool:
        """End the whole process tree: politely, after so many seconds by force. Says whether it is certainly gone."""
        ...


class Workers(Protocol):
    """Makes workers, and knows what a predecessor left."""

    async def start(self, assignment: Assignment, ledger: AttemptLedger, deadline: float) -> Worker:
        """Start the worker of an attempt. Raises `InterlockError` where it did not start."""
        ...

    def stopped(self, serial: str) -> bool:
        """Whether the last worker on this device is certainly gone, with all that it started."""
        ...

    async def clear_predecessors(self) -> Mapping[str, bool]:
        """End what earlier generations left; by serial, whether all of it is certainly gone."""
        ...


class _Ledger:
    """The attempt's ledger, over the host's session. A write is asked again for as long as its answer is of use."""

    def __init__(self, session: HostService, lease_id: LeaseId, clock: Clock, until: Callable[[], float]) -> None:
        self._session = session
        self._lease_id = lease_id
        self._clock = clock
        self._until = until

    async def save(self, save: RunSave) -> None:
        await self._written(lambda: self._session.save(self._lease_id, save))

    async def hand_over(self, entry: HandOver) -> None:
        await self._written(lambda: self._session.hand_over(self._lease_id, entry))

    async def withdraw(self, run_id: str, action_id: str) -> None:
        await self._written(lambda: self._session.withdraw(self._lease_id, run_id, action_id))

    async def settle(self, settlement: Settlement) -> None:
        await self._written(lambda: self._session.settle(self._lease_id, settlement))

    async def _written(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask until there is an answer, or the deadline that held when it was first asked is over.

        A later deadline proves that the store can be reached: what it still does not take then, it never will.
        """
        deadline = self._until()
        while True:
            try:
                await ask()
            except Unavailable:
                if self._clock.elapsed() >= min(deadline, self._until()):
                    raise
            else:
                return
            await self._clock.sleep(jitter(RETRY_SECONDS))

    async def output(self, action_id: str) -> object:
        return await self._session.output(self._lease_id, action_id)

    async def finish(self, ending: Ending) -> None:
        """Nothing: the keeper reports, once it knows what became of the processes."""


_LOST = Ending(EndKind.RELEASED, AttemptEnd.WORKER_LOST.value)


class AttemptKeeper:
    """Keeps one claimed attempt to its end. `over` is set when nothing of it runs any more, or nobody can tell."""

    def __init__(
        self,
        assignment: Assignment,
        sent: float,
        session: HostService,
        workers: Workers,
        clock: Clock,
        stop_seconds: float,
    ) -> None:
        self.assignment = assignment
        self.over = asyncio.Event()
        self._session = session
        self._workers = workers
        self._clock = clock
        self._stop_seconds = stop_seconds
        self._deadline = self._until(sent, assignment.lease_seconds)
        self._lost = False
        self._worker: Worker | None = None
        # Why the attempt must end although its worker goes on, and how long it may take to.
        self._must_end: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._held_for: float | None = None
        self._stops_at = math.inf

    @staticmethod
    def _until(sent: float, lease_seconds: float) -> float:
        """The local deadline: counted from when the request was sent, with a margin to stop in."""
        return sent + lease_seconds * (1 - MARGIN_SHARE)

    def _asks_until(self) -> float:
        """How long a write of the worker's is asked again: while the lease is surely good, and the worker is there."""
        return min(self._deadline, self._stops_at)

    def hold(self, drain_seconds: float) -> None:
        """Let the attempt come to its next clean point, but wait no longer than `drain_seconds` for that."""
        self._held_for = drain_seconds
        if self._worker is not None:
            self._worker.hold()
        asyncio.get_running_loop().call_later(drain_seconds, self._end_within, 0.0)

    def cancel(self) -> None:
        """A person wants the task cancelled: tell the worker, and end it when it does not listen."""
        if self._worker is not None:
            self._worker.tell_cancel()
        asyncio.get_running_loop().call_later(self._stop_seconds, self._end_within, self._stop_seconds)

    def kill(self) -> None:
        """End the attempt at once."""
        self._end_within(0.0)

    def _end_within(self, seconds: float) -> None:
        if not self._must_end.done():
            self._must_end.set_result(seconds)

    async def run(self) -> None:
        """Run the attempt and report its end."""
        renewing = asyncio.create_task(self._renew_until_lost())
        limit = asyncio.get_running_loop().call_later(self._longest(), self._end_within, self._stop_seconds)
        try:
            ending, stopped = await self._work()
            await self._report(ending, stopped=stopped)
        finally:
            renewing.cancel()
            limit.cancel()
            self.over.set()

    def _longest(self) -> float:
        """How long the worker may take by the task's own word, and a little more, as it stops in time by itself.

        The limits of a workflow are in its definition, which only its runner reads: that bounds it, and the lease.
        """
        work = self.assignment.work
        return work.max_elapsed_seconds + GRACE_SECONDS if isinstance(work, GoalWork) else YEAR_SECONDS

    async def _work(self) -> tuple[Ending, bool]:
        """The worker's report, or what its silence means, and whether all of its processes are certainly gone."""
        not_started = Ending(EndKind.RELEASED, AttemptEnd.NOT_STARTED.value)
        if self._held_for is not None:
            return not_started, True
        try:
            ledger = _Ledger(self._session, self.assignment.lease_id, self._clock, self._asks_until)
            self._worker = await self._workers.start(self.assignment, ledger, self._deadline)
        except InterlockError:
            return not_started, True
        if self.assignment.cancel_requested:
            self.cancel()
        if self._held_for is not None:
            self._worker.hold()
        ended = asyncio.create_task(self._worker.ended())
        awaited: set[asyncio.Future[Any]] = {ended, self._must_end}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        polite = self._politeness()
        self._stops_at = self._clock.elapsed() + polite
        stopped = await self._worker.stop(polite)
        ending = await ended
        reason = AttemptEnd.INTERRUPTED if self._held_for is not None else AttemptEnd.WORKER_LOST
        return ending or Ending(EndKind.RELEASED, reason.value), stopped

    def _politeness(self) -> float:
        """How long the worker may take to end by itself: no time where it stands still and would only be cancelled."""
        if self._must_end.done():
            return self._must_end.result()
        return self._stop_seconds if self._held_for is None else 0.0

    async def _renew_until_lost(self) -> None:
        """Renew in time; a failed renewal is not a loss, and is tried again until the local deadline."""
        pause = self.assignment.renew_seconds
        while True:
            await self._clock.sleep(min(jitter(pause, 0.1), max(0.0, self._deadline - self._clock.elapsed())))
            sent = self._clock.elapsed()
            if sent >= self._deadline:
                self._lose()
                return
            try:
                async with asyncio.timeout(max(0.05, self._deadline - sent)):
                    renewal = await self._session.renew(self.assignment.lease_id)
            except LeaseSuperseded:
                self._lose()
                return
            except (InterlockError, TimeoutError):
                pause = RETRY_SECONDS
                continue
            pause = self.assignment.renew_seconds
            self._deadline = self._until(sent, renewal.lease_seconds)
            if self._worker is not None:
                self._worker.tell_deadline(self._deadline)
            if renewal.cancel_requested:
                self.cancel()

    def _lose(self) -> None:
        self._lost = True
        emit(Event.LEASE_LOST, attempt=self.assignment.attempt_id)
        if self._worker is not None:
            self._worker.tell_lost()
        self._end_within(self._stop_seconds)

    async def _report(self, ending: Ending, *, stopped: bool) -> None:
        """Report the end while the lease is good; when it is lost, what the old attempt left is confirmed instead."""
        while True:
            try:
                await self._session.finish(self.assignment.lease_id, ending, stopped=stopped, clean=stopped)
            except (LeaseSuperseded, ReportConflict):
                break
            except Unavailable:
                if self._clock.elapsed() >= self._deadline:
                    break
                await self._clock.sleep(jitter(RETRY_SECONDS))
            except InterlockError:
                if ending == _LOST:
                    break
                # What the worker reported cannot be taken: then nothing is known of it but that it is gone.
                ending = _LOST
            else:
                return
        if stopped:
            with contextlib.suppress(InterlockError):
                confirmed = self.assignment
            await self._session.confirm_stopped(confirmed.device.serial, clean=True, attempt_id=confirmed.attempt_id)
