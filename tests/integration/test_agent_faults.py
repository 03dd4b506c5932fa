"""A real agent with real workers over a real store, and a line between them that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from interlock.app import InstalledDefinitions
from interlock.app.host import BOOT_ID, LocalIdentity
from interlock.errors import Unavailable
from interlock.fleet import Fleet, FleetSettings, GoalRequest, SubmitRequest, TaskScheduler, WorkflowRequest
from interlock.fleet.agent import AgentSettings, HostAgent
from interlock.fleet.store import DeviceReport
from interlock.guard.policy import Policy
from interlock.guard.vault import Vault, new_key
from interlock.runners.isolation import find_isolation
from interlock.runners.process import ProcessWorkers, WorkerPlace
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes

SETTINGS = FleetSettings(
    lease_ttl_seconds=3.0,
    renew_every_seconds=0.3,
    beat_every_seconds=0.3,
    sweep_every_seconds=0.1,
    retry_first_seconds=0.1,
    claim_ttl_seconds=5.0,
)
HELLO = 'name: hello\nsteps:\n  say: {tool: "tool:interlock.shell/run", with: {command: "echo hello >> ledger.txt"}}\n'
TICKING = """
name: ticking
steps:
  tick: {tool: "tool:interlock.shell/wait", with: {path: go, timeout_seconds: 300}}
  say: {tool: "tool:interlock.shell/run", with: {command: "echo said >> ledger.txt"}, needs: [tick]}
"""


class Line:
    """A host's session over a line that can fail before a call arrives, or lose its answer."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.fails_before: Callable[[str], bool] = lambda _: False
        self.loses_answer: Callable[[str], bool] = lambda _: False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if self.fails_before(name):
                message = "the line is down"
                raise Unavailable(message)
            answer = await getattr(self._session, name)(*arguments, **named)
            if self.loses_answer(name):
                message = "the answer was lost"
                raise Unavailable(message)
            return answer

        return call


@dataclass
class Host:
    fleet: Fleet
    line: Line
    agent: HostAgent
    directory: Path
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def submit(self, text: str) -> str:
        return await self.fleet.submit(SubmitRequest(WorkflowRequest(text=text)))

    async def ends(self, task: str) -> list[str | None]:
        done = await self.fleet.wait(task, 40)
        assert done.status == "done", done
        return [attempt.end for attempt in (await self.fleet.get(task)).attempts]

    @property
    def ledger(self) -> list[str]:
        path = self.directory / "ledger.txt"
        return path.read_text("utf-8").split() if path.exists() else []


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    store = SqliteStore.open(tmp_path / "fleet.db", times=StoreTimes(presence=5.0))
    fleet = Fleet(store, settings=SETTINGS, sealer=Vault([new_key()]), definitions=InstalledDefinitions())
    await fleet.register_host("local", "the credential of local")
    directory = tmp_path / "d1"
    directory.mkdir()
    boot = BOOT_ID.read_text("utf-8").strip()
    place = WorkerPlace(
        state=tmp_path,
        hidden=(),
        agent_path=tmp_path,
        isolation=find_isolation(),
        boot_id=boot,
        policy=Policy.allowing(["interlock.shell"], ["stuck:*"]).to_dict(),
        options={"d1": {"directory": str(directory)}},
    )
    line = Line(await fleet.host("the credential of local"))
    identity = LocalIdentity(boot, "gen-1")
    devices = [DeviceReport("d1", "shell")]
    agent = HostAgent(line, devices, ProcessWorkers(place), identity, settings=AgentSettings(5.0, 0.5))  # type: ignore[arg-type]
    made = Host(fleet, line, agent, directory)
    scheduling = asyncio.create_task(TaskScheduler(fleet).run())
    made.tasks = [scheduling, asyncio.create_task(agent.run())]
    yield made
    line.fails_before = line.loses_answer = lambda _: False
    agent.hold()
    await asyncio.wait({made.tasks[1]}, timeout=30)
    for task in made.tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert await fleet.violations() == []
    await store.close()


def once(wanted: str) -> Callable[[str], bool]:
    """Of all calls of a name, the first."""
    left = [wanted]

    def fails(name: str) -> bool:
        if name in left:
            left.remove(name)
            return True
        return False

    return fails


def every_second(wanted: str) -> Callable[[str], bool]:
    counted = [0]

    def fails(name: str) -> bool:
        counted[0] += name == wanted
        return name == wanted and counted[0] % 2 == 1

    return fails


@pytest.mark.contract("S-12")
@pytest.mark.parametrize("call", ["claim", "finish", "renew", "beat"])
async def test_an_answer_that_is_lost_is_asked_again_and_nothing_runs_twice(host: Host, call: str) -> None:
    host.line.loses_answer = once(call)
    task = await host.submit(HELLO)
    assert await host.ends(task) == ["done"]
    assert host.ledger == ["hello"]


@pytest.mark.contract("S-12")
@pytest.mark.parametrize("call", ["save", "hand_over", "settle"])
@pytest.mark.parametrize("way", ["the call", "its answer"])
async def test_a_write_that_is_lost_is_asked_again_and_costs_no_attempt(host: Host, call: str, way: str) -> None:
    fails = every_second(call)
    if way == "the call":
        host.line.fails_before = fails
    else:
        host.line.loses_answer = fails
    task = await host.submit(HELLO)
    assert await host.ends(task) == ["done"]
    assert host.ledger == ["hello"]
    assert host.line.calls.count(call) >= 2


@pytest.mark.contract("S-12", "G-08")
async def test_a_hand_over_that_is_never_answered_begins_nothing(host: Host) -> None:
    host.line.fails_before = lambda name: name == "hand_over"
    task = await host.submit(HELLO)
    while "renew" not in host.line.calls or host.line.calls.count("hand_over") < 3:
        await host.fleet.wait(task, 0.1)
    ended = await host.fleet.wait(task, 40)
    # Nothing of it was stored, so that nothing is in doubt; but this run cannot say so.
    assert (ended.status, ended.reason, ended.in_doubt, host.ledger) == ("failed", "review_required", (), [])


@pytest.mark.contract("G-55")
async def test_a_task_whose_stopped_run_was_reviewed_goes_on_with_what_remains(host: Host) -> None:
    task = await host.submit(
        "name: late\nsteps:\n"
        '  slow: {tool: "tool:interlock.shell/run", with: {command: "sleep 60", timeout_seconds: 0.2}}\n'
        '  say: {tool: "tool:interlock.shell/run", with: {command: "echo said >> ledger.txt"}, needs: [slow]}\n'
    )
    ended = await host.fleet.wait(task, 40)
    assert (ended.reason, ended.in_doubt) == ("review_required", ("slow",))
    successor = (await host.fleet.resolve(task, {"slow": "happened"}, "ada")).successor_id
    assert successor is not None
    assert await host.ends(successor) == ["done"]
    assert host.ledger == ["said"]


@pytest.mark.contract("S-12")
async def test_q31_every_second_renewal_may_fail(host: Host) -> None:
    host.line.fails_before = every_second("renew")
    task = await host.submit(TICKING)
    while host.line.calls.count("renew") < 16:
        assert (await host.fleet.get(task)).task.status in {"queued", "assigned", "dispatched"}
        await host.fleet.wait(task, 0.1)
    (host.directory / "go").touch()
    assert await host.ends(task) == ["done"]


@pytest.mark.contract("S-12")
async def test_r69_a_host_that_is_cut_off_stops_before_its_lease_ends(host: Host) -> None:
    task = await host.submit(TICKING)
    while not (await host.fleet.get(task)).runs:
        await host.fleet.wait(task, 0.05)
    host.line.fails_before = lambda _: True
    while host.agent.busy:
        assert (await host.fleet.get(task)).task.status == "dispatched"
        await host.fleet.wait(task, 0.05)
    # Its worker is gone, and the lease still held: nobody else can have had the device meanwhile.
    while (await host.fleet.get(task)).task.status == "dispatched":
        await host.fleet.wait(task, 0.05)
    (device,) = await host.fleet.devices()
    assert device.occupancy == "stop_unconfirmed"
    host.line.fails_before = lambda _: False
    (host.directory / "go").touch()
    assert await host.ends(task) == ["lease_expired", "done"]
    assert host.ledger == ["said"]


@pytest.mark.contract("S-12")
async def test_q63_a_cancel_reaches_the_worker_within_a_beat(host: Host) -> None:
    task = await host.submit(TICKING)
    while not (await host.fleet.get(task)).runs:
        await host.fleet.wait(task, 0.05)
    assert (await host.fleet.cancel(task)).outcome == "cancel_requested"
    ended = await host.fleet.wait(task, 30)
    assert (ended.status, host.ledger) == ("cancelled", [])


@pytest.mark.contract("S-12")
async def test_r42_a_worker_that_will_not_stop_is_ended(host: Host) -> None:
    stubborn = TICKING.replace(
        'tick: {tool: "tool:interlock.shell/wait", with: {path: go, timeout_seconds: 300}}',
        'tick: {tool: "tool:interlock.shell/run", with: {command: "trap : TERM INT; touch on; while :; do :; done"}}',
    )
    task = await host.submit(stubborn)
    while not (host.directory / "on").exists():
        await host.fleet.wait(task, 0.05)
    await host.fleet.cancel(task)
    ended = await host.fleet.wait(task, 40)
    assert (ended.status, ended.in_doubt) == ("cancelled", ("tick",))
    while (await host.fleet.devices())[0].occupancy != "idle":
        await host.fleet.wait(task, 0.05)
        await asyncio.sleep(0)


@pytest.mark.contract("G-50")
async def test_r42_an_agent_that_blocks_its_worker_is_ended_at_its_time_limit(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.fleet.attempt.GRACE_SECONDS", 0.0)
    stuck = "import threading\nasync def block(goal, tools, context):\n    threading.Event().wait()\n"
    (tmp_path / "stuck.py").write_text(stuck, "utf-8")
    request = SubmitRequest(GoalRequest("wait", "stuck:block", max_elapsed_seconds=0.5), max_attempts=1)
    ended = await host.fleet.wait(await host.fleet.submit(request), 40)
    assert (ended.status, ended.reason) == ("failed", "worker_lost")
