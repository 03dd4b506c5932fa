"""The embedded store: SQLite in WAL mode with `synchronous=FULL`, one owner process, one writer thread.

Operations that wait while the writer is busy share its next commit, and with it one fsync; each fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from interlock.actions.stores.lock import make_directory
from interlock.clock import MICROSECONDS, Clock, SystemClock, new_id
from interlock.errors import Conflict, StoreHeld, Unavailable
from interlock.fleet.store import Operation, Outcome, Row
from interlock.fleet.strategies import Snapshot, View
from interlock.stores.inbox import MAX_OPERATIONS_A_COMMIT, Batch, gather
from interlock.stores.lockfile import LockFile
from interlock.stores.operations import do
from interlock.stores.reads import read_snapshot
from interlock.stores.sqlfile import migrations, queries
from interlock.stores.times import StoreTimes
from interlock.stores.transaction import NO_ROOM

Answer = TypeVar("Answer")
_PRIMARY_CODE = 0xFF


class _Timekeeper:
    """The store's clock: the machine's, but never earlier than the last time that was read or stored.

    Where the machine's clock was put back, time goes on at the pace of a clock that never steps: it does not stand.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = 0
        self._elapsed = clock.elapsed()
        self._turn = threading.Lock()

    def now(self) -> int:
        return self.not_before(self._clock.now())

    def not_before(self, time: int) -> int:
        with self._turn:
            elapsed = self._clock.elapsed()
            passed = int(max(0.0, elapsed - self._elapsed) * MICROSECONDS)
            self._latest = max(self._latest + passed if self._latest else 0, time)
            self._elapsed = elapsed
            return self._latest


class SqliteTransaction:
    """See `interlock.stores.transaction.Transaction`."""

    def __init__(self, connection: sqlite3.Connection, timekeeper: _Timekeeper, presence: int) -> None:
        self._connection = connection
        self._timekeeper = timekeeper
        self._queries = queries("sqlite")
        self.presence = presence

    def _execute(self, query: str, parameters: dict[str, object]) -> sqlite3.Cursor:
        return self._connection.execute(self._queries[query], {"presence": self.presence, **parameters})

    def rows(self, query: str, **parameters: object) -> list[Row]:
        """See `Transaction.rows`."""
        cursor = self._execute(query, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, query: str, **parameters: object) -> Row | None:
        """See `Transaction.row`."""
        found = self.rows(query, **parameters)
        return found[0] if found else None

    def write(self, query: str, **parameters: object) -> int:
        """See `Transaction.write`."""
        return self._execute(query, parameters).rowcount

    def lock(self, query: str, **parameters: object) -> None:
        """See `Transaction.lock`."""

    def enter(self, most: int) -> bool:
        """See `Transaction.enter`."""
        return bool(self.write("depth_enter", most=most))

    def count(self, queued: int) -> None:
        """See `Transaction.count`."""
        self.write("depth_add", by=queued)

    @contextlib.contextmanager
    def aside(self) -> Iterator[SqliteTransaction]:
        """See `Transaction.aside`."""
        yield self

    def now(self) -> int:
        """See `Transaction.now`."""
        return self._timekeeper.now()

    def new_device_id(self) -> str:
        """See `Transaction.new_device_id`."""
        return new_id("dev")

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """See `Transaction.apart`."""
        # Parts may lie in one another under one name: each statement means the innermost.
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            self._connection.execute("RELEASE part")


@dataclass(frozen=True)
class _Look:
    read: Callable[[SqliteTransaction], None]
    answer: Future[Any]


class SqliteStore:
    """See `interlock.fleet.store.Store`. Made by `open`; belongs to the process that made it."""

    def __init__(self, path: Path | None, *, clock: Clock, times: StoreTimes, lock: LockFile | None) -> None:
        self._path = path
        self._times = times
        self._lock = lock
        self._owner = os.getpid()
        self._timekeeper = _Timekeeper(clock)
        self._reader = threading.local()
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="interlock-read")
        self._inbox: queue.SimpleQueue[Batch | _Look | None] = queue.SimpleQueue()
        self._closed = False
        ready: Future[None] = Future()
        # A daemon: a program that ends without closing its store must not hang, and what was not answered is undone.
        self._writer = threading.Thread(
            target=self._write_until_closed, args=(ready,), name="interlock-write", daemon=True
        )
        self._writer.start()
        try:
            ready.result()
        except BaseException:
            self._writer.join()
            self._readers.shutdown()
            raise

    @classmethod
    def open(cls, path: Path | None, *, clock: Clock | None = None, times: StoreTimes | None = None) -> SqliteStore:
        """Open or make the database at `path`, or one in memory for None.

        Raises:
            StoreHeld: another process owns it, or a newer program made it.
        """
        lock = None
        if path is not None:
            make_directory(path.parent)
            lock = LockFile(path.with_name(path.name + ".lock"))
        try:
            return cls(path, clock=clock or SystemClock(), times=times or StoreTimes(), lock=lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """See `Store.commit`."""
        answer: Future[list[Outcome]] = Future()
        self._post(Batch(tuple(operations), answer))
        return await asyncio.shield(asyncio.wrap_future(answer))

    async def snapshot(self, *, most: int, view: View = View.BY_SERIAL) -> Snapshot:
        """See `Store.snapshot`."""
        return await self._read(lambda tx: read_snapshot(tx, most=most, view=view))

    async def rows(self, query: str, **parameters: object) -> list[Row]:
        """See `Store.rows`."""
        return await self._read(lambda tx: tx.rows(query, **parameters))

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._inbox.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.shutdown)
        if self._lock is not None:
            self._lock.release()

    def _post(self, item: Batch | _Look) -> None:
        if os.getpid() != self._owner:
            message = "this store was opened before a fork: open it in the process that uses it"
            raise Conflict(message)
        if self._closed:
            message = "the store is closed"
            raise Unavailable(message)
        self._inbox.put(item)

    async def _read(self, read: Callable[[SqliteTransaction], Answer]) -> Answer:
        if self._path is None:
            answer: Future[Answer] = Future()
            self._post(_Look(lambda tx: answer.set_result(read(tx)), answer))
            return await asyncio.shield(asyncio.wrap_future(answer))
        if os.getpid() != self._owner or self._closed:
            message = "the store is closed here: open it in the process that uses it"
            raise Unavailable(message)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_here, read)

    def _read_here(self, read: Callable[[SqliteTransaction], Answer]) -> Answer:
        """Read in a thread of the pool, which keeps its connection."""
        connection: sqlite3.Connection | None = getattr(self._reader, "connection", None)
        if connection is None:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
            self._reader.connection = connection
        connection.execute("BEGIN")
        try:
            return read(self._transaction(connection))
        finally:
            connection.execute("ROLLBACK")

    def _transaction(self, connection: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self._timekeeper, int(self._times.presence * MICROSECONDS))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if self._path is None else self._path, isolation_level=None, check_same_thread=False, timeout=10
        )
        connection.create_function("interlock_now", 0, self._timekeeper.now)
        if self._path is not None:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _write_until_closed(self, ready: Future[None]) -> None:
        try:
            connection = self._connect()
            migrate(connection)
            self._resume_clock(connection)
        except BaseException as error:  # noqa: BLE001 - it is handed to the one who opens
            ready.set_exception(_as_damaged(error, self._path))
            return
        ready.set_result(None)
        with contextlib.closing(connection):
            while (item := self._inbox.get()) is not None:
                if isinstance(item, _Look):
                    self._look(connection, item)
                else:
                    self._commit(connection, gather(self._inbox, item, MAX_OPERATIONS_A_COMMIT))

    def _resume_clock(self, connection: sqlite3.Connection) -> None:
        tx = self._transaction(connection)
        upkeep = tx.row("upkeep")
        if upkeep is None:
            tx.write("upkeep_start")
        else:
            self._timekeeper.not_before(int(str(upkeep["clock_at"])))

    def _commit(self, connection: sqlite3.Connection, batches: list[Batch]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            tx = self._transaction(connection)
            self._allow_for_outage(tx)
            outcomes = [self._do_apart(tx, batch) for batch in batches]
            tx.write("upkeep_tick")
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - every waiting caller is told, and the writer lives on
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            outcomes = [_as_unavailable(error)] * len(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            batch.resolve(outcome)

    @staticmethod
    def _do_apart(tx: SqliteTransaction, batch: Batch) -> list[Outcome] | BaseException:
        """One caller's operations, undone alone where one of them fails."""
        try:
            with tx.apart():
                return [do(tx, operation) for operation in batch.operations]
        except Exception as error:  # noqa: BLE001 - it is handed to the one who asked
            return _as_unavailable(error)

    def _allow_for_outage(self, tx: SqliteTransaction) -> None:
        """Give every lease one grace period where nobody has swept for long: its holder could not renew either."""
        upkeep = tx.row("upkeep")
        if upkeep is None or tx.now() - int(str(upkeep["swept_at"])) <= int(self._times.outage * MICROSECONDS):
            return
        tx.write("outage_grace", grace=int(self._times.grace * MICROSECONDS))
        tx.write("upkeep_swept")

    def _look(self, connection: sqlite3.Connection, look: _Look) -> None:
        try:
            look.read(self._transaction(connection))
        except BaseException as error:  # noqa: BLE001 - it is handed to the one who asked
            look.answer.set_exception(error)


def _as_damaged(error: BaseException, path: Path | None) -> BaseException:
    if not isinstance(error, sqlite3.DatabaseError):
        return error
    if _is_full(error):
        message = f"the disk that holds {path} is full: make room, then start again"
        return Unavailable(message)
    message = f"{path} is no database, or is damaged: move it away, or put back a copy of it"
    return StoreHeld(message)


def _is_full(error: sqlite3.Error) -> bool:
    """Whether there was no room on the disk."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_FULL


def _as_unavailable(error: BaseException) -> BaseException:
    if isinstance(error, sqlite3.Error) and _is_full(error):
        return Unavailable(NO_ROOM)
    if isinstance(error, sqlite3.Error):
        message = f"the database did not take it ({type(error).__name__}): nothing was written, try again"
        return Unavailable(message)
    return error


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to this program, in one transaction; refuse a database that a newer program made."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    newest = migrations("sqlite")[-1][0]
    if version > newest:
        message = f"the database has schema {version}, this program knows {newest}: use the newer program"
        raise StoreHeld(message)
    for number, script in migrations("sqlite"):
        if number > version:
            # A pragma takes no parameters; the number is from a file's name, and an int.
            connection.executescript(
                "\n".join(("BEGIN IMMEDIATE;", script, f"PRAGMA user_version = {number};", "COMMIT;"))
            )
