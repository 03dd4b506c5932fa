"""The faults of the demo: SIGKILL for a worker in the middle of a read, and of another in the middle of an effect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

from interlock.fleet.service import FleetService
from interlock.fleet.views import TaskDetail

LOOK_SECONDS = 0.02


async def kill_during_read(fleet: FleetService, task_id: str, data: Path) -> None:
    """Kill the worker while its run waits for a sample, then provide the sample."""
    detail = await _until(fleet, task_id, lambda found: _state(found, "sample") == "running")
    serial = _serial(detail)
    kill_worker(data, serial)
    (data / "devices" / serial / "sample.txt").write_text("a sample\n", "utf-8")


async def kill_during_effect(fleet: FleetService, task_id: str, data: Path) -> None:
    """Kill the worker once its effect has certainly begun: the ledger says so."""
    detail = await _until(fleet, task_id, lambda found: _state(found, "burn") == "running")
    serial = _serial(detail)
    ledger = data / "devices" / serial / "ledger.txt"
    while "burn" not in await asyncio.to_thread(_text, ledger):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(LOOK_SECONDS)
    kill_worker(data, serial)


async def cancel_running(fleet: FleetService, task_id: str) -> None:
    """Cancel a task while it runs."""
    await _until(fleet, task_id, lambda found: _state(found, "forever") == "running")
    await fleet.cancel(task_id)


def kill_worker(data: Path, serial: str) -> None:
    """SIGKILL, by the process id that the host keeps on record for the device."""
    record = json.loads((data / "control" / "workers" / f"{serial}.json").read_text("utf-8"))
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(record["pid"]), signal.SIGKILL)


async def _until(fleet: FleetService, task_id: str, ready: object) -> TaskDetail:
    while True:
        detail = await fleet.get(task_id)
        if callable(ready) and ready(detail):
            return detail
        await asyncio.sleep(LOOK_SECONDS)


def _state(detail: TaskDetail, action: str) -> str | None:
    return detail.runs[-1].states.get(action) if detail.runs else None


def _serial(detail: TaskDetail) -> str:
    return detail.attempts[-1].device.partition("/")[2]


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
