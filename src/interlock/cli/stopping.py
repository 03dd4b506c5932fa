"""Signals of a person who wants a command to end: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Stops:
    """`asked` is set by the first signal, `insisted` by the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def note(self) -> None:
        """A signal has come."""
        (self.insisted if self.asked.is_set() else self.asked).set()


@contextlib.contextmanager
def stops() -> Iterator[Stops]:
    """Take SIGINT and SIGTERM until the context ends."""
    loop = asyncio.get_running_loop()
    noted = Stops()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, noted.note)
    try:
        yield noted
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


async def first_of(*waits: asyncio.Future[None] | asyncio.Task[None] | asyncio.Event) -> None:
    """Return when the first of these is done or set. What it brought is for the caller to see."""
    own = [asyncio.create_task(wait.wait()) for wait in waits if isinstance(wait, asyncio.Event)]
    given: list[asyncio.Future[Any]] = [wait for wait in waits if not isinstance(wait, asyncio.Event)]
    try:
        ends: list[asyncio.Future[Any]] = [*own, *given]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
