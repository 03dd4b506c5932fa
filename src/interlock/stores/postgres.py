"""The store that several servers may share: PostgreSQL, by a pool of connections.

Each kind of operation has a lane: a thread that commits what waits there, so that those who wait share one commit and
fail alone. Renewals, beats and the sweep have connections of their own, which nothing else can use up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool

from interlock.clock import MICROSECONDS, jitter
from interlock.errors import Conflict, Unavailable
from interlock.fleet.store import Applied, Operation, Outcome, Row, Submit, Sweep, Swept
from interlock.fleet.strategies import Snapshot, View
from interlock.stores.history import forget
from interlock.stores.inbox import Batch
from interlock.stores.lanes import SWEEP, Lane, LaneKind, kind_of
from interlock.stores.leases import end_expired, end_sweep
from interlock.stores.operations import do
from interlock.stores.postgres_batches import Raced, done_together
from interlock.stores.postgres_locks import lock_first, lock_order
from interlock.stores.postgres_schema import as_refused, migrate, place_of
from interlock.stores.postgres_transaction import (
    Connection,
    NearLimit,
    NotCommitted,
    PostgresTransaction,
    is_passing,
)
from interlock.stores.queue import offer_due, time_out
from interlock.stores.reads import read_snapshot
from interlock.stores.times import StoreTimes
from interlock.stores.transaction import NO_ROOM, number

Answer = TypeVar("Answer")
Pool = ConnectionPool[psycopg.Connection[DictRow]]
_WAITS = (0.02, 0.1, 0.3, 1.0, 2.0)
OPEN_SECONDS = 10.0
_READERS = 4
_EXACT_FOR = 64


class PostgresStore:
    """See `interlock.fleet.store.Store`. Made by `open`; belongs to the process that made it."""

    def __init__(self, url: str, times: StoreTimes) -> None:
        self._times = times
        self._owner = os.getpid()
        self._closed = False
        self._exact_left = 0
        self._latest = 0
        self._turn = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._pool = _pool(url, most=10)
        self._reserved = _pool(url, most=4)
        self._readers = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="interlock-read")

    @classmethod
    def open(cls, url: str, *, times: StoreTimes | None = None) -> PostgresStore:
        """Open the database at a `postgresql://` address, and bring its schema up to this program.

        Raises:
            InvalidInput: that is no address of a database, or its server is too old.
            StoreHeld: a newer program made the schema, or another one has been migrating it for long.
            Unavailable: the server cannot be reached.
        """
        place = place_of(url)
        opened = cls(url, times or StoreTimes())
        try:
            opened._connect()
        except BaseException as error:
            opened._shut()
            if isinstance(error, psycopg.Error):
                raise as_refused(error, place) from None
            raise
        return opened

    def _connect(self) -> None:
        for pool in (self._pool, self._reserved):
            pool.open(wait=True, timeout=OPEN_SECONDS)
        with self._pool.connection() as connection:
            migrate(connection)

    def _shut(self) -> None:
        for pool in (self._pool, self._reserved):
            pool.close()
        self._readers.shutdown()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """See `Store.commit`."""
        batch = Batch(tuple(operations), Future())
        self._lane(batch).post(batch)
        return await asyncio.shield(asyncio.wrap_future(batch.answer))

    async def snapshot(self, *, most: int, view: View = View.BY_SERIAL) -> Snapshot:
        """See `Store.snapshot`."""
        return await self._read(lambda tx: read_snapshot(tx, most=most, view=view))

    async def rows(self, query: str, **parameters: object) -> list[Row]:
        """See `Store.rows`."""
        return await self._read(lambda tx: tx.rows(query, **parameters), together=False)

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.close)
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        # Best effort: where the database is away, the last sweep has written the time before.
        with contextlib.suppress(psycopg.Error, NotCommitted), self._transaction(self._reserved) as tx:
            tx.write("upkeep_tick")
        self._shut()

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            message = "this store was opened before a fork: open it in the process that uses it"
            raise Conflict(message)
        if self._closed:
            message = "the store is closed"
            raise Unavailable(message)

    def _lane(self, batch: Batch) -> Lane:
        self._check_usable()
        kind = kind_of(batch.operations)
        with self._turn:
            if kind.name not in self._lanes:
                self._lanes[kind.name] = Lane(kind, self._write)
            return self._lanes[kind.name]

    async def _read(self, read: Callable[[PostgresTransaction], Answer], *, together: bool = True) -> Answer:
        self._check_usable()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_here, read, together)

    def _read_here(self, read: Callable[[PostgresTransaction], Answer], together: bool) -> Answer:  # noqa: FBT001
        """Read as of one time; a single statement is that by itself."""

        def once() -> Answer:
            with self._pool.connection() as connection:
                tx = self._on(connection)
                if not together:
                    return read(tx)
                tx.begin_read()
                try:
                    return read(tx)
                finally:
                    tx.end_read()

        return self._patiently(once)

    def _write(self, kind: LaneKind, batches: list[Batch]) -> None:
        """Commit batches together and tell who asked; where that fails, each alone."""
        try:
            outcomes = self._committed(kind, batches)
        except BaseException as error:  # noqa: BLE001 - every waiting caller is told, and the lane lives on
            if len(batches) == 1:
                batches[0].resolve(_as_unavailable(error))
                return
            for batch in batches:
                self._write(kind, [batch])
            return
        for batch, outcome in zip(batches, outcomes, strict=True):
            batch.resolve(outcome)

    def _committed(self, kind: LaneKind, batches: list[Batch]) -> Sequence[list[Outcome] | BaseException]:
        pool = self._reserved if kind.reserved else self._pool
        if kind is SWEEP:
            return [[self._swept(each) for each in batch.operations if isinstance(each, Sweep)] for batch in batches]
        operations = [operation for batch in batches for operation in batch.operations]

        def together() -> Sequence[list[Outcome] | BaseException]:
            with self._transaction(pool, exact=self._must_count(operations)) as tx:
                outcomes = done_together(tx, operations)
                return one_after_another(tx) if outcomes is None else _by_caller(outcomes, batches)

        def apart() -> Sequence[list[Outcome] | BaseException]:
            with self._transaction(pool, exact=self._must_count(operations)) as tx:
                return one_after_another(tx)

        def one_after_another(tx: PostgresTransaction) -> Sequence[list[Outcome] | BaseException]:
            lock_first(tx, operations)
            return _done(tx, batches)

        try:
            return self._patiently(together)
        except Raced:
            return self._patiently(apart)

    def _swept(self, sweep: Sweep) -> Outcome:
        """A sweep is many small transactions: one that held several leases would stand in everybody's way."""
        expired = sum(self._end_expired(lease, sweep) for lease in self._in_one(lambda tx: tx.rows("leases_expired")))
        timed_out = self._in_one(time_out)
        offered = self._in_one(offer_due)
        keep = sweep.keep_history
        forgotten = 0 if keep is None else self._in_one(lambda tx: forget(tx, keep))
        self._in_one(_end_sweep)
        return Applied(Swept(expired, offered, timed_out, forgotten))

    def _end_expired(self, lease: Row, sweep: Sweep) -> bool:
        return self._in_one(lambda tx: end_expired(tx, lease, sweep))

    def _in_one(self, act: Callable[[PostgresTransaction], Answer]) -> Answer:
        def once() -> Answer:
            with self._transaction(self._reserved) as tx:
                return act(tx)

        return self._patiently(once)

    def _must_count(self, operations: Sequence[Operation]) -> bool:
        """Whether the queue was near its limit lately, so that what is submitted has to be counted exactly."""
        if not self._exact_left or not any(isinstance(operation, Submit) for operation in operations):
            return False
        self._exact_left -= 1
        return True

    @contextlib.contextmanager
    def _transaction(self, pool: Pool, *, exact: bool = False) -> Iterator[PostgresTransaction]:
        """A transaction that is durable when the context has ended, or else did not take place."""
        with pool.connection() as connection:
            tx = self._on(connection)
            self._begin(tx, exact=exact)
            try:
                yield tx
            except BaseException:
                tx.rollback()
                raise
            self._commit(tx)

    def _begin(self, tx: PostgresTransaction, *, exact: bool) -> None:
        """Begin, once the clock goes on from where it was and an outage has been allowed for."""
        latest = self._latest
        tx.begin(exact=exact)
        if number(tx.began, "now") < latest:
            tx.write("resume_clock", latest=latest)
            tx.commit()
            tx.begin(exact=exact)
        self._latest = max(self._latest, number(tx.began, "now"))
        if number(tx.began, "now") - number(tx.began, "swept_at") > int(self._times.outage * MICROSECONDS):
            self._allow_for_outage(tx)
            tx.begin(exact=exact)

    def _on(self, connection: Connection) -> PostgresTransaction:
        return PostgresTransaction(connection, int(self._times.presence * MICROSECONDS), self._aside)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[PostgresTransaction]:
        """A small transaction on a connection of its own. It waits for none but its like."""
        with self._reserved.connection() as connection:
            tx = PostgresTransaction(connection, int(self._times.presence * MICROSECONDS))
            tx.begin()
            try:
                yield tx
            except BaseException:
                tx.rollback()
                raise
            tx.commit()

    def _commit(self, tx: PostgresTransaction) -> None:
        """Commit. Where the answer is lost with the connection, ask another one what became of it."""
        xact = tx.xact
        try:
            tx.commit()
        except psycopg.OperationalError:
            if not self._took_place(xact):
                raise NotCommitted from None

    def _took_place(self, xact: str) -> bool:
        for wait in _WAITS:
            with contextlib.suppress(psycopg.OperationalError), self._reserved.connection() as connection:
                status = self._on(connection).row("xact_status", xact=xact)
                if status is not None and status["status"] != "in progress":
                    return status["status"] == "committed"
            _pause(wait)
        message = "the database went away in the middle of a commit: whether it was written is not known, look first"
        raise Unavailable(message)

    def _allow_for_outage(self, tx: PostgresTransaction) -> None:
        """Give every lease one grace period where nobody has swept for long: its holder could not renew either."""
        tx.lock("lock_upkeep")
        upkeep = tx.row("upkeep") or tx.began
        if tx.now() - number(upkeep, "swept_at") > int(self._times.outage * MICROSECONDS):
            tx.lock("lock_leases_to_grace")
            tx.write("outage_grace", grace=int(self._times.grace * MICROSECONDS))
            tx.write("upkeep_swept")
        tx.commit()

    def _patiently(self, once: Callable[[], Answer]) -> Answer:
        """Try again, a bounded number of times, what a lost connection or a deadlock has undone."""
        for wait in _WAITS:
            try:
                return once()
            except NearLimit:
                self._exact_left = _EXACT_FOR
            except (psycopg.Error, NotCommitted) as error:
                if not is_passing(error):
                    raise
                if isinstance(error, psycopg.OperationalError):
                    self._drop_dead()
                _pause(wait)
        return once()

    def _drop_dead(self) -> None:
        """Where one connection is lost, others are too: let the pools replace those that are dead."""
        for pool in (self._pool, self._reserved):
            with contextlib.suppress(psycopg.Error):
                pool.check()


def _end_sweep(tx: PostgresTransaction) -> None:
    tx.lock("lock_upkeep")
    end_sweep(tx)
    tx.write("upkeep_tick")


def _by_caller(outcomes: Iterable[Outcome], batches: list[Batch]) -> list[list[Outcome]]:
    """The outcomes of all operations, to each caller those of its own."""
    left = iter(outcomes)
    return [list(islice(left, len(batch.operations))) for batch in batches]


def _done(tx: PostgresTransaction, batches: list[Batch]) -> list[list[Outcome] | BaseException]:
    """Each batch in its place in the order of locks, answered in the order of asking."""
    order = sorted(range(len(batches)), key=lambda place: lock_order(batches[place].operations))
    outcomes = {place: _done_apart(tx, batches[place], alone=len(batches) == 1) for place in order}
    return [outcomes[place] for place in range(len(batches))]


def _done_apart(tx: PostgresTransaction, batch: Batch, *, alone: bool) -> list[Outcome] | BaseException:
    """One caller's operations, undone alone where one of them fails."""
    try:
        with contextlib.nullcontext() if alone else tx.apart():
            return [do(tx, operation) for operation in batch.operations]
    except Exception as error:
        if alone or isinstance(error, NearLimit) or is_passing(error):
            raise
        return _as_unavailable(error)


def _pool(url: str, *, most: int) -> Pool:
    settings = {"autocommit": True, "prepare_threshold": None, "row_factory": dict_row}
    return ConnectionPool(
        url, kwargs=settings, min_size=1, max_size=most, timeout=5.0, num_workers=1, open=False, configure=_configure
    )


def _configure(connection: Connection) -> None:
    """Let a session of our own keep its plans, which cost more than their statements. A pooler's is not ours."""
    backend = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()
    if backend is not None and backend["pid"] == connection.info.backend_pid:
        # A plan that is kept, whatever it is asked for, must suit a table that has grown since.
        connection.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
        connection.prepare_threshold = 2


def _pause(seconds: float) -> None:
    threading.Event().wait(jitter(seconds))


def _as_unavailable(error: BaseException) -> BaseException:
    if isinstance(error, psycopg.errors.DiskFull):
        return Unavailable(NO_ROOM)
    if isinstance(error, (psycopg.Error, NotCommitted)):
        message = f"the database did not take it ({type(error).__name__}): nothing was written, try again"
        return Unavailable(message)
    return error
