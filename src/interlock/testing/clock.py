"""A clock that the test owns."""

from __future__ import annotations

import asyncio

from interlock.clock import MICROSECONDS

START = 1_800_000_000 * MICROSECONDS


class ManualClock:
    """Stands still until it is told to go on. See `interlock.clock.Clock`."""

    def __init__(self, now: int = START) -> None:
        self._now = now
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> int:
        """See `Clock.now`."""
        return self._now

    def elapsed(self) -> float:
        """See `Clock.elapsed`."""
        return self._now / MICROSECONDS

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + round(seconds * MICROSECONDS), wake))
        await wake

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake those whose time has come."""
        self._now += round(seconds * MICROSECONDS)
        for sleeper in [each for each in self._sleepers if each[0] <= self._now]:
            self._sleepers.remove(sleeper)
            if not sleeper[1].done():
                sleeper[1].set_result(None)

    def step_to(self, now: int) -> None:
        """Put the clock anywhere, backwards too, as a machine's may be."""
        self._now = now
