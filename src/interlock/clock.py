"""The only source of time, identity and chance.

Everything else takes them as arguments, so that a test owns them all.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Protocol

MICROSECONDS = 1_000_000

# Linux has a clock that runs on through suspend. Elsewhere the monotonic one stands in for it: there, a host that was
# suspended counts its own deadlines too generously, and only the store's refusal protects the fence.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Chance(random.Random):
    """Chance that goes the same way each time it begins at the same seed: for examples, never for secrets."""


class Clock(Protocol):
    """What deciding code may ask of the machine."""

    def now(self) -> int:
        """Wall time in microseconds since 1970, UTC: for the store alone."""
        ...

    def elapsed(self) -> float:
        """Seconds on a clock that never steps and runs through suspend: for deadlines of this process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let this much of `elapsed` pass."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        """See `Clock.now`."""
        return time.time_ns() // 1_000

    def elapsed(self) -> float:
        """See `Clock.elapsed`."""
        return time.clock_gettime(_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(seconds)


def monotonic_ns() -> int:
    """Nanoseconds on the monotonic clock: the run level's default."""
    return time.monotonic_ns()


def new_id(prefix: str) -> str:
    """A fresh opaque id: the prefix, an underscore, 32 hex digits of chance."""
    return f"{prefix}_{new_nonce()}"


def new_nonce(size: int = 16) -> str:
    """A fresh value that nobody can guess: `size` bytes of chance in hex digits."""
    return secrets.token_hex(size)


def new_secret() -> str:
    """A fresh credential of 256 bits, safe in a URL and in a header."""
    return secrets.token_urlsafe(32)


def jitter(seconds: float, share: float = 0.2) -> float:
    """The duration, up to `share` of it longer or shorter, so that many who wait do not come back at once."""
    return seconds * random.uniform(1 - share, 1 + share)  # noqa: S311 - spreads load, keeps no secret
