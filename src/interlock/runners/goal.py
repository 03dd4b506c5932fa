"""Runs the goal of one attempt through the agent that its task names."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlock.actions import CancellationSignal, SchedulerCheckpoint, StopReason
from interlock.clock import Clock, SystemClock
from interlock.errors import SchedulerError, ToolFailed
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, DeviceRef, Ending, EndKind, GoalWork, History, JournalEntry
from interlock.guard.canonical import bounded
from interlock.guard.dispatcher import Guard
from interlock.guard.journal import Standing, entry_standing
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.review import HISTORY_UNREADABLE
from interlock.guard.shielding import to_the_end
from interlock.guard.tools import Tool
from interlock.runners.calls import NANOSECONDS, CallBudget, GoalCalls, GoalTools
from interlock.runners.endings import ending_of, failed

AGENT_FAILED = "agent_failed"
AGENT_REFUSED = "agent_refused"
AGENT_UNKNOWN = "agent_unknown"
NOT_RESUMABLE = "not_resumable"
_OURS = Path(__file__).parents[1]
_CALL = re.compile(r"call-([0-9]{6,})")


@dataclass(frozen=True)
class PastCall:
    """An effect that an earlier attempt handed over, and what is known of it. Its output is at `GoalTools.output`."""

    call_id: str
    tool_id: str
    arguments_digest: str
    standing: Standing


@dataclass(frozen=True)
class GoalContext:
    """What an agent is told beside its goal. `record` is empty but for an agent that declares `resumes = True`."""

    task_id: str
    attempt: int
    device: DeviceRef
    record: tuple[PastCall, ...] = ()


Agent = Callable[[str, GoalTools, GoalContext], Awaitable[object]]


@dataclass(frozen=True)
class GoalRunner:
    """Runs goals. `drain_timeout_seconds` bounds the wait for an agent or a tool that will not stop."""

    clock: Clock = field(default_factory=SystemClock)
    drain_timeout_seconds: float = 30.0

    async def run(
        self,
        assignment: Assignment,
        *,
        ledger: AttemptLedger,
        tools: Mapping[str, Tool],
        policy: Policy,
        watch: LeaseWatch,
        cancellation: CancellationSignal,
    ) -> Ending:
        """Execute the attempt. The ending is for the caller to report; cancelling this stops the agent first."""
        work = assignment.work
        if not isinstance(work, GoalWork) or not policy.allows_agent(work.agent):
            return failed(AGENT_REFUSED)
        agent = _load(work.agent)
        if agent is None:
            return failed(AGENT_UNKNOWN)
        record = _record(assignment.history.journal)
        if record and getattr(agent, "resumes", False) is not True:
            doubt = any(past.standing is Standing.IN_DOUBT for past in record)
            return failed(StopReason.REVIEW_REQUIRED if doubt else NOT_RESUMABLE)
        budget = _budget(work, assignment.history, self.clock.elapsed())
        if budget is None:
            return failed(HISTORY_UNREADABLE)
        doubts = frozenset(
            (past.tool_id, past.arguments_digest) for past in record if past.standing is Standing.IN_DOUBT
        )
        guard = Guard(tools, policy, ledger, watch, assignment.device, assignment.fence, self.clock, doubts)
        calls = GoalCalls(guard, budget, self.drain_timeout_seconds, asyncio.get_running_loop().create_future())
        context = GoalContext(assignment.task_id, assignment.number, assignment.device, record)
        end = await self._end(_outcome(agent, work.goal, GoalTools(calls), context), calls, cancellation)
        asked = watch.cancel_requested or assignment.cancel_requested
        return ending_of(end, cancel_asked=asked) if isinstance(end, StopReason) else end

    async def _end(
        self, agent: Coroutine[Any, Any, Ending], calls: GoalCalls, cancellation: CancellationSignal
    ) -> Ending | StopReason:
        """Wait for the agent, a stop, or the end of its time, whichever is first; then see that all is over."""
        unobserve = cancellation.observe(lambda: calls.stop(StopReason.CANCELLED))
        if cancellation.cancelled:
            calls.stop(StopReason.CANCELLED)
        task = asyncio.create_task(agent)
        timer = asyncio.create_task(self.clock.sleep(max(0.0, calls.budget.ends_at - self.clock.elapsed())))
        try:
            awaited: set[asyncio.Future[Any]] = {task, timer, calls.stopped}
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if done == {timer}:
                calls.stop(StopReason.BUDGET_EXHAUSTED)
        finally:
            unobserve()
            timer.cancel()
            _, cancelled = await to_the_end(self._wound_up(task, calls))
        if cancelled:
            raise asyncio.CancelledError
        return _conclusion(task, calls)

    async def _wound_up(self, task: asyncio.Task[Ending], calls: GoalCalls) -> None:
        """Stop an agent that still runs, and wait for a call that it may have left behind."""
        if not task.done():
            calls.stop(StopReason.CANCELLED)
            task.cancel()
            await asyncio.wait({task}, timeout=self.drain_timeout_seconds)
        await calls.close()


def _conclusion(task: asyncio.Task[Ending], calls: GoalCalls) -> Ending | StopReason:
    """What it all came to. Doubt about an effect outweighs all but an attempt that ends without a verdict."""
    reason = calls.stopped.result() if calls.stopped.done() else None
    if calls.in_doubt and reason not in {StopReason.CANCELLED, StopReason.CHECKPOINT_FAILED}:
        return StopReason.REVIEW_REQUIRED
    return reason or (failed(AGENT_FAILED) if task.cancelled() else task.result())


async def _outcome(agent: Agent, goal: str, tools: GoalTools, context: GoalContext) -> Ending:
    """Run the agent. Of an error its kind and place are kept, and not its text, which may hold what is protected."""
    try:
        return Ending(EndKind.DONE, StopReason.COMPLETED.value, bounded(await agent(goal, tools, context)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent is the user's own code
        return failed(AGENT_FAILED, bounded({"agent": _place(error)}))


def _place(error: BaseException) -> dict[str, object]:
    """What may be told of an error: its kind, where the agent was then, and the guard's word on a call that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((each for each in reversed(frames) if not Path(each.filename).is_relative_to(_OURS)), frames[-1])
    said: dict[str, object] = {"error": type(error).__name__, "file": Path(frame.filename).name, "line": frame.lineno}
    if isinstance(error, ToolFailed):
        said |= {"tool": error.tool_id, "cause": error.cause, "output": error.output}
    return said


def _load(name: str) -> Agent | None:
    """The callable named `module:function`, or None where there is none."""
    module, _, function = name.partition(":")
    try:
        agent = getattr(importlib.import_module(module), function, None)
    except (Exception, SystemExit):  # noqa: BLE001 - importing runs the user's own code
        return None
    return agent if callable(agent) else None


def _budget(work: GoalWork, history: History, now: float) -> CallBudget | None:
    """What earlier attempts left of the calls and the time. Of those, time is what their calls took on record."""
    try:
        past = [SchedulerCheckpoint.from_dict(json.loads(save.checkpoint)) for save in history.runs]
    except (SchedulerError, ValueError):
        return None
    numbers = [int(found[1]) for each in past for key, _ in each.states if (found := _CALL.fullmatch(key))]
    spent = sum(each.elapsed_ns for each in past) / NANOSECONDS
    return CallBudget(
        calls_left=work.max_calls - sum(each.admitted_actions for each in past),
        next_number=max(numbers, default=0) + 1,
        ends_at=now + work.max_elapsed_seconds - spent,
    )


def _record(journal: Iterable[JournalEntry]) -> tuple[PastCall, ...]:
    """The effects that earlier attempts handed over, but for those that are known not to have happened."""
    past = [PastCall(each.action_id, each.tool_id, each.arguments_digest, entry_standing(each)) for each in journal]
    return tuple(call for call in past if call.standing is not Standing.NOT_HANDED_OVER)
