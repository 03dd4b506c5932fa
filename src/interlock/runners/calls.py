"""The tools of a goal's agent: guarded handles. Each call is a numbered run of one action."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    ScheduledAction,
    SchedulerLimits,
    StopReason,
)
from interlock.errors import InvalidInput, NotPermitted, SchedulerError, ToolFailed
from interlock.guard.bindings import Template, literal
from interlock.guard.dispatcher import Cause, Guard, ToolDispatcher
from interlock.guard.tools import ToolContract, contracts_of
from interlock.runners.saving import RunSaver, ended

NANOSECONDS = 1_000_000_000
_NOT_BEGUN = frozenset({Cause.HELD_BACK, Cause.WITHDRAWN})


@dataclass
class CallBudget:
    """What an agent may still do, over all attempts together. `ends_at` is in seconds of `Clock.elapsed()`."""

    calls_left: int
    next_number: int
    ends_at: float


@dataclass
class GoalCalls:
    """The calls of one attempt, one at a time, until one of them stops the goal."""

    guard: Guard
    budget: CallBudget
    drain_timeout_seconds: float
    stopped: asyncio.Future[StopReason]
    signal: CancellationSignal = field(default_factory=CancellationSignal)
    in_doubt: bool = False
    closed: bool = False
    _bindings: dict[str, Template] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.contracts: Mapping[str, ToolContract] = contracts_of(self.guard.tools)
        self._dispatcher = ToolDispatcher(self.guard, self.contracts, self._bindings, self.signal)

    async def call(self, tool_id: str, arguments: Mapping[str, Any]) -> Any:
        """Make one call and give its output. See `GoalTools.call`."""
        async with self._turn:
            self._check_open()
            action = self._admitted(tool_id)
            self._bindings[action.node.action_id] = literal(arguments)
            try:
                reason = await self._run(action)
            except asyncio.CancelledError:
                # The agent gave up waiting. That is its right, but where it leaves doubt behind it may not go on.
                if self._noted_doubt(action):
                    self.stop(StopReason.REVIEW_REQUIRED)
                raise
            finally:
                del self._bindings[action.node.action_id]
            self._noted_doubt(action)
            return await self._outcome(action.node, reason)

    async def output(self, call_id: str) -> Any:
        """The output of a call of any attempt. Raises `NotFound` where it left none."""
        return await self._dispatcher.outputs.of(call_id)

    def stop(self, reason: StopReason) -> None:
        """Stop the goal. The first reason stays; after the agent's own end there is none."""
        if not self.stopped.done() and not self.closed:
            self.stopped.set_result(reason)
        self.signal.cancel()

    async def close(self) -> None:
        """Take no more calls, and wait for one that a forgotten task of the agent may still be in."""
        self.closed = True
        if self._turn.locked():
            self.signal.cancel()
        async with self._turn:
            pass

    def _check_open(self) -> None:
        if self.stopped.done():
            raise asyncio.CancelledError
        if self.closed:
            message = "the goal has ended: it takes no more calls"
            raise NotPermitted(message)
        if self.budget.calls_left < 1 or self._seconds_left() <= 0:
            self.stop(StopReason.BUDGET_EXHAUSTED)
            raise asyncio.CancelledError

    def _admitted(self, tool_id: str) -> ScheduledAction:
        """The action of the next call, charged. A tool that is not known is no read."""
        contract = self.contracts.get(tool_id)
        try:
            node = ActionNode(f"call-{self.budget.next_number:06d}", tool_id)
        except SchedulerError:
            message = "this is no tool id: write tool:NAMESPACE/NAME"
            raise InvalidInput(message) from None
        self.budget.next_number += 1
        self.budget.calls_left -= 1
        return ScheduledAction(node, read_only=contract is not None and contract.is_read)

    async def _run(self, action: ScheduledAction) -> StopReason:
        run_id = RunId.generate()
        save = RunSaver(self.guard.ledger, self.guard.watch, run_id.serialize(), None)
        elapsed_ns = max(1, int(self._seconds_left() * NANOSECONDS))
        limits = SchedulerLimits(1, self.budget.calls_left + 1, 1, self.budget.calls_left + 1, elapsed_ns)
        timeout_ns = int(self.drain_timeout_seconds * NANOSECONDS)
        scheduler = ActionScheduler([action], limits, self._dispatcher, save, drain_timeout_ns=timeout_ns)
        return ended(run_id, await scheduler.run(run_id, cancellation=self.signal))

    async def _outcome(self, node: ActionNode, reason: StopReason) -> Any:
        if reason is StopReason.COMPLETED:
            return await self.output(node.action_id)
        if reason is StopReason.DISPATCH_FAILED:
            closing = self._dispatcher.closings[node.action_id]
            output = json.loads(closing.output) if closing.output is not None else None
            raise ToolFailed(node.tool_id, closing.cause or Cause.TOOL_FAILED, output)
        self.stop(reason)
        raise asyncio.CancelledError

    def _noted_doubt(self, action: ScheduledAction) -> bool:
        """Note an effect of which nobody knows what became. What never reached its tool is no doubt."""
        closing = self._dispatcher.closings.get(action.node.action_id)
        doubt = (
            closing is not None
            and closing.outcome is DispatchOutcome.REVIEW_REQUIRED
            and closing.cause not in _NOT_BEGUN
            and not action.read_only
        )
        self.in_doubt = self.in_doubt or doubt
        return doubt

    def _seconds_left(self) -> float:
        return self.budget.ends_at - self.guard.clock.elapsed()


class GoalTools:
    """What an agent gets in place of a device."""

    def __init__(self, calls: GoalCalls) -> None:
        self._calls = calls

    @property
    def contracts(self) -> Mapping[str, ToolContract]:
        """The tools there are, by id."""
        return self._calls.contracts

    @property
    def calls_left(self) -> int:
        """How many calls are left, over all attempts."""
        return self._calls.budget.calls_left

    async def call(self, tool_id: str, /, **arguments: Any) -> Any:
        """Call a tool and give its output. Calls are made one at a time and each is charged, whatever comes of it.

        A call of which nobody knows whether it happened, or a used-up budget, stops the whole goal: the agent is
        cancelled.

        Raises:
            ToolFailed: The call failed for certain: the agent may go on.
            InvalidInput: That is no tool id. Nothing was charged.
        """
        return await self._calls.call(tool_id, arguments)

    async def output(self, call_id: str) -> Any:
        """The output of an earlier call, of this attempt or another. Raises `NotFound` where it left none."""
        return await self._calls.output(call_id)
