"""Who may call what. Whatever no rule allows is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from interlock.errors import InvalidInput

_TOOL_PATTERN = re.compile(r"tool:[a-z0-9.*_-]+/[a-z0-9.*_@-]+")
_AGENT_PATTERN = re.compile(r"[A-Za-z0-9_.*]+:[A-Za-z0-9_.*]+")


class Verdict(StrEnum):
    """What a policy says about a call. `ask` is refused until somebody can be asked."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


@dataclass(frozen=True)
class Policy:
    """Rules for tools (pattern to verdict) and patterns of the agents that may run.

    In a pattern `*` stands for any characters but `/` and `:`. Where several rules match, the strictest holds,
    whatever their order: `deny`, then `ask`, then `allow`. Where none does, the verdict is `deny`.
    """

    tools: tuple[tuple[str, Verdict], ...] = ()
    agents: tuple[str, ...] = ()

    @classmethod
    def allowing(cls, namespaces: Iterable[str], agents: Iterable[str] = ()) -> Policy:
        """The policy that allows every tool of some namespaces, and some agents."""
        rules = {f"tool:{namespace}/*": Verdict.ALLOW.value for namespace in namespaces}
        return cls.parse({"tools": rules, "agents": list(agents)})

    @classmethod
    def parse(cls, document: object) -> Policy:
        """Read `{tools: {PATTERN: allow|deny|ask}, agents: [MODULE:FUNCTION]}`, as it comes from YAML or JSON.

        Raises:
            InvalidInput: Names every fault at once.
        """
        if not isinstance(document, Mapping):
            message = "a policy is a mapping with the keys tools and agents"
            raise InvalidInput(message)
        faults = [f"{key!r} is not a key of a policy: use tools, agents" for key in set(document) - {"tools", "agents"}]
        tools = {} if document.get("tools") is None else document["tools"]
        agents = [] if document.get("agents") is None else document["agents"]
        faults += [*_tool_faults(tools), *_agent_faults(agents)]
        if faults:
            raise InvalidInput("; ".join(sorted(faults)))
        return cls(
            tuple(sorted((pattern, Verdict(verdict)) for pattern, verdict in tools.items())), tuple(sorted(agents))
        )

    def decide(self, tool_id: str) -> Verdict:
        """The verdict on a call of that tool."""
        found = {verdict for pattern, verdict in self.tools if _matches(pattern, tool_id)}
        return next((each for each in (Verdict.DENY, Verdict.ASK, Verdict.ALLOW) if each in found), Verdict.DENY)

    def allows(self, tool_id: str) -> bool:
        """Whether a call of that tool may go ahead now. There is nobody to ask yet, so `ask` may not."""
        return self.decide(tool_id) is Verdict.ALLOW

    def allows_agent(self, agent: str) -> bool:
        """Whether the agent named `module:function` may run."""
        return any(_matches(pattern, agent) for pattern in self.agents)

    def to_dict(self) -> dict[str, object]:
        """The mapping that `parse` reads."""
        return {"tools": {pattern: verdict.value for pattern, verdict in self.tools}, "agents": list(self.agents)}

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex digits over the rules, whatever their order was."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/:]*"), name) is not None


def _tool_faults(tools: object) -> list[str]:
    if not isinstance(tools, Mapping):
        return ["tools is a mapping of tool patterns to allow, deny or ask"]
    faults = [
        f"{pattern!r} is not a tool pattern: write tool:NAMESPACE/NAME, with * for any characters but a slash"
        for pattern in tools
        if not (isinstance(pattern, str) and _TOOL_PATTERN.fullmatch(pattern))
    ]
    verdicts = {each.value for each in Verdict}
    faults += [
        f"{pattern!r} has no verdict: write allow, deny or ask"
        for pattern, verdict in tools.items()
        if not (isinstance(verdict, str) and verdict in verdicts)
    ]
    return faults


def _agent_faults(agents: object) -> list[str]:
    if not isinstance(agents, (list, tuple)):
        return ["agents is a list of patterns, each MODULE:FUNCTION"]
    return [
        f"{pattern!r} is not an agent pattern: write MODULE:FUNCTION, with * for any characters"
        for pattern in agents
        if not (isinstance(pattern, str) and _AGENT_PATTERN.fullmatch(pattern))
    ]
