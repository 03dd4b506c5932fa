"""Which actions are ready, by ascending rank, with those set aside whose units do not fit just now."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

_NONE: Final = 2**64  # more units than any action can have: nobody is set aside here


class ReadyQueue:
    """Ready ranks. Every operation is O(log n), however many actions wait for units."""

    def __init__(self, units: Sequence[int]) -> None:
        """Take the units of every rank; nothing is ready yet."""
        self._units = units
        self._heap: list[int] = []
        self._width = 1 << max(len(units) - 1, 0).bit_length()
        # A tree of the smallest units below each point. Most runs never set anything aside and never build it.
        self._smallest: list[int] = []

    def add(self, rank: int) -> None:
        """This action is ready."""
        heapq.heappush(self._heap, rank)

    def first(self, free: int) -> int | None:
        """The lowest rank among those not set aside, and those set aside that are of at most `free` units."""
        aside = self._first_aside(free) if self._smallest else None
        if self._heap and (aside is None or self._heap[0] < aside):
            return self._heap[0]
        return aside

    def take(self, rank: int) -> None:
        """Remove what `first` gave."""
        if self._heap and self._heap[0] == rank:
            heapq.heappop(self._heap)
        else:
            self._write(rank, _NONE)

    def set_aside(self, rank: int) -> None:
        """Pass over what `first` gave until its units fit."""
        heapq.heappop(self._heap)
        if not self._smallest:
            self._smallest = [_NONE] * (2 * self._width)
        self._write(rank, self._units[rank])

    def _write(self, rank: int, units: int) -> None:
        point = self._width + rank
        self._smallest[point] = units
        while point > 1:
            point //= 2
            self._smallest[point] = min(self._smallest[2 * point], self._smallest[2 * point + 1])

    def _first_aside(self, free: int) -> int | None:
        if self._smallest[1] > free:
            return None
        point = 1
        while point < self._width:
            point = 2 * point if self._smallest[2 * point] <= free else 2 * point + 1
        return point - self._width
