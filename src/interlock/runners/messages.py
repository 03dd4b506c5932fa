"""The values that cross the worker's socket, to JSON and back. What comes back is checked where it becomes a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from interlock.errors import InvalidInput
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    DeviceRef,
    Ending,
    EndKind,
    EntryState,
    GoalWork,
    HandOver,
    History,
    HostId,
    JournalEntry,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
    Work,
    WorkflowWork,
    is_reason,
)

# That nothing was started is the agent's to say, who started it.
_RELEASED = frozenset({"interrupted", "worker_lost"})


@dataclass(frozen=True)
class Start:
    """What a worker is told once, to begin with. `deadline` is in seconds of `Clock.elapsed()`."""

    assignment: Assignment
    options: Mapping[str, object]
    policy: Mapping[str, object]
    deadline: float


def start_to_json(start: Start) -> dict[str, Any]:
    """A start as JSON values."""
    kind = "goal" if isinstance(start.assignment.work, GoalWork) else "workflow"
    return {**asdict(start), "kind": kind}


def start_from_json(said: Mapping[str, Any]) -> Start:
    """A start from JSON values."""
    given = dict(said["assignment"])
    work: Work = GoalWork(**given["work"]) if said["kind"] == "goal" else WorkflowWork(**given["work"])
    assignment = Assignment(
        **{
            **given,
            "task_id": TaskId(given["task_id"]),
            "attempt_id": AttemptId(given["attempt_id"]),
            "lease_id": LeaseId(given["lease_id"]),
            "device": _device(given["device"]),
            "work": work,
            "history": _history(given["history"]),
        }
    )
    return Start(assignment, said["options"], said["policy"], said["deadline"])


def _device(said: Mapping[str, Any]) -> DeviceRef:
    return DeviceRef(HostId(said["host"]), said["serial"])


def _history(said: Mapping[str, Any]) -> History:
    return History(
        runs=tuple(RunSave(**each) for each in said["runs"]),
        journal=tuple(
            JournalEntry(**{**each, "device": _device(each["device"]), "state": EntryState(each["state"])})
            for each in said["journal"]
        ),
        reviewed_run_id=said["reviewed_run_id"],
    )


def save_from_json(said: Mapping[str, object]) -> RunSave:
    """A checkpoint that a worker wants stored. Raises `InvalidInput`."""
    parent = said.get("parent_run_id")
    return RunSave(
        _text(said, "run_id"),
        parent if isinstance(parent, str) else None,
        _whole(said, "sequence"),
        _text(said, "checkpoint"),
    )


def hand_over_from_json(said: Mapping[str, object]) -> HandOver:
    """An effect that a worker is about to begin. Raises `InvalidInput`."""
    names = ("run_id", "action_id", "tool_id", "arguments_digest", "nonce")
    return HandOver(*(_text(said, name) for name in names))


def settlement_from_json(said: Mapping[str, object]) -> Settlement:
    """What came of a call. Raises `InvalidInput`."""
    outcome = _text(said, "outcome")
    if outcome not in {"committed", "failed", "review_required"} or not isinstance(said.get("effect"), bool):
        message = "a settlement has an outcome and says whether it was an effect"
        raise InvalidInput(message)
    evidence = said.get("evidence")
    return Settlement(
        _text(said, "run_id"),
        _text(said, "action_id"),
        outcome,
        effect=said["effect"] is True,
        output=_json(said),
        evidence=evidence if isinstance(evidence, str) else None,
    )


def ending_from_json(said: Mapping[str, object]) -> Ending:
    """How an attempt ended. Raises `InvalidInput`."""
    try:
        kind = EndKind(_text(said, "kind"))
    except ValueError:
        message = "an ending is done, failed, cancelled or released"
        raise InvalidInput(message) from None
    reason = _text(said, "reason")
    if (kind is EndKind.RELEASED and reason not in _RELEASED) or not is_reason(reason):
        message = "a worker gives its task back as interrupted or worker_lost, and a reason is a word"
        raise InvalidInput(message)
    return Ending(kind, reason, _json(said))


def _json(said: Mapping[str, object]) -> str | None:
    """An output, which is JSON text or nothing."""
    output = said.get("output")
    if not isinstance(output, str):
        return None
    try:
        json.loads(output)
        output.encode()
    except (ValueError, RecursionError):
        message = "an output is JSON text"
        raise InvalidInput(message) from None
    return output


def _text(said: Mapping[str, object], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str):
        message = f"{name} must be text"
        raise InvalidInput(message)
    return value


def _whole(said: Mapping[str, object], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"{name} must be a whole number"
        raise InvalidInput(message)
    return value
