"""The kit that any assignment strategy can be run through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Final

from interlock.clock import Chance
from interlock.fleet.matching import PooledDevice, obstacle
from interlock.fleet.model import Constraints, DeviceRef, HostId, TaskId
from interlock.fleet.strategies import AssignmentStrategy, QueuedTask, Snapshot, Submission, view_of

_TAGS: Final = ("camera", "gpu", "nfc")
_DRIVERS: Final = ("shell", "browser")
_RANK_BOUND: Final = 2**63
_NOW: Final = 1_800_000_000_000_000
_Pairs = Sequence[tuple[QueuedTask, PooledDevice]]


def check_strategy(strategy: AssignmentStrategy, *, snapshots: int = 300, seed: int = 0, idle: bool = False) -> None:
    """Show a strategy random snapshots and submissions, and hold what it answers to what the scheduler counts on.

    It ranks with whole numbers of 64 bits; it pairs tasks and devices of the snapshot, each once, and only where the
    device satisfies the task; it changes nothing, and answers alike to equal questions. Unless `idle` allows it, it
    leaves no device idle that satisfies a task without one. The same `seed` shows the same snapshots.

    Raises:
        AssertionError: Says which rule was broken, by which answer to which snapshot.
        ValueError: Its `view` is none.
    """
    view_of(strategy)
    chance = Chance(seed)
    for submission in islice(_submissions(chance), snapshots):
        _check_rank(strategy, submission)
    for snapshot in islice(_snapshots(chance), snapshots):
        _check_pairs(strategy, snapshot, idle=idle)


def _check_rank(strategy: AssignmentStrategy, submission: Submission) -> None:
    rank = strategy.rank(submission)
    whole = type(rank) is int and abs(rank) < _RANK_BOUND
    _require(whole, "a rank is a whole number of 64 bits", rank, submission)
    _require(strategy.rank(submission) == rank, "equal submissions have equal ranks", rank, submission)


def _check_pairs(strategy: AssignmentStrategy, snapshot: Snapshot, *, idle: bool) -> None:
    before = deepcopy(snapshot)
    pairs = list(strategy.pair(snapshot))
    _require(snapshot == before, "a snapshot is only read", pairs, before)
    _require(list(strategy.pair(snapshot)) == pairs, "equal snapshots have equal pairs", pairs, snapshot)
    known = all(task in snapshot.tasks and device in snapshot.devices for task, device in pairs)
    _require(known, "tasks and devices are those of the snapshot", pairs, snapshot)
    tasks, devices = {task.task_id for task, _ in pairs}, {device.device_id for _, device in pairs}
    _require(len(tasks) == len(devices) == len(pairs), "no task and no device is paired twice", pairs, snapshot)
    fits = all(obstacle(task.constraints, device) is None for task, device in pairs)
    _require(fits, "a device satisfies the task that it gets", pairs, snapshot)
    left = (
        obstacle(task.constraints, device) is None
        for task in snapshot.tasks
        if task.task_id not in tasks
        for device in snapshot.devices
        if device.device_id not in devices
    )
    _require(idle or not any(left), "no device is left idle that satisfies a task left waiting", pairs, snapshot)


def _require(holds: bool, rule: str, answer: object, question: object) -> None:  # noqa: FBT001 - what is required
    if not holds:
        message = f"{rule}; it answered {answer!r} to {question!r}"
        raise AssertionError(message)


def _submissions(chance: Chance) -> Iterator[Submission]:
    while True:
        earlier = chance.choice([None, chance.randrange(1_000)])
        submitted_at = _NOW + chance.randrange(10**12)
        submitter = chance.choice(["", "ann", "bob"])
        yield Submission(submitter, chance.randint(-1_000, 1_000), submitted_at, chance.randrange(1_000), earlier)


def _snapshots(chance: Chance) -> Iterator[Snapshot]:
    while True:
        devices = [_device(chance, number) for number in range(chance.randrange(7))]
        tasks = [_task(chance, number, devices) for number in range(chance.randrange(9))]
        yield Snapshot(
            tasks=tuple(sorted(tasks, key=lambda task: (task.rank, task.sequence))),
            devices=tuple(sorted(devices, key=lambda device: (device.ref.host, device.ref.serial))),
            waiting=len(tasks) + chance.randrange(3),
        )


def _device(chance: Chance, number: int) -> PooledDevice:
    tags = frozenset(chance.sample(_TAGS, chance.randrange(len(_TAGS) + 1)))
    exclusive = frozenset(tag for tag in tags if chance.random() < 0.2)  # noqa: PLR2004 - one in five
    ref = DeviceRef(HostId(f"h{chance.randrange(3)}"), f"d{number}")
    idle_since = _NOW - chance.randrange(5)
    return PooledDevice(f"dev_{number}", ref, chance.choice(_DRIVERS), tags, exclusive, idle_since=idle_since)


def _task(chance: Chance, number: int, devices: Sequence[PooledDevice]) -> QueuedTask:
    driver = chance.choice([None, None, *_DRIVERS])
    tags = frozenset(chance.sample(_TAGS, chance.choice([0, 0, 1, 2])))
    pinned = chance.choice(devices).ref if devices and chance.random() < 0.2 else None  # noqa: PLR2004 - one in five
    return QueuedTask(TaskId(f"task_{number}"), Constraints(driver, tags, pinned), chance.randrange(3), number)
