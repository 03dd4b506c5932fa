"""What an operation looks at does not grow with the queue, with what is held or pinned, or with what has ended.

SQLite is asked how many steps of its machine it took, PostgreSQL how many blocks it looked into.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg.rows import dict_row

from databases import PostgresServer
from interlock.clock import SystemClock
from interlock.fleet.model import AttemptId, DeviceId, HostId, LeaseId, TaskId
from interlock.fleet.store import Applied, Claim, EndAttempt, Grant, Operation, Renew
from interlock.fleet.strategies import View
from interlock.fleet.transitions import AttemptEnd
from interlock.stores.leases import end_sweep
from interlock.stores.operations import do
from interlock.stores.postgres_transaction import PostgresTransaction
from interlock.stores.reads import read_snapshot
from interlock.stores.sqlfile import migrations
from interlock.stores.sqlite import SqliteTransaction, _Timekeeper, migrate
from interlock.stores.transaction import Transaction

HOUR = 3_600_000_000
# Rows by the thousand, in SQL that both databases read. `{numbers}` gives n from 1 to so many.
COUNTED = "(WITH RECURSIVE up (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < {count}) SELECT n FROM up)"
HOST = "INSERT INTO host VALUES ('h1', 'hash', 'boot', 'gen', interlock_now(), 0)"
SHAPES = "INSERT INTO shape (wanted) SELECT '[\"shell\",[\"t' || n || '\"]]' FROM {numbers}"
DEVICES = """INSERT INTO device (id, host, serial, driver_type, tags, exclusive_tags, registered_at)
SELECT 'dev_' || n, 'h1', 'd' || n, 'shell', '["t' || (n % {shapes} + 1) || '"]', '[]', 0 FROM {numbers}"""
# What is taken out is counted: by more than any of these takes.
DEPTH = "UPDATE depth SET queued = 1000"
IDLE = "INSERT INTO idle (device, since) SELECT id, 0 FROM device"
TASKS = """INSERT INTO task (id, kind, label, sealed, body_digest, driver_type, tags, pin, rank, submitter, priority,
  max_attempts, submitted_at, ended_at, end_status)
SELECT '{name}_' || n, 'goal', 'g', 's', 'b', 'shell', '["t' || (n % {shapes} + 1) || '"]', {pin}, 0, '', 0, 3, 0,
  {ended}, {status} FROM {numbers}"""
READY = """INSERT INTO ready (task, shape, pin, rank, seq)
SELECT id, CAST(substr(id, 6) AS BIGINT) % {shapes} + 1, pin, 0, seq FROM task WHERE id LIKE '{name}_%'"""
HELD = "INSERT INTO held SELECT id, interlock_now() + 9000000000, 'not_before' FROM task WHERE id LIKE 'held_%'"


class Costed(Protocol):
    """A database whose operations tell what they cost."""

    tx: Transaction

    def fill(self, statement: str, count: int, **words: object) -> None: ...

    def settle(self) -> None: ...

    def cost(self, act: Callable[[], object]) -> int: ...


class SqliteCosts:
    """Counts tens of steps."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self._steps = 0
        timekeeper = _Timekeeper(SystemClock())
        self.connection.create_function("interlock_now", 0, timekeeper.now)
        migrate(self.connection)
        self.tx: Transaction = SqliteTransaction(self.connection, timekeeper, HOUR)

    def fill(self, statement: str, count: int, **words: object) -> None:
        numbers = COUNTED.format(count=count)
        self.connection.execute(statement.format(numbers=numbers, **words))

    def settle(self) -> None:
        """Nothing: it plans by its indexes."""

    def cost(self, act: Callable[[], object]) -> int:
        self._steps = 0
        self.connection.set_progress_handler(self._note, 10)
        try:
            act()
        finally:
            self.connection.set_progress_handler(None, 0)
        return self._steps

    def _note(self) -> int:
        self._steps += 1
        return 0


class PostgresCosts:
    """Counts blocks of tables and indexes."""

    BLOCKS = """SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) AS n FROM pg_class
    WHERE relnamespace = 'public'::regnamespace"""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, prepare_threshold=None)
        self.tx: Transaction = PostgresTransaction(self.connection, HOUR)

    def fill(self, statement: str, count: int, **words: object) -> None:
        numbers = f"generate_series(1, {count}) AS up (n)"
        self.connection.execute(statement.format(numbers=numbers, **words).encode())

    def settle(self) -> None:
        self.connection.execute("VACUUM ANALYZE")

    def cost(self, act: Callable[[], object]) -> int:
        self.connection.execute("BEGIN")
        before = self._blocks()
        act()
        spent = self._blocks() - before
        self.connection.execute("COMMIT")
        return spent

    def _blocks(self) -> int:
        row: Any = self.connection.execute(self.BLOCKS.encode()).fetchone()
        return int(row["n"] or 0)


MakeCosted = Callable[[], Costed]


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeCosted]:
    with contextlib.ExitStack() as opened:

        def fresh() -> Costed:
            if request.param == "sqlite":
                made: SqliteCosts | PostgresCosts = SqliteCosts(tmp_path / f"{len(opened._exit_callbacks)}.db")  # type: ignore[attr-defined]
            else:
                server: PostgresServer = request.getfixturevalue("postgres")
                made = PostgresCosts(server.fresh())
            opened.callback(made.connection.close)
            return made

        yield fresh


def pool(costed: Costed, *, shapes: int = 1, devices: int = 10, queued: int = 1_000) -> None:
    """A host with idle devices, and a queue."""
    costed.fill(HOST, 1)
    costed.fill(SHAPES, shapes)
    costed.fill(DEVICES, devices, shapes=shapes)
    costed.fill(IDLE, 1)
    costed.fill(DEPTH, 1)
    tasks(costed, "task", queued, shapes=shapes)
    costed.fill(READY, 1, shapes=shapes, name="task")


def tasks(costed: Costed, name: str, count: int, *, shapes: int = 1, pin: str = "NULL", done: bool = False) -> None:
    ended = ("1", "'done'") if done else ("NULL", "NULL")
    costed.fill(TASKS, count, name=name, shapes=shapes, pin=pin, ended=ended[0], status=ended[1])


def costs(costed: Costed) -> dict[str, int]:
    """What each operation costs, one life long: the second life, when every page is known to the database."""
    costed.settle()
    life(costed, 1)
    return life(costed, 2)


def life(costed: Costed, number: int) -> dict[str, int]:
    lease, host = LeaseId(f"lease_{number}"), HostId("h1")
    grant = Grant(AttemptId(f"att_{number}"), lease, TaskId(f"task_{number}"), DeviceId(f"dev_{number}"), HOUR)
    steps: dict[str, Operation] = {
        "grant": grant,
        "claim": Claim(host, f"claim_{number}", 1, HOUR, "gen"),
        "renew": Renew(host, lease, HOUR),
        "finish": EndAttempt(host, lease, AttemptEnd.DONE, "completed", "done", stopped=True, clean=True),
    }
    spent = {"snapshot": costed.cost(lambda: read_snapshot(costed.tx, most=10_000, view=View.BY_SERIAL))}
    spent["sweep"] = costed.cost(lambda: end_sweep(costed.tx))
    for name, operation in steps.items():
        outcomes: list[object] = []
        spent[name] = costed.cost(lambda operation=operation, into=outcomes: into.append(do(costed.tx, operation)))  # type: ignore[misc]
        assert isinstance(outcomes[0], Applied), (name, outcomes)
    return spent


def check_flat(small: dict[str, int], large: dict[str, int], *, shapes: int = 1) -> None:
    """Within a fifth, or one more block for each index that is looked into: a larger one has a level more."""
    for name, cost in small.items():
        assert large[name] <= cost * 1.2 + 12 + 2 * shapes, (name, small, large)


MANY = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "proof" else 100_000


@pytest.mark.contract("F-45")
@pytest.mark.proof
@pytest.mark.parametrize("shapes", [1, 64])
def test_a_life_costs_the_same_whatever_is_queued(make: MakeCosted, shapes: int) -> None:
    small, large = make(), make()
    pool(small, shapes=shapes, devices=64)
    pool(large, shapes=shapes, devices=64, queued=MANY)
    check_flat(costs(small), costs(large), shapes=shapes)


@pytest.mark.contract("F-45")
@pytest.mark.proof
@pytest.mark.parametrize("what", ["ended", "held", "pinned to a busy device", "pinned to an idle device"])
def test_a_life_costs_the_same_whatever_has_ended_or_waits_for_something_else(make: MakeCosted, what: str) -> None:
    small, large = make(), make()
    for costed, count in ((small, 100), (large, MANY)):
        pool(costed)
        pin = {"pinned to a busy device": "'h1/gone'", "pinned to an idle device": "'h1/d9'"}.get(what, "NULL")
        tasks(costed, "held", count, pin=pin, done=what == "ended")
        if what == "held":
            costed.fill(HELD, 1)
        elif what != "ended":
            costed.fill(READY, 1, shapes=1, name="held")
    check_flat(costs(small), costs(large))


@pytest.mark.contract("F-45")
def test_a_pass_is_linear_in_shapes(make: MakeCosted) -> None:
    few, many = make(), make()
    pool(few, shapes=64, devices=64)
    pool(many, shapes=1_000, devices=1_000)
    small, large = costs(few), costs(many)
    for name in ("snapshot", "sweep"):
        assert large[name] <= (small[name] + 2 * 64) * 1_000 / 64, (name, small, large)
    for name in ("grant", "claim", "renew", "finish"):
        assert large[name] <= small[name] * 1.2 + 12, (name, small, large)


@pytest.mark.contract("F-45")
def test_only_a_pass_grows_with_the_idle_devices_and_in_proportion(make: MakeCosted) -> None:
    few, many = make(), make()
    pool(few)
    pool(many, devices=10_000)
    small, large = costs(few), costs(many)
    passing = {"few": small.pop("snapshot"), "many": large.pop("snapshot")}
    check_flat(small, large)
    assert passing["many"] <= passing["few"] * 1_000 * 1.2, passing


def test_the_schemas_of_these_tests_are_the_newest() -> None:
    assert migrations("sqlite")[-1][0] == migrations("postgres")[-1][0]
