"""What can be said of a graph and its limits before the first effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interlock.actions.checkpoint import ActionState
from interlock.actions.graph import ScheduledAction, validate_action_graph
from interlock.actions.identifiers import RunId
from interlock.actions.limits import SchedulerLimits
from interlock.actions.plan import Outline, Plan


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether every action of a graph can be admitted once. Time is not among it: nobody knows it beforehand.

    `oversized` are the ids, ascending, that exceed `max_inflight_units` even alone. `critical_path` is the longest
    chain of dependencies, first to last: no concurrency makes a run shorter. `width` is how many actions are in flight
    at most where all take equally long, as far as the limits go.
    """

    actions_needed: int
    actions_allowed: int
    units_needed: int
    units_allowed: int
    oversized: tuple[str, ...]
    critical_path: tuple[str, ...]
    width: int

    @property
    def fits(self) -> bool:
        """Whether the whole graph is within its budgets."""
        enough_units = self.units_needed <= self.units_allowed
        return self.actions_needed <= self.actions_allowed and enough_units and not self.oversized


def preflight(actions: Iterable[ScheduledAction], limits: SchedulerLimits) -> Preflight:
    """Say before the first effect whether the whole graph can fit its budgets, and what bounds its run.

    Raises:
        SchedulerError: `invalid_actions`, `too_many_actions`, `invalid_graph` or `invalid_limits`.
    """
    outline = Outline.of(actions, limits)
    too_large = (units > limits.max_inflight_units for units in outline.units)
    return Preflight(
        actions_needed=len(outline.ids),
        actions_allowed=limits.max_actions,
        units_needed=sum(outline.units),
        units_allowed=limits.max_total_units,
        oversized=tuple(key for key, is_too_large in zip(outline.ids, too_large, strict=True) if is_too_large),
        critical_path=_critical_path(outline.actions),
        width=_width(outline),
    )


def _critical_path(actions: Iterable[ScheduledAction]) -> tuple[str, ...]:
    """The longest chain of dependencies. Of several, the one with the lowest ids, seen from its end."""
    nodes = {action.node.action_id: action.node for action in actions}
    length: dict[str, int] = {}
    before: dict[str, str | None] = {}
    for key in validate_action_graph(nodes.values()).order:
        needs = sorted(nodes[key].depends_on)
        before[key] = max(needs, key=length.__getitem__, default=None)
        length[key] = 1 + max((length[need] for need in needs), default=0)
    last = max(sorted(length), key=length.__getitem__, default=None)
    path = []
    while last is not None:
        path.append(last)
        last = before[last]
    return tuple(reversed(path))


def _width(outline: Outline) -> int:
    """Rehearse the run: all that can be admitted is, and all of it commits at once."""
    plan = Plan(outline, RunId.generate())
    widest = 0
    while wave := list(iter(plan.admit, None)):
        widest = max(widest, len(wave))
        for rank in wave:
            plan.settle(rank, ActionState.COMMITTED)
    return widest
