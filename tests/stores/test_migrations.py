"""A database of the version before is brought up to this one, with what is in flight in it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from fleet.pools import Pool, shell
from interlock.errors import Conflict
from interlock.fleet.checkpoints import chain_digest
from interlock.fleet.model import HandOver, RunSave, Settlement
from interlock.fleet.settings import FleetSettings
from interlock.guard.vault import Vault, new_key
from interlock.stores.sqlfile import migrations
from interlock.stores.sqlite import SqliteStore
from interlock.testing.clock import ManualClock

RUN = "run_" + "1" * 32
DAMAGED = "run_" + "2" * 32
CHARGES = {"admitted_actions": 2, "reserved_units": 2, "elapsed_ns": 7}
STATES = [["a", "committed"], ["b", "running"], ["c", "pending"]]
CHECKPOINT = json.dumps({"plan_digest": "sha256:0", "states": STATES, **CHARGES, "stop_reason": None})
PREVIOUS = "9" * 64


def test_migrations_are_numbered_one_after_another() -> None:
    names = [path.name for path in (files("interlock.stores") / "migrations").iterdir() if path.name.endswith(".sql")]
    numbers = sorted(int(name.split("_")[0]) for name in names)
    assert numbers == list(range(1, len(numbers) + 1))


def as_of_version(version: int, path: Path, source: Path) -> sqlite3.Connection:
    """A database as a program of that version left it, with the rows of one of today where it had their columns."""
    connection = sqlite3.connect(path, isolation_level=None)
    for number, script in migrations("sqlite"):
        if number <= version:
            connection.executescript(script)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("ATTACH ? AS today", (str(source),))
    for (table,) in connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall():
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        if not table.startswith("sqlite_") and table != "run":
            # A table's name is no parameter of a statement; these are the schema's own.
            connection.execute(f"DELETE FROM main.{table}")  # noqa: S608
            connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM today.{table}")  # noqa: S608
    return connection


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[dict[str, Pool]]:
    clock, vault = ManualClock(), Vault([new_key()])

    class Opened(dict[str, Pool]):
        def __missing__(self, name: str) -> Pool:
            store = SqliteStore.open(tmp_path / name, clock=clock)
            self[name] = Pool(store, clock, FleetSettings(retry_first_seconds=0.0), vault)
            return self[name]

    opened = Opened()
    yield opened
    for pool in opened.values():
        await pool.close()


@pytest.mark.contract("F-78")
async def test_a_run_in_flight_goes_on_after_its_database_was_migrated(tmp_path: Path, pools: dict[str, Pool]) -> None:
    today = pools["today.db"]
    await today.goal()
    assignment = await today.running(await today.host("h1", shell("d1")))
    await today.close()
    with closing(as_of_version(3, tmp_path / "old.db", tmp_path / "today.db")) as old:
        for number, (run, text) in enumerate(((DAMAGED, "no JSON"), (RUN, CHECKPOINT)), 1):
            digest = chain_digest(2, PREVIOUS, text)
            row = (run, assignment.task_id, None, number, 2, digest, PREVIOUS, text, assignment.attempt_id)
            old.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        entry = (RUN, "b", assignment.task_id, assignment.attempt_id, "h1", "d1", "tool:a.b/c", "sha256:1")
        old.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'handed_over', 1" + ", NULL" * 6 + ")", entry)
    pool = pools["old.db"]
    session = await pool.fleet.host("credential of h1")
    lease = assignment.lease_id
    damaged, going_on = (await pool.fleet.get(assignment.task_id)).runs
    assert (damaged.states, going_on.states, going_on.saves, going_on.admitted_actions) == ({}, dict(STATES), 2, 2)
    for action, refusal in (("b", "handed_over_before"), ("c", "not_admitted")):
        with pytest.raises(Conflict, match=refusal):
            await session.hand_over(lease, HandOver(RUN, action, "tool:a.b/c", "sha256:1", "n"))
    await session.settle(lease, Settlement(RUN, "b", "committed", effect=True, evidence="e"))
    changed = {"plan_digest": "sha256:0", "changed": [["b", "committed"]], **CHARGES, "stop_reason": None}
    for refused in ({**changed, "elapsed_ns": 6}, {**changed, "changed": [["a", "running"]]}):
        with pytest.raises(Conflict, match="stale_save"):
            await session.save(lease, RunSave(RUN, None, 3, json.dumps(refused)))
    with pytest.raises(Conflict, match="stale_save"):
        await session.save(lease, RunSave(DAMAGED, None, 3, json.dumps(changed)))
    await session.save(lease, RunSave(RUN, None, 3, json.dumps(changed)))
    await session.save(lease, RunSave(RUN, None, 3, json.dumps(changed)))
    pool.sessions["h1"], pool.reports["h1"] = session, [shell("d1")]
    await pool.pass_time(61)
    await session.confirm_stopped("d1", clean=True)
    unreadable, last = (await pool.running(session, "claim-2")).history.runs
    assert (unreadable.checkpoint, last.sequence) == ("", 3)
    assert dict(json.loads(last.checkpoint)["states"]) == {"a": "committed", "b": "committed", "c": "pending"}
