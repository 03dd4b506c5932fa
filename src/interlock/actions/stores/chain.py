"""What is written of a run: one record a save, each sealed over the one before. Pure.

The first record has the whole snapshot, as has one that a host restates; every other has what changed. The seals show
a record that was altered, left out or moved. They are no signature, and do not show that the last records are gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from interlock.actions.checkpoint import ActionState, SchedulerCheckpoint
from interlock.actions.codes import Code
from interlock.actions.identifiers import RunId
from interlock.errors import SchedulerError

_NUMBERS: Final = ("admitted_actions", "reserved_units", "elapsed_ns")
_DIFFERENCE_KEYS: Final = frozenset(("sequence", "changed", "stop_reason", *_NUMBERS))
_SNAPSHOT_KEYS: Final = frozenset(("sequence", "snapshot"))
_MOVES: Final = frozenset(
    {
        (ActionState.PENDING, ActionState.RUNNING),
        (ActionState.RUNNING, ActionState.COMMITTED),
        (ActionState.RUNNING, ActionState.FAILED),
        (ActionState.RUNNING, ActionState.REVIEW_REQUIRED),
    },
)


@dataclass(frozen=True, slots=True)
class Record:
    """One save: JSON on one line, and its seal."""

    seal: str
    body: str


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a chain: how many records there are, the last one's seal, and the snapshot that they add up to."""

    sequence: int
    seal: str
    checkpoint: SchedulerCheckpoint | None

    @classmethod
    def origin(cls, run_id: RunId) -> Tip:
        """Where the chain of a run begins. It is another place for each run."""
        return cls(0, _sealed("", run_id.serialize()), None)


def _sealed(before: str, body: str) -> str:
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def extended(tip: Tip, checkpoint: SchedulerCheckpoint, *, whole: bool = False) -> tuple[Record, Tip]:
    """The record that takes a chain to this checkpoint, and the end that it then has."""
    sequence = tip.sequence + 1
    content: dict[str, object]
    if whole or tip.checkpoint is None:
        content = {"sequence": sequence, "snapshot": checkpoint.to_dict()}
    else:
        changes = checkpoint.packed.changes_from(tip.checkpoint.packed)
        content = {"sequence": sequence, "changed": [[key, state.value] for key, _, state in changes]}
        content |= {name: getattr(checkpoint, name) for name in _NUMBERS}
        content["stop_reason"] = None if checkpoint.stop_reason is None else checkpoint.stop_reason.value
    body = json.dumps(content, separators=(",", ":"))
    seal = _sealed(tip.seal, body)
    return Record(seal, body), Tip(sequence, seal, checkpoint)


def continues(last: SchedulerCheckpoint | None, checkpoint: SchedulerCheckpoint) -> bool:
    """Whether a run that was at `last` can be at `checkpoint` next."""
    if last is None:
        return True
    if last.stop_reason is not None or not restates(last, checkpoint):
        return False
    return all((old, new) in _MOVES for _, old, new in checkpoint.packed.changes_from(last.packed))


def restates(last: SchedulerCheckpoint, checkpoint: SchedulerCheckpoint) -> bool:
    """Whether this is the same run of the same plan, with nothing refunded."""
    same = checkpoint.run_id == last.run_id and checkpoint.plan_digest == last.plan_digest
    if not same or checkpoint.packed.ids != last.packed.ids:
        return False
    return all(getattr(checkpoint, name) >= getattr(last, name) for name in _NUMBERS)


def replayed(run_id: RunId, records: Iterable[Record]) -> Tip:
    """What the records of a run add up to.

    Raises:
        SchedulerError: `invalid_checkpoint`, where any of them is not what was written in its place.
    """
    try:
        tip = _replayed(run_id, records)
    except (ValueError, TypeError, LookupError, AttributeError):
        tip = None
    if tip is None:
        raise SchedulerError(Code.INVALID_CHECKPOINT)
    return tip


def _replayed(run_id: RunId, records: Iterable[Record]) -> Tip | None:
    origin = Tip.origin(run_id)
    document: dict[str, Any] = {}
    states: dict[str, str] = {}
    sequence, seal = 0, origin.seal
    for sequence, record in enumerate(records, 1):
        if _sealed(seal, record.body) != record.seal:
            return None
        seal = record.seal
        content = json.loads(record.body)
        if content.keys() == _SNAPSHOT_KEYS:
            document = content["snapshot"]
            states = dict(document["states"])
        elif content.keys() == _DIFFERENCE_KEYS and states.keys() >= {key for key, _ in content["changed"]}:
            states.update(content["changed"])
            document |= {name: content[name] for name in (*_NUMBERS, "stop_reason")}
        if not document or content["sequence"] != sequence:
            return None
    if sequence == 0:
        return origin
    checkpoint = SchedulerCheckpoint.from_dict({**document, "states": list(states.items())})
    return Tip(sequence, seal, checkpoint) if checkpoint.run_id == run_id else None
