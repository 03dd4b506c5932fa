"""The shape of a workflow file: which keys stand where, and of which type their values are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.guard.tools import ValueType, nearest
from interlock.workflows.document import Faults, Located

TOP_KEYS = ("name", "description", "inputs", "limits", "steps")
STEP_KEYS = ("tool", "with", "needs", "units")
INPUT_KEYS = ("type", "default", "description")
INTEGER_LIMITS = ("max_concurrency", "max_actions", "max_inflight_units", "max_total_units")
_SWITCHES = ("parallel_reads", "allow_partial")
LIMIT_KEYS = (*INTEGER_LIMITS, "max_elapsed_seconds", *_SWITCHES)
MAX_STEPS = 10_000
MAX_UNITS = 1_000_000_000
_MAX_TEXT = 4_096
# Longer than any run: what is over it is a mistake.
MAX_SECONDS = 31_536_000.0

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?")
_STEP = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,126}[A-Za-z0-9])?")
_INPUT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_READ_KEYS = ("read", "read_only", "readonly", "read-only")


@dataclass(frozen=True)
class Input:
    """One value that a task gives to its workflow; `default` counts where `required` is false."""

    name: str
    type: ValueType
    required: bool = True
    default: Any = None


@dataclass(frozen=True)
class RawStep:
    """One step as it stands in the file, with its lines; parts that could not be read are empty."""

    name: str
    line: int
    tool: Located
    arguments: Located
    needs: tuple[Located, ...] = ()
    units: int = 1


@dataclass
class Parts:
    """A whole file, as far as it could be read."""

    name: str = ""
    description: str = ""
    inputs: dict[str, Input] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    limit_lines: Mapping[str, int] = field(default_factory=dict)
    steps: dict[str, RawStep] = field(default_factory=dict)


def read_parts(document: Located, faults: Faults) -> Parts:
    """Take a document apart; whatever is wrong is noted, and the rest goes on."""
    parts = Parts()
    if not isinstance(document.value, dict):
        faults.add(document.line, "a workflow is a mapping: begin with name: and steps:")
        return parts
    _check_keys(document, TOP_KEYS, "a workflow", faults)
    parts.name = _name(document, faults)
    parts.description = _text(document, "description", faults)
    parts.inputs = dict(_inputs(_section(document, "inputs", faults), faults))
    limits = _section(document, "limits", faults)
    parts.limits, parts.limit_lines = _limits(limits, faults), limits.key_lines
    parts.steps = _steps(document, faults)
    return parts


def _check_keys(of: Located, known: tuple[str, ...], what: str, faults: Faults) -> None:
    for key in of.value:
        if key not in known:
            faults.add(of.line_of(key), f"{key!r} is no key of {what}; known: {', '.join(known)}")


def _section(document: Located, key: str, faults: Faults) -> Located:
    """A mapping below a key; an empty one where it is not given or is no mapping."""
    found: Located | None = document.value.get(key)
    if found is None or found.value is None:
        return Located(document.line_of(key), {})
    if not isinstance(found.value, dict):
        faults.add(document.line_of(key), f"{key} is a mapping of names")
        return Located(found.line, {})
    return found


def _name(document: Located, faults: Faults) -> str:
    found = document.value.get("name")
    if found is None:
        faults.add(document.line, "name is missing: add name: WORD")
    elif not isinstance(found.value, str) or not _NAME.fullmatch(found.value):
        faults.add(found.line, "name is 1 to 128 of A-Z a-z 0-9 _ . -, with a letter or digit at both ends")
    else:
        return str(found.value)
    return ""


def _text(document: Located, key: str, faults: Faults) -> str:
    found = document.value.get(key)
    if found is None:
        return ""
    if not isinstance(found.value, str) or len(found.value) > _MAX_TEXT:
        faults.add(document.line_of(key), f"{key} is a text of at most {_MAX_TEXT} characters")
        return ""
    return found.value


def _inputs(section: Located, faults: Faults) -> Iterable[tuple[str, Input]]:
    for name, spec in section.value.items():
        line = section.line_of(name)
        if not _INPUT.fullmatch(name):
            faults.add(
                line, f"{name!r} is no input name: it is 1 to 64 of A-Z a-z 0-9 _ -, and begins with a letter or _"
            )
        if not isinstance(spec.value, dict):
            faults.add(line, f"input {name!r} is a mapping with type, and default where it may be left out")
            continue
        _check_keys(spec, INPUT_KEYS, f"input {name!r}", faults)
        _text(spec, "description", faults)
        if (kind := _type(name, spec, line, faults)) is not None:
            yield name, _input(name, kind, spec, faults)


def _type(name: str, spec: Located, line: int, faults: Faults) -> ValueType | None:
    found = spec.value.get("type")
    names = [each.value for each in ValueType]
    if found is None or not isinstance(found.value, str) or found.value not in names:
        where = found.line if found is not None else line
        faults.add(where, f"input {name!r} needs a type: one of {', '.join(names)}")
        return None
    return ValueType(found.value)


def _input(name: str, kind: ValueType, spec: Located, faults: Faults) -> Input:
    default = spec.value.get("default")
    if default is None:
        return Input(name, kind)
    if not kind.admits(default.plain):
        faults.add(spec.line_of("default"), f"the default of input {name!r} is not of type {kind}")
    return Input(name, kind, required=False, default=default.plain)


def _limits(section: Located, faults: Faults) -> dict[str, Any]:
    _check_keys(section, LIMIT_KEYS, "limits", faults)
    for key, found in section.value.items():
        line = section.line_of(key)
        if key in INTEGER_LIMITS and not _is_count(found.value):
            faults.add(line, f"{key} is a whole number from 1 to {MAX_UNITS}")
        elif key == "max_elapsed_seconds" and not _is_duration(found.value):
            faults.add(line, f"{key} is a number of seconds over 0, at most {MAX_SECONDS:.0f}")
        elif key in _SWITCHES and not isinstance(found.value, bool):
            faults.add(line, f"{key} is true or false")
    return {key: found.value for key, found in section.value.items() if key in LIMIT_KEYS}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and ValueType.INTEGER.admits(value) and 1 <= value <= MAX_UNITS


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and ValueType.NUMBER.admits(value) and 0 < value <= MAX_SECONDS


def _steps(document: Located, faults: Faults) -> dict[str, RawStep]:
    section = _section(document, "steps", faults)
    if not section.value:
        faults.add(section.line, "steps is missing or empty: name each step and its tool")
    if len(section.value) > MAX_STEPS:
        faults.add(section.line, f"there are {len(section.value)} steps; at most {MAX_STEPS} can be in one workflow")
        return {}
    return {name: _step(name, found, section.line_of(name), faults) for name, found in section.value.items()}


def _step(name: str, found: Located, line: int, faults: Faults) -> RawStep:
    if not _STEP.fullmatch(name):
        faults.add(
            line, f"{name!r} is no step id: it is 1 to 128 of A-Z a-z 0-9 _ -, with a letter or digit at both ends"
        )
    if not isinstance(found.value, dict):
        faults.add(line, f"step {name!r} is a mapping with tool, and with, needs and units where they are wanted")
        return RawStep(name, line, Located(line, None), Located(line, {}))
    _check_step_keys(name, found, faults)
    tool = found.value.get("tool")
    if tool is None:
        faults.add(line, f"step {name!r} has no tool: add tool: tool:NAMESPACE/NAME")
    elif not isinstance(tool.value, str):
        faults.add(tool.line, f"the tool of step {name!r} is an id: tool:NAMESPACE/NAME")
        tool = None
    return RawStep(
        name,
        line,
        tool or Located(line, None),
        _section(found, "with", faults),
        _needs(name, found, faults),
        _units(name, found, faults),
    )


def _check_step_keys(name: str, found: Located, faults: Faults) -> None:
    tool = found.value.get("tool")
    for key in found.value:
        if key in _READ_KEYS:
            which = tool.value if tool is not None and isinstance(tool.value, str) else "its tool"
            text = (
                f"{key!r} is no key of step {name!r}: only the contract of {which} says whether it is a read or an "
                "effect, never the file; take the line out"
            )
            faults.add(found.line_of(key), text)
        elif key not in STEP_KEYS:
            text = f"{key!r} is no key of step {name!r}; known: {', '.join(STEP_KEYS)}"
            faults.add(found.line_of(key), text)


def _needs(name: str, found: Located, faults: Faults) -> tuple[Located, ...]:
    needs = found.value.get("needs")
    if needs is None or needs.value is None:
        return ()
    if not isinstance(needs.value, list) or not all(isinstance(each.value, str) for each in needs.value):
        faults.add(found.line_of("needs"), f"needs of step {name!r} is a list of step names")
        return ()
    return tuple(needs.value)


def _units(name: str, found: Located, faults: Faults) -> int:
    units = found.value.get("units")
    if units is None:
        return 1
    if not _is_count(units.value):
        faults.add(found.line_of("units"), f"units of step {name!r} is a whole number from 1 to {MAX_UNITS}")
        return 1
    return int(units.value)


def unknown(name: str, what: str, known: Iterable[str]) -> str:
    """The text of the fault that a name leads to nothing."""
    return f"there is no {what} {name!r}{nearest(name, known)}"
