"""A fleet on real SQLite behind a real server on a free loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from interlock.api.auth import SCOPES, Grant
from interlock.api.client import RemoteFleet, RemoteHostSession
from interlock.api.server import create_api
from interlock.drivers.shell import ShellDriver
from interlock.fleet.model import Assignment, Constraints, Ending, EndKind
from interlock.fleet.operations import CheckedDefinition, Fleet, token_hash
from interlock.fleet.scheduler import TaskScheduler
from interlock.fleet.service import GoalRequest, SubmitRequest
from interlock.fleet.settings import FleetSettings
from interlock.fleet.store import DeviceReport
from interlock.guard.vault import Vault, new_key
from interlock.stores.sqlite import SqliteStore
from interlock.workflows import WorkflowDefinition

DONE = Ending(EndKind.DONE, "completed", '{"answer":42}')
TOKENS = {scope: f"token-that-may-{scope}" for scope in SCOPES}
EVERYTHING = "token-that-may-do-everything"


class ShellDefinitions:
    """Checks workflows against the tools of the shell driver."""

    def check(self, text: str) -> CheckedDefinition:
        parsed = WorkflowDefinition.parse(text, ShellDriver.contracts)
        return CheckedDefinition(parsed.name, parsed.document, parsed.digest)

    def settle_seconds(self, tool_id: str) -> float:
        contract = ShellDriver.contracts.get(tool_id)
        return 0.0 if contract is None else contract.settle_seconds

    def check_inputs(self, document: str, inputs: Any) -> dict[str, object]:
        return WorkflowDefinition.from_document(document, None).checked_inputs(inputs)


@dataclass
class Served:
    """A fleet, and where it is served."""

    fleet: Fleet
    scheduler: TaskScheduler
    url: str

    def http(self, credential: str | None = EVERYTHING) -> httpx.AsyncClient:
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=30)

    def remote(self, token: str = EVERYTHING) -> RemoteFleet:
        return RemoteFleet(self.url, token)

    @contextlib.asynccontextmanager
    async def host(self, name: str, *devices: DeviceReport) -> AsyncIterator[RemoteHostSession]:
        credential = f"credential-of-{name}"
        await self.fleet.register_host(name, credential)
        session = RemoteHostSession(self.url, credential)
        try:
            if devices:
                await session.beat("boot-1", "gen-1", devices)
            yield session
        finally:
            await session.close()

    async def running(self, session: RemoteHostSession, claim_id: str = "claim-1") -> Assignment:
        """Assign and claim one task."""
        await self.scheduler.assign()
        (assignment,) = await session.claim(claim_id, 1, 0.0)
        return assignment


def goal(text: str = "look around", **more: Any) -> SubmitRequest:
    return SubmitRequest(GoalRequest(text, "agents:look"), **more)


def wanting(*tags: str) -> Constraints:
    return Constraints(tags=frozenset(tags))


def shell(serial: str = "d1", *tags: str) -> DeviceReport:
    return DeviceReport(serial, "shell", frozenset(tags))


class QuietServer(uvicorn.Server):
    """Leaves signals to the test run, and says when it is there."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.there = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.there.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an app on a free loopback port, until the context ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = QuietServer(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.wait_for(server.there.wait(), 10)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def serving_fleet(path: Path, settings: FleetSettings) -> AsyncIterator[Served]:
    store = SqliteStore.open(path)
    try:
        fleet = Fleet(store, settings=settings, sealer=Vault([new_key()]), definitions=ShellDefinitions())
        tokens = {token_hash(token): Grant(f"who may {scope}", frozenset({scope})) for scope, token in TOKENS.items()}
        tokens[token_hash(EVERYTHING)] = Grant("tester", SCOPES)
        scheduler = TaskScheduler(fleet)
        async with serving(create_api(fleet, scheduler, tokens)) as url:
            yield Served(fleet, scheduler, url)
    finally:
        await store.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    settings = FleetSettings(max_queue_depth=5, retry_first_seconds=0.0, long_poll_seconds=5.0)
    async with serving_fleet(tmp_path / "fleet.db", settings) as here:
        yield here
