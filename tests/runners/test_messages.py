"""What crosses the worker's socket arrives as it was sent, and nothing else is taken."""

from __future__ import annotations

import json

import pytest

from interlock.errors import InvalidInput
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    EntryState,
    GoalWork,
    History,
    JournalEntry,
    LeaseId,
    RunSave,
    TaskId,
    Work,
    WorkflowWork,
)
from interlock.runners.messages import Start, ending_from_json, start_from_json, start_to_json
from interlock.testing.ledger import DEVICE

RUN = "run_" + "1" * 32
ENTRY = JournalEntry(
    RUN, "a", "tool:a.b/c", "sha256:1", AttemptId("att_1"), DEVICE, EntryState.SETTLED, 1, "committed", "e", 2, "drop"
)


@pytest.mark.contract("G-55")
@pytest.mark.parametrize("work", [GoalWork("look", "agents:look", 3, 4.5), WorkflowWork("sha256:1", "{}", {"x": 1})])
def test_a_start_arrives_whole(work: Work) -> None:
    history = History((RunSave(RUN, None, 3, "{}"),), (ENTRY,), RUN)
    assignment = Assignment(
        TaskId("task_1"), AttemptId("att_2"), LeaseId("lease_1"), 2, DEVICE, "shell", 7, work, history, 60.0, 15.0
    )
    start = Start(assignment, {"directory": "/d"}, {"tools": {}}, 12.5)
    assert start_from_json(json.loads(json.dumps(start_to_json(start)))) == start


@pytest.mark.contract("F-61")
@pytest.mark.parametrize("reason", ["", "Two words", "a-b", "9lives", "x" * 65, "ünder", "line\n"])
def test_a_worker_gives_no_reason_that_is_no_word(reason: str) -> None:
    with pytest.raises(InvalidInput):
        ending_from_json({"kind": "failed", "reason": reason})
