"""Workers and files that misbehave: the attempt may fail, the device and the control plane go on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from integration.conftest import MakeSystem
from integration.system import System

Write = Callable[[str], str]

AGENTS = """
import asyncio, gc, os
from interlock.runners.channel import Channel

def channel():
    return next(each for each in gc.get_objects() if isinstance(each, Channel))

async def surrogate(goal, tools, context):
    return "bad \\udcff name"

async def false_release(goal, tools, context):
    try:
        await channel().call("finish", kind="released", reason="whatever")
    finally:
        os._exit(0)

async def not_started(goal, tools, context):
    await channel().call("finish", kind="released", reason="not_started")

async def forged(goal, tools, context):
    ch = channel()
    for call, arguments in [
        ("save", {"run_id": "r", "sequence": 1, "checkpoint": '{"states":[]}', "parent_run_id": None}),
        ("save", {"run_id": "r", "sequence": 1, "checkpoint": "not json", "parent_run_id": None}),
        ("hand_over", {}), ("settle", {"outcome": "committed"}), ("withdraw", {}), ("no_such_call", {}),
    ]:
        try:
            await ch.call(call, **arguments)
        except Exception as error:
            continue
        raise SystemExit(call)
    return "refused"

async def garbage(goal, tools, context):
    channel()._writer.write(b"[" * 100000 + b"\\n")
    await asyncio.sleep(60)
"""


@pytest.fixture
def agents(make_system: MakeSystem) -> System:
    system = make_system()
    system.data.mkdir()
    (system.data / "bad_agents.py").write_text(AGENTS, "utf-8")
    system.options = ("--agent-path", str(system.data))
    system.up()
    return system


@pytest.mark.contract("S-14")
@pytest.mark.parametrize(
    ("agent", "ends"),
    [
        ("surrogate", {"done"}),
        ("false_release", {"failed"}),
        ("not_started", {"failed"}),
        ("forged", {"done"}),
        ("garbage", {"failed"}),
    ],
)
def test_r82_a_worker_that_misbehaves_harms_its_own_attempt_alone(agents: System, agent: str, ends: set[str]) -> None:
    task = str(agents.json("submit", "try", "--agent", f"bad_agents:{agent}")["task_id"])
    with agents.client() as client:
        ended = client.wait(task, 50)
        assert ended.status in ends, ended
        (device,) = client.devices()
        assert (device.occupancy, device.present) in {("idle", True), ("reserved", True), ("busy", True)}
        assert client.violations() == []
    assert agents.stop() == 0


@pytest.mark.contract("S-14")
def test_a_file_name_that_is_not_utf_8_is_listed_and_harms_nothing(system: System, write: Write) -> None:
    system.directory().mkdir(parents=True, exist_ok=True)
    with open(os.fsencode(system.directory()) + b"/caf\xe9.txt", "wb"):  # noqa: PTH123 - the name is bytes
        pass
    path = write('name: ls\nsteps:\n  l: {tool: "tool:interlock.shell/list", with: {path: "."}}\n')
    done = system.json("submit", "--workflow", path, "--wait")
    assert done["task"]["status"] == "done"
    assert "caf" in str(done["outputs"])
