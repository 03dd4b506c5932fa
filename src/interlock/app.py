"""Settings and `running`: the one place where the parts are joined."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from interlock.actions.stores.lock import make_directory
from interlock.api.auth import Grant, TokenTable
from interlock.api.server import create_api
from interlock.clock import new_id, new_secret
from interlock.drivers.driver import driver_names, load_driver
from interlock.errors import InvalidInput, Unavailable, VaultLocked
from interlock.fleet.agent import AgentSettings, HostAgent
from interlock.fleet.model import DeviceRef, HostId, checked_tags
from interlock.fleet.operations import CheckedDefinition, Fleet, token_hash
from interlock.fleet.reading import violations
from interlock.fleet.scheduler import TaskScheduler
from interlock.fleet.settings import FleetSettings
from interlock.fleet.store import DeviceReport, Store
from interlock.fleet.views import Violation
from interlock.guard.policy import Policy
from interlock.guard.tools import ToolContract
from interlock.guard.vault import VARIABLE, Vault
from interlock.runners.isolation import Isolation, find_isolation
from interlock.runners.process import ProcessWorkers, WorkerPlace
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.workflows import WorkflowDefinition

HOST_NAME = "local"
KILL_SECONDS = 15.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class DeviceSettings:
    """One device of the local host. What `options` may hold is the driver's to say; a shell takes `directory`."""

    serial: str
    driver: str = "shell"
    tags: frozenset[str] = frozenset()
    exclusive_tags: frozenset[str] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AppSettings:
    """Everything that `running` needs. `data` is the data directory; nobody else may read its `control` folder.

    `database` is the address of a PostgreSQL database, or None for the embedded one in the control folder.
    """

    data: Path
    devices: tuple[DeviceSettings, ...]
    policy: Policy
    agent_path: Path
    listen: str = "127.0.0.1"
    port: int = 0
    fleet: FleetSettings = field(default_factory=FleetSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    times: StoreTimes = field(default_factory=StoreTimes)
    database: str | None = None

    @property
    def control(self) -> Path:
        """Where the database, the key, the tokens and the records of workers are: hidden from every task."""
        return self.data / "control"


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


@dataclass(frozen=True)
class LocalIdentity:
    """This machine's boot, and this start of the agent."""

    boot_id: str
    generation: str


class Running:
    """A control plane with its local host. `hold` begins a graceful stop, `kill` ends everything at once."""

    def __init__(self, fleet: Fleet, agent: HostAgent, isolation: Isolation) -> None:
        self.fleet = fleet
        self.agent = agent
        self.isolation = isolation.sentence
        self.url: str | None = None
        self.token: str | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = asyncio.Event()

    async def hold(self) -> None:
        """Claim no more, bring each attempt to its next clean point, and return when none is left."""
        self.agent.hold()
        await self.stopped.wait()

    async def kill(self) -> None:
        """End every attempt at once: an effect in flight is in doubt."""
        self.agent.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await self.stopped.wait()


@contextlib.asynccontextmanager
async def running(settings: AppSettings, *, serve: bool = True) -> AsyncIterator[Running]:
    """A control plane and its local host, until the context ends; it then stops gracefully.

    Raises:
        StoreHeld: another process has this data directory.
        InvalidInput: a device or the port cannot be used, and why.
    """
    await asyncio.to_thread(_prepare, settings)
    embedded = settings.control / "interlock.db"
    new = not await asyncio.to_thread(embedded.exists)
    store = await _opened(settings.database or embedded, settings.times)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        if settings.database is not None:
            new = not await store.rows("tasks", before=2**62, most=1)
        fleet = await asyncio.to_thread(lambda: _fleet(store, settings, new=new))
        now = await _running(fleet, settings)
        group = await stack.enter_async_context(_until_left(now))
        scheduler = TaskScheduler(fleet)
        await scheduler.adopt()
        # Deadlines that passed while nobody looked are moved before anything is served.
        await scheduler.expire()
        if serve:
            await stack.enter_async_context(_served(now, scheduler, settings))
        group.append(asyncio.create_task(scheduler.run(), name="scheduler"))
        group.append(asyncio.create_task(_agent(now), name="agent"))
        for task in group:
            task.add_done_callback(lambda ended: _note_failure(now, ended))
        yield now


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


def _prepare(settings: AppSettings) -> None:
    try:
        make_directory(settings.control)
        settings.control.chmod(0o700)
    except OSError as error:
        message = f"{settings.data} cannot be a data directory ({error.strerror}): choose another with --data"
        raise InvalidInput(message) from None
    if not settings.agent_path.is_dir():
        message = f"{settings.agent_path} is no directory: agents are looked for there"
        raise InvalidInput(message)
    known = driver_names()
    serials = [device.serial for device in settings.devices]
    for device in settings.devices:
        checked_tags(device.tags)
        if device.driver not in known:
            message = f"{device.serial}: no driver {device.driver!r} is installed: use one of {', '.join(known)}"
            raise InvalidInput(message)
        if serials.count(device.serial) > 1:
            message = f"two devices are named {device.serial}: give each its own serial"
            raise InvalidInput(message)


def _vault(settings: AppSettings, *, new: bool) -> Vault:
    """The vault. A fresh key beside a database that another one sealed would lose every text in it, unseen."""
    path = settings.control / "vault.key"
    if not new and not path.exists() and VARIABLE not in os.environ:
        message = f"{path} is gone, and the database was sealed with it: put it back, or set {VARIABLE}"
        raise VaultLocked(message)
    try:
        return Vault.load(path, os.environ)
    except VaultLocked as error:
        message = f"{path}: {error}"
        raise VaultLocked(message) from None


def _fleet(store: Store, settings: AppSettings, *, new: bool) -> Fleet:
    vault = _vault(settings, new=new)
    return Fleet(store, settings=settings.fleet, sealer=vault, definitions=InstalledDefinitions())


async def _running(fleet: Fleet, settings: AppSettings) -> Running:
    credential = new_secret()
    await fleet.register_host(HOST_NAME, credential)
    isolation = await asyncio.to_thread(find_isolation)
    boot_id = (await asyncio.to_thread(BOOT_ID.read_text)).strip()
    place = WorkerPlace(
        state=settings.control,
        hidden=(settings.control,),
        agent_path=settings.agent_path,
        isolation=isolation,
        boot_id=boot_id,
        policy=settings.policy.to_dict(),
        options={device.serial: _options(device, settings) for device in settings.devices},
    )
    agent = HostAgent(
        session=await fleet.host(credential),
        devices=[
            DeviceReport(device.serial, device.driver, device.tags, device.exclusive_tags)
            for device in settings.devices
        ],
        workers=ProcessWorkers(place),
        identity=LocalIdentity(boot_id, new_id("gen")),
        settings=settings.agent,
    )
    return Running(fleet, agent, isolation)


def _options(device: DeviceSettings, settings: AppSettings) -> Mapping[str, object]:
    """The device's own settings; a shell without a directory gets one of its own in the data directory."""
    if device.driver != "shell" or "directory" in device.options:
        return device.options
    directory = settings.data / "devices" / DeviceRef(HostId(HOST_NAME), device.serial).file_name
    directory.mkdir(parents=True, exist_ok=True)
    return {**device.options, "directory": str(directory)}


@contextlib.asynccontextmanager
async def _until_left(now: Running) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Own the loops: on leaving, the agent is held unless it was before, and then each loop ends."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        if tasks:
            now.agent.hold()
            await asyncio.wait({tasks[-1]}, timeout=now.agent.settings.drain_seconds + KILL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _agent(now: Running) -> None:
    try:
        await now.agent.run()
    finally:
        now.stopped.set()


def _note_failure(now: Running, ended: asyncio.Task[None]) -> None:
    if ended.cancelled() or now.failed.done():
        return
    error = ended.exception()
    if error is not None:
        now.failed.set_exception(error)
        now.failed.exception()


@contextlib.asynccontextmanager
async def _served(now: Running, scheduler: TaskScheduler, settings: AppSettings) -> AsyncIterator[None]:
    """Serve the API on loopback, with the address and a fresh token in the control folder."""
    token = new_secret()
    tokens: TokenTable = {
        token_hash(token): Grant("local", frozenset({"submit", "read", "approve", "operate", "admin"}))
    }
    with _bound(settings.listen, settings.port) as listener:
        address = f"http://{settings.listen}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_api(now.fleet, scheduler, tokens), log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="server")
        try:
            await _started(server, serving)
            _publish(settings.control / "token", token)
            _publish(settings.control / "address", address)
            now.url, now.token = address, token
            serving.add_done_callback(lambda ended: _note_failure(now, ended))
            yield
        finally:
            (settings.control / "address").unlink(missing_ok=True)
            server.should_exit = True
            await asyncio.wait({serving})


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Capture none."""
        yield


async def _started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            message = "the API could not be started"
            raise Unavailable(message)
        await asyncio.sleep(0.01)


def _bound(address: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        message = f"{address}:{port} cannot be listened on ({error.strerror}): choose another with --port"
        raise InvalidInput(message) from None
    return listener


def _publish(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    fresh.replace(path)


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
