"""The durations that a store itself judges by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoreTimes:
    """Durations in seconds.

    `presence`: how long a host counts as present after a beat. `outage`: with no sweep for longer than this, every
    deadline is first moved to at least `grace` from now.
    """

    presence: float = 30.0
    outage: float = 15.0
    grace: float = 60.0
