"""Runs the workflow of one attempt: compiles it, finds out where it stands, and has the scheduler do the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from interlock.actions import ActionScheduler, CancellationSignal, RunId, StopReason
from interlock.clock import Clock, SystemClock
from interlock.errors import InvalidInput, NotFound, SchedulerError
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, Ending, WorkflowWork
from interlock.guard.canonical import OUTPUT_BYTES, bounded, canonical, digest
from interlock.guard.dispatcher import Guard, ToolDispatcher
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.probing import answered
from interlock.guard.review import PLAN_CHANGED, FreshRun, SameRun, SettledEnd, SuccessorRun, resume
from interlock.guard.tools import Tool, contracts_of
from interlock.runners.endings import ending_of, failed
from interlock.runners.saving import RunSaver, ended
from interlock.workflows import CompiledWorkflow, WorkflowDefinition, compile_workflow

INVALID_WORKFLOW = "invalid_workflow"
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class WorkflowRunner:
    """Runs workflows. `drain_timeout_seconds` bounds the wait for a tool that will not stop when it is told to."""

    clock: Clock = field(default_factory=SystemClock)
    max_attempts: int = 3
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
        """Execute the attempt. The ending is for the caller to report; cancelling this drains the run first."""
        compiled = _compiled(assignment.work, tools, self.max_attempts)
        if compiled is None:
            return failed(INVALID_WORKFLOW)
        guard = Guard(tools, policy, ledger, watch, assignment.device, assignment.fence, self.clock)
        history = await answered(assignment.history, guard, compiled.bindings, cancellation)
        start = resume(compiled.actions, compiled.limits, history, partial=compiled.partial)
        dispatcher = ToolDispatcher(guard, compiled.contracts, compiled.bindings, cancellation)
        reason: str = (
            start.reason
            if isinstance(start, SettledEnd)
            else await self._execute(start, guard, dispatcher, cancellation)
        )
        if reason not in set(StopReason):
            return failed(reason)
        stopped = StopReason(reason)
        asked = watch.cancel_requested or assignment.cancel_requested
        output = await _result(compiled.results, dispatcher) if stopped is StopReason.COMPLETED else _causes(dispatcher)
        return ending_of(stopped, cancel_asked=asked, output=output)

    async def _execute(
        self,
        start: FreshRun | SameRun | SuccessorRun,
        guard: Guard,
        dispatcher: ToolDispatcher,
        stop: CancellationSignal,
    ) -> str:
        """Run what is to be run. The stop reason, or `plan_changed` where the checkpoint is of another plan."""
        run_id, checkpoint, sequence = RunId.generate(), None, 0
        parent = None if isinstance(start, FreshRun) else start.parent_run_id
        if isinstance(start, SameRun):
            run_id, checkpoint, sequence = RunId.parse(start.run_id), start.checkpoint, start.sequence
        save = RunSaver(guard.ledger, guard.watch, run_id.serialize(), parent, sequence)
        timeout_ns = int(self.drain_timeout_seconds * _NANOSECONDS)
        try:
            scheduler = ActionScheduler(start.actions, start.limits, dispatcher, save, drain_timeout_ns=timeout_ns)
            last = await scheduler.run(run_id, cancellation=stop, checkpoint=checkpoint)
        except SchedulerError:
            return PLAN_CHANGED
        return ended(run_id, last)


def _compiled(work: object, tools: Mapping[str, Tool], max_attempts: int) -> CompiledWorkflow | None:
    """What the work compiles to on this device, or None where it does not."""
    if not isinstance(work, WorkflowWork) or digest(work.document) != work.digest:
        return None
    contracts = contracts_of(tools)
    try:
        definition = WorkflowDefinition.from_document(work.document, contracts)
        return compile_workflow(definition, contracts, work.inputs, max_attempts=max_attempts)
    except (InvalidInput, SchedulerError):
        return None


async def _result(steps: Sequence[str], dispatcher: ToolDispatcher) -> str:
    """The outputs of the steps that no other step needs, as JSON, each as long as there is room for it."""
    result: dict[str, object] = {}
    room = OUTPUT_BYTES
    for step in steps:
        text = await _output_text(step, dispatcher)
        kept = text if len(text.encode()) <= room else bounded(json.loads(text), 0)
        room -= len(kept.encode()) + len(canonical(step).encode()) + 2
        if room > 0:
            result[step] = json.loads(kept)
    return canonical(result)


def _causes(dispatcher: ToolDispatcher) -> str | None:
    """Why each step that did not commit did not: the guard's word, and what its tool left."""
    causes = {
        step: {"cause": closing.cause.value, "output": None if closing.output is None else json.loads(closing.output)}
        for step, closing in sorted(dispatcher.closings.items())
        if closing.cause is not None
    }
    return bounded({"not committed": causes}, OUTPUT_BYTES) if causes else None


async def _output_text(step: str, dispatcher: ToolDispatcher) -> str:
    try:
        return canonical(await dispatcher.outputs.of(step))
    except NotFound:
        return "null"
