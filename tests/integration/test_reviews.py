"""The whole way through doubt, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from integration.system import System, alive, kill, until
from interlock.fleet.model import DeviceRef

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


def doubtful(system: System, path: str) -> str:
    """A task whose second effect is in doubt."""
    task = str(system.json("submit", "--workflow", path)["task_id"])
    until(lambda: "two" in system.ledger(), "the second effect begins")
    kill(system.worker())
    with system.client() as client:
        assert client.wait(task, 50).reason == "review_required"
    (system.directory() / "go").touch()
    return task


@pytest.mark.contract("S-11")
@pytest.mark.parametrize(
    ("option", "ledger"),
    [
        ("--happened", ["one", "two", "three"]),
        ("--did-not-happen", ["one", "two", "two", "three"]),
        ("--drop", ["one", "two"]),
    ],
)
def test_r8_a_person_s_answer_decides_how_it_goes_on(
    system: System, write: Write, option: str, ledger: list[str]
) -> None:
    task = doubtful(system, write(STEPS))
    (doubt,) = system.json("reviews")["reviews"]
    assert (doubt["task_id"], doubt["action_id"], doubt["stop_confirmed_at"] is not None) == (task, "two", True)
    assert "two" in system.call("reviews").stdout
    successor = system.json("resolve", task, option, "two")["successor_id"]
    with system.client() as client:
        done = client.wait(successor, 50)
        assert (done.status, done.continues) == ("done", task)
        assert client.get(task).task.continued_by == successor
        assert client.reviews() == []
        assert client.violations() == []
    assert successor in system.call("show", task).stdout
    assert task in system.call("show", successor).stdout
    assert system.ledger() == ledger
    assert system.call("resolve", task, option, "two").returncode == 4


@pytest.mark.contract("S-11")
def test_a_late_effect_is_not_doubled_by_an_early_did_not_happen(system: System, write: Write) -> None:
    task = str(system.json("submit", "--workflow", write(STEPS))["task_id"])
    until(lambda: "two" in system.ledger(), "the second effect begins")
    worker = system.worker()
    os.kill(worker, signal.SIGSTOP)
    with system.client() as client:
        client.force_release(DeviceRef.parse("local/d1"))
        until(lambda: client.get(task).task.ended_at, "the task ends")
    answered = system.call("resolve", task, "--did-not-happen", "two")
    # Taken only if nothing is left that could still bring it about.
    if answered.returncode:
        assert (answered.returncode, "may still happen" in answered.stderr) == (4, True)
    else:
        assert not alive(worker)
