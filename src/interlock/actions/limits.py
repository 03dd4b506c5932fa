"""The budgets of a run, and what was charged to them."""

from __future__ import annotations

from dataclasses import dataclass

from interlock.actions.codes import Code
from interlock.actions.integers import is_positive
from interlock.errors import SchedulerError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The bounds of one run, all of them positive.

    `max_concurrency` reads may be in flight at once, if `parallel_reads` allows more than one at all, and
    `max_inflight_units` is what they may reserve together. `max_actions` and `max_total_units` bound all admissions of
    the run, restarts included; nothing is refunded. `max_elapsed_ns` is in nanoseconds of running, restarts included.

    Raises:
        SchedulerError: `invalid_integer` or `invalid_policy`.
    """

    max_concurrency: int
    max_actions: int
    max_inflight_units: int
    max_total_units: int
    max_elapsed_ns: int
    parallel_reads: bool = False

    def __post_init__(self) -> None:
        if not all(map(is_positive, self.integers)):
            raise SchedulerError(Code.INVALID_INTEGER)
        if type(self.parallel_reads) is not bool:
            raise SchedulerError(Code.INVALID_POLICY)

    @property
    def integers(self) -> tuple[int, int, int, int, int]:
        """The five numbers, in the order of the fields."""
        return (
            self.max_concurrency,
            self.max_actions,
            self.max_inflight_units,
            self.max_total_units,
            self.max_elapsed_ns,
        )


@dataclass(slots=True)
class Charges:
    """What admissions have cost so far. It only grows."""

    admitted_actions: int = 0
    reserved_units: int = 0

    def affords(self, units: int, limits: SchedulerLimits) -> bool:
        """Whether one more action of this size is within `max_actions` and `max_total_units`."""
        return self.admitted_actions < limits.max_actions and self.reserved_units + units <= limits.max_total_units

    def add(self, units: int) -> None:
        """Charge one admission, whatever becomes of it."""
        self.admitted_actions += 1
        self.reserved_units += units
