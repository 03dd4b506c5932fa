"""Server-sent events: a snapshot, then each change as it is emitted. Who falls behind gets a snapshot again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic_core import to_json

from interlock.api import wire
from interlock.fleet.operations import Fleet
from interlock.telemetry import Event, Fact, subscribed

MOST_WAITING = 1_000
MOST_TASKS = 100
KEEP_ALIVE_SECONDS = 15.0


class _Changes:
    """What was emitted and not yet sent, up to a bound; past it, only that some is lost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        self.lost = False

    def note(self, event: Event, facts: dict[str, Fact]) -> None:
        """Subscribe this: it may be called in any thread."""
        self._loop.call_soon_threadsafe(self._put, to_json({"event": event.value, **facts}))

    def _put(self, change: bytes) -> None:
        if self._waiting.full():
            self.lost = True
        else:
            self._waiting.put_nowait(change)

    async def next(self) -> bytes | None:
        """The next change, or None where there was none for a while."""
        try:
            return await asyncio.wait_for(self._waiting.get(), KEEP_ALIVE_SECONDS)
        except TimeoutError:
            return None

    def forget(self) -> None:
        """Drop what waits: a snapshot that is taken now holds it."""
        self.lost = False
        while not self._waiting.empty():
            self._waiting.get_nowait()


async def event_stream(fleet: Fleet) -> AsyncIterator[bytes]:
    """The text of the stream, until its reader leaves."""
    changes = _Changes()
    with subscribed(changes.note):
        while True:
            changes.forget()
            yield _event("snapshot", wire.encoded(await state_of(fleet)))
            while not changes.lost:
                change = await changes.next()
                yield b": still here\n\n" if change is None else _event("change", change)


async def state_of(fleet: Fleet) -> wire.FleetState:
    """The newest tasks, every device, and how many tasks stand where."""
    return wire.FleetState(tuple(await fleet.tasks(most=MOST_TASKS)), tuple(await fleet.devices()), await counts(fleet))


async def counts(fleet: Fleet) -> dict[str, int]:
    """How many tasks stand where."""
    return {str(row["status"]): int(str(row["tasks"])) for row in await fleet.store.rows("counts")}


def _event(name: str, document: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), document)
