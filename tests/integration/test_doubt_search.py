"""Six effects on one device, the worker killed in the fourth at a random point: each takes place once."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Callable

import pytest

from integration.conftest import MakeSystem
from integration.system import System, kill, until
from interlock.fleet.views import TaskDetail

Write = Callable[[str], str]

# Each seed kills two workers.
SEEDS = range(50) if os.environ.get("HYPOTHESIS_PROFILE") == "proof" else range(4)
FOURTH = 4
STEP = """
  s{number}:
    tool: tool:interlock.shell/run
    with: {{command: "sleep {pause}; echo s{number} >> ledger-{name}.txt; sleep {pause}"{probe}}}
    needs: [{needs}]
"""


def workflow(name: str, *, probed: bool) -> str:
    text = f"name: {name}\nsteps:\n"
    for number in range(1, 7):
        probe = f', probe: "grep -q s{number} ledger-{name}.txt"' if probed else ""
        needs, pause = f"s{number - 1}" if number > 1 else "", 0.3 if number == FOURTH else 0
        text += STEP.format(number=number, name=name, needs=needs, probe=probe, pause=pause)
    return text


def killed_in_the_fourth(system: System, task: str, chance: random.Random) -> None:
    """Kill the worker somewhere between the fourth effect's admission and a little after its end."""
    with system.client() as client:

        def fourth_begun() -> bool:
            runs = client.get(task).runs
            return bool(runs) and runs[-1].states["s4"] != "pending"

        until(fourth_begun, "the fourth effect is admitted")
    select.select([], [], [], chance.uniform(0.0, 0.55))
    kill(system.worker())


def settled(system: System, task: str) -> TaskDetail:
    """The end of the task, resolved by looking at the ledger where that is needed."""
    with system.client() as client:
        ended = client.wait(task, 50)
        if ended.reason == "review_required":
            (step,) = ended.in_doubt
            happened = step in system.ledger(name=f"ledger-{ended.label}.txt")
            answer = "happened" if happened else "did_not_happen"
            successor = client.resolve(task, {step: answer}).successor_id
            assert successor is not None
            assert client.wait(successor, 50).status == "done"
            return client.get(successor)
        assert ended.status == "done"
        return client.get(task)


@pytest.mark.contract("S-13")
@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS)
def test_three_are_never_repeated_and_the_fourth_takes_place_once(
    make_system: MakeSystem, write: Write, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - it has to be the same each time
    system = make_system()
    system.up()
    for probed in (True, False):
        name = f"w{seed}-{'probed' if probed else 'plain'}"
        task = str(system.json("submit", "--workflow", write(workflow(name, probed=probed)))["task_id"])
        killed_in_the_fourth(system, task, chance)
        detail = settled(system, task)
        assert system.ledger(name=f"ledger-{name}.txt") == ["s1", "s2", "s3", "s4", "s5", "s6"], f"seed {seed}"
        if probed:
            assert detail.task.continues is None, "what its probe settles reaches nobody"
    with system.client() as client:
        assert client.violations() == []
