"""What a driver is: it opens devices of one type, whose tools it vouches for. Found by entry point."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from interlock.errors import InvalidInput
from interlock.guard.tools import Tool, ToolContract, nearest

GROUP = "interlock.drivers"


class Device(Protocol):
    """One open device."""

    def tools(self) -> Mapping[str, Tool]:
        """What it can do, by tool id."""
        ...


class Driver(Protocol):
    """One type of device. Its module is loaded by control planes and hosts alike; only `open` touches a device."""

    @property
    def name(self) -> str:
        """The `driver_type` that tasks ask for."""
        ...

    @property
    def contracts(self) -> Mapping[str, ToolContract]:
        """The contracts of the tools that every device of this type has, by tool id."""
        ...

    def open(self, settings: Mapping[str, object]) -> AbstractAsyncContextManager[Device]:
        """Take hold of one device. Leaving the context ends all that was started on it.

        Raises:
            InvalidInput: A setting is missing or wrong, by name.
        """
        ...


def driver_names() -> tuple[str, ...]:
    """The drivers that are installed, ascending."""
    return tuple(sorted(_entries()))


def load_driver(name: str) -> Driver:
    """The driver of that name, made anew. Raises `InvalidInput` that lists those installed where it is not."""
    entries = _entries()
    if name not in entries:
        message = f"no driver {name!r} is installed{nearest(name, entries)}"
        raise InvalidInput(message)
    driver: Driver = entries[name].load()()
    return driver


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
