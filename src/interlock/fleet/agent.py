"""The host agent: it beats, claims, renews and reports, and has workers run what it claimed. It runs no user code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from interlock.clock import Clock, SystemClock, jitter, new_id
from interlock.errors import InterlockError, LeaseSuperseded, NotPermitted, Unavailable
from interlock.fleet.attempt import AttemptKeeper, Workers
from interlock.fleet.model import Assignment, Ending, EndKind, LeaseId
from interlock.fleet.service import HostService
from interlock.fleet.store import DeviceReport
from interlock.fleet.transitions import AttemptEnd
from interlock.fleet.views import BeatAnswer
from interlock.fleet.wakeups import wait_at_most
from interlock.telemetry import Event, emit

RETRY_SECONDS = 0.5


class HostIdentity(Protocol):
    """What makes this host this host, now."""

    @property
    def boot_id(self) -> str:
        """The kernel's boot: another one proves that nothing of before is left."""
        ...

    @property
    def generation(self) -> str:
        """This start of the agent."""
        ...


@dataclass(frozen=True)
class AgentSettings:
    """How long a held attempt may take to come to its next save, and one that was told to stop to end.

    `meet_seconds`: how long the control plane may take to hear of this host at all, None for ever.
    """

    drain_seconds: float = 30.0
    stop_seconds: float = 5.0
    meet_seconds: float | None = None


@dataclass
class _Intervals:
    beat: float = 1.0
    failures: int = 0


@dataclass
class HostAgent:
    """The agent of one host. `run` works until cancelled; `hold` ends what it can end cleanly, first."""

    session: HostService
    devices: Sequence[DeviceReport]
    workers: Workers
    identity: HostIdentity
    clock: Clock = field(default_factory=SystemClock)
    settings: AgentSettings = field(default_factory=AgentSettings)

    def __post_init__(self) -> None:
        self._keepers: dict[str, AttemptKeeper] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._intervals = _Intervals()
        self._cleared: Mapping[str, bool] = {}
        self._holding = asyncio.Event()
        self._beat_now = asyncio.Event()
        # Set once the control plane has heard of this host.
        self.met = asyncio.Event()

    async def run(self) -> None:
        """End what a predecessor left, then beat and claim until cancelled or held.

        Raises:
            NotPermitted: the control plane does not know this host.
            InterlockError: it has not taken the first beat in time.
        """
        self._cleared = await self.workers.clear_predecessors()
        await self._meet()
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self._beat_until_cancelled())
            claiming = group.create_task(self._claim_until_held())
            try:
                await claiming
                await self._finish_attempts()
            finally:
                beating.cancel()
        with contextlib.suppress(InterlockError):
            await self.session.goodbye(self.identity.generation)

    def hold(self) -> None:
        """Begin a graceful stop: claim no more, and end each attempt at its next clean point. `run` then returns."""
        self._holding.set()
        for keeper in self._keepers.values():
            keeper.hold(self.settings.drain_seconds)

    def kill(self) -> None:
        """End every attempt at once. What is in flight is in doubt."""
        self._holding.set()
        for keeper in self._keepers.values():
            keeper.kill()

    @property
    def busy(self) -> int:
        """How many attempts are running."""
        return len(self._keepers)

    async def _meet(self) -> None:
        """The first beat, until it is heard; then give back what a predecessor held."""
        answer = await self._first_beat()
        self.met.set()
        for lease in answer.leases:
            if lease.state == "claimed":
                await self._give_back(LeaseId(lease.lease_id), lease.serial)
        await self._beat()

    async def _first_beat(self) -> BeatAnswer:
        began, patience = self.clock.elapsed(), self.settings.meet_seconds
        while True:
            try:
                return await self._heard()
            except NotPermitted:
                raise
            except InterlockError as error:
                emit(Event.BEAT_FAILED, code=error.code)
                if patience is not None and self.clock.elapsed() - began >= patience:
                    raise
            await self.clock.sleep(jitter(RETRY_SECONDS))

    async def _give_back(self, lease_id: LeaseId, serial: str) -> None:
        gone = self._cleared.get(serial, False)
        lost = Ending(EndKind.RELEASED, AttemptEnd.WORKER_LOST.value)
        with contextlib.suppress(InterlockError):
            await self.session.finish(lease_id, lost, stopped=gone, clean=gone)

    async def _beat_until_cancelled(self) -> None:
        while True:
            await wait_at_most(self._beat_now, jitter(self._intervals.beat, 0.1))
            self._beat_now.clear()
            await self._beat()

    async def _beat(self) -> BeatAnswer | None:
        """One beat. A failed one is not a loss: the next may be heard."""
        try:
            return await self._heard()
        except InterlockError as error:
            emit(Event.BEAT_FAILED, code=error.code)
            self._intervals.beat = RETRY_SECONDS
            return None

    async def _heard(self) -> BeatAnswer:
        answer = await self.session.beat(self.identity.boot_id, self.identity.generation, self.devices)
        await self._vacate(answer)
        self._intervals.beat = answer.beat_every_seconds
        for lease in answer.leases:
            keeper = self._keepers.get(lease.serial)
            if keeper is not None and keeper.assignment.lease_id == lease.lease_id and lease.cancel_requested:
                keeper.cancel()
        return answer

    async def _vacate(self, answer: BeatAnswer) -> None:
        """Confirm the stops that the store waits for, where nothing of ours runs and nothing of a predecessor can."""
        for device in answer.vacating:
            if device.serial in self._keepers:
                continue
            gone = self.workers.stopped(device.serial) and self._cleared.get(device.serial, True)
            if device.state == "cleaning" or gone:
                await self.session.confirm_stopped(device.serial, clean=True, attempt_id=device.attempt_id)

    async def _claim_until_held(self) -> None:
        claim_id = new_id("claim")
        holding = asyncio.create_task(self._holding.wait())
        try:
            while not self._holding.is_set():
                sent = self.clock.elapsed()
                claim = asyncio.create_task(self.session.claim(claim_id, max(1, len(self.devices)), 20.0))
                await asyncio.wait({claim, holding}, return_when=asyncio.FIRST_COMPLETED)
                if not claim.done():
                    claim.cancel()
                    await asyncio.wait({claim})
                    await self._give_up_claim(claim_id, sent)
                    return
                if await self._take(claim, sent):
                    claim_id = new_id("claim")
        finally:
            holding.cancel()

    async def _give_up_claim(self, claim_id: str, sent: float) -> None:
        """Ask once more for what a cancelled claim may have taken: it is given back, as it has not been started."""
        with contextlib.suppress(InterlockError):
            for assignment in await self.session.claim(claim_id, max(1, len(self.devices)), 0.0):
                self._start(assignment, sent)

    async def _take(self, claim: asyncio.Task[list[Assignment]], sent: float) -> bool:
        """Start what a claim brought, and say whether its id is used up."""
        try:
            assignments = claim.result()
        except LeaseSuperseded:
            return True
        except Unavailable:
            await self.clock.sleep(jitter(RETRY_SECONDS))
            return False
        except InterlockError:
            await self.clock.sleep(jitter(RETRY_SECONDS))
            return True
        for assignment in assignments:
            self._start(assignment, sent)
        return bool(assignments)

    def _start(self, assignment: Assignment, sent: float) -> None:
        task = asyncio.create_task(self._run_attempt(assignment, sent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_attempt(self, assignment: Assignment, sent: float) -> None:
        serial = assignment.device.serial
        keeper = AttemptKeeper(assignment, sent, self.session, self.workers, self.clock, self.settings.stop_seconds)
        before = self._keepers.get(serial)
        self._keepers[serial] = keeper
        try:
            if before is not None:
                # Two attempts never share a device: the old one has lost its lease, or this one would not be here.
                before.kill()
                await before.over.wait()
            if self._holding.is_set():
                keeper.hold(0.0)
            await keeper.run()
        except Exception as error:  # noqa: BLE001 - one attempt must not end the agent; its lease ends by itself
            emit(Event.WORKER_ENDED, attempt=assignment.attempt_id, error=type(error).__name__)
        finally:
            if self._keepers.get(serial) is keeper:
                del self._keepers[serial]
            self._beat_now.set()

    async def _finish_attempts(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))
