"""The run level: one validated graph of actions, run within bounds, with a checkpoint around every dispatch."""

from __future__ import annotations

from interlock.actions.checkpoint import ActionState, SchedulerCheckpoint, StatePairs, StopReason, plan_digest
from interlock.actions.codes import Code
from interlock.actions.dispatch import CancellationSignal, DispatchOutcome, GuardedDispatcher
from interlock.actions.graph import (
    MAX_ACTIONS,
    MAX_DEPENDENCIES,
    MAX_FINDINGS,
    ActionGraphReport,
    ActionNode,
    GraphFinding,
    ScheduledAction,
    validate_action_graph,
)
from interlock.actions.identifiers import RunId
from interlock.actions.limits import SchedulerLimits
from interlock.actions.plan import Cause, Outline, Plan, Why
from interlock.actions.preflight import Preflight, preflight
from interlock.actions.run import SaveCheckpoint
from interlock.actions.scheduler import ActionScheduler
from interlock.actions.stores import FileCheckpoints, RunSaves, SqliteCheckpoints
from interlock.errors import SchedulerError

__all__ = [
    "MAX_ACTIONS",
    "MAX_DEPENDENCIES",
    "MAX_FINDINGS",
    "ActionGraphReport",
    "ActionNode",
    "ActionScheduler",
    "ActionState",
    "CancellationSignal",
    "Cause",
    "Code",
    "DispatchOutcome",
    "FileCheckpoints",
    "GraphFinding",
    "GuardedDispatcher",
    "Outline",
    "Plan",
    "Preflight",
    "RunId",
    "RunSaves",
    "SaveCheckpoint",
    "ScheduledAction",
    "SchedulerCheckpoint",
    "SchedulerError",
    "SchedulerLimits",
    "SqliteCheckpoints",
    "StatePairs",
    "StopReason",
    "Why",
    "plan_digest",
    "preflight",
    "validate_action_graph",
]
