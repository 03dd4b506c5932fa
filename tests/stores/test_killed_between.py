"""SIGKILL between every two statements of every operation: it took place or it did not, and asked again it did once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from databases import DatabaseClock, PostgresDatabases, PostgresServer
from interlock.stores.operations import _WAYS
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.testing.clock import ManualClock
from stores import every_operation, killed_operation
from stores.every_operation import CASES, READY_AT

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "proof"
# Where a row came in the order of making, which is another one where somebody was killed in between.
_NUMBERS = {"seq", "history_seq"}
_NOT_KEPT = ("sqlite_sequence", "test_clock", "interlock_schema")
Picture = dict[str, set[str]]


class Told(NamedTuple):
    """What a process that lived has told: the outcomes, and the first word of each statement that it ran."""

    outcomes: list[str]
    statements: list[str]


class Killer:
    """The program that asks, dies where it is told, and asks again."""

    def __init__(self) -> None:
        command = [sys.executable, killed_operation.__file__]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipe = subprocess.PIPE
        self._program = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, where: str, case: str, *, statements: int | None = None) -> Told | None:
        """What it told, or None where it was killed before it could."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(json.dumps([where, READY_AT, case, statements]), file=self._program.stdin, flush=True)
        answer = json.loads(self._program.stdout.readline())
        if answer is None:
            return None
        assert answer["broken"] == [], answer
        return Told(answer["outcomes"], answer["statements"])

    def close(self) -> None:
        self._program.communicate(timeout=20)


def picture(connection: Any, tables: str) -> Picture:
    """What is kept, without the names and numbers that chance or the order of making gave."""
    found = [str(name) for (name,) in connection.execute(tables).fetchall()]
    kept = {name: rows(connection, name) for name in found if name not in _NOT_KEPT}
    names = {str(row["id"]): f"device {row['host']}/{row['serial']}" for row in kept["device"]}
    shapes = {row["id"]: row["wanted"] for row in kept["shape"]}
    kept["ready"] = [{**row, "shape": shapes[row["shape"]]} for row in kept["ready"]]
    kept["shape"] = [{"wanted": row["wanted"]} for row in kept["shape"]]
    kept["depth"] = [{"queued": sum(row["queued"] for row in kept["depth"])}]
    return {
        table: {repr({name: names.get(value, value) for name, value in row.items()}) for row in found_rows}
        for table, found_rows in kept.items()
    }


def rows(connection: Any, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - the table's name is the database's own
    names = [column[0] for column in cursor.description]
    found = (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
    return [{name: value for name, value in row.items() if name not in _NUMBERS} for row in found]


class SqliteCopies:
    """Databases that are all as `every_operation.make` leaves one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        clock = ManualClock()
        asyncio.run(made(SqliteStore.open(directory / "made.db", clock=clock), clock))

        with contextlib.closing(sqlite3.connect(directory / "made.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def fresh(self) -> str:
        copy = self._directory / f"{next(self._numbers)}.db"
        shutil.copy(self._directory / "made.db", copy)
        return str(copy)

    def picture(self, where: str) -> Picture:
        with contextlib.closing(sqlite3.connect(where)) as connection:
            return picture(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")


class PostgresCopies:
    """The same on a server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        clock = DatabaseClock()
        databases = PostgresDatabases(server, clock)
        asyncio.run(made(databases.open(), clock))
        clock.close()
        self._made = name_in(databases.where())
        self._last: str | None = None

    def fresh(self) -> str:
        if self._last is not None:
            self._server.execute("postgres", f"DROP DATABASE {self._last} WITH (FORCE)")
        where = self._server._made(self._made)
        self._last = name_in(where)
        return where

    def picture(self, where: str) -> Picture:
        with psycopg.connect(where, autocommit=True) as connection:
            return picture(connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


def name_in(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


async def made(store: SqliteStore | PostgresStore, clock: ManualClock) -> None:
    await every_operation.make(store, clock)
    await store.close()


Copies = SqliteCopies | PostgresCopies


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def copies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    if request.param == "sqlite":
        return SqliteCopies(tmp_path_factory.mktemp("killed"))
    return PostgresCopies(request.getfixturevalue("postgres"))


def test_every_operation_is_killed() -> None:
    killed = {type(operation) for case in CASES.values() for operation in case(every_operation.NO_DEVICES)}
    assert killed == set(_WAYS)


def places(statements: list[str]) -> list[int]:
    """After how many statements to kill: in a long search after each, else on both sides of each commit."""
    if THOROUGH:
        return list(range(len(statements) + 1))
    commits = {place for place, statement in enumerate(statements) if statement == "COMMIT"}
    return sorted({0, *commits, *(place + 1 for place in commits)})


@pytest.mark.proof
@pytest.mark.contract("F-116")
@pytest.mark.parametrize("case", CASES)
def test_killed_between_any_two_statements_it_is_done_once_or_not_at_all(
    copies: Copies, killer: Killer, case: str
) -> None:
    where = copies.fresh()
    before = copies.picture(where)
    told = killer.ask(where, case)
    assert told is not None
    assert set(told.outcomes) == {"Applied"}
    after = copies.picture(where)
    asked = True
    for place in places(told.statements):
        where = copies.fresh() if asked else where
        assert killer.ask(where, case, statements=place) is None
        asked = copies.picture(where) != before
        if not asked:
            continue  # As if it had not been asked: the next one, which first looks for what is broken, is here too.
        again = killer.ask(where, case)
        assert again is not None
        assert set(again.outcomes) in ({"Applied"}, {"Replayed"})
        found = copies.picture(where)
        # Each asking of an operator is on record.
        assert found.pop("audit") >= after["audit"]
        assert found == {table: kept for table, kept in after.items() if table != "audit"}
    assert told.statements[-1] == "COMMIT"
