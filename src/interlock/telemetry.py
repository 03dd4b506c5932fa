"""The catalogue of events, and `emit`. Logs, metrics and traces subscribe.

A fact is an id, a state, a digest or a number: never a payload, a credential or the text of an exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum

Fact = str | int | float | bool | None
Subscriber = Callable[["Event", dict[str, Fact]], None]


class Event(StrEnum):
    """Everything that is ever emitted."""

    TASK_SUBMITTED = "task.submitted"
    TASK_ASSIGNED = "task.assigned"
    TASK_DISPATCHED = "task.dispatched"
    TASK_ENDED = "task.ended"
    TASK_REQUEUED = "task.requeued"
    GRANT_REFUSED = "grant.refused"
    LEASE_LOST = "lease.lost"
    QUEUE_TIMED_OUT = "queue.timed_out"
    HISTORY_FORGOTTEN = "history.forgotten"
    SWEEP_FAILED = "sweep.failed"
    ASSIGN_FAILED = "assign.failed"
    BEAT_FAILED = "beat.failed"
    DEVICE_CHANGED = "device.changed"
    HOST_SEEN = "host.seen"
    WORKER_STARTED = "worker.started"
    WORKER_ENDED = "worker.ended"
    ACTION_ADMITTED = "action.admitted"
    ACTION_ENDED = "action.ended"
    RUN_ENDED = "run.ended"


_subscribers: list[Subscriber] = []


def emit(event: Event, **facts: Fact) -> None:
    """Tell every subscriber. A subscriber that raises is not heard of: watching must not change what is watched."""
    for subscriber in tuple(_subscribers):
        with contextlib.suppress(Exception):
            subscriber(event, facts)


@contextlib.contextmanager
def subscribed(subscriber: Subscriber) -> Iterator[None]:
    """Have `subscriber` called with each event, in the emitting thread, until the context ends."""
    _subscribers.append(subscriber)
    try:
        yield
    finally:
        _subscribers.remove(subscriber)
