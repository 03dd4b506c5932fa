"""What may happen next in a run. Pure: results in, admissions out. It neither waits nor looks at a clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from interlock.actions.checkpoint import (
    CHUNK,
    CODES,
    STATES,
    ActionState,
    PackedStates,
    SchedulerCheckpoint,
    StatePairs,
    StopReason,
    plan_digest,
)
from interlock.actions.codes import Code
from interlock.actions.graph import ActionNode, ScheduledAction, collected, validate_action_graph
from interlock.actions.identifiers import RunId
from interlock.actions.limits import Charges, SchedulerLimits
from interlock.actions.ready import ReadyQueue
from interlock.errors import SchedulerError


@dataclass(frozen=True, slots=True)
class Outline:
    """A validated graph with its limits. An action's rank is its place among the ascending ids."""

    limits: SchedulerLimits
    digest: str
    ids: tuple[str, ...]
    actions: tuple[ScheduledAction, ...]
    ranks: dict[str, int]
    reads: tuple[bool, ...]
    units: tuple[int, ...]
    dependents: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, actions: Iterable[ScheduledAction], limits: SchedulerLimits) -> Outline:
        """Check everything that can be checked before a run.

        Raises:
            SchedulerError: `invalid_limits`, `invalid_actions`, `too_many_actions` or `invalid_graph`.
        """
        if not isinstance(limits, SchedulerLimits):
            raise SchedulerError(Code.INVALID_LIMITS)
        known = collected(actions, ScheduledAction)
        if not validate_action_graph(action.node for action in known).is_valid:
            raise SchedulerError(Code.INVALID_GRAPH)
        ordered = tuple(sorted(known, key=lambda action: action.node.action_id))
        ranks = {action.node.action_id: rank for rank, action in enumerate(ordered)}
        dependents: list[list[int]] = [[] for _ in ordered]
        for rank, action in enumerate(ordered):
            for dependency in action.node.depends_on:
                dependents[ranks[dependency]].append(rank)
        return cls(
            limits=limits,
            digest=plan_digest(ordered, limits),
            ids=tuple(ranks),
            actions=ordered,
            ranks=ranks,
            reads=tuple(action.read_only for action in ordered),
            units=tuple(action.resource_units for action in ordered),
            dependents=tuple(map(tuple, dependents)),
        )


class Cause(StrEnum):
    """Why an action is where it is."""

    SETTLED = "settled"
    RUNNING = "running"
    DEPENDENCIES = "waits_for_dependencies"
    RUN_STOPPED = "run_stopped"
    BUDGET = "budget_exhausted"
    BARRIER = "waits_behind_effect"
    EXCLUSIVE = "waits_for_running_to_end"
    CONCURRENCY = "waits_for_concurrency"
    UNITS = "waits_for_units"
    NEXT = "admissible"


@dataclass(frozen=True, slots=True)
class Why:
    """One action's state, the cause, and the ids that it waits for, ascending."""

    state: ActionState
    cause: Cause
    action_ids: tuple[str, ...] = ()


class Plan:
    """One run's decisions. `admit` and `settle` in turn; `snapshot` at any time.

    A ready read is admitted beside other reads where the policy, the concurrency and the units in flight allow it. An
    effect is admitted when nothing is in flight, and a ready one lets nothing behind it pass.
    """

    def __init__(self, outline: Outline, run_id: RunId, checkpoint: SchedulerCheckpoint | None = None) -> None:
        """Begin, or go on from a checkpoint.

        Raises:
            SchedulerError: `checkpoint_identity_mismatch`, `checkpoint_budget_mismatch`,
                `checkpoint_dependency_mismatch` or `checkpoint_completion_mismatch`.
        """
        self._outline = outline
        self._limits = outline.limits
        self._run_id = run_id
        self._codes = bytearray(len(outline.ids))
        self.charges = Charges()
        if checkpoint is not None:
            self._restore(checkpoint)
        starts = range(0, len(self._codes), CHUNK)
        self._chunks = [bytes(self._codes[start : start + CHUNK]) for start in starts]
        self._changed: list[int] = []
        self._running: set[int] = set()
        self._inflight_units = 0
        self._effect_running = False
        self._exhausted = False
        self._pending = self._codes.count(CODES[ActionState.PENDING])
        self._waiting = [len(action.node.depends_on) for action in outline.actions]
        self._ready = ReadyQueue(outline.units)
        self._make_ready()

    def _restore(self, checkpoint: SchedulerCheckpoint) -> None:
        """Take over a checkpoint's states and charges, once they are found to be possible ones."""
        self._require_identity(checkpoint)
        self._codes = bytearray(b"".join(checkpoint.packed.chunks))
        self.charges = Charges(checkpoint.admitted_actions, checkpoint.reserved_units)
        self._require_charges()
        self._require_order()
        if checkpoint.stop_reason is StopReason.COMPLETED and not self.complete:
            raise SchedulerError(Code.CHECKPOINT_COMPLETION_MISMATCH)

    def _require_identity(self, checkpoint: SchedulerCheckpoint) -> None:
        same_plan = checkpoint.plan_digest == self._outline.digest and checkpoint.packed.ids == self._outline.ids
        if not same_plan or checkpoint.run_id != self._run_id:
            raise SchedulerError(Code.CHECKPOINT_IDENTITY_MISMATCH)

    def _require_charges(self) -> None:
        """Hold the charges to at least what the states cost, each further unit to a further admission."""
        admitted = [rank for rank, code in enumerate(self._codes) if STATES[code] is not ActionState.PENDING]
        actions = self.charges.admitted_actions - len(admitted)
        units = self.charges.reserved_units - sum(self._outline.units[rank] for rank in admitted)
        possible = 0 <= actions <= units and (actions > 0 or units == 0)
        within = self.charges.admitted_actions <= self._limits.max_actions
        if not possible or not within or self.charges.reserved_units > self._limits.max_total_units:
            raise SchedulerError(Code.CHECKPOINT_BUDGET_MISMATCH)

    def _require_order(self) -> None:
        """Hold every admitted action to having committed dependencies only."""
        for rank, code in enumerate(self._codes):
            if STATES[code] is not ActionState.COMMITTED:
                for child in self._outline.dependents[rank]:
                    if STATES[self._codes[child]] is not ActionState.PENDING:
                        raise SchedulerError(Code.CHECKPOINT_DEPENDENCY_MISMATCH)

    def _make_ready(self) -> None:
        """Find what can go first: the pending actions with no uncommitted dependency."""
        committed, pending = CODES[ActionState.COMMITTED], CODES[ActionState.PENDING]
        for rank, code in enumerate(self._codes):
            if code == committed:
                for child in self._outline.dependents[rank]:
                    self._waiting[child] -= 1
        for rank, code in enumerate(self._codes):
            if code == pending and self._waiting[rank] == 0:
                self._ready.add(rank)

    @property
    def limits(self) -> SchedulerLimits:
        """The budgets."""
        return self._outline.limits

    def node(self, rank: int) -> ActionNode:
        """The node of a rank."""
        return self._outline.actions[rank].node

    def action_id(self, rank: int) -> str:
        """The id of a rank."""
        return self._outline.ids[rank]

    @property
    def complete(self) -> bool:
        """Whether every action is committed."""
        return self._codes.count(CODES[ActionState.COMMITTED]) == len(self._codes)

    @property
    def unresolved(self) -> bool:
        """Whether any action is in flight, failed or in need of review: where a restored run must not go on."""
        return self._pending + self._codes.count(CODES[ActionState.COMMITTED]) < len(self._codes)

    @property
    def conclusion(self) -> StopReason:
        """Why nothing more can be admitted, once `admit` gives nothing while nothing runs."""
        return StopReason.COMPLETED if self._pending == 0 else StopReason.BUDGET_EXHAUSTED

    def admit(self) -> int | None:
        """Admit the next action and charge it. None while what runs has to end first, or for good.

        The scan goes up the ids. A read that does not fit beside the others is passed over; a ready effect ends it, as
        does the first action that the budgets cannot carry, and after that nothing is admitted again.
        """
        if self._closed:
            return None
        free = self._limits.max_inflight_units - self._inflight_units
        while (rank := self._ready.first(free)) is not None:
            cause = self._hindrance(rank, free)
            if cause is Cause.NEXT:
                self._ready.take(rank)
                self._begin(rank)
                return rank
            if cause is not Cause.UNITS:
                self._exhausted = cause is Cause.BUDGET
                return None
            self._ready.set_aside(rank)
        return None

    @property
    def _closed(self) -> bool:
        """Whether nothing at all can be admitted now."""
        if not self._running:
            return self._exhausted
        full = len(self._running) >= self._limits.max_concurrency
        return self._exhausted or full or self._effect_running or not self._limits.parallel_reads

    def _hindrance(self, rank: int, free: int) -> Cause:
        """What keeps one ready action from being admitted, were it the first."""
        units = self._outline.units[rank]
        if self._running and not self._outline.reads[rank]:
            return Cause.EXCLUSIVE
        if units > self._limits.max_inflight_units:
            return Cause.BUDGET
        if units > free:
            return Cause.UNITS
        return Cause.NEXT if self.charges.affords(units, self._limits) else Cause.BUDGET

    def _begin(self, rank: int) -> None:
        self._write(rank, ActionState.RUNNING)
        self.charges.add(self._outline.units[rank])
        self._pending -= 1
        self._running.add(rank)
        self._inflight_units += self._outline.units[rank]
        self._effect_running = not self._outline.reads[rank]

    def settle(self, rank: int, state: ActionState) -> None:
        """Take the result of an action in flight. Its dependents may become ready; its charge stays."""
        self._running.remove(rank)
        self._inflight_units -= self._outline.units[rank]
        self._effect_running = False
        self._write(rank, state)
        if state is ActionState.COMMITTED:
            for child in self._outline.dependents[rank]:
                self._waiting[child] -= 1
                if self._waiting[child] == 0:
                    self._ready.add(child)

    def abandon(self) -> None:
        """Hold everything that a restored checkpoint has in flight to be uncertain."""
        running = CODES[ActionState.RUNNING]
        for rank in [rank for rank, code in enumerate(self._codes) if code == running]:
            self._write(rank, ActionState.REVIEW_REQUIRED)

    def _write(self, rank: int, state: ActionState) -> None:
        self._codes[rank] = CODES[state]
        number = rank // CHUNK
        self._chunks[number] = bytes(self._codes[number * CHUNK : (number + 1) * CHUNK])
        self._changed.append(rank)

    def snapshot(self, elapsed_ns: int, stop_reason: StopReason | None = None) -> SchedulerCheckpoint:
        """The run as it is now. Constant cost but for one pointer a chunk."""
        changed, self._changed = self._changed, []
        ids = self._outline.ids
        fields = {
            "run_id": self._run_id,
            "plan_digest": self._outline.digest,
            "admitted_actions": self.charges.admitted_actions,
            "reserved_units": self.charges.reserved_units,
            "elapsed_ns": elapsed_ns,
            "stop_reason": stop_reason,
        }
        return SchedulerCheckpoint.of_run(fields, PackedStates(ids, tuple(self._chunks)), self._pairs(changed))

    def _pairs(self, ranks: list[int]) -> StatePairs:
        ids, codes = self._outline.ids, self._codes
        if len(ranks) == 1:  # what a run does; the other is for what a restored one changes first
            return ((ids[ranks[0]], STATES[codes[ranks[0]]]),)
        ordered = sorted(set(ranks))
        return tuple((ids[rank], STATES[codes[rank]]) for rank in ordered)

    def why(self, action_id: str, *, stopped: bool = False) -> Why:
        """Why an action is where it is: the rules of `admit`, asked for one. For people: it may look at every action.

        Raises:
            SchedulerError: `invalid_action`, for an id that is not in the graph.
        """
        rank = self._outline.ranks.get(action_id)
        if rank is None:
            raise SchedulerError(Code.INVALID_ACTION)
        state = STATES[self._codes[rank]]
        if state is ActionState.RUNNING:
            return Why(state, Cause.RUNNING)
        if state is not ActionState.PENDING:
            return Why(state, Cause.SETTLED)
        if stopped or self._exhausted:
            return Why(state, Cause.RUN_STOPPED if stopped else Cause.BUDGET)
        return self._why_pending(rank)

    def _why_pending(self, rank: int) -> Why:
        waits_for = tuple(sorted(self._uncommitted(rank)))
        if waits_for:
            return Why(ActionState.PENDING, Cause.DEPENDENCIES, waits_for)
        barrier = next((other for other in self._ready_effects() if other < rank), None)
        running = tuple(self._outline.ids[other] for other in sorted(self._running))
        if barrier is not None:
            return Why(ActionState.PENDING, Cause.BARRIER, (self._outline.ids[barrier],))
        if self._effect_running or (self._running and not self._limits.parallel_reads):
            return Why(ActionState.PENDING, Cause.EXCLUSIVE, running)
        if len(self._running) >= self._limits.max_concurrency:
            return Why(ActionState.PENDING, Cause.CONCURRENCY, running)
        cause = self._hindrance(rank, self._limits.max_inflight_units - self._inflight_units)
        return Why(ActionState.PENDING, cause, running if cause in (Cause.EXCLUSIVE, Cause.UNITS) else ())

    def _uncommitted(self, rank: int) -> Iterator[str]:
        for dependency in self._outline.actions[rank].node.depends_on:
            if STATES[self._codes[self._outline.ranks[dependency]]] is not ActionState.COMMITTED:
                yield dependency

    def _ready_effects(self) -> Iterator[int]:
        pending = CODES[ActionState.PENDING]
        for rank, code in enumerate(self._codes):
            if code == pending and self._waiting[rank] == 0 and not self._outline.reads[rank]:
                yield rank
