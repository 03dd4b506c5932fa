"""`running`, `serving` and `hosting`: the one place where the parts are joined."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path

from interlock.actions.stores.lock import make_directory
from interlock.api.client import RemoteHostSession
from interlock.app.host import HOST_NAME, KILL_SECONDS, LocalHost, check_host, local_host
from interlock.app.serving import Address, check_token, served
from interlock.app.settings import AppSettings, ControlSettings, HostSettings, Place, Server
from interlock.clock import new_secret
from interlock.drivers.driver import driver_names, load_driver
from interlock.errors import InvalidInput, VaultLocked
from interlock.fleet.operations import CheckedDefinition, Fleet
from interlock.fleet.reading import violations
from interlock.fleet.scheduler import TaskScheduler
from interlock.fleet.store import Store
from interlock.fleet.views import Violation
from interlock.guard.tools import ToolContract
from interlock.guard.vault import VARIABLE, Vault
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.workflows import WorkflowDefinition


class InstalledDefinitions:
    """Checks workflows against the tools of every installed driver. See `interlock.fleet.operations.Definitions`."""

    def __init__(self) -> None:
        self._contracts: dict[str, ToolContract] = {}
        for name in driver_names():
            self._contracts.update(load_driver(name).contracts)

    def check(self, text: str) -> CheckedDefinition:
        """See `Definitions.check`."""
        parsed = WorkflowDefinition.parse(text, self._contracts)
        return CheckedDefinition(parsed.name, parsed.document, parsed.digest)

    def settle_seconds(self, tool_id: str) -> float:
        """See `Definitions.settle_seconds`."""
        contract = self._contracts.get(tool_id)
        return 0.0 if contract is None else contract.settle_seconds

    def check_inputs(self, document: str, inputs: Mapping[str, object]) -> dict[str, object]:
        """See `Definitions.check_inputs`."""
        return WorkflowDefinition.from_document(document, None).checked_inputs(inputs)


class Working:
    """What works until the context that gave it ends. `failed` raises what ended it before."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hold(self) -> None:
        """Begin a graceful stop, and return when nothing is in flight here."""

    async def kill(self) -> None:
        """End everything at once."""

    def note_end(self, ended: asyncio.Task[None]) -> None:
        """One of its loops has ended."""
        if ended.cancelled() or self.failed.done():
            return
        error = ended.exception()
        if error is not None:
            self.failed.set_exception(error)
            self.failed.exception()


class Serving(Working):
    """A control plane without a host."""

    def __init__(self, fleet: Fleet, scheduler: TaskScheduler) -> None:
        super().__init__()
        self.fleet = fleet
        self.scheduler = scheduler
        self.address: Address | None = None

    @property
    def url(self) -> str:
        """Where it listens; empty where it does not."""
        return "" if self.address is None else self.address.url

    @property
    def token(self) -> str:
        """What opens its API."""
        return "" if self.address is None else self.address.token


class Hosting(Working):
    """A host of a control plane somewhere else."""

    def __init__(self, host: LocalHost) -> None:
        super().__init__()
        self.host = host
        self.isolation = host.isolation

    async def hold(self) -> None:
        """See `LocalHost.hold`."""
        await self.host.hold()

    async def kill(self) -> None:
        """See `LocalHost.kill`."""
        await self.host.kill()


class Running(Hosting):
    """A control plane with its local host."""

    def __init__(self, control: Serving, host: LocalHost) -> None:
        super().__init__(host)
        self.control = control
        self.fleet = control.fleet

    @property
    def url(self) -> str:
        """See `Serving.url`."""
        return self.control.url

    @property
    def token(self) -> str:
        """See `Serving.token`."""
        return self.control.token


@contextlib.asynccontextmanager
async def running(settings: AppSettings, *, serve: bool = True) -> AsyncIterator[Running]:
    """A control plane and its local host, until the context ends; it then stops gracefully.

    Raises:
        StoreHeld: another process has this data directory.
        InvalidInput: a device or the port cannot be used, and why.
    """
    await asyncio.to_thread(_prepare, settings)
    await asyncio.to_thread(check_host, settings)
    async with contextlib.AsyncExitStack() as stack:
        control = await stack.enter_async_context(_control(settings))
        credential = new_secret()
        await control.fleet.register_host(HOST_NAME, credential)
        session = await control.fleet.host(credential)
        now = Running(control, await stack.enter_async_context(local_host(session, settings)))
        group = await stack.enter_async_context(_until_left(now.host))
        if serve:
            control.address = await stack.enter_async_context(_served(control, now, settings))
        _begin(now, group, control.scheduler.run(), now.host.run())
        yield now


@contextlib.asynccontextmanager
async def serving(settings: ControlSettings) -> AsyncIterator[Serving]:
    """A control plane without a host, until the context ends. Raises as `running` does."""
    await asyncio.to_thread(_prepare, settings)
    async with contextlib.AsyncExitStack() as stack:
        now = await stack.enter_async_context(_control(settings))
        group = await stack.enter_async_context(_until_left())
        now.address = await stack.enter_async_context(_served(now, now, settings))
        _begin(now, group, now.scheduler.run())
        yield now


@contextlib.asynccontextmanager
async def hosting(settings: HostSettings, server: Server) -> AsyncIterator[Hosting]:
    """A host of the control plane at `server`, once that has heard of it, until the context ends.

    Raises:
        StoreHeld: another process has its workers in this data directory.
        InvalidInput: a device or the address cannot be used, and why.
        NotPermitted, Unavailable: the control plane does not know the credential, or does not answer.
    """
    await asyncio.to_thread(_prepare, settings)
    await asyncio.to_thread(check_host, settings)
    async with contextlib.AsyncExitStack() as stack:
        session = RemoteHostSession(server.url, server.credential)
        stack.push_async_callback(session.close)
        now = Hosting(await stack.enter_async_context(local_host(session, settings)))
        group = await stack.enter_async_context(_until_left(now.host))
        (working,) = _begin(now, group, now.host.run())
        meeting = asyncio.create_task(now.host.agent.met.wait())
        await asyncio.wait({meeting, working}, return_when=asyncio.FIRST_COMPLETED)
        meeting.cancel()
        if now.failed.done():
            now.failed.result()
        yield now


@contextlib.asynccontextmanager
async def _control(settings: ControlSettings) -> AsyncIterator[Serving]:
    """A control plane that nobody can reach yet."""
    check_token(settings.token)
    embedded = settings.control / "interlock.db"
    kept = settings.database is None and await asyncio.to_thread(embedded.exists)
    store = await _opened(settings.database or embedded, settings.times)
    try:
        newest = await store.rows("tasks", before=2**62, most=1)
        sealed = [str(task["sealed"]) for task in newest]
        vault = await asyncio.to_thread(lambda: _vault(settings, sealed, kept=kept or bool(sealed)))
        fleet = await asyncio.to_thread(lambda: _fleet(store, settings, vault))
        scheduler = TaskScheduler(fleet)
        await scheduler.adopt()
        # Deadlines that passed while nobody looked are moved before anything is served.
        await scheduler.expire()
        yield Serving(fleet, scheduler)
    finally:
        await store.close()


def _served(
    control: Serving, now: Working, settings: ControlSettings
) -> contextlib.AbstractAsyncContextManager[Address]:
    return served(control.fleet, control.scheduler, settings, now.note_end)


def _begin(
    now: Working, group: list[asyncio.Task[None]], *loops: Coroutine[object, object, None]
) -> list[asyncio.Task[None]]:
    """Let loops run until the context of their group is left."""
    for loop in loops:
        task = asyncio.create_task(loop)
        task.add_done_callback(now.note_end)
        group.append(task)
    return group


def open_store(database: Path | str, times: StoreTimes | None = None) -> Store:
    """Open the embedded database in a file, or PostgreSQL at an address. Raises `StoreHeld`, `Unavailable`."""
    if isinstance(database, Path):
        return SqliteStore.open(database, times=times)
    try:
        from interlock.stores.postgres import PostgresStore  # noqa: PLC0415 - its driver is an extra
    except ImportError:
        message = "PostgreSQL needs its driver: install interlock[postgres]"
        raise InvalidInput(message) from None
    return PostgresStore.open(database, times=times)


async def _opened(database: Path | str, times: StoreTimes) -> Store:
    """Open the store away from the loop. Cancelled meanwhile, it is closed again: its writer must not be left."""
    opening = asyncio.create_task(asyncio.to_thread(lambda: open_store(database, times)))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        store = await opening
        await store.close()
        raise


def _prepare(settings: Place) -> None:
    try:
        make_directory(settings.control)
        settings.control.chmod(0o700)
    except OSError as error:
        message = f"{settings.data} cannot be a data directory ({error.strerror}): choose another with --data"
        raise InvalidInput(message) from None


def _vault(settings: ControlSettings, sealed: Sequence[str], *, kept: bool) -> Vault:
    """The vault, which opens what is sealed. A fresh key beside another one's texts would lose them all, unseen."""
    path = settings.control / "vault.key"
    if kept and not path.exists() and VARIABLE not in os.environ:
        message = f"{path} is gone, and the database was sealed with it: put it back, or set {VARIABLE}"
        raise VaultLocked(message)
    try:
        vault = Vault.load(path, os.environ)
        for text in sealed:
            vault.open(text.encode())
    except VaultLocked as error:
        message = f"{VARIABLE if VARIABLE in os.environ else path}: {error}"
        raise VaultLocked(message) from None
    return vault


def _fleet(store: Store, settings: ControlSettings, vault: Vault) -> Fleet:
    return Fleet(store, settings=settings.fleet, sealer=vault, definitions=InstalledDefinitions())


@contextlib.asynccontextmanager
async def _until_left(host: LocalHost | None = None) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Own the loops: on leaving, the host is held unless it was before, and then each loop ends."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        if tasks and host is not None:
            host.agent.hold()
            await asyncio.wait({tasks[-1]}, timeout=host.agent.settings.drain_seconds + KILL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def check_database(data: Path, database: str | None = None) -> Sequence[Violation]:
    """What breaks each invariant in a database at an address, or in an embedded one that nobody has open.

    Raises:
        StoreHeld, Unavailable: it cannot be opened.
        InvalidInput: there is none.
    """
    embedded = data / "control" / "interlock.db"
    if database is None and not embedded.exists():
        message = f"there is no database in {data}: start `interlock up` there once"
        raise InvalidInput(message)
    store = await asyncio.to_thread(lambda: open_store(database or embedded))
    try:
        return await violations(store)
    finally:
        await store.close()
