"""The saves of one claimed run: the callback that a scheduler is given, synchronous or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from interlock.actions.checkpoint import SchedulerCheckpoint
from interlock.actions.identifiers import RunId
from interlock.actions.stores.chain import Record, Tip, replayed, restates, successor, whole
from interlock.errors import Conflict


class Log(Protocol):
    """Where the records of one run go."""

    def records(self) -> Iterable[Record]:
        """Every record, in order."""
        ...

    def append(self, sequence: int, record: Record) -> None:
        """Write one record. It is durable when this returns."""
        ...

    def close(self) -> None:
        """Give up the run, for another to claim."""
        ...


class RunSaves:
    """Saves one run, which nobody else can save until this is closed.

    It is itself the synchronous `save_checkpoint`; `awaited` is the one that writes in a thread. A save that does not
    go on from the last one is refused: a stale snapshot that is resumed gets no further than its first admission.
    """

    def __init__(self, run_id: RunId, log: Log) -> None:
        """Take over a log, and find out where it ends.

        Raises:
            SchedulerError: `invalid_checkpoint`, where its records are not what was written.
        """
        self._run_id = run_id
        self._log = log
        self._tip = replayed(run_id, log.records())
        self._usable = True
        self._thread: ThreadPoolExecutor | None = None

    @property
    def checkpoint(self) -> SchedulerCheckpoint | None:
        """The last durable snapshot, to resume from. None where there is none yet."""
        return self._tip.checkpoint

    def __call__(self, checkpoint: SchedulerCheckpoint) -> None:
        """Save a snapshot. It is durable when this returns.

        Raises:
            Conflict: It does not go on from the last one, or an earlier write failed.
            OSError: The write failed; so does every later one, until the run is claimed again.
        """
        following = successor(self._tip, checkpoint) if checkpoint.run_id == self._run_id else None
        if following is None:
            message = "this snapshot does not go on from the last one saved: resume from that"
            raise Conflict(message)
        self._write(*following)

    def awaited(self, checkpoint: SchedulerCheckpoint) -> Awaitable[None]:
        """Save a snapshot in a thread, so that the event loop is never held."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "interlock-saves")
        return asyncio.get_running_loop().run_in_executor(self._thread, self, checkpoint)

    def restate(self, checkpoint: SchedulerCheckpoint) -> None:
        """Save what the host prepared, once it has reviewed a stopped or interrupted run: any states, no refunds.

        Raises:
            Conflict: It is of another run or plan, or its charges or its time are lower than those saved.
            OSError: The write failed.
        """
        last = self._tip.checkpoint
        if last is None or not restates(last, checkpoint):
            message = "this snapshot is not of the run and plan that were saved, or refunds something"
            raise Conflict(message)
        self._write(*whole(self._tip, checkpoint))

    def _write(self, record: Record, tip: Tip) -> None:
        if not self._usable:
            message = "an earlier write of this run failed, or it was closed: claim the run again"
            raise Conflict(message)
        # After a write that failed nobody knows what is stored. Only a fresh look at the log can tell.
        self._usable = False
        self._log.append(tip.sequence, record)
        self._tip, self._usable = tip, True

    def close(self) -> None:
        """Give up the run. A write in a thread is waited for."""
        if self._thread is not None:
            self._thread.shutdown()
        self._usable = False
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def claimed(run_id: RunId, log: Log) -> RunSaves:
    """The saves of a log that was just locked; it is given up where its records cannot be read."""
    try:
        return RunSaves(run_id, log)
    except BaseException:
        log.close()
        raise
