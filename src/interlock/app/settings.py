"""What a person settles before a control plane or a host starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interlock.fleet.agent import AgentSettings
from interlock.fleet.settings import FleetSettings
from interlock.guard.policy import Policy
from interlock.stores.times import StoreTimes


@dataclass(frozen=True)
class DeviceSettings:
    """One device of a host. What `options` may hold is the driver's to say; a shell takes `directory`."""

    serial: str
    driver: str = "shell"
    tags: frozenset[str] = frozenset()
    exclusive_tags: frozenset[str] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Place:
    """`data` is the data directory; nobody else may read its `control` folder."""

    data: Path

    @property
    def control(self) -> Path:
        """Where the database, the key, the tokens and the records of workers are: hidden from every task."""
        return self.data / "control"


@dataclass(frozen=True, kw_only=True)
class ControlSettings(Place):
    """A control plane.

    `database` is the address of a PostgreSQL database, or None for the embedded one in the control folder. `token` is
    what people and programs are to send, None for a fresh one at each start.
    """

    listen: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    fleet: FleetSettings = field(default_factory=FleetSettings)
    times: StoreTimes = field(default_factory=StoreTimes)
    database: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostSettings(Place):
    """A host: its devices, what may be called on them, and where agents are found."""

    devices: tuple[DeviceSettings, ...]
    policy: Policy
    agent_path: Path
    agent: AgentSettings = field(default_factory=AgentSettings)


@dataclass(frozen=True, kw_only=True)
class AppSettings(ControlSettings, HostSettings):
    """A control plane with a local host."""


@dataclass(frozen=True)
class Server:
    """Where a host's control plane is, and the credential that it was given there."""

    url: str
    credential: str = field(repr=False)
