"""What the fleet level costs: whole lives a second, and the time from submit to start, beside their floors.

A life is submit, assign, claim and finish, each durable before it is answered. The floor of a run is that run's own
statements, in its own batches, sent again to a copy of the database as it was before, without the program around them;
beside it stands one bare commit. SQLite runs at `synchronous = FULL`, PostgreSQL with `fsync` and `synchronous_commit`
on. `--quick` runs fewer lives.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from interlock import __version__
from interlock.app import InstalledDefinitions
from interlock.fleet import Ending, EndKind, Fleet, FleetSettings, GoalRequest, HostSession, SubmitRequest
from interlock.fleet.scheduler import TaskScheduler
from interlock.fleet.store import DeviceReport
from interlock.guard.vault import Vault, new_key
from interlock.stores.postgres import PostgresStore
from interlock.stores.postgres_transaction import PostgresTransaction
from interlock.stores.sqlite import SqliteStore, SqliteTransaction

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import databases

DONE = Ending(EndKind.DONE, "completed", '{"answer":42}')
WORK = SubmitRequest(GoalRequest("look around", "agents:look"))
AnyStore = SqliteStore | PostgresStore
Statement = tuple[str, dict[str, object]]


@dataclass
class Recording:
    """The statements of each transaction, in the order in which the transactions began."""

    transactions: list[list[Statement]] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def of(self, kind: type[SqliteTransaction | PostgresTransaction]) -> Iterator[Recording]:
        """Note all that is executed in transactions of this kind, until the context ends."""
        execute = kind._execute  # noqa: SLF001 - only this figure looks inside
        recording = self

        def noting(tx: Any, query: str, parameters: dict[str, object]) -> Any:
            recording._note(tx, tx._queries[query], {"presence": tx.presence, **parameters})  # noqa: SLF001
            return execute(tx, query, parameters)

        kind._execute = noting  # type: ignore[assignment]  # noqa: SLF001
        try:
            yield self
        finally:
            kind._execute = execute  # type: ignore[method-assign]  # noqa: SLF001

    def _note(self, tx: Any, statement: str, parameters: dict[str, object]) -> None:
        with self._turn:
            if not hasattr(tx, "noted"):  # there is a new object for each transaction
                tx.noted = []
                self.transactions.append(tx.noted)
            tx.noted.append((statement, parameters))


class Database(Protocol):
    """A kind of database with its floors."""

    name: str

    @property
    def transaction(self) -> type[SqliteTransaction | PostgresTransaction]:
        """What its statements are executed in."""
        ...

    def fresh(self) -> None:
        """From now on, a database with nothing in it."""
        ...

    def open(self) -> AnyStore:
        """The store of the database."""
        ...

    def copy(self) -> None:
        """Keep a copy as it stands. Nobody may have it open."""
        ...

    def replay(self, recording: Recording) -> float:
        """Seconds to send the statements of a recording to the copy, batch by batch."""
        ...

    def bare_commits(self, count: int) -> list[float]:
        """Seconds for each of so many commits of one small row."""
        ...


class Sqlite:
    """Files of a directory."""

    name = "SQLite, synchronous = FULL"
    transaction = SqliteTransaction

    def __init__(self, directory: Path) -> None:
        self._numbers = itertools.count()
        self._directory = directory
        self._path = directory / "none"

    def open(self) -> SqliteStore:
        """See `Database.open`."""
        return SqliteStore.open(self._path)

    def fresh(self) -> None:
        """See `Database.fresh`."""
        self._path = self._directory / f"fleet-{next(self._numbers)}.db"

    def copy(self) -> None:
        """See `Database.copy`."""
        with contextlib.closing(sqlite3.connect(self._path)) as source, contextlib.closing(self._copy()) as target:
            source.backup(target)

    def _copy(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path.with_suffix(".copy"), isolation_level=None)
        connection.create_function("interlock_now", 0, lambda: time.time_ns() // 1_000)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def replay(self, recording: Recording) -> float:
        """See `Database.replay`."""
        with contextlib.closing(self._copy()) as connection:
            started = time.perf_counter()
            for transaction in recording.transactions:
                connection.execute("BEGIN IMMEDIATE")
                for statement, parameters in transaction:
                    connection.execute(statement, parameters).fetchall()
                connection.execute("COMMIT")
            return time.perf_counter() - started

    def bare_commits(self, count: int) -> list[float]:
        """See `Database.bare_commits`."""
        with contextlib.closing(sqlite3.connect(self._directory / "bare.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE IF NOT EXISTS bare (body TEXT)")
            return [_timed(connection, "INSERT INTO bare VALUES ('x')") for _ in range(count)]


class Postgres:
    """Databases of a server of its own."""

    name = "PostgreSQL, fsync and synchronous_commit on"
    transaction = PostgresTransaction

    def __init__(self, server: databases.PostgresServer) -> None:
        self._server = server
        self._url = ""

    def open(self) -> PostgresStore:
        """See `Database.open`."""
        return PostgresStore.open(self._url)

    def fresh(self) -> None:
        """See `Database.fresh`."""
        self._url = self._server.empty()

    def copy(self) -> None:
        """See `Database.copy`."""
        name = psycopg.conninfo.conninfo_to_dict(self._url)["dbname"]
        self._server.execute("postgres", f"DROP DATABASE IF EXISTS copy_{name}")
        self._server.execute("postgres", f"CREATE DATABASE copy_{name} TEMPLATE {name}")
        self._copied = self._server.url(f"copy_{name}")

    def replay(self, recording: Recording) -> float:
        """See `Database.replay`."""
        with psycopg.connect(self._copied, autocommit=True, prepare_threshold=None) as connection:
            started = time.perf_counter()
            for transaction in recording.transactions:
                connection.execute("BEGIN")
                for statement, parameters in transaction:
                    connection.execute(statement.encode(), parameters)
                connection.execute("COMMIT")
            return time.perf_counter() - started

    def bare_commits(self, count: int) -> list[float]:
        """See `Database.bare_commits`."""
        with psycopg.connect(self._server.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bare (body TEXT)")
            return [_timed(connection, "INSERT INTO bare VALUES ('x')") for _ in range(count)]


def _timed(connection: Any, statement: str) -> float:
    started = time.perf_counter()
    connection.execute(statement)
    return time.perf_counter() - started


@contextlib.asynccontextmanager
async def fleet_on(store: AnyStore, devices: int) -> AsyncIterator[tuple[Fleet, TaskScheduler, HostSession]]:
    """A fleet with one host and its devices; the store is closed when the context ends."""
    settings = FleetSettings(max_queue_depth=1_000_000)
    fleet = Fleet(store, settings=settings, sealer=Vault([new_key()]), definitions=InstalledDefinitions())
    await fleet.register_host("h1", "the credential of h1")
    session = await fleet.host("the credential of h1")
    reports = [DeviceReport(f"d{number:04}", "shell") for number in range(devices)]
    await session.beat("boot", "generation", reports)
    try:
        yield fleet, TaskScheduler(fleet), session
    finally:
        await store.close()


async def one_by_one(fleet: Fleet, scheduler: TaskScheduler, session: HostSession, lives: int) -> None:
    for number in range(lives):
        await fleet.submit(WORK)
        await scheduler.assign()
        (assignment,) = await session.claim(f"c{number}", 1, 0.0)
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)


async def side_by_side(fleet: Fleet, scheduler: TaskScheduler, session: HostSession, lives: int, callers: int) -> None:
    """So many callers submit one task after the other; the host claims what there is and finishes each by itself."""
    left = itertools.count()
    ended = 0

    async def submit() -> None:
        while next(left) < lives:
            await fleet.submit(WORK)

    async def finish(lease: Any) -> None:
        nonlocal ended
        await session.finish(lease, DONE, stopped=True, clean=True)
        ended += 1

    async with asyncio.TaskGroup() as group:
        loop = group.create_task(scheduler.run())
        for _ in range(callers):
            group.create_task(submit())
        for number in itertools.count():
            if ended >= lives:
                break
            for assignment in await session.claim(f"c{number}", callers, 0.05):
                group.create_task(finish(assignment.lease_id))
        loop.cancel()


async def lives_a_second(database: Database, callers: int, lives: int) -> tuple[float, float]:
    """Lives a second, and those of the same statements bare."""
    database.fresh()
    async with fleet_on(database.open(), callers):
        pass
    database.copy()
    recording = Recording()
    with recording.of(database.transaction):
        async with fleet_on(database.open(), callers) as (fleet, scheduler, session):
            recording.transactions.clear()
            started = time.perf_counter()
            if callers == 1:
                await one_by_one(fleet, scheduler, session, lives)
            else:
                await side_by_side(fleet, scheduler, session, lives, callers)
            spent = time.perf_counter() - started
            violations = await fleet.violations()
    assert not violations, violations
    return lives / spent, lives / database.replay(recording)


async def starts(database: Database, count: int) -> list[float]:
    """Seconds from the call of submit until a host that waits has the task, on a system that is otherwise idle."""
    database.fresh()
    times = []
    async with fleet_on(database.open(), 1) as (fleet, scheduler, session):
        loop = asyncio.create_task(scheduler.run())
        for number in range(count):
            claim = asyncio.create_task(session.claim(f"c{number}", 1, 10.0))
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            await fleet.submit(WORK)
            (assignment,) = await claim
            times.append(time.perf_counter() - started)
            await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
        loop.cancel()
        await asyncio.wait({loop})
    return times


def percentile(times: list[float], share: float) -> float:
    return statistics.quantiles(times, n=100)[round(share * 100) - 1] * 1e3


async def table(database: Database, lives: int, samples: int) -> None:
    commits = database.bare_commits(200)
    bare = statistics.median(commits)
    print(f"{database.name}: one bare commit {bare * 1e6:.0f} us, so {1 / bare:.0f} a second", flush=True)
    print(f"{'callers':>10}{'lives a second':>18}{'floor':>10}{'ratio':>8}", flush=True)
    for callers in (1, 8, 64):
        ours, floor = await lives_a_second(database, callers, lives if callers > 1 else max(lives // 4, 100))
        print(f"{callers:>10}{ours:>18.0f}{floor:>10.0f}{ours / floor:>8.2f}", flush=True)
    found = await starts(database, samples)
    commits = database.bare_commits(3 * samples)
    three = [sum(commits[start : start + 3]) for start in range(0, len(commits), 3)]
    p50, p99, bare50, bare99 = (percentile(times, share) for times in (found, three) for share in (0.5, 0.99))
    print(f"submit to start: p50 {p50:.2f} ms, p99 {p99:.2f} ms; three bare commits: {bare50:.2f} and {bare99:.2f} ms;")
    print(f"ratio of the p50 {p50 / bare50:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer lives")
    parser.add_argument("--directory", type=Path, help="where the databases lie; a temporary directory by default")
    arguments = parser.parse_args()
    lives, samples = (400, 100) if arguments.quick else (4_000, 400)
    print(f"Interlock {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        asyncio.run(table(Sqlite(Path(directory)), lives, samples))
    programs = databases.binaries()
    assert programs is not None, "there is no PostgreSQL: install the dev requirements"
    databases.SETTINGS.update({"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})
    server = databases.PostgresServer(programs)
    try:
        asyncio.run(table(Postgres(server), lives, samples))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
