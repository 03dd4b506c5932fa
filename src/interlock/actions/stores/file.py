"""Checkpoints in a directory: one file a run, one line a save, one `fdatasync` a line."""

from __future__ import annotations

import json
import os
import re
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

# What a line begins with, however little of it was written.
_BEGINNING: Final = re.compile(rb"[0-9a-f]{0,64}|[0-9a-f]{64} [ -~]*")


@dataclass(frozen=True)
class FileCheckpoints:
    """The runs of one directory."""

    directory: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", Path(self.directory))  # a string will do

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
        return replayed(run_id, _records(_whole_lines(content))).checkpoint

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
        lines = _whole_lines(content)
        if len(lines) < len(content):
            os.ftruncate(self._descriptor, len(lines))
            os.fdatasync(self._descriptor)
        os.lseek(self._descriptor, len(lines), os.SEEK_SET)
        return _records(lines)

    def append(self, sequence: int, record: Record) -> None:
        del sequence  # it is in the record
        line = memoryview(f"{record.seal} {record.body}\n".encode())
        while line:
            line = line[os.write(self._descriptor, line) :]
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _whole_lines(content: bytes) -> bytes:
    """The content without a last line that a crash tore: that one was never acknowledged.

    Raises:
        SchedulerError: `invalid_checkpoint`, where it is no beginning of a line, or all of one but for its end.
    """
    whole = content.rfind(b"\n") + 1
    torn = content[whole:]
    # A crash may leave zeros for what was not written yet; a file of nothing but zeros says nothing.
    begun = torn.rstrip(b"\0")
    is_torn = _BEGINNING.fullmatch(begun) is not None and (whole > 0 or begun or not torn)
    if not is_torn or (_is_whole(torn[:-1]) and torn[-1:] != b"\0"):
        raise SchedulerError(Code.INVALID_CHECKPOINT)
    return content[:whole]


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line.partition(b" ")[2])
    except ValueError:
        return False
    return True


def _records(lines: bytes) -> Iterator[Record]:
    try:
        text = lines.decode("ascii")
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise SchedulerError(Code.INVALID_CHECKPOINT)
    for line in text.split("\n")[:-1]:
        seal, _, body = line.partition(" ")
        yield Record(seal, body)
