"""An action's arguments before they are known: JSON in which strings may refer to inputs and to earlier outputs.

A template is parsed once. What is put in for a reference is a value and is never parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from interlock.errors import InvalidInput

_OPEN = re.compile(r"\$\$\{|\$\{")
_REFERENCE = re.compile(r"\$\{(steps|inputs)\.([A-Za-z0-9_-]+)((?:\.[A-Za-z0-9_-]+)*)\}")
_SHOWN = 40


@dataclass(frozen=True)
class Reference:
    """`${inputs.NAME}` or `${steps.NAME.FIELD.0.SUB}`: a value, and the way to a part of it."""

    source: str
    name: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "${" + ".".join((self.source, self.name, *self.path)) + "}"

    def of(self, value: object) -> object:
        """The part of `value` that the path leads to. Raises `InvalidInput` where there is none."""
        for part in self.path:
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, (list, tuple)) and part.isascii() and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                message = f"{self} leads nowhere: there is no {part!r}"
                raise InvalidInput(message)
        return value


@dataclass(frozen=True)
class Text:
    """A string with references in it: each takes the place of its text."""

    parts: tuple[str | Reference, ...]


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Template, ...]


@dataclass(frozen=True)
class Fields:
    """A mapping."""

    fields: tuple[tuple[str, Template], ...]


Template = None | bool | int | float | str | Reference | Text | Items | Fields
Lookup = Callable[[Reference], Awaitable[object]]


def parse_text(text: str) -> str | Reference | Text:
    """Read a string: plain, exactly one reference, or text with references in it. `$${` stands for `${`.

    Raises:
        InvalidInput: A `${` begins no reference.
    """
    parts = _merged(_parts(text))
    if len(parts) == 1:
        return parts[0]
    return Text(tuple(parts)) if parts else ""


def _parts(text: str) -> Iterator[str | Reference]:
    at = 0
    while found := _OPEN.search(text, at):
        yield text[at : found.start()]
        if found.group() == "$${":
            yield "${"
            at = found.end()
            continue
        reference = _REFERENCE.match(text, found.start())
        if reference is None:
            shown = text[found.start() : found.start() + _SHOWN]
            message = (
                f"{shown!r} is no reference: write ${{steps.NAME.FIELD}} or ${{inputs.NAME}}, or $${{ for a plain ${{"
            )
            raise InvalidInput(message)
        source, name, path = reference.groups()
        yield Reference(source, name, tuple(path.split(".")[1:]))
        at = reference.end()
    yield text[at:]


def _merged(parts: Iterator[str | Reference]) -> list[str | Reference]:
    merged: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


def template(value: object) -> Template:
    """Parse every string of a JSON value. Raises `InvalidInput` as `parse_text` does."""
    if isinstance(value, str):
        return parse_text(value)
    if isinstance(value, Mapping):
        return Fields(tuple((str(key), template(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return Items(tuple(template(item) for item in value))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    message = f"a {type(value).__name__} cannot be an argument"
    raise InvalidInput(message)


def literal(value: object) -> Template:
    """A JSON value as a template in which no string is read as a reference."""
    if isinstance(value, Mapping):
        return Fields(tuple((str(key), literal(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return Items(tuple(literal(item) for item in value))
    return value  # type: ignore[return-value]  # the leaves of JSON are the leaves of templates


def references(of: Template) -> Iterator[Reference]:
    """Every reference in a template."""
    if isinstance(of, Reference):
        yield of
    elif isinstance(of, Text):
        yield from (part for part in of.parts if isinstance(part, Reference))
    elif isinstance(of, Items):
        for item in of.items:
            yield from references(item)
    elif isinstance(of, Fields):
        for _, item in of.fields:
            yield from references(item)


def with_inputs(of: Template, inputs: Mapping[str, object]) -> Template:
    """The template with each reference to an input replaced by its value. Raises `InvalidInput` where one has none."""
    if isinstance(of, Reference):
        return literal(_input(of, inputs)) if of.source == "inputs" else of
    if isinstance(of, Text):
        parts = [_input_text(part, inputs) for part in of.parts]
        merged = _merged(iter(parts))
        return Text(tuple(merged)) if len(merged) > 1 or not isinstance(merged[0], str) else merged[0]
    if isinstance(of, Items):
        return Items(tuple(with_inputs(item, inputs) for item in of.items))
    if isinstance(of, Fields):
        return Fields(tuple((key, with_inputs(item, inputs)) for key, item in of.fields))
    return of


def _input(reference: Reference, inputs: Mapping[str, object]) -> object:
    if reference.name not in inputs:
        message = f"{reference} has no value: give the input {reference.name!r}"
        raise InvalidInput(message)
    return reference.of(inputs[reference.name])


def _input_text(part: str | Reference, inputs: Mapping[str, object]) -> str | Reference:
    if isinstance(part, str) or part.source != "inputs":
        return part
    return as_text(part, _input(part, inputs))


def as_text(reference: Reference, value: object) -> str:
    """A value as it stands inside a text. Only strings and numbers can. Raises `InvalidInput` for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    message = f"{reference} stands inside a text and is no string or number"
    raise InvalidInput(message)


async def resolve(of: Template, lookup: Lookup) -> Any:
    """The JSON value of a template, made anew, with `lookup` giving each referenced value.

    Raises:
        InvalidInput: A reference leads nowhere, or to what cannot stand in a text.
    """
    if isinstance(of, Reference):
        return of.of(await lookup(of))
    if isinstance(of, Text):
        return "".join(
            [part if isinstance(part, str) else as_text(part, part.of(await lookup(part))) for part in of.parts]
        )
    if isinstance(of, Items):
        return [await resolve(item, lookup) for item in of.items]
    if isinstance(of, Fields):
        return {key: await resolve(item, lookup) for key, item in of.fields}
    return of
