"""What commands print: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text

from interlock.api.wire import encoded
from interlock.errors import (
    Conflict,
    InterlockError,
    InvalidInput,
    LeaseSuperseded,
    NotFound,
    NotPermitted,
    QueueFull,
    StoreHeld,
    Unavailable,
    VaultLocked,
)

_ID_WIDTH = 37
_PIPED_WIDTH = 200


class Exit(IntEnum):
    """How a command ends, for scripts."""

    OK = 0
    FOUND = 1
    INPUT = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    FAULT = 70
    INTERRUPTED = 130


# The first kind that an error is of decides.
_EXITS: tuple[tuple[type[InterlockError], Exit], ...] = (
    (InvalidInput, Exit.INPUT),
    (NotFound, Exit.NOT_FOUND),
    (QueueFull, Exit.REFUSED),
    (Conflict, Exit.REFUSED),
    (NotPermitted, Exit.REFUSED),
    (LeaseSuperseded, Exit.REFUSED),
    (Unavailable, Exit.UNREACHABLE),
    (StoreHeld, Exit.UNREACHABLE),
    (VaultLocked, Exit.UNREACHABLE),
    (InterlockError, Exit.FAULT),
)
_WORDS = {
    "done": "green",
    "committed": "green",
    "idle": "green",
    "failed": "red",
    "in_doubt": "bold red",
    "review_required": "bold red",
    "stop_unconfirmed": "red",
    "absent": "red",
    "quarantined": "yellow",
    "draining": "yellow",
    "cancelled": "yellow",
    "running": "cyan",
    "dispatched": "cyan",
    "busy": "cyan",
}


def exit_of(error: InterlockError) -> Exit:
    """How a command ends that met this error."""
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def to_person(*, errors: bool = False) -> Console:
    """A console that shows text as it is: what tasks left must not be read as markup."""
    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def tell(*lines: str) -> None:
    """Progress, for a person."""
    console = to_person(errors=True)
    for line in lines:
        console.print(clean(line))


def print_json(value: object) -> None:
    """A frozen value or a mapping as one JSON document."""
    document = json.dumps(value) if isinstance(value, Mapping) else encoded(value).decode()
    sys.stdout.write(document + "\n")
    sys.stdout.flush()


def print_error(code: str, message: str, facts: Mapping[str, object], *, as_json: bool) -> None:
    """One line for a person, or one document for a program. Several faults stand one under the other."""
    if as_json:
        print_json({"error": {**facts, "code": code, "message": message}})
        return
    found = facts.get("faults")
    console = to_person(errors=True)
    if isinstance(found, Sequence) and not isinstance(found, str):
        for fault in found:
            console.print(Text(clean(str(fault)), style="red"))
    else:
        console.print(Text("interlock: ", style="bold red") + Text(clean(message)))


def table(*columns: str) -> Table:
    """A plain table that stays readable in a pipe."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        wraps = column in {"WHY", "REASON", "TAGS", "OUTPUT"}
        # An id that is cut is of no use: the narrower columns give way.
        made.add_column(column, no_wrap=not wraps, overflow="fold", min_width=_ID_WIDTH if column == "TASK" else None)
    return made


def word(state: str | None) -> Text:
    """A state in its colour."""
    return Text(state or "", style=_WORDS.get(state or "", ""))


def clean(text: str) -> str:
    """The text with what a terminal would obey, not show, spelt out."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
