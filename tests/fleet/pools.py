"""A fleet on a real database with a clock that the test owns, and hosts that speak to it as hosts do."""

from __future__ import annotations

import json
from collections.abc import Mapping

from interlock.errors import InvalidWorkflow
from interlock.fleet.model import Assignment, Constraints, DeviceRef, Ending, EndKind, HostId, TaskId
from interlock.fleet.operations import CheckedDefinition, Fleet
from interlock.fleet.scheduler import TaskScheduler
from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest
from interlock.fleet.session import HostSession
from interlock.fleet.settings import FleetSettings
from interlock.fleet.store import DeviceReport
from interlock.guard.canonical import digest
from interlock.guard.vault import Vault
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.testing.clock import ManualClock

DONE = Ending(EndKind.DONE, "completed", '{"answer":42}')
FAILED = Ending(EndKind.FAILED, "dispatch_failed")


def released(reason: str) -> Ending:
    return Ending(EndKind.RELEASED, reason)


class PlainDefinitions:
    """Takes any JSON object with a name for a workflow, as the fleet knows nothing of the format."""

    def check(self, text: str) -> CheckedDefinition:
        try:
            name = json.loads(text)["name"]
        except (ValueError, KeyError, TypeError):
            raise InvalidWorkflow(("line 1: it has no name",)) from None
        return CheckedDefinition(name, text, digest(text))

    def settle_seconds(self, tool_id: str) -> float:
        return 10.0 if "slow" in tool_id else 0.0

    def check_inputs(self, document: str, inputs: Mapping[str, object]) -> dict[str, object]:
        del document
        return dict(inputs)


class Pool:
    """A fleet with its scheduler and its hosts, for tests to drive step by step."""

    def __init__(
        self, store: SqliteStore | PostgresStore, clock: ManualClock, settings: FleetSettings, sealer: Vault
    ) -> None:
        self.store = store
        self.clock = clock
        self.fleet = Fleet(store, settings=settings, sealer=sealer, definitions=PlainDefinitions(), clock=clock)
        self.scheduler = TaskScheduler(self.fleet, clock=clock)
        self.sessions: dict[str, HostSession] = {}
        self.reports: dict[str, list[DeviceReport]] = {}

    async def host(self, name: str, *devices: DeviceReport, boot: str = "boot-1") -> HostSession:
        credential = f"credential of {name}"
        await self.fleet.register_host(name, credential)
        session = await self.fleet.host(credential)
        self.sessions[name], self.reports[name] = session, list(devices)
        await session.beat(boot, "gen-1", devices)
        return session

    async def beat(self, *names: str, boot: str = "boot-1") -> None:
        for name in names or tuple(self.sessions):
            await self.sessions[name].beat(boot, "gen-1", self.reports[name])

    async def goal(self, text: str = "look around", *, key: str | None = None, **wanted: object) -> TaskId:
        constraints = Constraints(**wanted)  # type: ignore[arg-type]
        return await self.fleet.submit(
            SubmitRequest(GoalRequest(text, "agents:look"), constraints, idempotency_key=key)
        )

    async def workflow(self, text: str, **inputs: object) -> TaskId:
        return await self.fleet.submit(SubmitRequest(WorkflowRequest(text=text, inputs=inputs)))

    async def status(self, task: str) -> str:
        return (await self.fleet.get(task)).task.status

    async def running(self, session: HostSession, claim_id: str = "claim-1") -> Assignment:
        """Assign and claim one task on a host."""
        await self.scheduler.assign()
        (assignment,) = await session.claim(claim_id, 1, 0.0)
        return assignment

    async def pass_time(self, seconds: float, *, beating: bool = True) -> None:
        """Let time pass in steps of a sweep, as it does where a scheduler runs."""
        left = seconds
        while left > 0:
            step = min(5.0, left)
            self.clock.advance(step)
            left -= step
            if beating:
                await self.beat()
            await self.scheduler.expire()

    async def occupancy(self, serial: str = "d1") -> str:
        return next(view.occupancy for view in await self.fleet.devices() if view.name.endswith(f"/{serial}"))

    async def close(self) -> None:
        await self.store.close()


def shell(serial: str = "d1", *tags: str, driver: str = "shell", exclusive: tuple[str, ...] = ()) -> DeviceReport:
    return DeviceReport(serial, driver, frozenset(tags), frozenset(exclusive))


def ref(host: str, serial: str) -> DeviceRef:
    return DeviceRef(HostId(host), serial)
