"""Actions and the graph that they form. `validate_action_graph` names every fault in one pass."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from interlock.actions.codes import Code
from interlock.actions.identifiers import is_action_id, is_tool_id
from interlock.actions.integers import is_positive
from interlock.errors import SchedulerError

MAX_ACTIONS: Final = 10_000
MAX_DEPENDENCIES: Final = 64
MAX_FINDINGS: Final = 1_000

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class ActionNode:
    """One node: who it is, which tool it calls, and whose commits it waits for. No arguments and no payloads.

    Raises:
        SchedulerError: `invalid_action`, for a malformed id or more than 64 dependencies.
    """

    action_id: str
    tool_id: str
    depends_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_action_id(self.action_id) or not is_tool_id(self.tool_id):
            raise SchedulerError(Code.INVALID_ACTION)
        if not isinstance(self.depends_on, (tuple, list)) or len(self.depends_on) > MAX_DEPENDENCIES:
            raise SchedulerError(Code.INVALID_ACTION)
        if not all(map(is_action_id, self.depends_on)):
            raise SchedulerError(Code.INVALID_ACTION)
        # Exact strings in an exact tuple: nothing that a caller keeps can change the node afterwards.
        object.__setattr__(self, "action_id", str(self.action_id))
        object.__setattr__(self, "tool_id", str(self.tool_id))
        object.__setattr__(self, "depends_on", tuple(map(str, self.depends_on)))

    def to_dict(self) -> dict[str, object]:
        """The node as JSON values."""
        return {"action_id": self.action_id, "tool_id": self.tool_id, "depends_on": list(self.depends_on)}


@dataclass(frozen=True, slots=True)
class ScheduledAction:
    """A node with what trusted policy says of it.

    `read_only` is false unless the host classified the tool from its contract; being a read is no approval.
    `resource_units` is the worst-case estimate, at least 1, in a unit that the host chooses.

    Raises:
        SchedulerError: `invalid_action`, `invalid_policy` or `invalid_integer`.
    """

    node: ActionNode
    read_only: bool = False
    resource_units: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.node, ActionNode):
            raise SchedulerError(Code.INVALID_ACTION)
        if type(self.read_only) is not bool:
            raise SchedulerError(Code.INVALID_POLICY)
        if not is_positive(self.resource_units):
            raise SchedulerError(Code.INVALID_INTEGER)


@dataclass(frozen=True, slots=True)
class GraphFinding:
    """One fault: its reason code, the action it is in, and the dependency it is about."""

    reason_code: str
    action_id: str | None = None
    dependency_id: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """The finding as JSON values."""
        return {
            "reason_code": self.reason_code,
            "action_id": self.action_id,
            "dependency_id": self.dependency_id,
        }


@dataclass(frozen=True, slots=True)
class ActionGraphReport:
    """What a pass over a graph found.

    `findings` are sorted by action, code and dependency; the last of 1,000 is `findings_truncated` when there were
    more. `order` is the ascending topological order, empty when there is any finding.
    """

    node_count: int
    edge_count: int
    order: tuple[str, ...]
    findings: tuple[GraphFinding, ...]

    @property
    def is_valid(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    @property
    def reason_codes(self) -> tuple[str, ...]:
        """The code of each finding, in their order."""
        return tuple(finding.reason_code for finding in self.findings)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "node_count": self.node_count,
            "edge_count": self.edge_count,
            "order": list(self.order),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_json(self) -> str:
        """The report as compact JSON, byte for byte the same for the same graph."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


def collected(items: Iterable[object], kind: type[_Item]) -> tuple[_Item, ...]:
    """Everything an iterable gives, once, and never more than one past the limit.

    Raises:
        SchedulerError: `invalid_actions` where it cannot be read or gives anything else, `too_many_actions` past
            10,000.
    """
    found = _read(items)
    if found is None or not all(isinstance(item, kind) for item in found):
        raise SchedulerError(Code.INVALID_ACTIONS)
    if len(found) > MAX_ACTIONS:
        raise SchedulerError(Code.TOO_MANY_ACTIONS)
    return tuple(item for item in found if isinstance(item, kind))


def _read(items: Iterable[object]) -> tuple[object, ...] | None:
    """The items; None in place of any exception, whose text may hold what the caller protects."""
    try:
        return tuple(islice(items, MAX_ACTIONS + 1))
    except Exception:  # noqa: BLE001 - the iterable is the caller's own code
        return None


def validate_action_graph(nodes: Iterable[ActionNode]) -> ActionGraphReport:
    """Find everything wrong with a graph in one pass, or its ascending topological order.

    Codes: `dependency_cycle` (for each member of a cycle), `duplicate_action_id` (the first node counts),
    `duplicate_dependency`, `missing_dependency`, `self_dependency`. A faulty edge is left out before cycles are sought.

    Raises:
        SchedulerError: `invalid_actions` or `too_many_actions`, when these are no nodes at all.
    """
    findings: list[GraphFinding] = []
    unique: dict[str, ActionNode] = {}
    for node in collected(nodes, ActionNode):
        if node.action_id in unique:
            findings.append(GraphFinding("duplicate_action_id", node.action_id))
        else:
            unique[node.action_id] = node
    edges = {key: tuple(_edges(node, unique, findings)) for key, node in unique.items()}
    order = _topological(edges)
    if len(order) < len(edges):
        findings += [GraphFinding("dependency_cycle", key) for key in _cyclic(edges)]
    return ActionGraphReport(
        node_count=len(unique),
        edge_count=sum(map(len, edges.values())),
        order=() if findings else order,
        findings=_capped(findings),
    )


def _edges(node: ActionNode, known: Mapping[str, ActionNode], findings: list[GraphFinding]) -> Iterator[str]:
    """The sound dependencies of a node, each once; the others become findings."""
    seen: set[str] = set()
    for dependency in node.depends_on:
        if dependency in seen:
            findings.append(GraphFinding("duplicate_dependency", node.action_id, dependency))
        elif dependency == node.action_id:
            findings.append(GraphFinding("self_dependency", node.action_id, dependency))
        elif dependency not in known:
            findings.append(GraphFinding("missing_dependency", node.action_id, dependency))
        else:
            yield dependency
        seen.add(dependency)


def _topological(edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Ids after all they depend on, ascending among those free to go. What hangs on a cycle is missing."""
    dependents: dict[str, list[str]] = {key: [] for key in edges}
    waiting = {key: len(parents) for key, parents in edges.items()}
    for key, parents in edges.items():
        for parent in parents:
            dependents[parent].append(key)
    ready = [key for key, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        order.append(key := heapq.heappop(ready))
        for child in dependents[key]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, child)
    return tuple(order)


def _cyclic(edges: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Every id that lies on a cycle: Tarjan's strongly connected components of two or more, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: list[str] = []
    on_stack: set[str] = set()
    for root in edges:
        walk = [] if root in index else [(root, iter(edges[root]))]
        while walk:
            key, parents = walk[-1]
            if key not in index:
                index[key] = low[key] = len(index)
                component.append(key)
                on_stack.add(key)
            parent = next(parents, None)
            if parent is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[key])
                if low[key] == index[key]:
                    yield from _closed(component, on_stack, key)
            elif parent not in index:
                walk.append((parent, iter(edges[parent])))
            elif parent in on_stack:
                low[key] = min(low[key], index[parent])


def _closed(component: list[str], on_stack: set[str], root: str) -> list[str]:
    """Take the component of `root` off the stack: its members, or nothing where it stands alone."""
    members = [component.pop()]
    while members[-1] != root:
        members.append(component.pop())
    on_stack.difference_update(members)
    return members if len(members) > 1 else []


def _capped(findings: list[GraphFinding]) -> tuple[GraphFinding, ...]:
    """In a stable order, with a marker for what is past the limit."""
    findings.sort(key=lambda found: (found.action_id or "", found.reason_code, found.dependency_id or ""))
    if len(findings) <= MAX_FINDINGS:
        return tuple(findings)
    return (*findings[: MAX_FINDINGS - 1], GraphFinding("findings_truncated"))
