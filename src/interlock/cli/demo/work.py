"""What the demo submits, what it puts on the devices before, and how each task has to end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from interlock.app.settings import DeviceSettings
from interlock.fleet.model import Constraints, DeviceRef, HostId
from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest

AGENT = "interlock.cli.demo.agent:follow_trail"

SURVEY = """
name: survey
steps:
  names: {tool: "tool:interlock.shell/list", with: {path: "."}}
  first: {tool: "tool:interlock.shell/read", with: {path: notes/a.txt}}
  place: {tool: "tool:interlock.shell/stat", with: {path: notes}}
  count:
    tool: tool:interlock.shell/run
    with: {command: "cat notes/*.txt | wc -w > words.txt; sleep 0.4"}
    needs: [names, first, place]
  words: {tool: "tool:interlock.shell/read", with: {path: words.txt}, needs: [count]}
  report:
    tool: tool:interlock.shell/write
    with: {path: report.txt, content: "words: ${steps.words.content}mode: ${steps.place.mode}\\n"}
  check: {tool: "tool:interlock.shell/read", with: {path: report.txt}, needs: [report]}
"""

READ_CUT_OFF = """
name: read-cut-off
steps:
  before: {tool: "tool:interlock.shell/run", with: {command: "echo before >> ledger.txt"}}
  sample: {tool: "tool:interlock.shell/wait", with: {path: sample.txt, timeout_seconds: 60}, needs: [before]}
  after: {tool: "tool:interlock.shell/run", with: {command: "echo after >> ledger.txt"}, needs: [sample]}
"""

EFFECT_CUT_OFF = """
name: effect-cut-off
steps:
  heat: {tool: "tool:interlock.shell/run", with: {command: "echo heat >> ledger.txt"}}
  burn: {tool: "tool:interlock.shell/run", with: {command: "echo burn >> ledger.txt; sleep 60"}, needs: [heat]}
  cool: {tool: "tool:interlock.shell/run", with: {command: "echo cool >> ledger.txt"}, needs: [burn]}
"""

ENDLESS = """
name: endless
steps:
  forever: {tool: "tool:interlock.shell/wait", with: {path: never.txt, timeout_seconds: 600}}
"""

DEVICES = (
    ("bench-1", {"linux", "camera"}, set[str]()),
    ("bench-2", {"linux", "sensor"}, set[str]()),
    ("bench-3", {"linux", "camera", "oven"}, set[str]()),
    ("bench-4", {"linux", "gpu"}, {"gpu"}),
)


@dataclass(frozen=True)
class Planned:
    """One task of the demo. `end` is the only status and reason that the rules allow; None means that it waits."""

    title: str
    request: SubmitRequest
    end: tuple[str, str] | None
    attempts: int = 1
    role: str = ""


def devices(data: Path) -> tuple[DeviceSettings, ...]:
    """Four shells with notes in them, each trail another one."""
    made = []
    for number, (serial, tags, exclusive) in enumerate(DEVICES):
        directory = data / "devices" / serial
        _write_notes(directory / "notes", number)
        options = {"directory": str(directory)}
        made.append(DeviceSettings(serial, "shell", frozenset(tags), frozenset(exclusive), options))
    return tuple(made)


def _write_notes(directory: Path, number: int) -> None:
    directory.mkdir(parents=True)
    names = ["a.txt", *(f"{chr(ord('b') + (step * 3 + number) % 5)}.txt" for step in range(3))]
    for name, following in zip(names, [*names[1:], None], strict=True):
        words = f"this is {name}" if following else f"the key is under stone {number + 1}"
        (directory / name).write_text(f"{words}\n" + (f"next: {following}\n" if following else ""), "utf-8")


def plan() -> tuple[Planned, ...]:
    """The twelve tasks."""
    done, cancelled, doubt = ("done", "done"), ("cancelled", "cancelled"), ("failed", "review_required")
    return (
        Planned("survey, anywhere", _workflow(SURVEY), done),
        Planned("survey, camera", _workflow(SURVEY, "camera"), done),
        Planned("read cut off, sensor", _workflow(READ_CUT_OFF, "sensor"), done, 2, "read"),
        Planned("effect cut off, oven", _workflow(EFFECT_CUT_OFF, "oven"), doubt, 2, "effect"),
        Planned("trail, camera", _goal("find the key", "camera"), done),
        Planned("survey on the gpu", _workflow(SURVEY, "gpu"), done),
        Planned("survey, microscope", _workflow(SURVEY, "microscope"), None),
        Planned("trail, anywhere", _goal("find the key"), done),
        Planned("survey on bench-1", _workflow(SURVEY, device="bench-1"), done),
        Planned("trail on the gpu", _goal("find the key", "gpu"), done),
        Planned("endless, cancelled", _workflow(ENDLESS, "gpu"), cancelled, 1, "cancel"),
        Planned("survey, sensor", _workflow(SURVEY, "sensor"), done),
    )


def _workflow(text: str, *tags: str, device: str | None = None) -> SubmitRequest:
    pin = None if device is None else DeviceRef(HostId("local"), device)
    return SubmitRequest(WorkflowRequest(text=text), Constraints("shell", frozenset(tags), pin))


def _goal(goal: str, *tags: str) -> SubmitRequest:
    return SubmitRequest(GoalRequest(goal, AGENT), Constraints("shell", frozenset(tags)))
