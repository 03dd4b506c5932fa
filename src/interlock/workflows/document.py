"""Reading a workflow file to plain values that know their lines. Nothing here knows what a workflow is.

Safe by construction: no tag makes an object, no alias makes a document larger than its text, sizes are bounded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from interlock.errors import InvalidWorkflow

MAX_BYTES = 1_048_576
_MAX_DEPTH = 32
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}


@dataclass(frozen=True)
class Located:
    """A value and the line it begins on. A mapping's items are located, and each key has a line of its own."""

    line: int
    value: Any
    key_lines: dict[str, int] = field(default_factory=dict)

    @property
    def plain(self) -> Any:
        """The value without its lines."""
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        return [item.plain for item in self.value] if isinstance(self.value, list) else self.value

    def line_of(self, key: str) -> int:
        """The line of a key of this mapping."""
        return self.key_lines.get(key, self.line)


class Faults:
    """What is wrong with a file, each fault with its line."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        """Note one fault."""
        self._found.append((line, text))

    def check(self) -> None:
        """Raise `InvalidWorkflow` with everything noted so far, in the order of lines."""
        if self._found:
            raise InvalidWorkflow(tuple(f"line {line}: {text}" for line, text in sorted(set(self._found))))


# libyaml where it was built in: it reads large files some ten times faster.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # a loader of this library has no types
    """YAML whose plain words mean what JSON's do: `no`, `12:30` and `2020-01-01` are strings."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _form, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_form})\Z"), list(_first))


def read_yaml(text: str, faults: Faults) -> Located:
    """The document of a YAML text. Tags, keys that are there twice and odd scalars are noted as faults.

    Raises:
        InvalidWorkflow: It cannot be read at all: it is no YAML, too large or too deep, or it uses aliases.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        faults.add(1, f"the file is over {MAX_BYTES} bytes: split it")
        faults.check()
    try:
        _check_events(text, faults)
        faults.check()
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        faults.add(*_syntax(error, text))
        faults.check()
        raise
    if node is None:
        message = "line 1: the file is empty: begin with name: and steps:"
        raise InvalidWorkflow((message,))
    return _located(node, faults)


def read_canonical(text: str) -> Located:
    """The document of a canonical JSON text: everything is on line 1. Raises `InvalidWorkflow` where it is none."""
    try:
        return _on_line_1(json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidWorkflow(("line 1: this is no canonical workflow",)) from None


def _check_events(text: str, faults: Faults) -> None:
    """Refuse, before anything is built, what could make a small file large or a shallow stack deep."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = _line(event)
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            faults.add(line, f"*{anchor} is an alias: write the value out")
        elif anchor:
            faults.add(line, f"&{anchor} is an anchor: write each value out where it is used")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            faults.add(line, f"this is nested more than {_MAX_DEPTH} deep: flatten it")
            return


def _line(of: yaml.Event | yaml.Node) -> int:
    return of.start_mark.line + 1 if of.start_mark is not None else 1


def _syntax(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return error.problem_mark.line + 1, f"this is no YAML: {error.problem or error.context}"
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1, "this is no YAML: there is a character that no text file has"


def _located(node: yaml.Node, faults: Faults) -> Located:
    line = _line(node)
    if node.tag not in _PLAIN:
        faults.add(line, f"the tag {node.tag} is not allowed: use plain values")
        return Located(line, None)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, line, faults)
    if isinstance(node, yaml.SequenceNode):
        return Located(line, [_located(item, faults) for item in node.value])
    return Located(line, _scalar(node, line, faults))


def _mapping(node: yaml.MappingNode, line: int, faults: Faults) -> Located:
    found = Located(line, {})
    for key, item in node.value:
        key_line = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            faults.add(key_line, "a key must be a word")
        elif key.value in found.value:
            first = found.key_lines[key.value]
            faults.add(key_line, f"{key.value!r} is here twice, first on line {first}: keep one")
        else:
            found.value[key.value] = _located(item, faults)
            found.key_lines[key.value] = key_line
    return found


def _scalar(node: yaml.Node, line: int, faults: Faults) -> object:
    kind = node.tag.rpartition(":")[2]
    try:
        return _CONVERT[kind](node.value)
    except (ValueError, KeyError):
        faults.add(line, f"this is no {kind}: write it in full, or quote it")
        return None


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _integer(text: str) -> int:
    # A number of more digits is a mistake, and would take long to read.
    if len(text) > len("-9223372036854775808"):
        raise ValueError
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _text(text: str) -> str:
    text.encode("utf-8")  # half a surrogate pair is no character, and could not be stored
    return text


_CONVERT: dict[str, Callable[[str], object]] = {
    "str": _text,
    "int": _integer,
    "float": _float,
    "bool": _bool,
    "null": lambda _: None,
}


def _on_line_1(value: object) -> Located:
    if isinstance(value, dict):
        return Located(1, {key: _on_line_1(item) for key, item in value.items()})
    return Located(1, [_on_line_1(item) for item in value] if isinstance(value, list) else value)
