"""A workflow as it is submitted and stored: parsed, checked, and spelt in one canonical way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.errors import InvalidInput, InvalidWorkflow
from interlock.guard.bindings import Fields
from interlock.guard.canonical import canonical, digest
from interlock.guard.tools import ToolContract
from interlock.workflows import checks, schema
from interlock.workflows.document import Faults, Located, read_canonical, read_yaml
from interlock.workflows.schema import Input, Parts


@dataclass(frozen=True)
class Step:
    """One step: the tool it calls, with which arguments, after which steps, and what it reserves."""

    name: str
    tool: str
    arguments: Fields
    needs: tuple[str, ...]
    units: int


@dataclass(frozen=True)
class WorkflowDefinition:
    """A checked workflow. Two definitions are equal when their digests are.

    `document` is its canonical JSON text and `digest` is over that, so that neither comments nor the order of keys
    count. `limits` holds only what the file sets.
    """

    name: str
    document: str
    digest: str
    inputs: Mapping[str, Input] = field(compare=False)
    limits: Mapping[str, Any] = field(compare=False)
    steps: tuple[Step, ...] = field(compare=False)
    description: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str, tools: Mapping[str, ToolContract]) -> WorkflowDefinition:
        """Read a YAML file whose steps may use these tools.

        Raises:
            InvalidWorkflow: Names every fault, each beginning with `line N: `.
        """
        faults = Faults()
        return _defined(read_yaml(text, faults), tools, faults)

    @classmethod
    def from_document(cls, document: str, tools: Mapping[str, ToolContract] | None = None) -> WorkflowDefinition:
        """Read a canonical text back. Where `tools` is None, they were checked when it was stored.

        Raises:
            InvalidWorkflow: It is no canonical workflow, or does not fit the tools.
        """
        return _defined(read_canonical(document), tools, Faults())

    def checked_inputs(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The inputs of one task, defaults filled in.

        Raises:
            InvalidInput: Names every input that is missing, unknown or of another type; no value is shown.
        """
        faults = [schema.unknown(name, "input", self.inputs) for name in given if name not in self.inputs]
        for each in self.inputs.values():
            if each.name not in given:
                faults += [f"the input {each.name!r} of type {each.type} is missing"] if each.required else []
            elif not each.type.admits(given[each.name]):
                faults.append(f"the input {each.name!r} must be of type {each.type}")
        if faults:
            raise InvalidInput("; ".join(faults))
        return {each.name: given.get(each.name, each.default) for each in self.inputs.values()}


def _defined(document: Located, tools: Mapping[str, ToolContract] | None, faults: Faults) -> WorkflowDefinition:
    parts = schema.read_parts(document, faults)
    arguments = checks.check(parts, tools, faults)
    faults.check()
    waits = checks.edges(parts, arguments)
    text = canonical(_plain(parts))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidWorkflow(("line 1: there is half a surrogate pair in a text",)) from None
    return WorkflowDefinition(
        name=parts.name,
        document=text,
        digest=digest(text),
        inputs=parts.inputs,
        limits=parts.limits,
        steps=tuple(
            Step(name, step.tool.value, arguments[name], waits[name], step.units)
            for name, step in sorted(parts.steps.items())
        ),
        description=parts.description,
    )


def _plain(parts: Parts) -> dict[str, object]:
    """The file again, with what may be left out left out."""
    steps = {
        name: _filled(
            tool=step.tool.value,
            arguments=step.arguments.plain,
            needs=sorted(each.value for each in step.needs),
            units=step.units if step.units > 1 else None,
        )
        for name, step in parts.steps.items()
    }
    return _filled(
        name=parts.name,
        description=parts.description,
        inputs={each.name: _plain_input(each) for each in parts.inputs.values()},
        limits=parts.limits,
        steps=steps,
    )


def _plain_input(given: Input) -> dict[str, object]:
    default = {} if given.required else {"default": given.default}
    return {"type": given.type.value, **default}


def _filled(**entries: object) -> dict[str, object]:
    spelt = {"arguments": "with"}
    return {spelt.get(key, key): value for key, value in entries.items() if value not in (None, "", {}, [])}
