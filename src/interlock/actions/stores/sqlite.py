"""Checkpoints in an SQLite database: one row and one commit a save, each on the disk before the save returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interlock.actions.checkpoint import SchedulerCheckpoint
from interlock.actions.identifiers import RunId
from interlock.actions.stores.chain import Record, replayed
from interlock.actions.stores.lock import close_marker, make_directory, open_marker, sync_directory
from interlock.actions.stores.saves import RunSaves, claimed

_BUSY_SECONDS: Final = 5.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS saves (
    run_id TEXT NOT NULL, sequence INTEGER NOT NULL, seal TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (run_id, sequence)
) WITHOUT ROWID, STRICT
"""
_APPEND: Final = "INSERT INTO saves (run_id, sequence, seal, body) VALUES (?, ?, ?, ?)"
_RECORDS: Final = "SELECT seal, body FROM saves WHERE run_id = ? ORDER BY sequence"


@dataclass(frozen=True)
class SqliteCheckpoints:
    """The runs of one database. Beside it lies a lock file for each run that is claimed."""

    path: Path

    def claim(self, run_id: RunId) -> RunSaves:
        """Become the only one who saves this run.

        Raises:
            StoreHeld: Somebody else has claimed it.
            SchedulerError: `invalid_checkpoint`, where its rows are not what was written.
        """
        make_directory(self.path.parent)
        return claimed(run_id, _SqliteLog(self.path, run_id.serialize()))

    def load(self, run_id: RunId) -> SchedulerCheckpoint | None:
        """The last durable snapshot of a run, whoever has claimed it. None where there is none.

        Raises:
            SchedulerError: `invalid_checkpoint`, as for `claim`.
        """
        if not self.path.exists():
            return None
        with closing(_connected(self.path)) as connection:
            return replayed(run_id, _records(connection, run_id.serialize())).checkpoint


class _SqliteLog:
    """One run's rows, and the lock file that makes them this run's alone."""

    def __init__(self, path: Path, run: str) -> None:
        self._run = run
        self._marker = path.with_name(f"{path.name}-{run}.lock")
        self._descriptor = open_marker(self._marker)
        try:
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
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(_TABLE)
    return connection


def _records(connection: sqlite3.Connection, run: str) -> Iterable[Record]:
    return (Record(seal, body) for seal, body in connection.execute(_RECORDS, (run,)))
