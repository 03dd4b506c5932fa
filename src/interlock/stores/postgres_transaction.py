"""One transaction of PostgreSQL: no state of a session, so that a pooler in transaction mode may stand in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import DictRow

from interlock.clock import new_id
from interlock.fleet.store import Row
from interlock.stores.inbox import MAX_OPERATIONS_A_COMMIT
from interlock.stores.sqlfile import queries
from interlock.stores.transaction import number, text

Connection = psycopg.Connection[DictRow]
# What is answered is durable, whatever the server's default: only a weaker setting than `on` is raised.
_BEGIN = """
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '30s';
SET LOCAL idle_in_transaction_session_timeout = '30s';
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
"""
_BEGIN_READ = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = '30s';
SET LOCAL idle_in_transaction_session_timeout = '30s';
"""


class NearLimit(Exception):
    """The queue is near its limit: it has to be counted exactly, under a lock that is taken before any other."""


class NotCommitted(Exception):
    """The commit was not answered, and the transaction did not take place."""


class PostgresTransaction:
    """See `interlock.stores.transaction.Transaction`."""

    def __init__(
        self,
        connection: Connection,
        presence: int,
        aside: Callable[[], AbstractContextManager[PostgresTransaction]] | None = None,
    ) -> None:
        self.presence = presence
        self.began: Row = {}
        self._connection = connection
        self._queries = queries("postgres")
        self._aside = aside
        self._queued = 0
        self._counted: int | None = None
        self._exact = False

    def _execute(self, query: str, parameters: dict[str, object]) -> psycopg.Cursor[DictRow]:
        statement: Any = self._queries[query]
        return self._connection.execute(statement, {"presence": self.presence, **parameters})

    def rows(self, query: str, **parameters: object) -> list[Row]:
        """See `Transaction.rows`."""
        return list(self._execute(query, parameters).fetchall())

    def row(self, query: str, **parameters: object) -> Row | None:
        """See `Transaction.row`."""
        return self._execute(query, parameters).fetchone()

    def write(self, query: str, **parameters: object) -> int:
        """See `Transaction.write`."""
        return self._execute(query, parameters).rowcount

    def lock(self, query: str, **parameters: object) -> None:
        """See `Transaction.lock`."""
        self._execute(query, parameters)

    def now(self) -> int:
        """See `Transaction.now`."""
        clock = self.row("clock")
        return 0 if clock is None else number(clock, "now")

    def new_device_id(self) -> str:
        """See `Transaction.new_device_id`."""
        return new_id("dev")

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """See `Transaction.apart`."""
        queued = self._queued
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._queued = queued
            if not self._connection.closed:
                self._connection.execute("ROLLBACK TO part; RELEASE part")
            raise
        self._connection.execute("RELEASE part")

    def aside(self) -> AbstractContextManager[PostgresTransaction]:
        """See `Transaction.aside`."""
        if self._aside is None:
            message = "a transaction at the side of another has none of its own"
            raise TypeError(message)
        return self._aside()

    def count(self, queued: int) -> None:
        """See `Transaction.count`. Written last: the counters are what every transaction has in common."""
        self._queued += queued

    def enter(self, most: int) -> bool:
        """See `Transaction.enter`.

        Far from the limit nobody waits: there cannot be so many transactions at one time that they reach it together.
        Near it, each waits for the others' end. Who counts exactly keeps everybody else out, so both are exact.
        """
        if self._counted is None:
            self._counted = self._count_all()
        if self._exact:
            if self._counted + self._queued >= most:
                return False
        elif self._counted >= most:
            raise NearLimit
        self._queued += 1
        return True

    def _count_all(self) -> int:
        if self._exact:
            return self._depth()
        self.lock("lock_room_shared")
        connections = self.row("connections")
        others = 0 if connections is None else number(connections, "most")
        return self._depth() + others * MAX_OPERATIONS_A_COMMIT

    def _depth(self) -> int:
        depth = self.row("depth")
        return 0 if depth is None else number(depth, "queued")

    def begin(self, *, exact: bool = False) -> None:
        """Begin, and learn what `begin` tells. With `exact`, nobody else submits until the end."""
        statement: Any = _BEGIN + self._queries["begin"]
        cursor = self._connection.execute(statement)
        while cursor.nextset():
            pass
        self.began = cursor.fetchone() or {}
        self._exact = exact
        if exact:
            self.lock("lock_room")

    def begin_read(self) -> None:
        """Begin to read: everything as it stands at one time."""
        self._connection.execute(_BEGIN_READ)

    def end_read(self) -> None:
        """End reading. Not by a rollback, after which a connection would forget the plans that it keeps."""
        if not self._connection.closed:
            self._connection.execute("COMMIT")

    def commit(self) -> None:
        """Write the counters and commit. Raises `NotCommitted` where the database undid it all instead."""
        if self._queued:
            self.write("depth_add", by=self._queued)
        if self._connection.execute("COMMIT").statusmessage != "COMMIT":
            raise NotCommitted

    def rollback(self) -> None:
        """Undo everything."""
        if not self._connection.closed:
            self._connection.execute("ROLLBACK")

    @property
    def xact(self) -> str:
        """The transaction's own number, by which its end can be asked for later."""
        return text(self.began, "xact")


def is_passing(error: BaseException) -> bool:
    """Whether the same may succeed when it is tried again: a lost connection, a deadlock, a lock not had in time."""
    if isinstance(error, errors.QueryCanceled):
        return False
    return isinstance(error, (psycopg.OperationalError, NotCommitted))
