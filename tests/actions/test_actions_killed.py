"""Killed at each save and at each dispatch of random graphs, with real processes and the real stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from actions.graphs import graphs
from actions.killed_run import store_of
from actions.stage import RUN
from interlock.actions import ActionState, ScheduledAction, SchedulerCheckpoint, StopReason

Place = tuple[str, int]

_SECONDS = 300
FINAL = frozenset((ActionState.COMMITTED, ActionState.FAILED, ActionState.REVIEW_REQUIRED))


def places(size: int) -> list[Place]:
    """Every boundary of a run of so many actions."""
    saves = [(f"{where} save", number) for number in range(1, 2 * size + 2) for where in ("before", "in", "after")]
    calls = [(f"{where} dispatch", number) for number in range(1, size + 1) for where in ("before", "in", "after")]
    return [*saves, *calls]


def stories(plan: dict[str, Any], lives: list[list[Place]]) -> Iterator[list[tuple[str, str]]]:
    """What the processes of each case told, one after another, with what the store has of them at the end."""
    tests = str(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as path:
        folders = [Path(path) / str(number) for number in range(len(lives))]
        cases = [(str(folder), deaths) for folder, deaths in zip(folders, lives, strict=True)]
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("killed_run.py"))],
            input=json.dumps({**plan, "cases": cases}),
            env={**os.environ, "PYTHONPATH": os.pathsep.join((tests, os.environ.get("PYTHONPATH", "")))},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        for folder in folders:
            lines = [line.partition(" ") for line in (folder / "story").read_text("utf-8").splitlines()]
            last = store_of(plan["kind"], folder).load(RUN)
            assert last is not None
            yield [*((what, value) for what, _, value in lines), ("stored", last.to_json())]


def check_story(story: list[tuple[str, str]]) -> None:
    """Hold what was told to the rules of a restart."""
    last: SchedulerCheckpoint | None = None
    dispatched: list[str] = []
    for what, value in story:
        if what == "dispatch":
            assert last is not None
            assert dict(last.states)[value] is ActionState.RUNNING, "dispatched before it was saved as admitted"
            dispatched.append(value)
            continue
        told = None if value == "null" else SchedulerCheckpoint.from_dict(json.loads(value))
        if last is not None:
            assert told is not None, "what was saved is not found"
            check_successor(last, told)
        if what == "found" and told is not None and told.stop_reason is None:
            may_go_on = {ActionState.PENDING, ActionState.COMMITTED}.issuperset(dict(told.states).values())
            expected = StopReason.COMPLETED if may_go_on else StopReason.REVIEW_REQUIRED
        elif what == "found":
            expected = StopReason.COMPLETED if told is None or told.stop_reason is None else told.stop_reason
        last = told
    assert len(set(dispatched)) == len(dispatched), "dispatched again"
    assert last is not None
    assert last.stop_reason is expected


def check_successor(last: SchedulerCheckpoint, told: SchedulerCheckpoint) -> None:
    """Nothing is taken back and nothing refunded, in a process or from one to the next."""
    assert told.admitted_actions >= last.admitted_actions
    assert told.reserved_units >= last.reserved_units
    assert told.elapsed_ns >= last.elapsed_ns
    assert last.stop_reason is None or told == last
    for (_, before), (_, after) in zip(last.states, told.states, strict=True):
        assert before not in FINAL or after is before
        assert before is not ActionState.RUNNING or after is not ActionState.PENDING


@pytest.mark.contract("A-97", "A-85", "A-86", "A-90", "A-91", "A-95")
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@settings(max_examples=max(settings().max_examples // 10, 2), phases=[Phase.generate])
@given(graph=graphs((1, 2, 3, 5, 8)), awaited=st.booleans(), data=st.data())
def test_r3_r9_killed_at_any_save_or_dispatch_a_run_repeats_nothing(
    kind: str, graph: list[ScheduledAction], awaited: object, data: st.DataObject
) -> None:
    everywhere = places(len(graph))
    plan = {
        "kind": kind,
        "awaited": awaited,
        "limits": [3, len(graph), 6, 3 * len(graph), 10**15, True],
        "turns": {action.node.action_id: data.draw(st.integers(0, 3)) for action in graph},
        "actions": [
            (action.node.action_id, action.node.depends_on, action.read_only, action.resource_units) for action in graph
        ],
    }
    # Each boundary of the first process; and then one of the process that is started after it.
    again = data.draw(st.lists(st.sampled_from(everywhere), min_size=len(everywhere), max_size=len(everywhere)))
    lives = [[first, second] for first, second in zip(everywhere, again, strict=True)]
    for story in stories(plan, lives):
        check_story(story)
