"""The fleet's values: frozen, checked where they are made, with no behaviour that asks the machine for anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType
from urllib.parse import quote

from interlock.errors import InvalidInput

TaskId = NewType("TaskId", str)
AttemptId = NewType("AttemptId", str)
LeaseId = NewType("LeaseId", str)
HostId = NewType("HostId", str)
DeviceId = NewType("DeviceId", str)

MAX_TAGS = 64
_NAME = re.compile(r"[a-z0-9_.:=-]{1,64}")
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Between slashes there is no `.` and no `..`, which would lead elsewhere in an address.
_SERIAL = re.compile(r"(?!(?:.*/)?\.{1,2}(?:/|$))[A-Za-z0-9_.:/-]{1,128}")


class TaskStatus(StrEnum):
    """Where a task stands. The last three are terminal."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    DISPATCHED = "dispatched"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether it will never change again."""
        return self in {TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.CANCELLED}


class Occupancy(StrEnum):
    """What a device is doing."""

    IDLE = "idle"
    RESERVED = "reserved"
    BUSY = "busy"
    CLEANING = "cleaning"
    STOP_UNCONFIRMED = "stop_unconfirmed"


class Service(StrEnum):
    """Whether its operator lets a device take work."""

    IN_SERVICE = "in_service"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


def checked_tags(tags: object) -> frozenset[str]:
    """The tags as a set, or `InvalidInput` that names the first one that cannot be taken."""
    if not isinstance(tags, (list, tuple, set, frozenset)):
        message = "tags are a list of strings"
        raise InvalidInput(message)
    if len(tags) > MAX_TAGS:
        message = f"there are {len(tags)} tags: give at most {MAX_TAGS}"
        raise InvalidInput(message)
    for tag in tags:
        if not isinstance(tag, str) or not _NAME.fullmatch(tag):
            message = f"{tag!r} is not a tag: a tag is 1 to 64 of a-z 0-9 _ . : = -"
            raise InvalidInput(message)
    return frozenset(tags)


@dataclass(frozen=True, order=True)
class DeviceRef:
    """A device's identity: the host that owns it, and its serial there."""

    host: HostId
    serial: str

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not _NAME.fullmatch(self.host):
            message = f"{self.host!r} is not a host: it is 1 to 64 of a-z 0-9 _ . : = -"
            raise InvalidInput(message)
        if not isinstance(self.serial, str) or not _SERIAL.fullmatch(self.serial):
            message = f"{self.serial!r} is not a serial: a serial is 1 to 128 of A-Z a-z 0-9 _ . : / -"
            raise InvalidInput(message)

    def __str__(self) -> str:
        return f"{self.host}/{self.serial}"

    @property
    def file_name(self) -> str:
        """The serial as the name of a file: no two give the same one, and none leads to another directory."""
        name = quote(self.serial, safe=":")
        return f"%2E{name[1:]}" if name.startswith(".") else name

    @classmethod
    def parse(cls, text: str) -> DeviceRef:
        """Read `HOST/SERIAL`. A slash may stand in the serial."""
        host, slash, serial = text.partition("/")
        if not slash or not _NAME.fullmatch(host):
            message = f"{text!r} is not a device: write HOST/SERIAL"
            raise InvalidInput(message)
        return cls(HostId(host), serial)


@dataclass(frozen=True)
class Constraints:
    """What a task asks of a device: its driver (or any), every one of some tags, and perhaps one device alone."""

    driver_type: str | None = None
    tags: frozenset[str] = frozenset()
    device: DeviceRef | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", checked_tags(self.tags))
        if self.driver_type is not None and (
            not isinstance(self.driver_type, str) or not _NAME.fullmatch(self.driver_type)
        ):
            message = f"{self.driver_type!r} is not a driver type: it is 1 to 64 of a-z 0-9 _ . : = -"
            raise InvalidInput(message)


@dataclass(frozen=True)
class GoalWork:
    """A task given as a goal: what to reach, in words, for the agent named as `module:function`.

    `max_calls` bounds the tool calls of all attempts together and `max_elapsed_seconds` the time they may take.
    """

    goal: str
    agent: str
    max_calls: int = 100
    max_elapsed_seconds: float = 3600.0


@dataclass(frozen=True)
class WorkflowWork:
    """A task given as a workflow: the definition's canonical text, its digest, and the inputs of this task."""

    digest: str
    document: str
    inputs: Mapping[str, object] = field(default_factory=dict)


Work = GoalWork | WorkflowWork


@dataclass(frozen=True)
class RunSave:
    """One save of one run. `sequence` counts the saves of the run from 1, without gaps.

    `checkpoint` is JSON. The first save has the whole snapshot, as has what a history gives. Each later one has what
    changed: `plan_digest`, `changed` (pairs of action and state), the charges, the elapsed time and the stop reason.
    """

    run_id: str
    parent_run_id: str | None
    sequence: int
    checkpoint: str


@dataclass(frozen=True)
class HandOver:
    """The journal's word that an effect is about to be given to its tool. Only the arguments' digest is kept.

    `nonce` is new for each hand-over: asked again with the same one, because the answer was lost, it is the same
    hand-over. Without one it can only be asked once.
    """

    run_id: str
    action_id: str
    tool_id: str
    arguments_digest: str
    nonce: str = ""


@dataclass(frozen=True)
class Settlement:
    """What came of a call: its outcome (`committed`, `failed`, `review_required`), evidence, and output as JSON.

    `effect` is False for a read, which has an output and no journal entry. `evidence` is what the tool says proves
    the effect, as a digest or a marker: never a payload.
    """

    run_id: str
    action_id: str
    outcome: str
    effect: bool
    output: str | None = None
    evidence: str | None = None


class EntryState(StrEnum):
    """How far an effect got, by its journal entry."""

    HANDED_OVER = "handed_over"
    WITHDRAWN = "withdrawn"
    SETTLED = "settled"


@dataclass(frozen=True)
class JournalEntry:
    """One effect on record. `outcome` and `evidence` are there once it is `settled`; times are microseconds UTC.

    `answer` is a person's word, where one was needed. `stop_confirmed` is whether the processes of the attempt that
    handed it over are known to be gone: until then nobody can say that it did not happen.
    """

    run_id: str
    action_id: str
    tool_id: str
    arguments_digest: str
    attempt_id: AttemptId
    device: DeviceRef
    state: EntryState
    handed_over_at: int
    outcome: str | None = None
    evidence: str | None = None
    settled_at: int | None = None
    answer: str | None = None
    stop_confirmed: bool = True


class ReviewAnswer(StrEnum):
    """A person's word on an effect in doubt. `drop` leaves it, and all that depends on it, out of what follows."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    DROP = "drop"


@dataclass(frozen=True)
class History:
    """What the earlier attempts of a task left: each run's last durable checkpoint, oldest first, and the journal.

    For a task that continues another one, what that left comes first; `reviewed_run_id` is its last run, whose doubts
    a person has answered.
    """

    runs: tuple[RunSave, ...] = ()
    journal: tuple[JournalEntry, ...] = ()
    reviewed_run_id: str | None = None


def is_reason(text: str) -> bool:
    """Whether a text may stand as the reason of an end: a word of a-z 0-9 _ that begins with a letter."""
    return _REASON.fullmatch(text) is not None


@dataclass(frozen=True)
class Assignment:
    """One claimed attempt, as its host gets it. Durations are seconds, counted from when the claim was *sent*."""

    task_id: TaskId
    attempt_id: AttemptId
    lease_id: LeaseId
    number: int
    device: DeviceRef
    driver_type: str
    fence: int
    work: Work
    history: History
    lease_seconds: float
    renew_seconds: float
    cancel_requested: bool = False


class EndKind(StrEnum):
    """How an attempt ends from its host's side: the first three end the task, the last gives it back."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `reason` is a word of a closed set (a stop reason, or why it was released)."""

    kind: EndKind
    reason: str
    output: str | None = None
