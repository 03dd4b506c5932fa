"""The options that commands share, and how their values are read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
import yaml

from interlock.api import local as api
from interlock.api.local import VARIABLE
from interlock.errors import InvalidInput
from interlock.fleet.settings import LONGEST_WAIT_SECONDS, FleetSettings

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, errors too.")]
Data = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads this at run time
    typer.Option("--data", metavar="DIR", envvar=VARIABLE, help="The data directory of the control plane."),
]
DATABASE_VARIABLE = "INTERLOCK_DATABASE_URL"
Database = Annotated[
    Optional[str],  # noqa: UP045 - typer reads this at run time
    typer.Option(
        "--database",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
        help="A PostgreSQL database, postgresql://...; else an embedded one in the data directory.",
    ),
]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input", "-i", metavar="NAME=VALUE", help="An input of the workflow; JSON unless it is a string. Repeatable."
    ),
]
Policy = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--policy", metavar="FILE", help="Who may call what, as YAML; else every shell tool and agent."),
]
Strategy = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="Which device runs which task: see the page on the fleet.")
]
QueueDepth = Annotated[int, typer.Option("--max-queue-depth", min=1, help="How many tasks may be queued.")]
QueueTimeout = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--queue-timeout",
        metavar="SECONDS",
        min=0.001,
        max=LONGEST_WAIT_SECONDS,
        help="Fail a task that has waited this long for a device.",
    ),
]
KeepHistory = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--keep-history", metavar="DAYS", min=0.001, max=36_500, help="Forget tasks that ended so many days ago."
    ),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
DEFAULT_PORT = 7410
Devices = Annotated[
    list[str],
    typer.Option("--device", metavar="SERIAL[:DRIVER][:TAG,TAG]", help="A device of this machine. Repeatable."),
]
DeviceFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--devices", metavar="FILE", help="The devices, as a YAML list."),
]
AgentPath = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--agent-path", metavar="DIR", help="Where agents are found; else the current directory."),
]
Tags = Annotated[list[str], typer.Option("--tag", "-t", metavar="TAG", help="A tag. Repeatable.")]


def fleet_settings(
    strategy: str, max_queue_depth: int, queue_timeout: float | None, keep_history_days: float | None
) -> FleetSettings:
    """The numbers of a fleet, as options name them."""
    return FleetSettings(
        strategy=strategy,
        max_queue_depth=max_queue_depth,
        queue_timeout_seconds=queue_timeout,
        keep_history_seconds=None if keep_history_days is None else keep_history_days * 86_400,
    )


def given_token() -> str | None:
    """The token that people and programs are to send, where the environment names one."""
    return os.environ.get(api.TOKEN_VARIABLE) or None


def read_text(path: Path) -> str:
    """The text of a file that a person named. Raises `InvalidInput`."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"{path} cannot be read: {reason}"
        raise InvalidInput(message) from None


def read_yaml(path: Path) -> Any:
    """The document in a YAML file. Raises `InvalidInput` with the line of a fault."""
    try:
        return yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" at line {mark.line + 1}"
        message = f"{path} is not YAML{line}"
        raise InvalidInput(message) from None


def parsed_inputs(given: Sequence[str], workflow: str) -> dict[str, Any]:
    """Read `NAME=VALUE`: as it stands for a string input of the workflow, else as JSON, else as it stands."""
    types = _declared_types(workflow)
    inputs: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            message = f"--input {name or each!r} has no value: write NAME=VALUE"
            raise InvalidInput(message)
        if name in inputs:
            message = f"--input {name} is given twice"
            raise InvalidInput(message)
        inputs[name] = value if types.get(name) == "string" else _json_or_text(value)
    return inputs


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _declared_types(workflow: str) -> Mapping[str, object]:
    """The type of each input as the file has it. Whatever is wrong with the file is said by who checks it."""
    try:
        inputs = yaml.safe_load(workflow)["inputs"]
        return {str(name): spec.get("type") for name, spec in inputs.items()}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, RecursionError, ValueError):
        return {}
