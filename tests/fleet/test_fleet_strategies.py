"""The strategies that ship, strategies of others, and the kit that both are run through."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InvalidInput, UnknownStrategy
from interlock.fleet import (
    AssignmentStrategy,
    BestFit,
    Constraints,
    DeviceRef,
    FairShare,
    FifoMatch,
    LeastRecentlyUsed,
    PooledDevice,
    Priority,
    QueuedTask,
    Snapshot,
    Submission,
    View,
    register_strategy,
    strategy_named,
)
from interlock.fleet.matching import obstacle
from interlock.fleet.model import HostId, TaskId
from interlock.fleet.strategies import uses_history, view_of
from interlock.testing.strategies import check_strategy

SHIPPED = ("best_fit", "fair_share", "fifo_match", "least_recently_used", "priority")
MINUTE = 60_000_000
Pairs = list[tuple[QueuedTask, PooledDevice]]


def device(serial: str, *tags: str, since: int = 0) -> PooledDevice:
    return PooledDevice(f"dev_{serial}", DeviceRef(HostId("h1"), serial), "shell", frozenset(tags), idle_since=since)


def task(number: int, *tags: str, rank: int = 0) -> QueuedTask:
    return QueuedTask(TaskId(f"task_{number}"), Constraints(tags=frozenset(tags)), rank, number)


def granted(strategy: AssignmentStrategy, tasks: Sequence[QueuedTask], *devices: PooledDevice) -> dict[str, str]:
    pairs = strategy.pair(Snapshot(tuple(tasks), devices))
    return {each.task_id: found.ref.serial for each, found in pairs}


@pytest.mark.contract("F-106")
@pytest.mark.parametrize("name", SHIPPED)
def test_every_strategy_that_ships_passes_the_kit(name: str) -> None:
    check_strategy(strategy_named(name))


@pytest.mark.contract("F-107")
def test_best_fit_spares_the_devices_with_more_tags() -> None:
    devices = device("a", "camera", "gpu"), device("b", "camera"), device("c")
    assert granted(FifoMatch(), [task(1)], *devices) == {"task_1": "a"}
    assert granted(BestFit(), [task(1), task(2, "camera")], *devices) == {"task_1": "c", "task_2": "b"}
    assert granted(BestFit(), [task(1)], device("b"), device("a")) == {"task_1": "a"}


@pytest.mark.contract("F-107")
def test_f75_least_recently_used_takes_the_device_that_has_been_idle_for_longest() -> None:
    devices = device("a", since=5), device("b", since=3), device("c", since=3)
    assert granted(LeastRecentlyUsed(), [task(1), task(2)], *devices) == {"task_1": "b", "task_2": "c"}
    assert view_of(LeastRecentlyUsed()) is View.BY_IDLE_TIME
    assert view_of(FifoMatch()) is View.BY_SERIAL


@pytest.mark.contract("F-107")
def test_a_priority_is_worth_a_minute_of_waiting_for_each_step() -> None:
    strategy = Priority()
    low, high = Submission("", 0, 0), Submission("", 3, 0)
    assert strategy.rank(high) < strategy.rank(low)
    assert strategy.rank(replace(high, submitted_at=3 * MINUTE - 1)) < strategy.rank(low)
    assert strategy.rank(replace(high, submitted_at=3 * MINUTE)) == strategy.rank(low)
    assert strategy.rank(replace(high, submitted_at=3 * MINUTE + 1)) > strategy.rank(low)
    assert Priority(ageing_seconds=1).rank(high) == -3_000_000


def served(strategy: AssignmentStrategy, submitters: str) -> str:
    """Submit in this order, then serve one after the other; whoever comes after a `|` comes once two were served."""
    last: dict[str, int] = {}
    queue: list[tuple[int, int, str]] = []
    answer, at = "", 0

    def submit(word: str) -> None:
        for each in word:
            rank = strategy.rank(Submission(each, 0, 0, at, last.get(each)))
            last[each] = rank
            queue.append((rank, len(queue) + len(answer), each))

    early, _, late = submitters.partition("|")
    submit(early)
    while queue:
        if len(answer) == 2:
            submit(late)
            late = ""
        first = min(queue)
        queue.remove(first)
        at, answer = first[0], answer + first[2]
    return answer


@pytest.mark.contract("F-107")
def test_f73_fair_share_lets_submitters_take_turns_and_a_newcomer_come_next() -> None:
    assert served(FairShare(), "aaaab") == "abaaa"
    assert served(FairShare(), "aaabbc") == "abcaba"
    assert served(FairShare(), "aaaaaa|bb") == "aababaaa"
    assert served(FifoMatch(), "aaaab") == "aaaab"
    assert uses_history(FairShare())
    assert not uses_history(FifoMatch())


class Nothing:
    """Pairs nothing, as a strategy may that waits for something better."""

    def rank(self, submission: Submission) -> int:
        del submission
        return 0

    def pair(self, snapshot: Snapshot) -> Pairs:
        del snapshot
        return []


class Ranks(FifoMatch):
    def __init__(self, *ranks: Any) -> None:
        self._ranks = list(ranks)

    def rank(self, submission: Submission) -> int:
        del submission
        rank: int = self._ranks.pop(0) if len(self._ranks) > 1 else self._ranks[0]
        return rank


class Pairing(FifoMatch):
    """What `fifo_match` pairs, spoilt."""

    def __init__(self, spoil: Callable[[Pairs, Snapshot], Pairs]) -> None:
        self._spoil = spoil

    def pair(self, snapshot: Snapshot) -> Pairs:
        return self._spoil(super().pair(snapshot), snapshot)


def forget_the_devices(pairs: Pairs, snapshot: Snapshot) -> Pairs:
    object.__setattr__(snapshot, "devices", ())
    return pairs


def give_the_wrong_one(pairs: Pairs, snapshot: Snapshot) -> Pairs:
    wrong = (
        (each, found) for each in snapshot.tasks for found in snapshot.devices if obstacle(each.constraints, found)
    )
    first = next(wrong, None)
    return pairs if first is None else [first]


CALLS: list[int] = []


def change_its_mind(pairs: Pairs, snapshot: Snapshot) -> Pairs:
    del snapshot
    CALLS.append(len(pairs))
    return pairs[: len(CALLS) % 2]


@pytest.mark.contract("F-106")
@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        (Ranks(1.5), "a rank is a whole number of 64 bits"),
        (Ranks(bool(1)), "a rank is a whole number of 64 bits"),
        (Ranks(2**63), "a rank is a whole number of 64 bits"),
        (Ranks(1, 2), "equal submissions have equal ranks"),
        (Pairing(forget_the_devices), "a snapshot is only read"),
        (Pairing(change_its_mind), "equal snapshots have equal pairs"),
        (Pairing(lambda pairs, _: [(replace(each, sequence=99), found) for each, found in pairs]), "of the snapshot"),
        (Pairing(lambda pairs, _: pairs + pairs[:1]), "paired twice"),
        (Pairing(lambda pairs, _: [*pairs, (pairs[0][0], pairs[1][1])] if pairs[1:] else pairs), "paired twice"),
        (Pairing(give_the_wrong_one), "a device satisfies the task that it gets"),
        (Nothing(), "no device is left idle"),
    ],
)
def test_the_kit_finds_each_slip(strategy: AssignmentStrategy, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_strategy(strategy)


@pytest.mark.contract("F-106")
def test_the_kit_allows_a_strategy_that_waits_where_it_is_told_to() -> None:
    check_strategy(Nothing(), idle=True)


@pytest.mark.contract("F-14")
def test_a_strategy_is_known_by_the_name_that_it_was_registered_under() -> None:
    register_strategy("priority_by_the_second")(lambda: Priority(ageing_seconds=1))
    assert strategy_named("priority_by_the_second").rank(Submission("", 1, 0)) == -1_000_000
    with pytest.raises(UnknownStrategy, match=f"{', '.join(SHIPPED)}"):
        strategy_named("no_such_one")


@pytest.mark.contract("F-14")
def test_what_is_no_strategy_is_refused_when_the_scheduler_is_built() -> None:
    half: Any = type("Half", (), {"rank": lambda *_: 0})
    register_strategy("half")(half)
    with pytest.raises(InvalidInput, match="'half' lacks pair"):
        strategy_named("half")


INSTALLED = """
from interlock.fleet import View


class NewestFirst:
    view = View.FULL

    def rank(self, submission):
        return 0

    def pair(self, snapshot):
        return list(zip(reversed(snapshot.tasks), snapshot.devices))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution whose only trace is its entry point."""
    facts = tmp_path / "newest_first-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: newest-first\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text("[interlock.strategies]\nnewest = newest_first:NewestFirst\n", "utf-8")
    (tmp_path / "newest_first.py").write_text(INSTALLED, "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()


@pytest.mark.contract("F-14")
@pytest.mark.usefixtures("installed")
def test_an_installed_strategy_is_found_by_its_entry_point_alone() -> None:
    strategy = strategy_named("newest")
    assert view_of(strategy) is View.FULL
    assert granted(strategy, [task(1), task(2)], device("a")) == {"task_2": "a"}
    with pytest.raises(UnknownStrategy, match="newest"):
        strategy_named("no_such_one")
