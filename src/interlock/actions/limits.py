"""The budgets of a run, what was charged to them, and whether a whole graph can fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.actions.codes import Code
from interlock.actions.graph import ScheduledAction, collected
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


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether every action of a graph can be admitted once. Time is not among it: nobody knows it beforehand.

    `oversized` are the ids, ascending, that exceed `max_inflight_units` even alone.
    """

    actions_needed: int
    actions_allowed: int
    units_needed: int
    units_allowed: int
    oversized: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the whole graph is within its budgets."""
        enough_units = self.units_needed <= self.units_allowed
        return self.actions_needed <= self.actions_allowed and enough_units and not self.oversized


def preflight(actions: Iterable[ScheduledAction], limits: SchedulerLimits) -> Preflight:
    """Say before the first effect whether the whole graph can fit its budgets.

    Raises:
        SchedulerError: `invalid_actions`, `too_many_actions` or `invalid_limits`.
    """
    if not isinstance(limits, SchedulerLimits):
        raise SchedulerError(Code.INVALID_LIMITS)
    known = collected(actions, ScheduledAction)
    oversized = (action.node.action_id for action in known if action.resource_units > limits.max_inflight_units)
    return Preflight(
        actions_needed=len(known),
        actions_allowed=limits.max_actions,
        units_needed=sum(action.resource_units for action in known),
        units_allowed=limits.max_total_units,
        oversized=tuple(sorted(oversized)),
    )
