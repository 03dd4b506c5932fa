"""Strategies: how tasks are ranked when they are submitted, and how a snapshot's tasks and devices are paired.

Both are pure. A strategy is registered under a name, by decorator or by an entry point of the group
`interlock.strategies`, and a scheduler is built with that name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from interlock.errors import InvalidInput, UnknownStrategy
from interlock.fleet.matching import PooledDevice, obstacle
from interlock.fleet.model import Constraints, TaskId

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

ENTRY_POINTS: Final = "interlock.strategies"
MICROSECONDS: Final = 1_000_000
_PARTS: Final = ("rank", "pair")


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
    """What a rank may depend on. `submitted_at` is in microseconds UTC by the store's clock.

    `reached_rank` is the rank that the queue has come to: that of the first task that waits with the same constraints,
    else of the task that was last given a device, else 0. `submitter_rank` is that of the submitter's last task, or
    None. The two are kept only for a strategy with `uses_history`.
    """

    submitter: str
    priority: int
    submitted_at: int
    reached_rank: int = 0
    submitter_rank: int | None = None


class View(StrEnum):
    """What a strategy is shown of the idle devices.

    Of all devices that satisfy the same tasks it sees the first few, in one of the two orders, and of all tasks with
    the same constraints the first few: a pass costs the same, however much is queued. `FULL` shows every queued task
    and every idle device, at the cost of the whole queue in each pass.
    """

    BY_SERIAL = "by_serial"
    BY_IDLE_TIME = "by_idle_time"
    FULL = "full"


class AssignmentStrategy(Protocol):
    """A way to decide which device runs which task.

    Two attributes are looked for and need not be there: `view`, `View.BY_SERIAL` by default, and `uses_history`, false
    by default, which says whether `rank` looks at the two ranks of a `Submission`.
    """

    def rank(self, submission: Submission) -> int:
        """The task's place in the queue: lower goes first, equal ones go in the order of submission."""
        ...

    def pair(self, snapshot: Snapshot) -> Sequence[tuple[QueuedTask, PooledDevice]]:
        """Pairs to grant, best first: each task and each device at most once."""
        ...


def view_of(strategy: AssignmentStrategy) -> View:
    """What a strategy wants to be shown."""
    return View(getattr(strategy, "view", View.BY_SERIAL))


def uses_history(strategy: object) -> bool:
    """Whether a strategy's ranks depend on earlier ones."""
    return bool(getattr(strategy, "uses_history", False))


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

    def preference(self, constraints: Constraints, device: PooledDevice) -> SupportsRichComparison:  # noqa: ARG002
        """What the devices that satisfy a task are sorted by: the first one gets it."""
        return device.ref.host, device.ref.serial

    def _pairs(self, snapshot: Snapshot) -> Iterator[tuple[QueuedTask, PooledDevice]]:
        taken: set[str] = set()
        candidates: dict[Constraints, Iterator[PooledDevice]] = {}
        for task in snapshot.tasks:
            wanted = task.constraints
            if wanted not in candidates:
                fitting = (device for device in snapshot.devices if obstacle(wanted, device) is None)
                candidates[wanted] = iter(sorted(fitting, key=partial(self.preference, wanted)))
            device = next((device for device in candidates[wanted] if device.device_id not in taken), None)
            if device is not None:
                taken.add(device.device_id)
                yield task, device


class BestFit(FifoMatch):
    """As `fifo_match`, but the device with the fewest tags that the task did not ask for: rare ones are spared."""

    def preference(self, constraints: Constraints, device: PooledDevice) -> SupportsRichComparison:
        """See `FifoMatch.preference`."""
        return len(device.tags - constraints.tags), super().preference(constraints, device)


class LeastRecentlyUsed(FifoMatch):
    """As `fifo_match`, but the device that has been idle for longest: wear is spread over all of them."""

    view = View.BY_IDLE_TIME

    def preference(self, constraints: Constraints, device: PooledDevice) -> SupportsRichComparison:
        """See `FifoMatch.preference`."""
        return device.idle_since, super().preference(constraints, device)


class Priority(FifoMatch):
    """Higher priorities first, and whoever waits gains: each step of priority is worth one `ageing_seconds` of waiting.

    A task that was submitted earlier by more than the difference goes first all the same, so nothing waits for ever.
    """

    def __init__(self, ageing_seconds: int = 60) -> None:
        self._step = ageing_seconds * MICROSECONDS

    def rank(self, submission: Submission) -> int:
        """See `AssignmentStrategy.rank`."""
        return submission.submitted_at - submission.priority * self._step


class FairShare(FifoMatch):
    """Submitters take turns, however much each of them has queued.

    A rank is a virtual time: the one that the queue has come to, or one after the submitter's own last task, whichever
    is later. So a newcomer comes next, and somebody with a hundred thousand tasks waits in a line of his own.
    """

    uses_history = True

    def rank(self, submission: Submission) -> int:
        """See `AssignmentStrategy.rank`."""
        if submission.submitter_rank is None:
            return submission.reached_rank
        return max(submission.reached_rank, submission.submitter_rank + 1)


_registry: dict[str, Callable[[], AssignmentStrategy]] = {
    "fifo_match": FifoMatch,
    "best_fit": BestFit,
    "least_recently_used": LeastRecentlyUsed,
    "priority": Priority,
    "fair_share": FairShare,
}
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
    """Make the strategy of this name.

    Raises:
        UnknownStrategy: There is none; the message lists those that there are.
        InvalidInput: What is registered under the name lacks a part of `AssignmentStrategy`.
    """
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in _registry:
        strategy = _registry[name]()
    elif name in installed:
        strategy = installed[name].load()()
    else:
        known = ", ".join(sorted(_registry.keys() | installed.keys()))
        message = f"there is no assignment strategy {name!r}: configure one of {known}"
        raise UnknownStrategy(message)
    missing = [part for part in _PARTS if not hasattr(strategy, part)]
    if missing:
        message = f"the assignment strategy {name!r} lacks {' and '.join(missing)}: see AssignmentStrategy"
        raise InvalidInput(message)
    return strategy
