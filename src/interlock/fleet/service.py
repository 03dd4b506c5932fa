"""What a fleet and a host's session are, wherever they stand: in this process or behind the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from interlock.fleet.model import (
    Assignment,
    Constraints,
    Ending,
    HandOver,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
)
from interlock.fleet.store import DeviceReport
from interlock.fleet.views import (
    BeatAnswer,
    CancelAnswer,
    DeviceView,
    Doubt,
    Renewal,
    Resolution,
    ScheduledTask,
    TaskDetail,
    Violation,
    Waiting,
)


@dataclass(frozen=True)
class GoalRequest:
    """A goal for an agent named `module:function`. It is bounded in calls and in seconds, over all attempts."""

    goal: str
    agent: str
    max_calls: int = 100
    max_elapsed_seconds: float = 3600.0


@dataclass(frozen=True)
class WorkflowRequest:
    """A workflow: the text of its file, or the digest of a stored one, and the inputs of this task."""

    text: str | None = None
    digest: str | None = None
    inputs: Mapping[str, object] | None = None


@dataclass(frozen=True)
class SubmitRequest:
    """What a caller submits. The same `idempotency_key` of one submitter again gives the first task.

    The task is held until `not_before`, an aware time. Each time it has waited for a device for as long as
    `queue_timeout_seconds`, it ends `failed` with the reason `queue_timeout`; None means as long as the fleet says.
    """

    work: GoalRequest | WorkflowRequest
    constraints: Constraints = field(default_factory=Constraints)
    priority: int = 0
    idempotency_key: str | None = None
    max_attempts: int | None = None
    not_before: datetime | None = None
    queue_timeout_seconds: float | None = None
    submitter: str = "local"


class FleetService(Protocol):
    """What a person or a program may ask of a fleet. Errors are those of `interlock.errors`."""

    async def submit(self, request: SubmitRequest) -> TaskId:
        """Queue a task and give its id, without waiting for a device."""
        ...

    async def get(self, task_id: str) -> TaskDetail:
        """Everything on record about a task."""
        ...

    async def wait(self, task_id: str, seconds: float) -> ScheduledTask:
        """The task once it has ended, or as it is after so many seconds."""
        ...

    async def tasks(self, *, most: int = 100) -> list[ScheduledTask]:
        """The newest tasks, newest first."""
        ...

    async def cancel(self, task_id: str) -> CancelAnswer:
        """Cancel a task, or ask its host to."""
        ...

    async def why(self, task_id: str) -> Waiting:
        """Why a task is not running."""
        ...

    async def devices(self) -> list[DeviceView]:
        """Every device."""
        ...

    async def reviews(self, *, most: int = 100) -> list[Doubt]:
        """The effects in doubt of tasks that have ended, oldest first."""
        ...

    async def resolve(self, task_id: str, answers: Mapping[str, str], answered_by: str) -> Resolution:
        """Answer every effect in doubt of a task, by action id: `happened`, `did_not_happen` or `drop`."""
        ...

    async def violations(self) -> list[Violation]:
        """Every invariant that does not hold."""
        ...


class HostService(Protocol):
    """What a host may do, once its credential was checked. Everything under a lease raises `LeaseSuperseded`."""

    async def beat(self, boot_id: str, generation: str, devices: Sequence[DeviceReport]) -> BeatAnswer:
        """Say that the host is alive and what devices it has."""
        ...

    async def goodbye(self, generation: str) -> None:
        """Say that the host leaves."""
        ...

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> list[Assignment]:
        """Take assigned attempts, waiting so long for one. The same `claim_id` again gives the same ones."""
        ...

    async def renew(self, lease_id: LeaseId) -> Renewal:
        """Extend a lease."""
        ...

    async def save(self, lease_id: LeaseId, save: RunSave) -> None:
        """Store a checkpoint."""
        ...

    async def hand_over(self, lease_id: LeaseId, entry: HandOver) -> None:
        """Record that an effect is about to begin."""
        ...

    async def withdraw(self, lease_id: LeaseId, run_id: str, action_id: str) -> None:
        """Record that it was not begun."""
        ...

    async def settle(self, lease_id: LeaseId, settlement: Settlement) -> None:
        """Record outcome, evidence and output of a call."""
        ...

    async def output(self, lease_id: LeaseId, action_id: str) -> object:
        """The output that a committed action of the task left."""
        ...

    async def finish(self, lease_id: LeaseId, ending: Ending, *, stopped: bool, clean: bool) -> None:
        """Report how the attempt ended, and what is known of its processes and its device."""
        ...

    async def confirm_stopped(self, serial: str, *, clean: bool, attempt_id: str | None = None) -> None:
        """Say that nothing of an ended attempt is left on a device: of the last one, where none is named."""
        ...
