"""What runs a control plane, a host or both until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from typing import TypeVar

import typer

from interlock.app import Hosting, Running, Serving, Working, hosting, running, serving
from interlock.app.settings import AppSettings, ControlSettings, DeviceSettings, HostSettings, Server
from interlock.cli.output import Exit, print_json, tell
from interlock.cli.stopping import Stops, first_of, stops

Kind = TypeVar("Kind", bound=Working)


async def run_both(settings: AppSettings, *, as_json: bool) -> None:
    """Run a control plane and a local host. Raises as `_until_stopped` does."""

    def announce(now: Running) -> None:
        if as_json:
            listed = [{"device": f"local/{device.serial}", "tags": sorted(device.tags)} for device in settings.devices]
            print_json({"url": now.url, "data": str(settings.data), "isolation": now.isolation, "devices": listed})
            return
        tell(f"interlock listens on {now.url}, data in {settings.data}")
        _tell_devices(settings.devices, "local/")
        _tell_isolation(now.isolation)
        tell("submit with `interlock submit`, stop with Ctrl-C")

    await _until_stopped(running(settings), announce)


async def run_control(settings: ControlSettings, *, as_json: bool) -> None:
    """Run a control plane alone. Raises as `_until_stopped` does."""

    def announce(now: Serving) -> None:
        if as_json:
            print_json({"url": now.url, "data": str(settings.data)})
            return
        tell(f"interlock listens on {now.url}, data in {settings.data}")
        if not _is_loopback(settings.listen):
            tell("", "WARNING  others can reach it, and what they send is not encrypted: put TLS before it", "")
        tell("give a host its token with `interlock host-token NAME`, stop with Ctrl-C")

    await _until_stopped(serving(settings), announce)


async def run_host(settings: HostSettings, server: Server, *, as_json: bool) -> None:
    """Run a host of a control plane somewhere else. Raises as `_until_stopped` does."""

    def announce(now: Hosting) -> None:
        if as_json:
            listed = [{"serial": device.serial, "tags": sorted(device.tags)} for device in settings.devices]
            print_json(
                {"server": server.url, "data": str(settings.data), "isolation": now.isolation, "devices": listed}
            )
            return
        tell(f"{server.url} has heard of this host, data in {settings.data}")
        _tell_devices(settings.devices, "")
        _tell_isolation(now.isolation)
        tell("stop with Ctrl-C")

    await _until_stopped(hosting(settings, server), announce)


async def _until_stopped(work: AbstractAsyncContextManager[Kind], announce: Callable[[Kind], None]) -> None:
    """Run until a signal or a failure. Raises what failed, `typer.Exit` where a second signal ended it.

    A signal during the start is kept until it is up, and then ends it: a start that is broken off half-way could leave
    the database held.
    """
    with stops() as noted:
        async with work as now:
            if not noted.asked.is_set():
                announce(now)
            await first_of(noted.asked, now.failed)
            if now.failed.done():
                now.failed.result()
                return
            await _stop(now, noted)
        if noted.insisted.is_set():
            raise typer.Exit(Exit.INTERRUPTED)


async def _stop(now: Working, noted: Stops) -> None:
    tell("finishing what is in flight, press again to stop at once")
    holding = asyncio.create_task(now.hold())
    await first_of(holding, noted.insisted)
    if not holding.done():
        tell("stopping at once: an effect in flight is in doubt")
        await now.kill()
    await holding


def _tell_devices(devices: Sequence[DeviceSettings], host: str) -> None:
    for device in devices:
        tell(f"  {host}{device.serial}  {device.driver}  {' '.join(sorted(device.tags))}".rstrip())


def _tell_isolation(sentence: str) -> None:
    if sentence.startswith("not separated"):
        tell("", f"WARNING  {sentence}", "")
    else:
        tell(f"workers are {sentence}")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
