"""The SQLite store itself: one owner, one writer, and what was answered is there."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.errors import InvalidInput, StoreHeld, Unavailable
from interlock.stores.sqlfile import parse_queries, queries
from interlock.stores.sqlite import SqliteStore, _as_damaged, _as_unavailable

# What PostgreSQL alone is asked, beside its locks.
ONLY_POSTGRES = {
    "schema_there",
    "make_schema",
    "schema",
    "keep_schema",
    "begin",
    "xact_status",
    "connections",
    "resume_clock",
    "tasks_known",
    "submit_tasks",
    "shapes_named",
    "attempts_known",
    "tasks_to_grant",
    "devices_to_grant",
    "grant_attempts",
    "attempts_to_end",
    "end_attempts",
}


@pytest.mark.contract("F-90")
async def test_a_second_process_is_told_who_holds_the_database(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    program = (
        "import sys, pathlib; from interlock.stores.sqlite import SqliteStore as S; S.open(pathlib.Path(sys.argv[1]))"
    )
    second = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "fleet.db")], capture_output=True, text=True, check=False
    )
    assert second.returncode != 0
    assert f"StoreHeld: {tmp_path / 'fleet.db'} is held by process {os.getpid()}" in second.stderr
    await store.close()
    following = SqliteStore.open(tmp_path / "fleet.db")
    with pytest.raises(StoreHeld):
        SqliteStore.open(tmp_path / "fleet.db")
    await following.close()


def test_the_database_is_written_through_to_the_disk(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    connection = store._connect()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    asyncio.run(store.close())


def test_every_query_is_named_once_and_has_a_form_for_each_database() -> None:
    alone = queries("postgres").keys() - queries("sqlite").keys()
    assert queries("sqlite").keys() <= queries("postgres").keys()
    assert all(name.startswith("lock_") or name in ONLY_POSTGRES for name in alone)
    assert all(queries("sqlite").values())
    assert all(queries("postgres").values())
    text = "-- one: It is one.\nSELECT 1;\n-- one: It is one again.\nSELECT 2;\n"
    with pytest.raises(InvalidInput, match="line 3"):
        parse_queries(text, "sqlite")


def a_full_disk(path: Path) -> sqlite3.Error:
    """The error of a database that may not grow any more."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("CREATE TABLE filling (text TEXT)")
        connection.execute("INSERT INTO filling VALUES (?)", ("x" * 100_000,))
    except sqlite3.Error as error:
        return error
    finally:
        connection.close()
    return pytest.fail("it grew all the same")


@pytest.mark.contract("F-114")
def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    error = a_full_disk(tmp_path / "full.db")
    said = _as_unavailable(error)
    assert isinstance(said, Unavailable)
    assert "the disk of the database is full" in str(said)
    opening = _as_damaged(error, tmp_path / "full.db")
    assert isinstance(opening, Unavailable)
    assert "damaged" not in str(opening)
    assert isinstance(_as_damaged(sqlite3.DatabaseError(), tmp_path / "full.db"), StoreHeld)
