"""What an operation may do inside its transaction, and how it refuses."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Protocol

from interlock.fleet.matching import PooledDevice
from interlock.fleet.model import Constraints, DeviceRef, HostId, Occupancy, Service
from interlock.fleet.store import Row

NO_ROOM = "the disk of the database is full: nothing was written; make room, and it goes on by itself"


class Refusal(Exception):
    """Ends an operation: what it wrote is undone, and its caller gets `Refused(code, detail)`."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


class Transaction(Protocol):
    """One transaction of one database. Statements are those of `queries.sql`, by name."""

    def rows(self, query: str, **parameters: object) -> list[Row]:
        """Every row that the statement gives."""
        ...

    def row(self, query: str, **parameters: object) -> Row | None:
        """The first row that the statement gives, or None."""
        ...

    def write(self, query: str, **parameters: object) -> int:
        """Run a statement that changes rows, and say how many it changed."""
        ...

    def lock(self, query: str, **parameters: object) -> None:
        """Lock rows until the transaction ends. Nothing is done where there is one writer: it has locked them all.

        The one order is devices, offered tasks, leases, the task, its attempt; each kind in the order of its key.
        """
        ...

    def enter(self, most: int) -> bool:
        """Count one more queued task, unless `most` are queued."""
        ...

    def count(self, queued: int) -> None:
        """Count queued tasks that come back, or leave when it is negative, whatever the limit."""
        ...

    def aside(self) -> AbstractContextManager[Transaction]:
        """A transaction that is durable at its end, whatever becomes of this one; this one where it is the only one."""
        ...

    def now(self) -> int:
        """The store's clock, in microseconds."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """A part that is undone alone when it raises."""
        ...

    def new_device_id(self) -> str:
        """A device id that was never given before."""
        ...

    @property
    def presence(self) -> int:
        """How long, in microseconds, a host counts as present after it was last heard of."""
        ...


def text(row: Row, column: str) -> str:
    """A column that holds a string."""
    value = row[column]
    if not isinstance(value, str):
        message = f"{column} holds {type(value).__name__}, not text: the database is damaged"
        raise TypeError(message)
    return value


def number(row: Row, column: str) -> int:
    """A column that holds an integer."""
    value = row[column]
    if not isinstance(value, int):
        message = f"{column} holds {type(value).__name__}, not an integer: the database is damaged"
        raise TypeError(message)
    return value


def tags_text(tags: frozenset[str]) -> str:
    """Tags as they are stored: a sorted JSON list."""
    return json.dumps(sorted(tags), separators=(",", ":"))


def constraints_of(task: Row) -> Constraints:
    """The constraints in a task's row."""
    driver, pin = task["driver_type"], task["pin"]
    return Constraints(
        driver_type=None if driver is None else str(driver),
        tags=frozenset(json.loads(text(task, "tags"))),
        device=None if pin is None else DeviceRef.parse(str(pin)),
    )


def shape_text(constraints: Constraints) -> str:
    """A shape as it is stored. A pinned device is no part of it."""
    return json.dumps([constraints.driver_type, sorted(constraints.tags)], separators=(",", ":"))


def constraints_of_shape(wanted: str) -> Constraints:
    """The constraints that a stored shape stands for."""
    driver_type, tags = json.loads(wanted)
    return Constraints(driver_type=driver_type, tags=frozenset(tags))


def pooled_device(device: Row, *, occupancy: str, now: int, presence: int) -> PooledDevice:
    """A device's row as the scheduler sees it."""
    beat, idle_since = device["last_beat_at"], device.get("idle_since")
    return PooledDevice(
        device_id=text(device, "id"),
        ref=DeviceRef(HostId(text(device, "host")), text(device, "serial")),
        driver_type=text(device, "driver_type"),
        tags=frozenset(json.loads(text(device, "tags"))),
        exclusive_tags=frozenset(json.loads(text(device, "exclusive_tags"))),
        occupancy=Occupancy(occupancy),
        service=Service(text(device, "service")),
        present=bool(device["reported"]) and isinstance(beat, int) and beat > now - presence,
        idle_since=idle_since if isinstance(idle_since, int) else 0,
    )
