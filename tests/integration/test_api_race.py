"""Many processes through the API of one `up`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from integration.system import System

PROCESSES, TASKS = 8, 200

# Each process is a submitter, a host with one device, and somebody who cancels, all through HTTP.
PROGRAM = """
import asyncio, json, sys
from interlock.api.client import RemoteFleet, RemoteHostSession
from interlock.clock import new_id
from interlock.fleet.model import Constraints, Ending, EndKind
from interlock.fleet.service import GoalRequest, SubmitRequest
from interlock.fleet.store import DeviceReport

url, token, number, share = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
said = {"submitted": [], "cancelled": [], "ran": [], "errors": []}

async def act_as_host(fleet, session, over):
    device = DeviceReport("d1", "pretend", frozenset({"pool"}))
    await session.beat("boot", "gen", [device])
    while not over.is_set():
        for assignment in await session.claim(new_id("claim"), 1, 0.5):
            await session.renew(assignment.lease_id)
            said["ran"].append([assignment.task_id, assignment.fence])
            asked = (await session.renew(assignment.lease_id)).cancel_requested
            kind = EndKind.CANCELLED if asked else EndKind.DONE
            await session.finish(assignment.lease_id, Ending(kind, kind.value), stopped=True, clean=True)
        await session.beat("boot", "gen", [device])

async def main():
    credential = f"the credential of host {number}"
    async with RemoteFleet(url, token) as fleet:
        await fleet.register_host(f"h{number}", credential)
        session = RemoteHostSession(url, credential)
        over = asyncio.Event()
        hosting = asyncio.create_task(act_as_host(fleet, session, over))
        for each in range(share):
            request = SubmitRequest(GoalRequest("race", "a:b"), Constraints("pretend", frozenset({"pool"})))
            task = await fleet.submit(request)
            said["submitted"].append(task)
            if each % 5 == 0:
                said["cancelled"].append([task, (await fleet.cancel(task)).outcome])
        for task in said["submitted"]:
            while (await fleet.wait(task, 10)).ended_at is None:
                assert not hosting.done(), hosting.exception()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        over.set()
        await hosting
        await session.goodbye("gen")
        await session.close()

try:
    asyncio.run(main())
except BaseException as error:
    said["errors"].append(repr(error))
print(json.dumps(said))
"""


@pytest.mark.contract("S-06")
def test_f20_eight_processes_share_eight_devices_through_one_up(system: System) -> None:
    url, token = system.greeting["url"], (system.data / "control" / "token").read_text("utf-8").strip()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, token, str(number), str(TASKS // PROCESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        for number in range(PROCESSES)
    ]
    lines = [racer.stdout.readline() for racer in racers if racer.stdout]
    assert lines == ["ready\n"] * PROCESSES
    said: list[dict[str, Any]] = [json.loads(racer.communicate("over\n", timeout=60)[0]) for racer in racers]
    assert [each["errors"] for each in said] == [[]] * PROCESSES
    submitted = [task for each in said for task in each["submitted"]]
    ran = Counter(task for each in said for task, _ in each["ran"])
    assert (len(set(submitted)), set(ran.values())) == (TASKS, {1})
    for each in said:
        fences = [fence for _, fence in each["ran"]]
        assert fences == sorted(set(fences))
    with system.client() as client:
        statuses = {task.task_id: task.status for task in client.tasks(most=1_000)}
        assert client.violations() == []
    assert {statuses[task] for task in submitted} <= {"done", "cancelled"}
    for task, outcome in (each for one in said for each in one["cancelled"]):
        if outcome == "cancelled":
            assert (statuses[task], ran[task]) == ("cancelled", 0)
