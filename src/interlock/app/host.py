"""A host on this machine: its agent, its workers, and the devices that they drive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from interlock.app.settings import DeviceSettings, HostSettings
from interlock.clock import new_id
from interlock.drivers.driver import driver_names
from interlock.errors import InvalidInput
from interlock.fleet.agent import HostAgent
from interlock.fleet.model import DeviceRef, HostId, checked_tags
from interlock.fleet.service import HostService
from interlock.fleet.store import DeviceReport
from interlock.runners.isolation import find_isolation
from interlock.runners.process import ProcessWorkers, WorkerPlace
from interlock.stores.lockfile import LockFile

HOST_NAME = "local"
KILL_SECONDS = 15.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class LocalIdentity:
    """This machine's boot, and this start of the agent."""

    boot_id: str
    generation: str


def check_host(settings: HostSettings) -> None:
    """Refuse what no host can be: `InvalidInput` says what to change."""
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


class LocalHost:
    """The agent of this machine. `hold` begins a graceful stop, `kill` ends everything at once."""

    def __init__(self, agent: HostAgent, isolation: str) -> None:
        self.agent = agent
        self.isolation = isolation
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled or held."""
        try:
            await self.agent.run()
        finally:
            self.stopped.set()

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
async def local_host(session: HostService, settings: HostSettings) -> AsyncIterator[LocalHost]:
    """The host that speaks by this session. No other process has its workers in this data directory.

    Raises:
        StoreHeld: another process has.
    """
    with contextlib.ExitStack() as held:
        held.callback(LockFile(settings.control / "workers.lock").release)
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
            session=session,
            devices=[
                DeviceReport(device.serial, device.driver, device.tags, device.exclusive_tags)
                for device in settings.devices
            ],
            workers=ProcessWorkers(place),
            identity=LocalIdentity(boot_id, new_id("gen")),
            settings=settings.agent,
        )
        yield LocalHost(agent, isolation.sentence)


def _options(device: DeviceSettings, settings: HostSettings) -> Mapping[str, object]:
    """The device's own settings; a shell without a directory gets one of its own in the data directory."""
    if device.driver != "shell" or "directory" in device.options:
        return device.options
    directory = settings.data / "devices" / DeviceRef(HostId(HOST_NAME), device.serial).file_name
    directory.mkdir(parents=True, exist_ok=True)
    return {**device.options, "directory": str(directory)}
