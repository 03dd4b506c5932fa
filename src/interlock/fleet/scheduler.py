"""The loop that assigns and expires: it decides nothing itself, and it outlives every fault of the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from interlock.clock import MICROSECONDS, Clock, SystemClock, jitter, new_id
from interlock.errors import InvalidInput
from interlock.fleet.matching import PooledDevice
from interlock.fleet.model import AttemptId, DeviceId, LeaseId, TaskId
from interlock.fleet.operations import Fleet
from interlock.fleet.settings import microseconds
from interlock.fleet.store import AdoptStrategy, Applied, Grant, Refused, Sweep, Swept
from interlock.fleet.strategies import AssignmentStrategy, QueuedTask, Snapshot, uses_history, view_of
from interlock.fleet.wakeups import ASSIGNABLE, host_topic, task_topic, wait_at_most
from interlock.telemetry import Event, emit


@dataclass(frozen=True)
class AssignReport:
    """What one pass did: the granted tasks, and each refused pair with the code of its refusal."""

    granted: tuple[TaskId, ...] = ()
    refused: tuple[tuple[TaskId, str, str], ...] = field(default=())


class TaskScheduler:
    """Matches queued tasks to idle devices by a named strategy, and ends attempts whose deadline has passed."""

    def __init__(self, fleet: Fleet, *, clock: Clock | None = None) -> None:
        self._fleet = fleet
        self._store = fleet.store
        self._settings = fleet.settings
        self._strategy: AssignmentStrategy = fleet.strategy
        self._view = view_of(fleet.strategy)
        self._notes_rank = uses_history(fleet.strategy)
        self._clock = clock or SystemClock()
        # A deferred look at what is due is bounded by the backstop, so this only ever shortens a wait.
        self._revisit_seconds = self._settings.sweep_every_seconds
        self.submit = fleet.submit

    async def adopt(self) -> int:
        """Have the queue ranked by this scheduler's strategy, if another one did so; says how many tasks that moved."""
        (outcome,) = await self._store.commit([AdoptStrategy(self._settings.strategy, self._strategy)])
        if isinstance(outcome, Refused):
            raise InvalidInput(outcome.detail)
        return int(str(outcome.value))

    async def assign(self) -> AssignReport:
        """One pass: a snapshot, its pairs, and each pair granted or refused in a transaction of its own."""
        snapshot = await self._store.snapshot(most=self._settings.max_queue_depth, view=self._view)
        pairs = _distinct(self._strategy.pair(snapshot))
        self._revisit_seconds = self._until_due(snapshot)
        if not pairs:
            return AssignReport()
        outcomes = await self._store.commit([self._grant(task, device) for task, device in pairs])
        granted, refused = [], []
        for (task, device), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, Refused):
                refused.append((task.task_id, device.device_id, outcome.code))
                emit(Event.GRANT_REFUSED, task=task.task_id, device=device.device_id, code=outcome.code)
            else:
                granted.append(task.task_id)
                emit(Event.TASK_ASSIGNED, task=task.task_id, device=device.device_id)
                self._fleet.wakeups.notify(host_topic(device.ref.host), task_topic(task.task_id))
        return AssignReport(tuple(granted), tuple(refused))

    async def expire(self) -> int:
        """End every attempt whose deadline has passed, offer what was held until now; says how many attempts ended."""
        keep = self._settings.keep_history_seconds
        operation = Sweep(
            retry_first=microseconds(self._settings.retry_first_seconds),
            retry_longest=microseconds(self._settings.retry_longest_seconds),
            keep_history=None if keep is None else microseconds(keep),
        )
        (outcome,) = await self._store.commit([operation])
        swept = outcome.value if isinstance(outcome, Applied) and isinstance(outcome.value, Swept) else Swept()
        if swept.expired:
            emit(Event.LEASE_LOST, leases=swept.expired)
        if swept.timed_out:
            emit(Event.QUEUE_TIMED_OUT, tasks=swept.timed_out)
        if swept.forgotten:
            emit(Event.HISTORY_FORGOTTEN, tasks=swept.forgotten)
        if swept.expired or swept.offered:
            self._fleet.wakeups.notify(ASSIGNABLE)
        return swept.expired

    async def run(self) -> None:
        """Assign on every change and sweep on time, until cancelled."""
        next_sweep = self._clock.elapsed()
        adopted = False
        while True:
            with self._fleet.wakeups.registered(ASSIGNABLE) as changed:
                adopted = adopted or await self._try_to_adopt()
                if self._clock.elapsed() >= next_sweep:
                    await self._try_to_sweep()
                    next_sweep = self._clock.elapsed() + jitter(self._settings.sweep_every_seconds)
                if not await self._try_to_assign():
                    await wait_at_most(
                        changed, max(0.0, min(next_sweep - self._clock.elapsed(), self._revisit_seconds))
                    )

    async def _try_to_adopt(self) -> bool:
        try:
            await self.adopt()
        except Exception as error:  # noqa: BLE001 - until it succeeds, the ranks of before are good enough
            emit(Event.ASSIGN_FAILED, code=type(error).__name__)
            return False
        return True

    async def _try_to_sweep(self) -> None:
        try:
            await self.expire()
        except Exception as error:  # noqa: BLE001 - a fault of the store ends a sweep and never the sweeping
            emit(Event.SWEEP_FAILED, code=type(error).__name__)

    async def _try_to_assign(self) -> bool:
        """Assign, and say whether another pass is worth while at once: a pair was refused because something moved."""
        try:
            report = await self.assign()
        except Exception as error:  # noqa: BLE001 - a fault of the store or the strategy ends a pass, never the loop
            emit(Event.ASSIGN_FAILED, code=type(error).__name__)
            self._revisit_seconds = self._settings.sweep_every_seconds
            return False
        return bool(report.granted and report.refused)

    def _grant(self, task: QueuedTask, device: PooledDevice) -> Grant:
        return Grant(
            attempt_id=AttemptId(new_id("att")),
            lease_id=LeaseId(new_id("lease")),
            task_id=task.task_id,
            device_id=DeviceId(device.device_id),
            claim_ttl=microseconds(self._settings.claim_ttl_seconds),
            notes_rank=self._notes_rank,
        )

    def _until_due(self, snapshot: Snapshot) -> float:
        if snapshot.revisit_at is None:
            return self._settings.sweep_every_seconds
        return max(0.0, (snapshot.revisit_at - self._clock.now()) / MICROSECONDS)


def _distinct(pairs: object) -> list[tuple[QueuedTask, PooledDevice]]:
    """The pairs whose task and device were not paired before: a strategy's slip must not cost the others the pass."""
    tasks: set[str] = set()
    devices: set[str] = set()
    kept = []
    for pair in pairs if isinstance(pairs, Iterable) else ():
        if not isinstance(pair, tuple) or len(pair) != len(("task", "device")):
            continue
        task, device = pair
        if not isinstance(task, QueuedTask) or not isinstance(device, PooledDevice):
            continue
        if task.task_id not in tasks and device.device_id not in devices:
            kept.append((task, device))
            tasks.add(task.task_id)
            devices.add(device.device_id)
    return kept
