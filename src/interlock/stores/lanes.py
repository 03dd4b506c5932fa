"""Lanes: which operations share commits, and the thread that commits what waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from interlock.fleet import store
from interlock.fleet.store import Operation
from interlock.stores.inbox import MAX_OPERATIONS_A_COMMIT, Batch, gather


@dataclass(frozen=True)
class LaneKind:
    """Which operations share commits, how many at most, and whether they have connections that nobody else uses."""

    name: str
    most: int = MAX_OPERATIONS_A_COMMIT
    reserved: bool = False


_OTHER = LaneKind("other", most=1)
SWEEP = LaneKind("sweep", most=1, reserved=True)
_SUBMIT, _GRANT, _CLAIM, _END = (LaneKind(name) for name in ("submit", "grant", "claim", "end"))
_SAVE, _JOURNAL, _RENEW = LaneKind("save"), LaneKind("journal"), LaneKind("renew", reserved=True)
# A beat may change every device of its host: two in one transaction could lock them in no common order.
_BEAT = LaneKind("beat", most=1, reserved=True)
_LANES: dict[type, LaneKind] = {
    store.Submit: _SUBMIT,
    store.Define: _SUBMIT,
    store.Grant: _GRANT,
    store.Claim: _CLAIM,
    store.Renew: _RENEW,
    store.SaveRun: _SAVE,
    store.HandOverEffect: _JOURNAL,
    store.WithdrawEffect: _JOURNAL,
    store.SettleCall: _JOURNAL,
    store.EndAttempt: _END,
    store.Beat: _BEAT,
    store.Sweep: SWEEP,
}


class Lane:
    """A thread that commits what is posted to it, in order."""

    def __init__(self, kind: LaneKind, write: Callable[[LaneKind, list[Batch]], None]) -> None:
        self._kind = kind
        self._write = write
        self._inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        # A daemon: a program that ends without closing its store must not hang, and what was not answered is undone.
        self._thread = threading.Thread(target=self._run, name=f"interlock-{kind.name}", daemon=True)
        self._thread.start()

    def post(self, batch: Batch) -> None:
        """Have it committed, and its caller told."""
        self._inbox.put(batch)

    def close(self) -> None:
        """End when all that was posted is done."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._inbox.get()) is not None:
            self._write(self._kind, gather(self._inbox, batch, self._kind.most))


def kind_of(operations: Sequence[Operation]) -> LaneKind:
    """The lane of a caller's operations; several kinds together have one transaction for themselves."""
    kinds = {_LANES.get(type(operation), _OTHER) for operation in operations}
    return kinds.pop() if len(kinds) == 1 else _OTHER
