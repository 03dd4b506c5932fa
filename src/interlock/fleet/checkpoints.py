"""The saves of a run as they are sent and stored: the first one whole, each later one what has changed. Pure.

The fleet reads of a checkpoint what it must hold it to. What else is in one is the run level's, and kept as it came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CHARGES = ("admitted_actions", "reserved_units", "elapsed_ns")
# From which state an action may come into which: none goes back, and what has ended stays so.
BEFORE = {"running": "pending", "committed": "running", "failed": "running", "review_required": "running"}
STATES = frozenset({"pending", *BEFORE})
_TOO_MANY = 2**63


@dataclass(frozen=True)
class Said:
    """What one save says. `states` are those of all actions in a run's first save, else of those that changed.

    `charges` are what the run has cost so far, each by its name.
    """

    plan_digest: str
    states: Mapping[str, str]
    charges: Mapping[str, int]
    stop_reason: str | None


def whole(text: str) -> Said | None:
    """What a whole checkpoint says, or None where the text is none."""
    return _said(text, "states")


def difference(text: str) -> Said | None:
    """What a later save says: its plan, the states that changed, and the charges. None where the text is none."""
    return _said(text, "changed")


def _said(text: str, states: str) -> Said | None:
    try:
        document = json.loads(text)
        pairs = [(key, state) for key, state in document[states] if isinstance(key, str) and state in STATES]
        found = dict(pairs)
        plan, stop = document["plan_digest"], document["stop_reason"]
        charges = {name: document[name] for name in CHARGES}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if len(found) != len(document[states]) or not isinstance(plan, str) or not isinstance(stop, str | None):
        return None
    return Said(plan, found, charges, stop) if all(map(_is_count, charges.values())) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_MANY


def regression(last: Said, following: Said) -> str | None:
    """Why a save does not go on from the charges, plan and stop of the one before, or None where it does."""
    if last.plan_digest != following.plan_digest:
        return "the plan is another one"
    if any(following.charges[name] < last.charges[name] for name in CHARGES):
        return "its charges are lower"
    if last.stop_reason is not None and last.stop_reason != following.stop_reason:
        return "the run had stopped"
    return None


@dataclass(frozen=True)
class StoredSave:
    """One save of a run as it is stored, with the digest over it, its number and the digest before."""

    sequence: int
    digest: str
    body: str


def chain_digest(sequence: int, previous: str, body: str) -> str:
    """The digest of a stored save: over itself, its place and the one before."""
    return hashlib.sha256(f"{sequence}\n{previous}\n{body}".encode()).hexdigest()


def replayed(base: str, saves: Iterable[StoredSave], tip: tuple[int, str]) -> str | None:
    """The whole checkpoint that the saves of a run add up to. `base` is the digest that their chain begins at.

    `tip` is the number and the digest of the last. None where any save is not what was written in its place.
    """
    found, digest = (0, ""), base
    document: dict[str, object] = {}
    states: dict[str, str] = {}
    last: Said | None = None
    for save in saves:
        last = difference(save.body) if document else whole(save.body)
        if last is None or save.digest != chain_digest(save.sequence, digest, save.body):
            return None
        document = document or json.loads(save.body)
        states |= last.states
        digest, found = save.digest, (save.sequence, save.digest)
    if last is None or found != tip:
        return None
    pairs = [list(pair) for pair in sorted(states.items())]
    now = {**document, "states": pairs, **last.charges, "stop_reason": last.stop_reason}
    return json.dumps(now, separators=(",", ":"))
