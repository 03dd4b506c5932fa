"""`TaskDispatcher`: hands an assignment to the runner for its kind of work, and reports how that ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from interlock.errors import NotLocal
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, Ending, GoalWork, HostId, WorkflowWork


class Runner(Protocol):
    """Executes an attempt of one kind of work on the device that is at hand."""

    async def __call__(self, assignment: Assignment, ledger: AttemptLedger) -> Ending:
        """Run the attempt to its end. What it writes goes through the ledger, under the lease."""
        ...


class TaskDispatcher:
    """Executes the assignments of one host. It plans, executes and retries nothing itself."""

    def __init__(self, host: HostId, runners: Mapping[type[GoalWork | WorkflowWork], Runner]) -> None:
        self._host = host
        self._runners = dict(runners)

    async def dispatch(self, assignment: Assignment, ledger: AttemptLedger) -> Ending:
        """Run an assignment and report its ending.

        Raises:
            NotLocal: its device is another host's; nothing was done.
            LeaseSuperseded: the lease was lost meanwhile; the report changed nothing.
        """
        if assignment.device.host != self._host:
            message = f"{assignment.device} is not a device of {self._host}: its own host has to run this"
            raise NotLocal(message)
        ending = await self._runners[type(assignment.work)](assignment, ledger)
        await ledger.finish(ending)
        return ending
