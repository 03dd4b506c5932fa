"""A tool whose calls a test answers and counts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from interlock.actions import DispatchOutcome
from interlock.guard.tools import CallContext, ToolContract, ToolResult

Script = Callable[[Mapping[str, Any], CallContext], ToolResult | Awaitable[ToolResult]]


def committed(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
    """The answer of a tool that did as it was told: its arguments as output, and evidence."""
    return ToolResult(DispatchOutcome.COMMITTED, dict(arguments), f"done {call.action_id}")


@dataclass
class ScriptedTool:
    """Keeps each call's arguments and answers with `script`."""

    contract: ToolContract
    script: Script = committed
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """See `Tool.invoke`."""
        self.calls.append(dict(arguments))
        result = self.script(arguments, call)
        return await result if inspect.isawaitable(result) else result
