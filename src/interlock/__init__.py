"""Interlock puts agent work on shared devices: once, in order, within bounds, with proof.

The public names are looked up when they are first used, so that `interlock.actions` needs the standard library alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.api.client import Client, RemoteFleet
    from interlock.errors import InterlockError
    from interlock.fleet.model import Constraints, DeviceRef
    from interlock.fleet.operations import Fleet
    from interlock.fleet.scheduler import TaskScheduler
    from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest
    from interlock.fleet.settings import FleetSettings

__version__ = "0.1.0"
__all__ = [
    "Client",
    "Constraints",
    "DeviceRef",
    "Fleet",
    "FleetSettings",
    "GoalRequest",
    "InterlockError",
    "RemoteFleet",
    "SubmitRequest",
    "TaskScheduler",
    "WorkflowRequest",
    "__version__",
]

_HOMES = {
    "Client": "interlock.api.client",
    "Constraints": "interlock.fleet.model",
    "DeviceRef": "interlock.fleet.model",
    "Fleet": "interlock.fleet.operations",
    "FleetSettings": "interlock.fleet.settings",
    "GoalRequest": "interlock.fleet.service",
    "InterlockError": "interlock.errors",
    "RemoteFleet": "interlock.api.client",
    "SubmitRequest": "interlock.fleet.service",
    "TaskScheduler": "interlock.fleet.scheduler",
    "WorkflowRequest": "interlock.fleet.service",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module 'interlock' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_HOMES[name]), name)
