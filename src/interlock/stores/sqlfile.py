"""Reads `queries.sql`: every statement the stores run, by name, with a sentence that says what it does."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from interlock.errors import InvalidInput

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
# Written once, as SQLite has it. PostgreSQL compares text byte by byte too, so that both give one order.
_POSTGRES_TYPES = (
    (re.compile(r"\bINTEGER PRIMARY KEY AUTOINCREMENT\b"), "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),
)
_SQLITE_ALONE = re.compile(r"^-- \(sqlite\) .*?;$", re.MULTILINE | re.DOTALL)
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
    """The project's own queries for `sqlite` or `postgres`, with parameters as that one's driver writes them."""
    found = parse_queries((files("interlock.stores") / "queries.sql").read_text("utf-8"), dialect)
    if dialect == "sqlite":
        return found
    return {name: _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")) for name, text in found.items()}


@cache
def migrations(dialect: str) -> tuple[tuple[int, str], ...]:
    """The numbered migrations of one dialect, in order, as (version, script).

    A file is for both, `NUMBER_NAME.sql`, or for one, `NUMBER_NAME.DIALECT.sql`; in a file for both, a statement under
    a comment that begins with `(sqlite)` is for SQLite alone.
    """
    folder = files("interlock.stores") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    mine = [name for name in names if name.removesuffix(".sql").partition(".")[2] in {"", dialect}]
    scripts = {int(name.split("_", 1)[0]): (folder / name).read_text("utf-8") for name in mine}
    if dialect == "postgres":
        scripts = {version: _as_postgres(script) for version, script in scripts.items()}
    return tuple(scripts.items())


def _as_postgres(script: str) -> str:
    script = _SQLITE_ALONE.sub("", script)
    for pattern, postgres in _POSTGRES_TYPES:
        script = pattern.sub(postgres, script)
    return script
