"""What one attempt may read and write, all of it under its lease.

The host agent's side is a `HostSession`; the worker's side is a socket to its agent; both are this protocol.
"""

from __future__ import annotations

from typing import Protocol

from interlock.fleet.model import Ending, HandOver, RunSave, Settlement


class AttemptLedger(Protocol):
    """One attempt's durable record. A return means durable; `LeaseSuperseded` means that the lease is lost for ever."""

    async def save(self, save: RunSave) -> None:
        """Store a checkpoint of the attempt's run. Anything that does not extend the last one is a `Conflict`.

        The same save again is the same answer.
        """
        ...

    async def hand_over(self, entry: HandOver) -> None:
        """Record that an effect is about to begin. Only after this returns may it begin.

        The same entry again, with the same nonce, is the same answer; another one for this effect is a `Conflict`.
        Once the task is to be cancelled, it is `CancelRequested`.
        """
        ...

    async def withdraw(self, run_id: str, action_id: str) -> None:
        """Record that a handed-over effect was not begun after all."""
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Record outcome, evidence and output in one commit."""
        ...

    async def output(self, action_id: str) -> object:
        """The output that a committed action left, under any run of this task. `NotFound` when there is none."""
        ...

    async def finish(self, ending: Ending) -> None:
        """Report how the attempt ended. The same report again is the same answer; another one is `ReportConflict`."""
        ...
