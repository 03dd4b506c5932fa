"""What runs, actions and tools are called. Every name here is checked once, where it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from interlock.actions.codes import Code
from interlock.clock import new_id
from interlock.errors import SchedulerError

_RUN_ID: Final = re.compile(r"run_[0-9a-f]{32}")
_ACTION_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?")
_LABEL: Final = r"[a-z](?:[a-z0-9_-]*[a-z0-9])?"
_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_TOOL_ID: Final = re.compile(
    rf"tool:{_LABEL}(?:\.{_LABEL})+/[a-z](?:[a-z0-9_.-]*[a-z0-9])?(?:@{_NUMBER}\.{_NUMBER}\.{_NUMBER})?",
)
_TOOL_ID_LENGTH: Final = 256


@dataclass(frozen=True, slots=True, repr=False)
class RunId:
    """The name of one run: `run_` and 32 lowercase hex digits.

    Raises:
        SchedulerError: `invalid_run_id`.
    """

    _value: str

    def __post_init__(self) -> None:
        if type(self._value) is not str or _RUN_ID.fullmatch(self._value) is None:
            raise SchedulerError(Code.INVALID_RUN_ID)

    def __repr__(self) -> str:
        return "RunId(...)"

    @classmethod
    def generate(cls) -> RunId:
        """A fresh one, by chance."""
        return cls(new_id("run"))

    @classmethod
    def parse(cls, text: str) -> RunId:
        """The id that `serialize` wrote.

        Raises:
            SchedulerError: `invalid_run_id`.
        """
        return cls(text)

    def serialize(self) -> str:
        """The id as text: the one way to see it, so that it enters no log by accident."""
        return self._value


def is_action_id(text: object) -> bool:
    """Whether this is 1 to 128 of `A-Z a-z 0-9 _ . -`, with a letter or digit at both ends."""
    return isinstance(text, str) and _ACTION_ID.fullmatch(text) is not None


def is_tool_id(text: object) -> bool:
    """Whether this is `tool:NAMESPACE/NAME`, and `@X.Y.Z` where a version is pinned.

    The namespace is at least two lowercase labels with dots between them. The name is lowercase as well: two tools that
    differ in case alone would be one tool to a reader and two to a policy.
    """
    return isinstance(text, str) and len(text) <= _TOOL_ID_LENGTH and _TOOL_ID.fullmatch(text) is not None
