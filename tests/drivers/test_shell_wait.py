"""The wait tool: a read that takes as long as what it waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlock.actions import CancellationSignal, DispatchOutcome
from interlock.drivers.shell import WAIT, WaitTool
from interlock.drivers.shell_files import Workdir
from interlock.fleet.model import DeviceRef, HostId
from interlock.guard.tools import CallContext
from interlock.testing.clock import ManualClock

CALL = CallContext("run", "a", DeviceRef(HostId("h"), "s"), 1, CancellationSignal())


async def ticking(clock: ManualClock, waiting: asyncio.Task[object]) -> None:
    while not waiting.done():
        clock.advance(0.05)
        await asyncio.sleep(0)


async def test_wait_ends_when_the_path_is_there(tmp_path: Path) -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(WaitTool(Workdir(tmp_path), clock).invoke({"path": "ready"}, CALL))
    for _ in range(20):
        clock.advance(0.05)
        await asyncio.sleep(0)
    assert not waiting.done()
    (tmp_path / "ready").write_text("x")
    await ticking(clock, waiting)
    assert (await waiting).outcome is DispatchOutcome.COMMITTED


async def test_wait_fails_for_certain_when_it_does_not_come_in_time(tmp_path: Path) -> None:
    clock = ManualClock()
    tool = WaitTool(Workdir(tmp_path), clock)
    waiting = asyncio.create_task(tool.invoke({"path": "never", "timeout_seconds": 2}, CALL))
    await ticking(clock, waiting)
    result = await waiting
    assert (result.outcome, result.output) == (DispatchOutcome.FAILED, {"error": "not_found"})


@pytest.mark.parametrize("path", ["..", "/etc/passwd"])
async def test_wait_stays_inside_the_directory(tmp_path: Path, path: str) -> None:
    result = await WaitTool(Workdir(tmp_path), ManualClock()).invoke({"path": path}, CALL)
    assert result.outcome is DispatchOutcome.FAILED


def test_wait_is_a_read_by_its_contract() -> None:
    assert WAIT.is_read
