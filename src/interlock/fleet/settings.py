"""The numbers of a fleet. Hosts get theirs from the control plane's answers, never from a second configuration."""

from __future__ import annotations

from dataclasses import dataclass

from interlock.clock import MICROSECONDS

LONGEST_WAIT_SECONDS = 1_000_000_000


def microseconds(seconds: float) -> int:
    """A duration as the store takes it."""
    return round(seconds * MICROSECONDS)


@dataclass(frozen=True)
class FleetSettings:
    """All durations are seconds.

    `claim_ttl_seconds`: how soon a granted attempt must be claimed. `lease_ttl_seconds`: how soon a claimed one must
    be renewed, which its host does every `renew_every_seconds`. `beat_every_seconds`: how often a host is heard of.
    `sweep_every_seconds`: how often deadlines are looked at, and the most that an assignment can be late by.
    `retry_first_seconds`, `retry_longest_seconds`: the back-off before a task is tried again.
    `queue_timeout_seconds`: how long a task may wait for a device where its submission does not say, None for ever.
    `keep_history_seconds`: how long an ended task stays on record, None for ever.
    """

    strategy: str = "fifo_match"
    max_queue_depth: int = 10_000
    max_attempts: int = 3
    claim_ttl_seconds: float = 30.0
    lease_ttl_seconds: float = 60.0
    renew_every_seconds: float = 15.0
    beat_every_seconds: float = 5.0
    sweep_every_seconds: float = 1.0
    retry_first_seconds: float = 1.0
    retry_longest_seconds: float = 60.0
    queue_timeout_seconds: float | None = None
    keep_history_seconds: float | None = None
    long_poll_seconds: float = 20.0
