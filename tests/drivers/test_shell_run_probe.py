"""The probe that a step declares for its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.actions import CancellationSignal
from interlock.drivers.shell import RUN, ShellDriver
from interlock.fleet.model import DeviceRef, HostId
from interlock.guard.tools import Answer, CallContext, ProbedTool

CALL = CallContext("run", "a", DeviceRef(HostId("h"), "s"), 1, CancellationSignal())


@pytest.mark.contract("G-53")
@pytest.mark.parametrize(
    ("probe", "answer"),
    [
        ("test -e made", Answer.HAPPENED),
        ("test -e missing", Answer.DID_NOT_HAPPEN),
        ("exit 2", Answer.CANNOT_TELL),
        ("kill -9 $PPID", Answer.CANNOT_TELL),
        ("no-such-command", Answer.CANNOT_TELL),
        ("x\0y", Answer.CANNOT_TELL),
        (None, Answer.CANNOT_TELL),
    ],
)
async def test_a_declared_probe_tells_by_its_status(tmp_path: Path, probe: str | None, answer: Answer) -> None:
    (tmp_path / "made").touch()
    arguments = {"command": "touch made"} if probe is None else {"command": "touch made", "probe": probe}
    async with ShellDriver().open({"directory": str(tmp_path)}) as device:
        tool = device.tools()[RUN.id]
        assert isinstance(tool, ProbedTool)
        report = await tool.probe(arguments, CALL)
    assert report.answer is answer
    assert (report.evidence is not None) == (answer is not Answer.CANNOT_TELL)
