"""How a later attempt of a workflow goes on: from what is durable, with no effect repeated on a guess. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from interlock.actions import (
    ActionNode,
    ActionState,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
    StopReason,
    preflight,
    validate_action_graph,
)
from interlock.errors import SchedulerError
from interlock.fleet.model import History, JournalEntry, RunSave
from interlock.guard.journal import Standing, standing

PLAN_CHANGED = "plan_changed"
HISTORY_UNREADABLE = "history_unreadable"

# What stopped for a reason outside the plan may be gone on with in another run. The stopped run itself stays stopped.
_GO_ON = frozenset({None, StopReason.CANCELLED, StopReason.CHECKPOINT_FAILED})
_CLEAN = frozenset({ActionState.COMMITTED, ActionState.PENDING})


@dataclass(frozen=True)
class FreshRun:
    """Nothing has run: begin."""

    actions: tuple[ScheduledAction, ...]
    limits: SchedulerLimits


@dataclass(frozen=True)
class SameRun:
    """The last run was left clean: go on under its own id, from its checkpoint, whose save had `sequence`."""

    actions: tuple[ScheduledAction, ...]
    limits: SchedulerLimits
    run_id: str
    parent_run_id: str | None
    sequence: int
    checkpoint: SchedulerCheckpoint


@dataclass(frozen=True)
class SuccessorRun:
    """The last run cannot be gone on with: what remains of it runs under a new id, with what is left of the limits."""

    actions: tuple[ScheduledAction, ...]
    limits: SchedulerLimits
    parent_run_id: str


@dataclass(frozen=True)
class SettledEnd:
    """There is nothing to run: the task ends for this reason, which `action_id` is the cause of, where one is."""

    reason: str
    action_id: str | None = None


Resumption = FreshRun | SameRun | SuccessorRun | SettledEnd


def resume(
    actions: tuple[ScheduledAction, ...], limits: SchedulerLimits, history: History, *, partial: bool = False
) -> Resumption:
    """Decide how an attempt begins. `actions` and `limits` are the compiled ones, for the whole task.

    What remains of the limits is counted over the whole chain of runs; nothing is ever refunded. A plan that cannot fit
    what remains ends here, before another effect, unless it is to be run in part.
    """
    found = _begun(actions, limits, history)
    if partial or not isinstance(found, FreshRun | SuccessorRun):
        return found
    return found if preflight(found.actions, found.limits).fits else SettledEnd(StopReason.BUDGET_EXHAUSTED)


def _begun(actions: tuple[ScheduledAction, ...], limits: SchedulerLimits, history: History) -> Resumption:
    if not history.runs:
        return FreshRun(actions, limits)
    try:
        chain = [SchedulerCheckpoint.from_dict(json.loads(save.checkpoint)) for save in history.runs]
    except (SchedulerError, ValueError):
        # What cannot be read cannot be shown to be absent.
        return SettledEnd(HISTORY_UNREADABLE)
    states = dict(chain[-1].states)
    if not states.keys() <= {action.node.action_id for action in actions}:
        return SettledEnd(PLAN_CHANGED)
    standings = _without_dropped(actions, _standings(actions, states, history.journal))
    reviewed = history.runs[-1].run_id == history.reviewed_run_id
    return _ended(chain[-1], standings, reviewed=reviewed) or _going_on(
        actions, limits, history.runs[-1], chain, standings
    )


def _standings(
    actions: tuple[ScheduledAction, ...], states: Mapping[str, ActionState], journal: Iterable[JournalEntry]
) -> dict[str, Standing]:
    """Where each action stands. What the last run does not have was committed before it began."""
    entries: dict[str, list[JournalEntry]] = {}
    for entry in journal:
        entries.setdefault(entry.action_id, []).append(entry)
    ids = [action.node.action_id for action in actions]
    return {each: standing(states.get(each, ActionState.COMMITTED), entries.get(each, ())) for each in ids}


def _without_dropped(actions: tuple[ScheduledAction, ...], standings: Mapping[str, Standing]) -> dict[str, Standing]:
    """The same, where what depends on a dropped action is dropped as well."""
    found = dict(standings)
    order = validate_action_graph([action.node for action in actions]).order
    nodes = {action.node.action_id: action.node for action in actions}
    for each in order:
        if any(found[parent] is Standing.DROPPED for parent in nodes[each].depends_on):
            found[each] = Standing.DROPPED
    return found


def _ended(last: SchedulerCheckpoint, standings: Mapping[str, Standing], *, reviewed: bool) -> SettledEnd | None:
    """The end that the task has come to, if it has. Doubt that a person has answered stops nothing any more."""
    ids = {each: sorted(key for key, found in standings.items() if found is each) for each in Standing}
    if ids[Standing.IN_DOUBT]:
        return SettledEnd(StopReason.REVIEW_REQUIRED, ids[Standing.IN_DOUBT][0])
    if len(ids[Standing.COMMITTED]) + len(ids[Standing.DROPPED]) == len(standings):
        return SettledEnd(StopReason.COMPLETED)
    if ids[Standing.FAILED]:
        return SettledEnd(StopReason.DISPATCH_FAILED, ids[Standing.FAILED][0])
    if last.stop_reason not in _GO_ON and not (reviewed and last.stop_reason is StopReason.REVIEW_REQUIRED):
        unsure = [key for key, state in last.states if state is ActionState.REVIEW_REQUIRED]
        return SettledEnd(str(last.stop_reason), unsure[0] if unsure else None)
    return None


def _going_on(
    actions: tuple[ScheduledAction, ...],
    limits: SchedulerLimits,
    save: RunSave,
    chain: list[SchedulerCheckpoint],
    standings: Mapping[str, Standing],
) -> Resumption:
    last = chain[-1]
    if _is_clean(last, standings):
        left = _left(limits, chain[:-1])
        if left is None:
            return SettledEnd(StopReason.BUDGET_EXHAUSTED)
        plan = _among(actions, {key for key, _ in last.states})
        return SameRun(plan, left, save.run_id, save.parent_run_id, save.sequence, last)
    left = _left(limits, chain)
    if left is None:
        return SettledEnd(StopReason.BUDGET_EXHAUSTED)
    done = {Standing.COMMITTED, Standing.DROPPED}
    remaining = {key for key, found in standings.items() if found not in done}
    return SuccessorRun(_among(actions, remaining), left, save.run_id)


def _is_clean(last: SchedulerCheckpoint, standings: Mapping[str, Standing]) -> bool:
    """Whether the last run can go on as itself: neither stopped nor interrupted in the middle of anything."""
    if last.stop_reason is not None:
        return False
    agrees = {ActionState.COMMITTED: Standing.COMMITTED, ActionState.PENDING: Standing.NOT_HANDED_OVER}
    return all(state in _CLEAN and standings[key] is agrees[state] for key, state in last.states)


def _left(limits: SchedulerLimits, chain: Iterable[SchedulerCheckpoint]) -> SchedulerLimits | None:
    """What the runs of a chain left of the limits; None where one of them is used up."""
    spent = list(chain)
    left = (
        limits.max_actions - sum(each.admitted_actions for each in spent),
        limits.max_total_units - sum(each.reserved_units for each in spent),
        limits.max_elapsed_ns - sum(each.elapsed_ns for each in spent),
    )
    if min(left) < 1:
        return None
    return replace(limits, max_actions=left[0], max_total_units=left[1], max_elapsed_ns=left[2])


def _among(actions: tuple[ScheduledAction, ...], ids: set[str]) -> tuple[ScheduledAction, ...]:
    """Those actions, without the edges to any other: all others are committed."""
    return tuple(
        replace(action, node=_restricted(action.node, ids)) for action in actions if action.node.action_id in ids
    )


def _restricted(node: ActionNode, ids: set[str]) -> ActionNode:
    return replace(node, depends_on=tuple(each for each in node.depends_on if each in ids))
