"""What an attempt knows locally about its lease."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LeaseWatch:
    """The local word on a lease; whoever renews it writes here, and every call looks here first.

    `deadline` is in seconds of `Clock.elapsed()`, a margin before the lease ends. `cancel_requested` is set, before
    the signal is, where the stop is a person's wish and not a loss: the task then ends `cancelled`.
    """

    deadline: float
    lost: bool = False
    cancel_requested: bool = False

    def usable(self, now: float) -> bool:
        """Whether anything may still begin under the lease."""
        return not self.lost and now < self.deadline
