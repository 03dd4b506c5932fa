"""Elapsed running time, from a clock that is not trusted."""

from __future__ import annotations

from collections.abc import Callable

from interlock.actions.integers import MAX_INTEGER, is_count


class Stopwatch:
    """Nanoseconds of running: what a checkpoint saved, and what a fresh clock has added to it since the first reading.

    A reading that is no count, that falls, or that cannot be had makes it `failed`, for good; `elapsed_ns` then stays
    at the last good value.
    """

    def __init__(self, clock: Callable[[], int], saved_ns: int) -> None:
        """Begin at what was saved; the clock is first read by `read`."""
        self.elapsed_ns = saved_ns
        self.failed = False
        self._clock = clock
        self._latest: int | None = None

    def read(self) -> None:
        """Look at the clock once."""
        if self.failed:
            return
        now = self._reading()
        if now is None or (self._latest is not None and now < self._latest):
            self.failed = True
            return
        elapsed_ns = self.elapsed_ns + (0 if self._latest is None else now - self._latest)
        self.failed = elapsed_ns > MAX_INTEGER
        if not self.failed:
            self.elapsed_ns, self._latest = elapsed_ns, now

    def _reading(self) -> int | None:
        """A good reading, or None in place of anything else."""
        try:
            now = self._clock()
        except Exception:  # noqa: BLE001 - the clock is the caller's own code
            return None
        return now if is_count(now) else None
