"""Reads `queries.sql`: every statement the stores run, by name, with a sentence that says what it does."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from interlock.errors import InvalidInput

_HEADER = re.compile(r"^-- (?P<name>[a-z_]+)(?: \((?P<dialect>sqlite|postgres)\))?: (?P<sentence>.+)$")


def parse_queries(text: str, dialect: str) -> dict[str, str]:
    """The statements of one dialect by name. Raises `InvalidInput` for a second statement under one name."""
    queries: dict[str, str] = {}
    name: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            name = header["name"] if header["dialect"] in {None, dialect} else None
            if name in queries:
                message = f"line {number}: the query {name} is there twice"
                raise InvalidInput(message)
            if name:
                queries[name] = ""
        elif name and line.strip() and not line.startswith("--"):
            queries[name] += line.rstrip() + "\n"
    return {name: statement.rstrip().removesuffix(";") for name, statement in queries.items()}


@cache
def queries(dialect: str) -> dict[str, str]:
    """The project's own queries for `sqlite` or `postgres`."""
    return parse_queries((files("interlock.stores") / "queries.sql").read_text("utf-8"), dialect)


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """The numbered migrations, in order, as (version, script)."""
    folder = files("interlock.stores") / "migrations"
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple((int(name.split("_", 1)[0]), (folder / name).read_text("utf-8")) for name in scripts)
