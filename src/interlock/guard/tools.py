"""What a tool promises, what it is given, and what it says came of a call.

A contract is trusted: it comes with the driver. It alone says that a tool is a read; everything else is an effect.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from interlock.actions import ActionNode, CancellationSignal, DispatchOutcome
from interlock.errors import InvalidInput, SchedulerError, UnknownTool
from interlock.fleet.model import DeviceRef

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Access(StrEnum):
    """A tool's class. Nothing but its contract may say `read`."""

    READ = "read"
    EFFECT = "effect"


class ValueType(StrEnum):
    """The types that an argument or a workflow's input may have: JSON's own, with integers told apart."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"

    def admits(self, value: object) -> bool:
        """Whether a JSON value is of this type. True and False are no numbers; NaN and infinities are no values."""
        if self is ValueType.NUMBER:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if self is ValueType.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, _PYTHON[self])


_PYTHON = {ValueType.STRING: str, ValueType.BOOLEAN: bool, ValueType.LIST: list, ValueType.OBJECT: dict}


@dataclass(frozen=True)
class Parameter:
    """One argument that a tool takes."""

    name: str
    type: ValueType = ValueType.STRING
    required: bool = True
    summary: str = ""

    def __post_init__(self) -> None:
        if not _PARAMETER.fullmatch(self.name):
            message = f"{self.name!r} is not a parameter name: it is 1 to 64 of A-Z a-z 0-9 _, and begins with no digit"
            raise InvalidInput(message)


@dataclass(frozen=True)
class ToolContract:
    """A tool's trusted promise: its id, its class, and the arguments it takes.

    `settle_seconds` is how long a request may still take effect after its client is gone; "did not happen" is not
    believed before.
    """

    id: str
    access: Access = Access.EFFECT
    parameters: tuple[Parameter, ...] = ()
    summary: str = ""
    settle_seconds: float = 0.0

    def __post_init__(self) -> None:
        try:
            ActionNode("tool", self.id)
        except SchedulerError:
            message = f"{self.id!r} is not a tool id: write tool:NAMESPACE/NAME, with a namespace of two or more labels"
            raise InvalidInput(message) from None
        object.__setattr__(self, "parameters", tuple(self.parameters))
        if len({each.name for each in self.parameters}) < len(self.parameters):
            message = f"{self.id} names a parameter twice"
            raise InvalidInput(message)
        if not (math.isfinite(self.settle_seconds) and self.settle_seconds >= 0):
            message = f"{self.id} settles in {self.settle_seconds} seconds: give a number of seconds, 0 or more"
            raise InvalidInput(message)

    @property
    def is_read(self) -> bool:
        """Whether calls may run side by side and be made again without asking."""
        return self.access is Access.READ

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)

    def faults(self, arguments: Mapping[str, object]) -> tuple[str, ...]:
        """What is wrong with the arguments, by name and type; no value is ever shown."""
        unknown = [f"{name!r} is not a parameter" for name in arguments if self.parameter(name) is None]
        required = [each.name for each in self.parameters if each.required]
        missing = [f"{name!r} is missing" for name in required if name not in arguments]
        mistyped = [
            f"{each.name!r} must be of type {each.type}"
            for each in self.parameters
            if each.name in arguments and not each.type.admits(arguments[each.name])
        ]
        return (*unknown, *missing, *mistyped)


@dataclass(frozen=True)
class ToolResult:
    """What a tool says came of a call. A committed effect names its `evidence`; a return value is none."""

    outcome: DispatchOutcome
    output: object = None
    evidence: str | None = None


@dataclass(frozen=True)
class CallContext:
    """Under what a call is made. `key` is the same for a call and for every question asked about it later."""

    run_id: str
    action_id: str
    device: DeviceRef
    fence: int
    cancellation: CancellationSignal

    @property
    def key(self) -> str:
        """An idempotency key for tools that can pass one on."""
        return f"{self.run_id}/{self.action_id}"


class Tool(Protocol):
    """One thing that a device can do."""

    @property
    def contract(self) -> ToolContract:
        """What it promises."""
        ...

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """Do it. An exception or a cancellation means that nobody knows whether it happened."""
        ...


class Answer(StrEnum):
    """What is said later about an effect in doubt."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True)
class ProbeReport:
    """A probe's answer; with `happened` come the output and the evidence that the call would have left."""

    answer: Answer
    output: object = None
    evidence: str | None = None


@runtime_checkable
class ProbedTool(Protocol):
    """A tool that can say later whether its effect took place, without changing anything."""

    async def probe(self, arguments: Mapping[str, Any], call: CallContext) -> ProbeReport:
        """Look. Where the device has been cleaned or used since, the answer is `cannot_tell`."""
        ...


class ToolRegistry(Mapping[str, Tool]):
    """The tools of one device by id."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.contract.id in self._tools:
                message = f"{tool.contract.id} is registered twice"
                raise InvalidInput(message)
            self._tools[tool.contract.id] = tool

    def __getitem__(self, tool_id: str) -> Tool:
        return self._tools[tool_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def named(self, tool_id: str) -> Tool:
        """The tool of that id, or `UnknownTool` with the nearest names."""
        if tool_id not in self._tools:
            message = f"{tool_id} is no tool of this device{nearest(tool_id, self._tools)}"
            raise UnknownTool(message)
        return self._tools[tool_id]


def contracts_of(tools: Mapping[str, Tool]) -> dict[str, ToolContract]:
    """The contracts of some tools, by id."""
    return {tool_id: tool.contract for tool_id, tool in tools.items()}


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names what was perhaps meant, or what there is; empty where there is nothing."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:10]
    return f"; known: {', '.join(close)}" if close else ""
