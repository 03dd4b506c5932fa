"""The immutable snapshot of a run: ids, states, the plan digest, charges, elapsed time and why it stopped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from interlock.actions.codes import Code
from interlock.actions.graph import ScheduledAction
from interlock.actions.identifiers import RunId, is_action_id
from interlock.actions.integers import is_count
from interlock.actions.limits import SchedulerLimits
from interlock.errors import SchedulerError

SCHEMA_VERSION: Final = "interlock.actions.checkpoint.v1"
CHUNK: Final = 256
_PLAN_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PAIR: Final = 2
_KEYS: Final = frozenset(
    (
        *("schema_version", "run_id", "plan_digest", "states"),
        *("admitted_actions", "reserved_units", "elapsed_ns", "stop_reason"),
    ),
)


class ActionState(StrEnum):
    """Where an action is."""

    PENDING = "pending"
    RUNNING = "running"
    COMMITTED = "committed"
    FAILED = "failed"
    REVIEW_REQUIRED = "review_required"


class StopReason(StrEnum):
    """Why a run admits nothing more."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REVIEW_REQUIRED = "review_required"
    DISPATCH_FAILED = "dispatch_failed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CLOCK_FAILED = "clock_failed"
    CHECKPOINT_FAILED = "checkpoint_failed"


StatePairs = tuple[tuple[str, ActionState], ...]

# One byte an action: a snapshot shares every chunk of bytes that did not change with the snapshot before it.
STATES: Final = tuple(ActionState)
CODES: Final[Mapping[ActionState, int]] = {state: code for code, state in enumerate(STATES)}


class PackedStates(NamedTuple):
    """The states of a run in a form that costs nothing to hand on: ids, ascending, and chunks of codes."""

    ids: tuple[str, ...]
    chunks: tuple[bytes, ...]

    @classmethod
    def of(cls, pairs: StatePairs) -> PackedStates:
        """The packed form of sorted pairs."""
        codes = bytes(CODES[state] for _, state in pairs)
        chunks = tuple(codes[start : start + CHUNK] for start in range(0, len(codes), CHUNK))
        return cls(tuple(key for key, _ in pairs), chunks)

    def pairs(self) -> StatePairs:
        """The sorted pairs again."""
        return tuple(zip(self.ids, map(STATES.__getitem__, b"".join(self.chunks)), strict=True))

    def changes_from(self, earlier: PackedStates) -> Iterator[tuple[str, ActionState, ActionState]]:
        """Each id with its earlier and its present state, where they differ. Both must be of the same ids."""
        for number, (before, after) in enumerate(zip(earlier.chunks, self.chunks, strict=True)):
            if before is not after:
                # As integers, two chunks give the places where they differ without a look at the others.
                difference = int.from_bytes(before, "little") ^ int.from_bytes(after, "little")
                while difference:
                    place = ((difference & -difference).bit_length() - 1) // 8
                    old, new = before[place], after[place]
                    difference ^= (old ^ new) << 8 * place
                    yield self.ids[number * CHUNK + place], STATES[old], STATES[new]


@dataclass(frozen=True)
class SchedulerCheckpoint:
    """A run at one instant. Two are equal when their fields are.

    `states` are pairs sorted by id. `admitted_actions` and `reserved_units` are what admissions cost so far and never
    fall; `elapsed_ns` is how long the run has been running, stops excluded. `stop_reason` is None while it may go on.
    The digest binds a snapshot to its plan; it is no signature, and no defence against an older snapshot.

    Raises:
        SchedulerError: `invalid_run_id`, `invalid_plan_digest`, `invalid_states`, `invalid_state`,
            `invalid_state_order`, `invalid_integer` or `invalid_stop_reason`.
    """

    run_id: RunId
    plan_digest: str
    states: StatePairs
    admitted_actions: int
    reserved_units: int
    elapsed_ns: int
    stop_reason: StopReason | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.run_id, RunId):
            raise SchedulerError(Code.INVALID_RUN_ID)
        if type(self.plan_digest) is not str or _PLAN_DIGEST.fullmatch(self.plan_digest) is None:
            raise SchedulerError(Code.INVALID_PLAN_DIGEST)
        _check_states(self.states)
        if not all(map(is_count, (self.admitted_actions, self.reserved_units, self.elapsed_ns))):
            raise SchedulerError(Code.INVALID_INTEGER)
        if self.stop_reason is not None and not isinstance(self.stop_reason, StopReason):
            raise SchedulerError(Code.INVALID_STOP_REASON)

    if not TYPE_CHECKING:
        # A checker sees the fields alone: to it, this method would make any name an attribute.
        def __getattr__(self, name: str) -> object:
            """Build `states` when it is first read. Every other field of a run's snapshot is there from the start."""
            packed = self.__dict__.get("_packed")
            if name != "states" or packed is None:
                raise AttributeError(name)
            return self.__dict__.setdefault("states", packed.pairs())

    @classmethod
    def of_run(cls, fields: Mapping[str, object], packed: PackedStates, changed: StatePairs) -> SchedulerCheckpoint:
        """A snapshot by a plan that has already held everything to the rules. `fields` are all fields but `states`."""
        checkpoint = object.__new__(cls)
        checkpoint.__dict__.update(fields, _packed=packed, _changed=changed)
        return checkpoint

    @property
    def changed(self) -> StatePairs | None:
        """The pairs that differ from the snapshot before, or None where a restored or built one knows of none.

        Before the first snapshot of a run stand the checkpoint that it resumed from, or every action pending.
        """
        changed: StatePairs | None = self.__dict__.get("_changed")
        return changed

    @property
    def packed(self) -> PackedStates:
        """The states in chunks, for whoever compares two snapshots of one run."""
        packed: PackedStates | None = self.__dict__.get("_packed")
        return self.__dict__.setdefault("_packed", PackedStates.of(self.states)) if packed is None else packed

    def to_dict(self) -> dict[str, object]:
        """The snapshot as JSON values, with the version of their schema."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id.serialize(),
            "plan_digest": self.plan_digest,
            "states": [[key, state.value] for key, state in self.states],
            "admitted_actions": self.admitted_actions,
            "reserved_units": self.reserved_units,
            "elapsed_ns": self.elapsed_ns,
            "stop_reason": None if self.stop_reason is None else self.stop_reason.value,
        }

    def to_json(self) -> str:
        """The snapshot as compact JSON, byte for byte the same for equal snapshots."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> SchedulerCheckpoint:
        """The snapshot that `to_dict` wrote: exactly its keys, under this version of the schema.

        Raises:
            SchedulerError: `invalid_checkpoint`, whatever is wrong with it.
        """
        checkpoint = _parsed(document)
        if checkpoint is None:
            raise SchedulerError(Code.INVALID_CHECKPOINT)
        return checkpoint


def _check_states(states: object) -> None:
    """Hold `states` to being sorted pairs of distinct ids and states."""
    if type(states) is not tuple or not all(type(pair) is tuple and len(pair) == _PAIR for pair in states):
        raise SchedulerError(Code.INVALID_STATES)
    if not all(type(key) is str and is_action_id(key) for key, _ in states):
        raise SchedulerError(Code.INVALID_STATES)
    if not all(isinstance(state, ActionState) for _, state in states):
        raise SchedulerError(Code.INVALID_STATE)
    if any(earlier[0] >= later[0] for earlier, later in pairwise(states)):
        raise SchedulerError(Code.INVALID_STATE_ORDER)


def _parsed(document: object) -> SchedulerCheckpoint | None:
    """The snapshot, or None in place of any exception: what it rejects may be text that nobody should see."""
    if type(document) is not dict or document.keys() != _KEYS or document["schema_version"] != SCHEMA_VERSION:
        return None
    states, reason = document["states"], document["stop_reason"]
    if not isinstance(states, (list, tuple)):
        return None
    try:
        return SchedulerCheckpoint(
            run_id=RunId.parse(document["run_id"]),
            plan_digest=document["plan_digest"],
            states=tuple(map(_pair, states)),
            admitted_actions=document["admitted_actions"],
            reserved_units=document["reserved_units"],
            elapsed_ns=document["elapsed_ns"],
            stop_reason=None if reason is None else StopReason(reason),
        )
    except (SchedulerError, ValueError, TypeError):
        return None


def _pair(item: object) -> tuple[str, ActionState]:
    """One pair of `states`.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(item, (list, tuple)) or len(item) != _PAIR:
        raise SchedulerError(Code.INVALID_STATES)
    return item[0], ActionState(item[1])


def plan_digest(actions: Iterable[ScheduledAction], limits: SchedulerLimits) -> str:
    """What binds a snapshot to its plan: `sha256:` and 64 hex digits over nodes, classes, units and limits.

    The order of the actions and of their dependencies does not matter.
    """
    nodes = sorted(
        (
            action.node.action_id,
            action.node.tool_id,
            sorted(action.node.depends_on),
            action.read_only,
            action.resource_units,
        )
        for action in actions
    )
    text = json.dumps([SCHEMA_VERSION, nodes, limits.integers, limits.parallel_reads], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()
