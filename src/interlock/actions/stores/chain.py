"""What is written of a run: one record a save, each sealed over the one before. Pure.

The first record has the whole snapshot, as has one that a host restates; every other has what changed. The seals show
a record that was altered, left out or moved. They are no signature. That the last records are gone, only a second copy
of the last seal can show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from operator import attrgetter, ge
from typing import Any, Final, NamedTuple

from interlock.actions.checkpoint import ActionState, SchedulerCheckpoint
from interlock.actions.codes import Code
from interlock.actions.identifiers import RunId
from interlock.errors import SchedulerError

_NUMBERS: Final = ("admitted_actions", "reserved_units", "elapsed_ns")
_numbers: Final = attrgetter(*_NUMBERS)
_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode
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


class Record(NamedTuple):
    """One save: JSON on one line, and its seal."""

    seal: str
    body: str


class Tip(NamedTuple):
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


def whole(tip: Tip, checkpoint: SchedulerCheckpoint) -> tuple[Record, Tip]:
    """The record of a whole snapshot, and the end that a chain has with it."""
    return _extended(tip, checkpoint, _encoded({"sequence": tip.sequence + 1, "snapshot": checkpoint.to_dict()}))


def successor(tip: Tip, checkpoint: SchedulerCheckpoint) -> tuple[Record, Tip] | None:
    """The record of what a run did next, and the end that a chain has with it.

    None where a run that was at the end of the chain cannot be at this checkpoint next.
    """
    last = tip.checkpoint
    if last is None:
        return whole(tip, checkpoint)
    if last.stop_reason is not None or not restates(last, checkpoint):
        return None
    changed = []
    for key, old, new in checkpoint.packed.changes_from(last.packed):
        if (old, new) not in _MOVES:
            return None
        changed.append(f'["{key}","{new}"]')
    return _extended(tip, checkpoint, _difference(tip.sequence + 1, changed, checkpoint))


def _difference(sequence: int, changed: Iterable[str], checkpoint: SchedulerCheckpoint) -> str:
    """What changed, as JSON. Written out, which costs a third of an encoder: nothing in it needs to be escaped."""
    actions, units, elapsed_ns = _numbers(checkpoint)
    reason = "null" if checkpoint.stop_reason is None else f'"{checkpoint.stop_reason}"'
    return (
        f'{{"sequence":{sequence},"changed":[{",".join(changed)}],"stop_reason":{reason},'
        f'"admitted_actions":{actions},"reserved_units":{units},"elapsed_ns":{elapsed_ns}}}'
    )


def _extended(tip: Tip, checkpoint: SchedulerCheckpoint, body: str) -> tuple[Record, Tip]:
    seal = _sealed(tip.seal, body)
    return Record(seal, body), Tip(tip.sequence + 1, seal, checkpoint)


def restates(last: SchedulerCheckpoint, checkpoint: SchedulerCheckpoint) -> bool:
    """Whether this is the same run of the same plan, with nothing refunded."""
    same = checkpoint.run_id == last.run_id and checkpoint.plan_digest == last.plan_digest
    ids, known = checkpoint.packed.ids, last.packed.ids
    if not same or (ids is not known and ids != known):
        return False
    return all(map(ge, _numbers(checkpoint), _numbers(last)))


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
