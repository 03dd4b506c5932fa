"""From a definition, trusted contracts and inputs to a graph, its bindings and its limits. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlock.actions import ActionNode, ScheduledAction, SchedulerLimits
from interlock.errors import UnknownTool
from interlock.guard.bindings import Template, with_inputs
from interlock.guard.tools import ToolContract, nearest
from interlock.workflows.definition import Step, WorkflowDefinition

MAX_CONCURRENCY = 8
MAX_ELAPSED_SECONDS = 3600.0
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class CompiledWorkflow:
    """What a run needs: actions without payloads, the arguments of each, the limits, and whose outputs are the result.

    `contracts` are those that the classes came from, by tool id. With `partial`, limits that cannot hold all actions
    are meant so.
    """

    actions: tuple[ScheduledAction, ...]
    bindings: Mapping[str, Template]
    limits: SchedulerLimits
    results: tuple[str, ...]
    contracts: Mapping[str, ToolContract]
    partial: bool


def compile_workflow(
    definition: WorkflowDefinition,
    contracts: Mapping[str, ToolContract],
    inputs: Mapping[str, object],
    *,
    max_attempts: int = 3,
) -> CompiledWorkflow:
    """Compile a definition for one task. A step's class comes from its tool's contract and from nothing else.

    Raises:
        InvalidInput: An input is missing, unknown, of another type, or cannot stand where it is used.
        UnknownTool: A tool is not among the contracts.
    """
    values = definition.checked_inputs(inputs)
    actions = tuple(_action(step, contracts) for step in definition.steps)
    needed = {name for step in definition.steps for name in step.needs}
    return CompiledWorkflow(
        actions=actions,
        bindings={step.name: with_inputs(step.arguments, values) for step in definition.steps},
        limits=_limits(definition.limits, actions, max_attempts),
        results=tuple(step.name for step in definition.steps if step.name not in needed),
        contracts={step.tool: contracts[step.tool] for step in definition.steps},
        partial=definition.limits.get("allow_partial", False),
    )


def _action(step: Step, contracts: Mapping[str, ToolContract]) -> ScheduledAction:
    if step.tool not in contracts:
        message = f"step {step.name!r} uses {step.tool}, which this device has not{nearest(step.tool, contracts)}"
        raise UnknownTool(message)
    node = ActionNode(step.name, step.tool, step.needs)
    return ScheduledAction(node, read_only=contracts[step.tool].is_read, resource_units=step.units)


def _limits(given: Mapping[str, Any], actions: tuple[ScheduledAction, ...], max_attempts: int) -> SchedulerLimits:
    """The limits of the file, and where it is silent, what holds the graph and a recovery in each further attempt.

    An interrupted attempt charges again, at most, what can be in flight at once.
    """
    concurrency = given.get("max_concurrency", MAX_CONCURRENCY)
    parallel = given.get("parallel_reads", True)
    reads = [each.resource_units for each in actions if each.read_only]
    together = heapq.nlargest(concurrency if parallel else 1, reads)
    largest = max(each.resource_units for each in actions)
    inflight_units = given.get("max_inflight_units", max(largest, sum(together)))
    again_actions, again_units = max(1, len(together)), min(inflight_units, max(largest, sum(together)))
    further = max_attempts - 1
    seconds = given.get("max_elapsed_seconds", MAX_ELAPSED_SECONDS)
    return SchedulerLimits(
        max_concurrency=concurrency,
        max_actions=given.get("max_actions", len(actions) + further * again_actions),
        max_inflight_units=inflight_units,
        max_total_units=given.get(
            "max_total_units", sum(each.resource_units for each in actions) + further * again_units
        ),
        max_elapsed_ns=max(1, int(seconds * _NANOSECONDS)),
        parallel_reads=parallel,
    )
