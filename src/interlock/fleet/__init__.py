"""The fleet level: which device runs which task."""

from interlock.fleet.dispatcher import Runner, TaskDispatcher
from interlock.fleet.matching import PooledDevice
from interlock.fleet.model import (
    Assignment,
    Constraints,
    DeviceRef,
    Ending,
    EndKind,
    GoalWork,
    HandOver,
    History,
    RunSave,
    Settlement,
    TaskStatus,
    WorkflowWork,
)
from interlock.fleet.operations import Fleet
from interlock.fleet.scheduler import AssignReport, TaskScheduler
from interlock.fleet.service import FleetService, GoalRequest, HostService, SubmitRequest, WorkflowRequest
from interlock.fleet.session import HostSession
from interlock.fleet.settings import FleetSettings
from interlock.fleet.strategies import (
    AssignmentStrategy,
    BestFit,
    FairShare,
    FifoMatch,
    LeastRecentlyUsed,
    Priority,
    QueuedTask,
    Snapshot,
    Submission,
    View,
    register_strategy,
    strategy_named,
)
from interlock.fleet.views import ScheduledTask, TaskDetail

__all__ = [
    "AssignReport",
    "Assignment",
    "AssignmentStrategy",
    "BestFit",
    "Constraints",
    "DeviceRef",
    "EndKind",
    "Ending",
    "FairShare",
    "FifoMatch",
    "Fleet",
    "FleetService",
    "FleetSettings",
    "GoalRequest",
    "GoalWork",
    "HandOver",
    "History",
    "HostService",
    "HostSession",
    "LeastRecentlyUsed",
    "PooledDevice",
    "Priority",
    "QueuedTask",
    "RunSave",
    "Runner",
    "ScheduledTask",
    "Settlement",
    "Snapshot",
    "Submission",
    "SubmitRequest",
    "TaskDetail",
    "TaskDispatcher",
    "TaskScheduler",
    "TaskStatus",
    "View",
    "WorkflowRequest",
    "WorkflowWork",
    "register_strategy",
    "strategy_named",
]
