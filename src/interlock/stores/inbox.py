"""What waits for a writer: it shares the next commit. A writer that is idle waits for nobody."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from interlock.fleet.store import Operation, Outcome

MAX_OPERATIONS_A_COMMIT = 50
Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """The operations of one caller, who waits for their outcomes."""

    operations: tuple[Operation, ...]
    answer: Future[list[Outcome]]

    def resolve(self, outcome: list[Outcome] | BaseException) -> None:
        """Tell the caller."""
        if isinstance(outcome, BaseException):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


def gather(inbox: queue.SimpleQueue[Item], first: Batch, most: int) -> list[Batch]:
    """The batches that wait, up to about so many operations: no waiting for more."""
    batches = [first]
    size = len(first.operations)
    while size < most:
        try:
            item = inbox.get_nowait()
        except queue.Empty:
            break
        if not isinstance(item, Batch):
            inbox.put(item)
            break
        batches.append(item)
        size += len(item.operations)
    return batches
