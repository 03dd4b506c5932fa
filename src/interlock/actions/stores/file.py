"""Checkpoints in a directory: one file a run, one line a save, one `fdatasync` a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interlock.actions.checkpoint import SchedulerCheckpoint
from interlock.actions.codes import Code
from interlock.actions.identifiers import RunId
from interlock.actions.stores.chain import Record, replayed
from interlock.actions.stores.lock import make_directory, open_locked, sync_directory
from interlock.actions.stores.saves import RunSaves, claimed
from interlock.errors import SchedulerError

_SEAL: Final = 64


@dataclass(frozen=True)
class FileCheckpoints:
    """The runs of one directory."""

    directory: Path

    def claim(self, run_id: RunId) -> RunSaves:
        """Become the only one who saves this run. A last line that a crash tore is cut off.

        Raises:
            StoreHeld: Somebody else has claimed it.
            SchedulerError: `invalid_checkpoint`, where the file has anything else in it than was written.
        """
        make_directory(self.directory)
        return claimed(run_id, _FileLog(self._path(run_id)))

    def load(self, run_id: RunId) -> SchedulerCheckpoint | None:
        """The last durable snapshot of a run, whoever has claimed it. None where there is none.

        Raises:
            SchedulerError: `invalid_checkpoint`, as for `claim`.
        """
        try:
            content = self._path(run_id).read_bytes()
        except FileNotFoundError:
            return None
        return replayed(run_id, _records(content)).checkpoint

    def _path(self, run_id: RunId) -> Path:
        return self.directory / f"{run_id.serialize()}.jsonl"


class _FileLog:
    """One run's file, open and locked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_locked(path)
        sync_directory(path.parent)

    def records(self) -> Iterable[Record]:
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
            os.fdatasync(self._descriptor)
        os.lseek(self._descriptor, whole, os.SEEK_SET)
        return _records(content)

    def append(self, sequence: int, record: Record) -> None:
        del sequence  # it is in the record
        line = memoryview(f"{record.seal} {record.body}\n".encode())
        while line:
            line = line[os.write(self._descriptor, line) :]
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _records(content: bytes) -> Iterator[Record]:
    """The records of all whole lines. What follows the last line end was never acknowledged."""
    try:
        text = content[: content.rfind(b"\n") + 1].decode("ascii")
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise SchedulerError(Code.INVALID_CHECKPOINT)
    for line in text.split("\n")[:-1]:
        yield Record(line[:_SEAL], line[_SEAL + 1 :])
