"""The tables of moves, and pure functions from a state and an event to what follows.

The diagrams of the documentation are drawn from `TASK_MOVES` and `DEVICE_MOVES`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum

from interlock.fleet.model import Occupancy, TaskStatus


class TaskEvent(StrEnum):
    """What can happen to a task."""

    GRANT = "grant"
    CLAIM = "claim"
    FINISH_DONE = "finish_done"
    FINISH_FAILED = "finish_failed"
    FINISH_CANCELLED = "finish_cancelled"
    REQUEUE = "requeue"
    GIVE_UP = "give_up"
    CANCEL = "cancel"
    TIME_OUT = "time_out"


class DeviceEvent(StrEnum):
    """What can happen to a device."""

    GRANT = "grant"
    CLAIM = "claim"
    LET_GO = "let_go"
    STOPPED = "stopped"
    STOPPED_AND_CLEAN = "stopped_and_clean"
    LOST = "lost"
    CLEANED = "cleaned"


TASK_MOVES: dict[tuple[TaskStatus, TaskEvent], TaskStatus] = {
    (TaskStatus.QUEUED, TaskEvent.GRANT): TaskStatus.ASSIGNED,
    (TaskStatus.QUEUED, TaskEvent.CANCEL): TaskStatus.CANCELLED,
    (TaskStatus.QUEUED, TaskEvent.TIME_OUT): TaskStatus.FAILED,
    (TaskStatus.ASSIGNED, TaskEvent.CLAIM): TaskStatus.DISPATCHED,
    (TaskStatus.ASSIGNED, TaskEvent.REQUEUE): TaskStatus.QUEUED,
    (TaskStatus.ASSIGNED, TaskEvent.GIVE_UP): TaskStatus.FAILED,
    (TaskStatus.ASSIGNED, TaskEvent.CANCEL): TaskStatus.CANCELLED,
    (TaskStatus.DISPATCHED, TaskEvent.FINISH_DONE): TaskStatus.DONE,
    (TaskStatus.DISPATCHED, TaskEvent.FINISH_FAILED): TaskStatus.FAILED,
    (TaskStatus.DISPATCHED, TaskEvent.FINISH_CANCELLED): TaskStatus.CANCELLED,
    (TaskStatus.DISPATCHED, TaskEvent.REQUEUE): TaskStatus.QUEUED,
    (TaskStatus.DISPATCHED, TaskEvent.GIVE_UP): TaskStatus.FAILED,
    (TaskStatus.DISPATCHED, TaskEvent.CANCEL): TaskStatus.CANCELLED,
}

DEVICE_MOVES: dict[tuple[Occupancy, DeviceEvent], Occupancy] = {
    (Occupancy.IDLE, DeviceEvent.GRANT): Occupancy.RESERVED,
    (Occupancy.RESERVED, DeviceEvent.CLAIM): Occupancy.BUSY,
    (Occupancy.RESERVED, DeviceEvent.LET_GO): Occupancy.IDLE,
    (Occupancy.BUSY, DeviceEvent.LET_GO): Occupancy.IDLE,
    (Occupancy.BUSY, DeviceEvent.STOPPED): Occupancy.CLEANING,
    (Occupancy.BUSY, DeviceEvent.STOPPED_AND_CLEAN): Occupancy.IDLE,
    (Occupancy.BUSY, DeviceEvent.LOST): Occupancy.STOP_UNCONFIRMED,
    (Occupancy.STOP_UNCONFIRMED, DeviceEvent.STOPPED): Occupancy.CLEANING,
    (Occupancy.STOP_UNCONFIRMED, DeviceEvent.STOPPED_AND_CLEAN): Occupancy.IDLE,
    (Occupancy.CLEANING, DeviceEvent.CLEANED): Occupancy.IDLE,
}


class AttemptEnd(StrEnum):
    """Why an attempt is over."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LEASE_EXPIRED = "lease_expired"
    NOT_STARTED = "not_started"
    WORKER_LOST = "worker_lost"
    INTERRUPTED = "interrupted"


REPORTS = {
    AttemptEnd.DONE: TaskEvent.FINISH_DONE,
    AttemptEnd.FAILED: TaskEvent.FINISH_FAILED,
    AttemptEnd.CANCELLED: TaskEvent.FINISH_CANCELLED,
}
RELEASES = frozenset({AttemptEnd.NOT_STARTED, AttemptEnd.WORKER_LOST, AttemptEnd.INTERRUPTED})
# These say nothing about the task, so they have a bound of their own and leave its attempts alone.
UNCOUNTED = frozenset({AttemptEnd.NOT_STARTED, AttemptEnd.INTERRUPTED})
MAX_UNCOUNTED_ENDS = 100
_SPREAD = 0.2


@dataclass(frozen=True)
class Tally:
    """How often a task was tried: attempts that count, their limit, and the ends that do not count."""

    counted: int
    limit: int
    uncounted: int


@dataclass(frozen=True)
class Closing:
    """What follows from the end of an attempt: the task's event, its reason, and the device's event."""

    task: TaskEvent
    reason: str
    device: DeviceEvent


def close_attempt(
    end: AttemptEnd, *, claimed: bool, cancel_requested: bool, tally: Tally, stopped: bool, clean: bool
) -> Closing:
    """Decide what the end of an attempt does to its task and its device.

    Args:
        end: why the attempt is over.
        claimed: whether its host had claimed it, so that work may have begun.
        cancel_requested: whether somebody asked to cancel the task.
        tally: how often the task was tried, this attempt not yet counted.
        stopped: whether the host says that all of the attempt's processes are gone.
        clean: whether it also says that the device is clean.
    """
    device = _device_event(end, claimed=claimed, stopped=stopped, clean=clean)
    if end in REPORTS and claimed:
        return Closing(REPORTS[end], end.value, device)
    if cancel_requested:
        return Closing(TaskEvent.CANCEL, AttemptEnd.CANCELLED.value, device)
    exhausted = tally.uncounted + 1 >= MAX_UNCOUNTED_ENDS if end in UNCOUNTED else tally.counted + 1 >= tally.limit
    return Closing(TaskEvent.GIVE_UP if exhausted else TaskEvent.REQUEUE, end.value, device)


def _device_event(end: AttemptEnd, *, claimed: bool, stopped: bool, clean: bool) -> DeviceEvent:
    if not claimed or (end is AttemptEnd.NOT_STARTED and stopped):
        return DeviceEvent.LET_GO
    if not stopped:
        return DeviceEvent.LOST
    return DeviceEvent.STOPPED_AND_CLEAN if clean else DeviceEvent.STOPPED


def retry_delay_seconds(failures: int, *, first: float, longest: float, spread: float = 0.0) -> float:
    """The back-off before the next attempt: doubling from `first`, never more than `longest`.

    `spread`, from 0 to 1, takes up to a fifth of it away, so that what was lost together does not come back together.
    """
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), 30)) * (1.0 - _SPREAD * spread)


def spread(lease_id: str) -> float:
    """A number from 0 to 1 that is another one for each lease, and always the same for one: ids are made by chance."""
    return zlib.crc32(lease_id.encode()) / 2**32
