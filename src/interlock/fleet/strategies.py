"""Strategies: how tasks are ranked when they are submitted, and how a snapshot's tasks and devices are paired.

Both are pure. A strategy is registered under a name, by decorator or by an entry point of the group
`interlock.strategies`, and a scheduler is built with that name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, TypeVar

from interlock.errors import InvalidInput, UnknownStrategy
from interlock.fleet.matching import PooledDevice, obstacle
from interlock.fleet.model import Constraints, TaskId

ENTRY_POINTS = "interlock.strategies"


@dataclass(frozen=True)
class QueuedTask:
    """A queued task as a strategy sees it. `sequence` is the order of submission."""

    task_id: TaskId
    constraints: Constraints
    rank: int
    sequence: int


@dataclass(frozen=True)
class Snapshot:
    """What one pass decides on: some eligible tasks by (rank, sequence), and some idle devices by (host, serial).

    `waiting` is how many tasks are queued in all, `revisit_at` when the first of the held ones is due (microseconds
    UTC, by the store's clock), or None.
    """

    tasks: tuple[QueuedTask, ...]
    devices: tuple[PooledDevice, ...]
    waiting: int = 0
    revisit_at: int | None = None


@dataclass(frozen=True)
class Submission:
    """What a rank may depend on. `submitted_at` is in microseconds UTC by the store's clock."""

    submitter: str
    priority: int
    submitted_at: int


class AssignmentStrategy(Protocol):
    """A way to decide which device runs which task."""

    def rank(self, submission: Submission) -> int:
        """The task's place in the queue: lower goes first, equal ones go in the order of submission."""
        ...

    def pair(self, snapshot: Snapshot) -> Sequence[tuple[QueuedTask, PooledDevice]]:
        """Pairs to grant, best first: each task and each device at most once."""
        ...


class FifoMatch:
    """The oldest task that an idle device satisfies, and the first such device by (host, serial).

    A head that nothing satisfies stays where it is and holds nobody up.
    """

    def rank(self, submission: Submission) -> int:  # noqa: ARG002 - the order of submission is the whole order
        """See `AssignmentStrategy.rank`."""
        return 0

    def pair(self, snapshot: Snapshot) -> list[tuple[QueuedTask, PooledDevice]]:
        """See `AssignmentStrategy.pair`."""
        return list(self._pairs(snapshot))

    def _pairs(self, snapshot: Snapshot) -> Iterator[tuple[QueuedTask, PooledDevice]]:
        free = list(snapshot.devices)
        for task in snapshot.tasks:
            if not free:
                return
            device = next((device for device in free if obstacle(task.constraints, device) is None), None)
            if device is not None:
                free.remove(device)
                yield task, device


_registry: dict[str, Callable[[], AssignmentStrategy]] = {"fifo_match": FifoMatch}
Factory = TypeVar("Factory", bound=Callable[[], AssignmentStrategy])


def register_strategy(name: str) -> Callable[[Factory], Factory]:
    """Register a class, or a function without arguments, as the maker of the strategy of this name."""

    def register(factory: Factory) -> Factory:
        if name in _registry:
            message = f"a strategy named {name!r} is registered already: choose another name"
            raise InvalidInput(message)
        _registry[name] = factory
        return factory

    return register


def strategy_named(name: str) -> AssignmentStrategy:
    """The strategy of this name, or `UnknownStrategy`, which lists those that there are."""
    if name in _registry:
        return _registry[name]()
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in installed:
        factory: Callable[[], AssignmentStrategy] = installed[name].load()
        return factory()
    known = ", ".join(sorted(_registry.keys() | installed.keys()))
    message = f"there is no assignment strategy {name!r}: configure one of {known}"
    raise UnknownStrategy(message)
