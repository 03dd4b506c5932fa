"""The check of a fleet: its invariants, its devices, its clock, its drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import typer

from interlock.api import wire
from interlock.api.client import Client
from interlock.api.local import data_directory
from interlock.cli.options import AsJson, Data, Database
from interlock.cli.output import Exit, print_json, table, to_person
from interlock.clock import MICROSECONDS, SystemClock
from interlock.drivers.driver import driver_names, load_driver
from interlock.errors import InterlockError, Unavailable
from interlock.fleet.views import Violation

MOST_CLOCK_SECONDS = 2.0


def doctor(*, data: Data = None, database: Database = None, as_json: AsJson = False) -> None:
    """Check that all is as it should be.

    Invariants, devices, clock and drivers of the running control plane; where none runs, the database and drivers.
    """
    directory = data or data_directory()
    try:
        with Client.local(directory) as client:
            found = list(_check_running(client))
        looked_at = "the running control plane"
    except Unavailable:
        found = _check_database(directory, database)
        looked_at = f"the database in {directory}" if database is None else "the database"
    found += _check_drivers()
    if as_json:
        print_json(wire.ViolationList(tuple(found)))
    else:
        _print(found, looked_at)
    if found:
        raise typer.Exit(Exit.FOUND)


def _check_running(client: Client) -> Iterator[Violation]:
    yield from client.violations()
    for device in client.devices():
        if not device.present:
            yield Violation("device_present", f"{device.name} is absent: its host is not heard of")
        elif device.occupancy == "stop_unconfirmed":
            yield Violation("device_free", f"{device.name}: nobody has confirmed that its last attempt has stopped")
    away = abs(client.health().time.timestamp() - SystemClock().now() / MICROSECONDS)
    if away > MOST_CLOCK_SECONDS:
        yield Violation("clock", f"this machine's clock is {away:.0f} s away from the control plane's")


def _check_database(directory: Path, database: str | None) -> list[Violation]:
    from interlock.app import check_database  # noqa: PLC0415 - it loads a server, which only this case needs

    return list(asyncio.run(check_database(directory, database)))


def _check_drivers() -> list[Violation]:
    found = []
    for name in driver_names():
        try:
            load_driver(name)
        except (InterlockError, ImportError, AttributeError):
            found.append(Violation("driver", f"the driver {name} is installed and cannot be loaded"))
    return found


def _print(found: list[Violation], looked_at: str) -> None:
    console = to_person()
    if not found:
        console.print(f"nothing found: {looked_at} is as it should be")
        return
    shown = table("CHECK", "WHY")
    for each in found:
        shown.add_row(each.invariant, each.what)
    console.print(shown)
