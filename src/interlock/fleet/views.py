"""What a reader gets: frozen values with aware UTC times, as they also go over the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from interlock.clock import MICROSECONDS


def moment(microseconds: object) -> datetime | None:
    """A stored time as an aware UTC time."""
    if not isinstance(microseconds, int):
        return None
    return datetime.fromtimestamp(microseconds / MICROSECONDS, tz=UTC)


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a task. `end` is how it ended and `reason` why, both None while it is live."""

    attempt_id: str
    number: int
    host: str
    device: str
    fence: int
    assigned_at: datetime | None
    claimed_at: datetime | None
    ended_at: datetime | None
    end: str | None
    reason: str | None
    late_report: str | None = None


@dataclass(frozen=True)
class RunView:
    """One run of a task: the state of each action at its last durable checkpoint."""

    run_id: str
    parent_run_id: str | None
    saves: int
    states: dict[str, str]
    admitted_actions: int
    reserved_units: int
    elapsed_seconds: float
    stop_reason: str | None


@dataclass(frozen=True)
class EffectView:
    """One effect on record.

    `standing` is `handed_over` while its attempt is live, then `committed`, `failed`, `withdrawn`, `in_doubt`, or a
    person's answer.
    """

    run_id: str
    action_id: str
    tool_id: str
    attempt_id: str
    device: str
    standing: str
    handed_over_at: datetime | None
    settled_at: datetime | None
    evidence: str | None


@dataclass(frozen=True)
class Doubt:
    """An effect of an ended task of which nobody knows whether it happened, with what is known.

    `stop_confirmed_at` is when the processes that could still bring it about were known to be gone; until then only
    *happened* can be said of it. `said` is what its tool or its probe could say of it, None where neither was heard.
    """

    task_id: str
    label: str
    status: str
    reason: str | None
    run_id: str
    action_id: str
    tool_id: str
    device: str
    handed_over_at: datetime | None
    stop_confirmed_at: datetime | None
    said: str | None = None


@dataclass(frozen=True)
class Resolution:
    """What a person's answers came to: the task that goes on, or None for a task that was cancelled."""

    task_id: str
    successor_id: str | None


@dataclass(frozen=True)
class ScheduledTask:
    """A task as it stands. `result` is the decoded JSON that a done task left.

    `continues` is the task whose doubts were resolved to make this one, `continued_by` the one made of this.
    """

    task_id: str
    kind: str
    label: str
    status: str
    reason: str | None
    driver_type: str | None
    tags: tuple[str, ...]
    device: str | None
    max_attempts: int
    attempts_used: int
    submitted_at: datetime | None
    ended_at: datetime | None
    cancel_requested: bool
    held_until: datetime | None = None
    held_for: str | None = None
    running_on: str | None = None
    continues: str | None = None
    continued_by: str | None = None
    in_doubt: tuple[str, ...] = ()
    result: object = None


@dataclass(frozen=True)
class TaskDetail:
    """A task with everything on record about it."""

    task: ScheduledTask
    attempts: tuple[AttemptView, ...]
    runs: tuple[RunView, ...]
    effects: tuple[EffectView, ...]
    outputs: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceView:
    """A device with its three facts, and the one word that they come to."""

    device_id: str
    name: str
    driver_type: str
    tags: tuple[str, ...]
    exclusive_tags: tuple[str, ...]
    state: str
    occupancy: str
    service: str
    service_reason: str | None
    present: bool
    fence: int
    task_id: str | None


@dataclass(frozen=True)
class Obstacle:
    """Why one device does not take a task now."""

    device: str
    reason: str


@dataclass(frozen=True)
class Waiting:
    """Why a task waits: its place among those that are offered, and what keeps each device from it.

    `about_seconds` is an estimate of how long it will wait, from how long the devices that satisfy it were held lately.
    """

    task_id: str
    status: str
    summary: str
    ahead: int | None
    about_seconds: float | None
    obstacles: tuple[Obstacle, ...]


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and what breaks it."""

    invariant: str
    what: str


@dataclass(frozen=True)
class CancelAnswer:
    """What a cancel came to: `cancelled`, `cancel_requested`, or the status of a task that had ended."""

    task_id: str
    outcome: str


@dataclass(frozen=True)
class LeaseNotice:
    """A live lease of a host, as the store sees it."""

    lease_id: str
    serial: str
    state: str
    cancel_requested: bool


@dataclass(frozen=True)
class VacatingNotice:
    """A device of a host that is not free yet after an attempt."""

    serial: str
    state: str
    attempt_id: str


@dataclass(frozen=True)
class BeatAnswer:
    """What a host learns from a beat. Durations are seconds, and only ever come from here."""

    leases: tuple[LeaseNotice, ...]
    vacating: tuple[VacatingNotice, ...]
    beat_every_seconds: float
    renew_every_seconds: float
    lease_seconds: float


@dataclass(frozen=True)
class Renewal:
    """A lease was renewed: for how many seconds from when that was asked, and whether to cancel."""

    lease_seconds: float
    cancel_requested: bool
