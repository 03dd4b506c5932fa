"""Signals of a person who wants a command to end: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from interlock.cli.output import Exit


class Stops:
    """`asked` is set by the first signal, `insisted` by the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def note(self) -> None:
        """A signal has come."""
        (self.insisted if self.asked.is_set() else self.asked).set()


def take_interrupts() -> None:
    """Raise `KeyboardInterrupt` for the first SIGINT alone: each further one ends the process at once, quietly.

    One that is raised in a finaliser would be lost with a traceback: that ends the process too.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _tell_unraisable


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _leave)
    signal.default_int_handler(number, frame)


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(Exit.INTERRUPTED)


def _tell_unraisable(unraisable: Any) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        os._exit(Exit.INTERRUPTED)
    sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def stops() -> Iterator[Stops]:
    """Take SIGINT and SIGTERM until the context ends. From then on the command is ending: SIGINT is ignored."""
    loop = asyncio.get_running_loop()
    noted = Stops()

    def hear(number: int, frame: FrameType | None) -> None:
        del number, frame
        loop.call_soon_threadsafe(noted.note)

    # Not the loop's own handlers: between their removal and its end a further Ctrl-C would be raised anywhere.
    signal.signal(signal.SIGINT, hear)
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, before)


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
