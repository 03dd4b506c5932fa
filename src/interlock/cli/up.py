"""The command that runs a control plane and a local host until it is told to stop."""

from __future__ import annotations

import asyncio

import typer

from interlock.app import AppSettings, Running, running
from interlock.cli.output import Exit, print_json, tell
from interlock.cli.stopping import Stops, first_of, stops


async def serve(settings: AppSettings, *, as_json: bool) -> None:
    """Run until a signal or a failure. Raises what failed, `typer.Exit` where a second signal ended it.

    A signal during the start is kept until it is up, and then ends it: a start that is broken off half-way could leave
    the database held.
    """
    with stops() as noted:
        async with running(settings) as now:
            if not noted.asked.is_set():
                _announce(settings, now, as_json=as_json)
            await first_of(noted.asked, now.failed)
            if now.failed.done():
                now.failed.result()
                return
            await _stop(now, noted)
        if noted.insisted.is_set():
            raise typer.Exit(Exit.INTERRUPTED)


async def _stop(now: Running, noted: Stops) -> None:
    tell("finishing what is in flight, press again to stop at once")
    holding = asyncio.create_task(now.hold())
    await first_of(holding, noted.insisted)
    if not holding.done():
        tell("stopping at once: an effect in flight is in doubt")
        await now.kill()
    await holding


def _announce(settings: AppSettings, now: Running, *, as_json: bool) -> None:
    devices = {device.serial: sorted(device.tags) for device in settings.devices}
    if as_json:
        listed = [{"device": f"local/{serial}", "tags": tags} for serial, tags in devices.items()]
        print_json({"url": now.url, "data": str(settings.data), "isolation": now.isolation, "devices": listed})
        return
    tell(f"interlock listens on {now.url}, data in {settings.data}")
    for device in settings.devices:
        tell(f"  local/{device.serial}  {device.driver}  {' '.join(devices[device.serial])}".rstrip())
    _tell_isolation(now.isolation)
    tell("submit with `interlock submit`, stop with Ctrl-C")


def _tell_isolation(sentence: str) -> None:
    if sentence.startswith("not separated"):
        tell("", f"WARNING  {sentence}", "")
    else:
        tell(f"workers are {sentence}")
