"""Who waits for what in this process: a waiter registers first, then looks, then waits, so that no change is missed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

ASSIGNABLE = "assignable"


def host_topic(host: str) -> str:
    """Something happened that a host waits for: an assignment or a cancel request."""
    return f"host {host}"


def task_topic(task: str) -> str:
    """Something happened to a task."""
    return f"task {task}"


class Wakeups:
    """Topics, and those who wait for them. It carries no content: a waiter looks at the store."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        # Set where nobody is to wait any longer: who serves others is about to stop.
        self.ended = False

    def end(self) -> None:
        """Have everybody who waits look once more and leave."""
        self.ended = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    def notify(self, *topics: str) -> None:
        """Wake everybody who waits for one of the topics."""
        for topic in topics:
            for event in self._waiting.get(topic, ()):
                event.set()

    @contextlib.contextmanager
    def registered(self, *topics: str) -> Iterator[asyncio.Event]:
        """An event that is set by the next `notify` of any of the topics, from now until the context ends."""
        event = asyncio.Event()
        for topic in topics:
            self._waiting[topic].add(event)
        try:
            yield event
        finally:
            for topic in topics:
                self._waiting[topic].discard(event)
                if not self._waiting[topic]:
                    del self._waiting[topic]


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, and say whether it came in time."""
    # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
