"""How long a run has been running, by a clock that is not trusted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.actions.integers import MAX_INTEGER
from interlock.clock import monotonic_ns

NANOSECONDS: Final = 1_000_000_000


class Stopwatch:
    """Adds what a fresh clock shows to what a run had before. `elapsed_ns` is that of the last good reading."""

    def __init__(self, clock: Callable[[], int], elapsed_ns: int) -> None:
        self._clock = clock
        self._before_ns = elapsed_ns
        self._start_ns: int | None = None
        self._last_ns = 0
        self.elapsed_ns = elapsed_ns

    def read(self) -> bool:
        """Look at the clock. False where it raises, gives no whole number of nanoseconds, or has gone back."""
        try:
            now_ns = self._clock()
        except Exception:  # noqa: BLE001 - the clock may be the caller's own code
            return False
        if type(now_ns) is not int or not self._last_ns <= now_ns <= MAX_INTEGER:
            return False
        self._last_ns = now_ns
        if self._start_ns is None:
            self._start_ns = now_ns
        self.elapsed_ns = min(self._before_ns + now_ns - self._start_ns, MAX_INTEGER)
        return True

    def seconds_until(self, limit_ns: int) -> float | None:
        """How long it is until the limit, on the clock that event loops wait on. None for any other clock."""
        if self._clock is not monotonic_ns:
            return None
        return max(0, limit_ns - self.elapsed_ns) / NANOSECONDS
