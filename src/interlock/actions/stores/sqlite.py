"""Checkpoints in an SQLite database: one row and one commit a save, each on the disk before the save returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from interlock.actions.checkpoint import SchedulerCheckpoint
from interlock.actions.codes import Code
from interlock.actions.identifiers import RunId
from interlock.actions.stores.chain import Record, replayed
from interlock.actions.stores.lock import close_marker, make_directory, open_marker, sync_directory
from interlock.actions.stores.saves import RunSaves, claimed
from interlock.errors import SchedulerError

_Found = TypeVar("_Found")

_BUSY_SECONDS: Final = 5.0
_PRIMARY_CODE: Final = 0xFF
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
# The seal of a run's last row is kept twice, by the statement that writes the row, so that no row can be lost unseen.
_SCHEMA: Final = (
    """
    CREATE TABLE IF NOT EXISTS saves (
        run_id TEXT NOT NULL, sequence INTEGER NOT NULL, seal TEXT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (run_id, sequence)
    ) WITHOUT ROWID, STRICT
    """,
    "CREATE TABLE IF NOT EXISTS tips (run_id TEXT PRIMARY KEY NOT NULL, seal TEXT NOT NULL) WITHOUT ROWID, STRICT",
    """
    CREATE TRIGGER IF NOT EXISTS tip AFTER INSERT ON saves BEGIN
        INSERT INTO tips (run_id, seal) VALUES (new.run_id, new.seal)
        ON CONFLICT (run_id) DO UPDATE SET seal = excluded.seal;
    END
    """,
)
_APPEND: Final = "INSERT INTO saves (run_id, sequence, seal, body) VALUES (?, ?, ?, ?)"
_RECORDS: Final = "SELECT seal, body FROM saves WHERE run_id = ? ORDER BY sequence"
_TIP: Final = "SELECT seal FROM tips WHERE run_id = ?"


@dataclass(frozen=True)
class SqliteCheckpoints:
    """The runs of one database. Beside it lies a lock file for each run that is claimed."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # a string will do

    def claim(self, run_id: RunId) -> RunSaves:
        """Become the only one who saves this run.

        Raises:
            StoreHeld: Somebody else has claimed it.
            SchedulerError: `invalid_checkpoint`, where its rows are not what was written.
        """
        make_directory(self.path.parent)
        return _sound(lambda: claimed(run_id, _SqliteLog(self.path, run_id.serialize())))

    def load(self, run_id: RunId) -> SchedulerCheckpoint | None:
        """The last durable snapshot of a run, whoever has claimed it. None where there is none.

        Raises:
            SchedulerError: `invalid_checkpoint`, as for `claim`.
        """
        return _sound(lambda: self._last(run_id)) if self.path.exists() else None

    def _last(self, run_id: RunId) -> SchedulerCheckpoint | None:
        with closing(_connected(self.path)) as connection:
            return replayed(run_id, _records(connection, run_id.serialize())).checkpoint


class _SqliteLog:
    """One run's rows, and the lock file that makes them this run's alone."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._marker = path.with_name(f"{path.name}-{run}.lock")
        self._descriptor = open_marker(self._marker)
        try:
            path.touch(0o600)  # SQLite itself would let others read it
            self._connection = _connected(path)
            sync_directory(path.parent)
        except BaseException:
            close_marker(self._marker, self._descriptor)
            raise

    def records(self) -> Iterable[Record]:
        return _records(self._connection, self._run)

    def append(self, sequence: int, record: Record) -> None:
        self._connection.execute(_APPEND, (self._run, sequence, record.seal, record.body))

    def close(self) -> None:
        self._connection.close()
        close_marker(self._marker, self._descriptor)


def _connected(path: Path) -> sqlite3.Connection:
    """A connection on which each statement is a commit. It may be used from one thread after another."""
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # what is damaged may be no text
    try:
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *_SCHEMA):
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _records(connection: sqlite3.Connection, run: str) -> Iterator[Record]:
    """Every row of a run, and then whether the last one is the one that was written last."""
    connection.execute("BEGIN")
    rows = connection.execute(_RECORDS, (run,)).fetchall()
    tip = connection.execute(_TIP, (run,)).fetchone()
    connection.execute("COMMIT")
    for seal, body in rows:
        yield Record(seal.decode("ascii"), body.decode("ascii"))
    if tip != (rows[-1][:1] if rows else None):
        raise SchedulerError(Code.INVALID_CHECKPOINT)


def _sound(act: Callable[[], _Found]) -> _Found:
    """What it gives; a file that SQLite itself finds damaged is refused as any other damage is."""
    try:
        return act()
    except UnicodeDecodeError:  # in what SQLite says of a schema that it cannot read
        pass
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE not in _DAMAGE:
            raise
    raise SchedulerError(Code.INVALID_CHECKPOINT)
