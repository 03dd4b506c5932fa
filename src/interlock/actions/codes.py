"""The closed set of codes that a SchedulerError carries."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why the run level refused. It is the whole message: never a value that was rejected."""

    INVALID_INTEGER = "invalid_integer"
    INVALID_POLICY = "invalid_policy"
    INVALID_ACTION = "invalid_action"
    INVALID_ACTIONS = "invalid_actions"
    TOO_MANY_ACTIONS = "too_many_actions"
    INVALID_LIMITS = "invalid_limits"
    INVALID_GRAPH = "invalid_graph"
    INVALID_RUN_ID = "invalid_run_id"
    INVALID_CANCELLATION = "invalid_cancellation"
    INVALID_PLAN_DIGEST = "invalid_plan_digest"
    INVALID_STATES = "invalid_states"
    INVALID_STATE = "invalid_state"
    INVALID_STATE_ORDER = "invalid_state_order"
    INVALID_STOP_REASON = "invalid_stop_reason"
    INVALID_CHECKPOINT = "invalid_checkpoint"
    SCHEDULER_ALREADY_RUNNING = "scheduler_already_running"
    CHECKPOINT_IDENTITY_MISMATCH = "checkpoint_identity_mismatch"
    CHECKPOINT_BUDGET_MISMATCH = "checkpoint_budget_mismatch"
    CHECKPOINT_DEPENDENCY_MISMATCH = "checkpoint_dependency_mismatch"
    CHECKPOINT_COMPLETION_MISMATCH = "checkpoint_completion_mismatch"
