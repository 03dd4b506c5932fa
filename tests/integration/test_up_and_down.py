"""A task from submission to its end, and what stops in between do to it: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from integration.conftest import MakeSystem
from integration.system import System, kill, until

Write = Callable[[str], str]

STEPS = """
name: steps
steps:
  one: {tool: "tool:interlock.shell/run", with: {command: "echo one >> ledger.txt"}}
  two:
    tool: tool:interlock.shell/run
    with: {command: "echo two >> ledger.txt; while [ ! -e go ]; do sleep 0.02; done"}
    needs: [one]
  three: {tool: "tool:interlock.shell/run", with: {command: "echo three >> ledger.txt"}, needs: [two]}
"""
READS = """
name: reads
steps:
  one: {tool: "tool:interlock.shell/run", with: {command: "echo one >> ledger.txt"}}
  two: {tool: "tool:interlock.shell/wait", with: {path: go, timeout_seconds: 300}, needs: [one]}
  three: {tool: "tool:interlock.shell/run", with: {command: "echo three >> ledger.txt"}, needs: [two]}
"""


def submitted(system: System, path: str) -> str:
    return str(system.json("submit", "--workflow", path)["task_id"])


def shown(system: System, task: str) -> dict[str, object]:
    with system.client() as client:
        detail = client.get(task)
    return {
        "status": detail.task.status,
        "reason": detail.task.reason,
        "in_doubt": detail.task.in_doubt,
        "ends": [attempt.end for attempt in detail.attempts],
        "runs": [run.run_id for run in detail.runs],
        "parents": [run.parent_run_id for run in detail.runs],
    }


def ended(system: System, task: str) -> dict[str, object]:
    with system.client() as client:
        client.wait(task, 50)
    return shown(system, task)


@pytest.mark.contract("S-01")
def test_submit_and_wait_shows_output_attempts_and_times(system: System, write: Write) -> None:
    path = write('name: hello\nsteps:\n  say: {tool: "tool:interlock.shell/run", with: {command: "echo hello"}}\n')
    done = system.call("submit", "--workflow", path, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    task = json.loads(done.stdout)["task"]
    detail = system.json("show", task["task_id"])
    text = json.dumps(detail)
    assert "hello" in text
    (attempt,) = detail["attempts"]
    assert all(attempt[time] for time in ("assigned_at", "claimed_at", "ended_at"))
    assert system.call("show", task["task_id"]).returncode == 0
    assert system.stop() == 0


@pytest.mark.contract("S-02")
def test_after_a_ctrl_c_the_workflow_goes_on_under_its_own_run_id(system: System, write: Write) -> None:
    task = submitted(system, write(STEPS))
    until(lambda: "two" in system.ledger(), "the second effect begins")
    before = shown(system, task)
    system.signal(signal.SIGINT)
    (system.directory() / "go").touch()
    assert system.ended() == 0
    assert system.ledger() == ["one", "two"]
    system.up()
    after = ended(system, task)
    assert (after["status"], after["ends"]) == ("done", ["interrupted", "done"])
    assert after["runs"] == before["runs"]
    assert system.ledger() == ["one", "two", "three"]


@pytest.mark.contract("S-02")
def test_after_a_ctrl_c_during_a_read_it_goes_on_in_a_successor_run(make_system: MakeSystem, write: Write) -> None:
    system = make_system()
    system.up()
    task = submitted(
        system, write(READS + '  beside: {tool: "tool:interlock.shell/list", with: {path: "."}, needs: [two]}\n')
    )
    until(lambda: shown(system, task)["runs"] and "one" in system.ledger(), "the read begins")
    with system.client() as client:
        until(lambda: client.get(task).runs[-1].states["two"] == "running", "the read is admitted")
    assert system.stop() == 0
    (system.directory() / "go").touch()
    system.up()
    after = ended(system, task)
    assert (after["status"], after["ends"]) == ("done", ["interrupted", "done"])
    assert len(after["runs"]) == 2  # type: ignore[arg-type]
    assert after["parents"] == [None, after["runs"][0]]  # type: ignore[index]
    assert system.ledger() == ["one", "three"]


@pytest.mark.contract("S-03")
@pytest.mark.parametrize("how", ["second signal", "kill"])
def test_a_kill_during_an_effect_leaves_it_in_doubt_and_never_repeats_it(
    system: System, write: Write, how: str
) -> None:
    task = submitted(system, write(STEPS))
    until(lambda: "two" in system.ledger(), "the second effect begins")
    if how == "kill":
        system.signal(signal.SIGKILL)
    else:
        system.signal(signal.SIGINT)
        system.signal(signal.SIGTERM)
    system.ended()
    system.up()
    after = ended(system, task)
    assert (after["status"], after["reason"], after["in_doubt"]) == ("failed", "review_required", ("two",))
    assert system.ledger() == ["one", "two"]
    assert "two" in system.call("show", task).stdout
    assert system.json("doctor")["violations"] == []


@pytest.mark.contract("S-04")
def test_a_worker_killed_during_a_read_costs_the_task_nothing(system: System, write: Write) -> None:
    task = submitted(system, write(READS))
    with system.client() as client:
        until(lambda: (client.get(task).runs or [None])[-1], "the run begins")
        until(lambda: client.get(task).runs[-1].states["two"] == "running", "the read is admitted")
    kill(system.worker())
    (system.directory() / "go").touch()
    after = ended(system, task)
    assert (after["status"], after["ends"]) == ("done", ["worker_lost", "done"])
    assert system.ledger() == ["one", "three"]


@pytest.mark.contract("S-05")
def test_a_second_up_is_told_who_holds_the_database(system: System) -> None:
    second = system.call("up", "--port", "0")
    assert system.process is not None
    assert (second.returncode, f"process {system.process.pid}" in second.stderr) == (5, True)


def test_queued_tasks_survive_a_kill(make_system: MakeSystem, write: Write) -> None:
    system = make_system()
    system.up()
    blocked = submitted(system, write(STEPS))
    waiting = [submitted(system, write(STEPS.replace("ledger", f"ledger{number}"))) for number in range(5)]
    until(lambda: "two" in system.ledger(), "the first begins")
    system.signal(signal.SIGKILL)
    system.ended()
    (system.directory() / "go").touch()
    system.up()
    assert [ended(system, task)["status"] for task in waiting] == ["done"] * 5
    assert ended(system, blocked)["status"] == "failed"
    assert [system.ledger(name=f"ledger{number}.txt") for number in range(5)] == [["one", "two", "three"]] * 5
