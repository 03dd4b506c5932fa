"""`Fleet` and `HostSession` over HTTP, and a client without asyncio for programs. Only the sending differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from interlock.api import calls
from interlock.api.local import local_address
from interlock.api.sending import AsyncSender, Sender
from interlock.api.wire import Health
from interlock.clock import Clock, SystemClock
from interlock.errors import InterlockError
from interlock.fleet.model import Assignment, DeviceRef, Ending, HandOver, LeaseId, RunSave, Settlement, TaskId
from interlock.fleet.service import SubmitRequest
from interlock.fleet.store import DeviceReport
from interlock.fleet.views import (
    BeatAnswer,
    CancelAnswer,
    DeviceView,
    Doubt,
    Renewal,
    Resolution,
    ScheduledTask,
    TaskDetail,
    Violation,
    Waiting,
)

LOOK_SECONDS = 20.0


class RemoteFleet:
    """A fleet behind its API. See `interlock.fleet.service.FleetService`; errors are the same as in process."""

    def __init__(self, url: str, token: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sender = AsyncSender(url, token, self._clock)
        self._send = self._sender.send

    async def submit(self, request: SubmitRequest) -> TaskId:
        """See `FleetService.submit`. The task's submitter is the token's name."""
        return await self._send(calls.submit(request))

    async def get(self, task_id: str) -> TaskDetail:
        """See `FleetService.get`."""
        return await self._send(calls.get(task_id))

    async def wait(self, task_id: str, seconds: float) -> ScheduledTask:
        """See `FleetService.wait`."""
        deadline = self._clock.elapsed() + seconds
        while True:
            task = await self._send(calls.wait(task_id, _look(deadline - self._clock.elapsed())))
            if task.ended_at is not None or self._clock.elapsed() >= deadline:
                return task

    async def tasks(self, *, most: int = 100) -> list[ScheduledTask]:
        """See `FleetService.tasks`."""
        return await self._send(calls.tasks(most))

    async def cancel(self, task_id: str) -> CancelAnswer:
        """See `FleetService.cancel`."""
        return await self._send(calls.cancel(task_id))

    async def why(self, task_id: str) -> Waiting:
        """See `FleetService.why`."""
        return await self._send(calls.why(task_id))

    async def reviews(self, *, most: int = 100) -> list[Doubt]:
        """See `FleetService.reviews`."""
        return await self._send(calls.reviews(most))

    async def resolve(self, task_id: str, answers: Mapping[str, str], answered_by: str = "") -> Resolution:
        """See `FleetService.resolve`. Who answers is the token's name, whatever is given here."""
        del answered_by
        return await self._send(calls.resolve(task_id, answers))

    async def devices(self) -> list[DeviceView]:
        """See `FleetService.devices`."""
        return await self._send(calls.devices())

    async def set_service(self, device: DeviceRef, service: str, reason: str | None) -> None:
        """See `Fleet.set_service`."""
        await self._send(calls.set_service(device, service, reason))

    async def force_release(self, device: DeviceRef, *, stopped: bool = False) -> None:
        """See `Fleet.force_release`."""
        await self._send(calls.force_release(device, stopped=stopped))

    async def forget_device(self, device: DeviceRef) -> None:
        """See `Fleet.forget_device`."""
        await self._send(calls.forget_device(device))

    async def register_host(self, name: str, credential: str) -> None:
        """See `Fleet.register_host`."""
        await self._send(calls.register_host(name, credential))

    async def violations(self) -> list[Violation]:
        """See `FleetService.violations`."""
        return await self._send(calls.violations())

    async def health(self) -> Health:
        """How many tasks stand where, the store's time, and whether the server assigns."""
        return await self._send(calls.health())

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RemoteHostSession:
    """A host's way into a fleet behind its API. See `interlock.fleet.service.HostService`."""

    def __init__(self, url: str, credential: str, *, clock: Clock | None = None) -> None:
        self._sender = AsyncSender(url, credential, clock or SystemClock())
        self._send = self._sender.send

    async def beat(self, boot_id: str, generation: str, devices: Sequence[DeviceReport]) -> BeatAnswer:
        """See `HostService.beat`."""
        return await self._send(calls.beat(boot_id, generation, devices))

    async def goodbye(self, generation: str) -> None:
        """See `HostService.goodbye`."""
        await self._send(calls.goodbye(generation))

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> list[Assignment]:
        """See `HostService.claim`."""
        return await self._send(calls.claim(claim_id, limit, wait_seconds))

    async def renew(self, lease_id: LeaseId) -> Renewal:
        """See `HostService.renew`."""
        renewal = (await self.renew_all([lease_id]))[lease_id]
        if isinstance(renewal, InterlockError):
            raise renewal
        return renewal

    async def renew_all(self, leases: Sequence[LeaseId]) -> dict[LeaseId, Renewal | InterlockError]:
        """Extend up to 100 leases in one call: what came of each, or the error that it met."""
        return await self._send(calls.renew(leases))

    async def save(self, lease_id: LeaseId, save: RunSave) -> None:
        """See `HostService.save`."""
        await self._send(calls.save(lease_id, save))

    async def hand_over(self, lease_id: LeaseId, entry: HandOver) -> None:
        """See `HostService.hand_over`."""
        await self._send(calls.hand_over(lease_id, entry))

    async def withdraw(self, lease_id: LeaseId, run_id: str, action_id: str) -> None:
        """See `HostService.withdraw`."""
        await self._send(calls.withdraw(lease_id, run_id, action_id))

    async def settle(self, lease_id: LeaseId, settlement: Settlement) -> None:
        """See `HostService.settle`."""
        await self._send(calls.settle(lease_id, settlement))

    async def output(self, lease_id: LeaseId, action_id: str) -> object:
        """See `HostService.output`."""
        return await self._send(calls.output(lease_id, action_id))

    async def finish(self, lease_id: LeaseId, ending: Ending, *, stopped: bool, clean: bool) -> None:
        """See `HostService.finish`."""
        await self._send(calls.finish(lease_id, ending, stopped=stopped, clean=clean))

    async def confirm_stopped(self, serial: str, *, clean: bool, attempt_id: str | None = None) -> None:
        """See `HostService.confirm_stopped`."""
        await self._send(calls.confirm_stopped(serial, clean=clean, attempt_id=attempt_id))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._sender.close()


class Client:
    """A fleet behind its API, for programs without asyncio: `RemoteFleet` without `await`, good in any thread."""

    def __init__(self, url: str, token: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sender = Sender(url, token)
        self._send = self._sender.send

    @classmethod
    def local(cls, data: Path | None = None) -> Self:
        """The client of the `interlock up` of this user, or of that data directory. Raises `Unavailable`."""
        return cls(*local_address(data))

    def submit(self, request: SubmitRequest) -> TaskId:
        """See `FleetService.submit`. The task's submitter is the token's name."""
        return self._send(calls.submit(request))

    def get(self, task_id: str) -> TaskDetail:
        """See `FleetService.get`."""
        return self._send(calls.get(task_id))

    def wait(self, task_id: str, seconds: float) -> ScheduledTask:
        """See `FleetService.wait`."""
        deadline = self._clock.elapsed() + seconds
        while True:
            task = self._send(calls.wait(task_id, _look(deadline - self._clock.elapsed())))
            if task.ended_at is not None or self._clock.elapsed() >= deadline:
                return task

    def tasks(self, *, most: int = 100) -> list[ScheduledTask]:
        """See `FleetService.tasks`."""
        return self._send(calls.tasks(most))

    def cancel(self, task_id: str) -> CancelAnswer:
        """See `FleetService.cancel`."""
        return self._send(calls.cancel(task_id))

    def why(self, task_id: str) -> Waiting:
        """See `FleetService.why`."""
        return self._send(calls.why(task_id))

    def reviews(self, *, most: int = 100) -> list[Doubt]:
        """See `FleetService.reviews`."""
        return self._send(calls.reviews(most))

    def resolve(self, task_id: str, answers: Mapping[str, str]) -> Resolution:
        """See `FleetService.resolve`."""
        return self._send(calls.resolve(task_id, answers))

    def devices(self) -> list[DeviceView]:
        """See `FleetService.devices`."""
        return self._send(calls.devices())

    def set_service(self, device: DeviceRef, service: str, reason: str | None) -> None:
        """See `Fleet.set_service`."""
        self._send(calls.set_service(device, service, reason))

    def force_release(self, device: DeviceRef, *, stopped: bool = False) -> None:
        """See `Fleet.force_release`."""
        self._send(calls.force_release(device, stopped=stopped))

    def forget_device(self, device: DeviceRef) -> None:
        """See `Fleet.forget_device`."""
        self._send(calls.forget_device(device))

    def register_host(self, name: str, credential: str) -> None:
        """See `Fleet.register_host`."""
        self._send(calls.register_host(name, credential))

    def violations(self) -> list[Violation]:
        """See `FleetService.violations`."""
        return self._send(calls.violations())

    def health(self) -> Health:
        """How many tasks stand where, the store's time, and whether the server assigns."""
        return self._send(calls.health())

    def close(self) -> None:
        """Let go of the connections."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _look(left: float) -> float:
    """How long one long poll of a longer wait may take."""
    return min(max(0.0, left), LOOK_SECONDS)
