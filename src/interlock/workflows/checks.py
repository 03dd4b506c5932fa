"""What must hold between the parts of a workflow: its tools, its references, its order, and its limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from interlock.actions import ActionNode, validate_action_graph
from interlock.errors import InvalidInput
from interlock.guard.bindings import Fields, Items, Reference, Template, Text, parse_text, references
from interlock.guard.tools import Parameter, ToolContract, ValueType
from interlock.workflows.document import Faults, Located
from interlock.workflows.schema import Input, Parts, RawStep, unknown

MAX_NEEDS = 64
LISTED = "`interlock tools` lists them all with their arguments"
_MAX_CYCLES = 20


def check(parts: Parts, tools: Mapping[str, ToolContract] | None, faults: Faults) -> dict[str, Fields]:
    """Note every fault between the parts, and give each step's arguments as a template.

    `tools` is None where they were checked before.
    """
    arguments = {name: _arguments(step, parts, faults) for name, step in parts.steps.items()}
    for step in parts.steps.values():
        _check_needs(step, parts, faults)
        if tools is not None and step.tool.value is not None:
            _check_tool(step, parts, tools, faults)
    _check_cycles(parts, edges(parts, arguments), faults)
    _check_limits(parts, faults)
    return arguments


def edges(parts: Parts, arguments: Mapping[str, Fields]) -> dict[str, tuple[str, ...]]:
    """Which steps each step waits for: those it names, and those whose output it uses."""
    found = {}
    for name, step in parts.steps.items():
        used = {each.name for each in references(arguments[name]) if each.source == "steps"}
        wanted = used | {each.value for each in step.needs}
        found[name] = tuple(sorted(each for each in wanted if each in parts.steps and each != name))
    return found


def _arguments(step: RawStep, parts: Parts, faults: Faults) -> Fields:
    fields = [(key, _template(item, faults, step, parts)) for key, item in sorted(step.arguments.value.items())]
    return Fields(tuple(fields))


def _template(item: Located, faults: Faults, step: RawStep, parts: Parts) -> Template:
    """Parse every string in an argument; a fault leaves the string out and is noted with its line."""
    if isinstance(item.value, dict):
        return Fields(
            tuple((key, _template(inside, faults, step, parts)) for key, inside in sorted(item.value.items()))
        )
    if isinstance(item.value, list):
        return Items(tuple(_template(inside, faults, step, parts) for inside in item.value))
    if not isinstance(item.value, str):
        return item.value  # type: ignore[no-any-return]  # a scalar that the reader made
    try:
        found = parse_text(item.value)
    except InvalidInput as fault:
        faults.add(item.line, str(fault))
        return None
    for reference in references(found):
        _check_reference(reference, item.line, step, parts, faults)
    for reference in references(found) if isinstance(found, Text) else ():
        _check_in_text(reference, item.line, parts, faults)
    return found


def _check_reference(reference: Reference, line: int, step: RawStep, parts: Parts, faults: Faults) -> None:
    if reference.source == "inputs":
        if reference.name not in parts.inputs:
            faults.add(line, f"{reference}: {unknown(reference.name, 'input', parts.inputs)}")
    elif reference.name == step.name:
        faults.add(line, f"{reference}: step {step.name!r} cannot use its own output")
    elif reference.name not in parts.steps:
        faults.add(line, f"{reference}: {unknown(reference.name, 'step', parts.steps)}")


def _check_in_text(reference: Reference, line: int, parts: Parts, faults: Faults) -> None:
    given = parts.inputs.get(reference.name) if reference.source == "inputs" else None
    allowed = (ValueType.STRING, ValueType.NUMBER, ValueType.INTEGER)
    if given is not None and not reference.path and given.type not in allowed:
        faults.add(line, f"{reference} is of type {given.type}: only a string or a number can stand inside a text")


def _check_needs(step: RawStep, parts: Parts, faults: Faults) -> None:
    seen: set[str] = set()
    for need in step.needs:
        if need.value == step.name:
            faults.add(need.line, f"step {step.name!r} cannot need itself: take it out")
        elif need.value not in parts.steps:
            faults.add(need.line, f"step {step.name!r}: {unknown(need.value, 'step', parts.steps)}")
        elif need.value in seen:
            faults.add(need.line, f"step {step.name!r} needs {need.value!r} twice: keep one")
        seen.add(need.value)


def _check_tool(step: RawStep, parts: Parts, tools: Mapping[str, ToolContract], faults: Faults) -> None:
    contract = tools.get(step.tool.value)
    if contract is None:
        faults.add(step.tool.line, f"step {step.name!r}: {unknown(step.tool.value, 'tool', tools)}: {LISTED}")
        return
    given = step.arguments.value
    for key, item in given.items():
        parameter = contract.parameter(key)
        line = step.arguments.line_of(key)
        if parameter is None:
            names = [each.name for each in contract.parameters]
            faults.add(line, f"{contract.id}: {unknown(key, 'parameter', names)}")
        elif not _fits(item, parameter, parts.inputs):
            faults.add(line, f"{contract.id}: {key!r} must be of type {parameter.type}")
    for parameter in contract.parameters:
        if parameter.required and parameter.name not in given:
            text = (
                f"step {step.name!r}: {contract.id} needs {parameter.name!r} of type {parameter.type}: add it to with"
            )
            faults.add(step.arguments.line if given else step.line, text)


def _fits(item: Located, parameter: Parameter, inputs: Mapping[str, Input]) -> bool:
    """Whether an argument can be of its parameter's type, as far as it is known before the run."""
    try:
        found: Any = parse_text(item.value) if isinstance(item.value, str) else item.value
    except InvalidInput:
        return True
    if isinstance(found, Reference):
        given = inputs.get(found.name) if found.source == "inputs" and not found.path else None
        return given is None or given.type is parameter.type or (given.type, parameter.type) == _WIDENING
    return parameter.type.admits("" if isinstance(found, Text) else item.plain)


_WIDENING = (ValueType.INTEGER, ValueType.NUMBER)


def _check_cycles(parts: Parts, waits: Mapping[str, tuple[str, ...]], faults: Faults) -> None:
    for name, needed in waits.items():
        if len(needed) > MAX_NEEDS:
            faults.add(
                parts.steps[name].line, f"step {name!r} waits for {len(needed)} steps; at most {MAX_NEEDS} can be"
            )
    for cycle in _cycles(waits):
        path = " -> ".join((*cycle, cycle[0]))
        faults.add(parts.steps[cycle[0]].line, f"these steps wait for each other: {path}; break the circle")


def _cycles(waits: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Circles that together touch every step on one, at most 20 of them."""
    members = _on_cycles(waits)
    shown: set[str] = set()
    for _ in range(_MAX_CYCLES):
        start = min(members - shown, default=None)
        if start is None:
            return
        cycle = _shortest_circle(start, waits, members)
        shown.update(cycle)
        yield cycle


def _on_cycles(waits: Mapping[str, tuple[str, ...]]) -> set[str]:
    # Numbers stand for names: a bad step id is a fault of its own and must not hide a cycle.
    numbers = {name: str(number) for number, name in enumerate(waits)}
    names = {number: name for name, number in numbers.items()}
    nodes = [
        ActionNode(numbers[name], "tool:interlock.workflow/step", tuple(numbers[each] for each in needed[:MAX_NEEDS]))
        for name, needed in waits.items()
    ]
    found = validate_action_graph(nodes).findings
    return {names[each.action_id] for each in found if each.reason_code == "dependency_cycle" and each.action_id}


def _shortest_circle(start: str, waits: Mapping[str, tuple[str, ...]], members: set[str]) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for needed in waits[name]:
            if needed == start:
                return _path(start, name, came_from)
            if needed in members and needed not in came_from:
                came_from[needed] = name
                waiting.append(needed)
    return (start,)


def _path(start: str, end: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return tuple(reversed(path))


def _check_limits(parts: Parts, faults: Faults) -> None:
    """Refuse a limit below what the steps need, unless the file wants them run as far as that goes."""
    if parts.limits.get("allow_partial") is True:
        return
    units = [step.units for step in parts.steps.values()]
    needed = {
        "max_actions": (len(units), "steps"),
        "max_total_units": (sum(units), "units in all steps"),
        "max_inflight_units": (max(units, default=0), "units in one step"),
    }
    for key, (least, what) in needed.items():
        given = parts.limits.get(key)
        if isinstance(given, int) and given < least:
            faults.add(
                parts.limit_lines.get(key, 1),
                f"{key} is {given}, and there are {least} {what}: raise it, or set allow_partial",
            )
