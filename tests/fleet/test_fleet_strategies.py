"""The strategies that ship, strategies of others, and the kit that both are run through."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, ref, released, shell
from interlock.errors import InvalidInput, UnknownStrategy
from interlock.fleet import (
    AssignmentStrategy,
    BestFit,
    Constraints,
    DeviceRef,
    FairShare,
    FifoMatch,
    GoalRequest,
    HostSession,
    LeastRecentlyUsed,
    PooledDevice,
    Priority,
    QueuedTask,
    Snapshot,
    Submission,
    SubmitRequest,
    View,
    register_strategy,
    strategy_named,
)
from interlock.fleet.matching import obstacle
from interlock.fleet.model import HostId, TaskId
from interlock.fleet.strategies import uses_history, view_of
from interlock.fleet.wakeups import task_topic
from interlock.testing.clock import ManualClock
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
    with pytest.raises(UnknownStrategy) as caught:
        strategy_named("no_such_one")
    assert all(name in str(caught.value) for name in (*SHIPPED, "priority_by_the_second"))


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


CLAIMS = itertools.count()


class Seen(FifoMatch):
    """Keeps what it is shown."""

    view = View.FULL

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []

    def pair(self, snapshot: Snapshot) -> Pairs:
        self.shown.append(snapshot)
        return []


@pytest.mark.contract("F-107")
@pytest.mark.parametrize("view", list(View))
async def test_a_strategy_is_shown_what_it_asks_for(make_pool: MakePool, view: View) -> None:
    strategy = Seen()
    strategy.view = view
    name = f"seen_{next(CLAIMS)}"
    register_strategy(name)(lambda: strategy)
    pool = make_pool(strategy=name)
    await pool.host("h1", shell("d1"))
    ordinary = [await pool.goal() for _ in range(3)]
    pinned = await pool.goal(device=ref("h1", "d9"))
    unknown = await pool.goal(tags=frozenset({"gpu"}))
    await pool.scheduler.assign()
    (snapshot,) = strategy.shown
    shown = [each.task_id for each in snapshot.tasks]
    assert shown == ([*ordinary, pinned, unknown] if view is View.FULL else ordinary[:1])
    assert {each.task_id: each.constraints.device for each in snapshot.tasks}.get(pinned) == (
        ref("h1", "d9") if view is View.FULL else None
    )


async def order_of(pool: Pool, session: HostSession, count: int) -> list[str]:
    """Serve so many tasks one after the other on the pool's one device."""
    order = []
    for _ in range(count):
        assignment = await pool.running(session, f"claim-{next(CLAIMS)}")
        order.append(str(assignment.task_id))
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    return order


async def submitted(pool: Pool, submitter: str, *, priority: int = 0, **wanted: Any) -> str:
    request = SubmitRequest(GoalRequest(f"for {submitter}", "agents:look"), Constraints(**wanted))
    return str(await pool.fleet.submit(replace(request, submitter=submitter, priority=priority)))


@pytest.mark.contract("F-107")
async def test_f73_a_newcomer_comes_next_however_much_another_has_queued(make_pool: MakePool) -> None:
    pool = make_pool(strategy="fair_share")
    session = await pool.host("h1", shell("d1"))
    await pool.host("h2", shell("d2", "gpu"))
    ann = [await submitted(pool, "ann", driver_type="shell", device=ref("h1", "d1")) for _ in range(30)]
    first = await order_of(pool, session, 3)
    # On another device ann's later tasks are served at once. That must not put bob behind her earlier ones.
    await submitted(pool, "ann", tags=frozenset({"gpu"}))
    await pool.scheduler.assign()
    bob = [await submitted(pool, "bob", driver_type="shell", device=ref("h1", "d1")) for _ in range(2)]
    assert first + await order_of(pool, session, 5) == [*ann[:5], bob[0], ann[5], bob[1]]


@pytest.mark.contract("F-107")
async def test_a_newcomer_without_equals_comes_where_the_last_grant_was(make_pool: MakePool) -> None:
    pool = make_pool(strategy="fair_share")
    session = await pool.host("h1", shell("d1"))
    ann = [await submitted(pool, "ann") for _ in range(4)]
    await order_of(pool, session, 2)
    bob = [await submitted(pool, "bob", driver_type="shell") for _ in range(2)]
    assert await order_of(pool, session, 4) == [bob[0], ann[2], bob[1], ann[3]]


@pytest.mark.contract("F-107")
async def test_a_priority_goes_first_and_waiting_makes_up_for_it(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(strategy="priority")
    session = await pool.host("h1", shell("d1"))
    old = await submitted(pool, "ann")
    clock.advance(90)
    await pool.beat()
    plain, high, higher = [await submitted(pool, "ann", priority=priority) for priority in (0, 1, 2)]
    assert await order_of(pool, session, 4) == [higher, old, high, plain]


@pytest.mark.contract("F-107")
async def test_f75_devices_are_used_in_turn_by_least_recently_used(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(strategy="least_recently_used")
    session = await pool.host("h1", shell("d1"), shell("d2"), shell("d3"))
    used = []
    for number in range(6):
        clock.advance(1)
        await pool.goal()
        assignment = await pool.running(session, f"round-{number}")
        used.append(assignment.device.serial)
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    assert used == ["d1", "d2", "d3"] * 2


@pytest.mark.contract("F-108")
async def test_another_strategy_than_before_ranks_the_queue_again(make_pool: MakePool) -> None:
    pool = make_pool()
    ann = [await submitted(pool, "ann") for _ in range(3)]
    bob = await submitted(pool, "bob", priority=1)
    assert await pool.scheduler.adopt() == 0
    await pool.close()
    pool = make_pool(strategy="fair_share")
    assert await pool.scheduler.adopt() == 4
    assert await pool.scheduler.adopt() == 0
    session = await pool.host("h1", shell("d1"))
    assert await order_of(pool, session, 2) == [ann[0], bob]
    await pool.close()
    pool = make_pool(strategy="priority")
    last = await submitted(pool, "cid", priority=2)
    assert await pool.scheduler.adopt() == 3
    session = await pool.host("h1", shell("d1"))
    assert await order_of(pool, session, 3) == [last, ann[1], ann[2]]


@pytest.mark.contract("F-108")
async def test_ranks_that_were_given_before_another_strategy_came_count_no_more(make_pool: MakePool) -> None:
    pool = make_pool(strategy="fair_share")
    await pool.scheduler.adopt()
    for _ in range(3):
        await submitted(pool, "ann", device=ref("h1", "none"))
    await pool.close()
    pool = make_pool()
    await pool.scheduler.adopt()
    tasks = [await submitted(pool, submitter) for submitter in ("ann", "bob")]
    for waiting in await pool.fleet.tasks():
        if waiting.device is not None:
            await pool.fleet.cancel(waiting.task_id)
    await pool.close()
    pool = make_pool(strategy="fair_share")
    await pool.scheduler.adopt()
    assert await order_of(pool, await pool.host("h1", shell("d1")), 2) == tasks


@pytest.mark.contract("F-108")
async def test_a_task_in_the_middle_of_an_attempt_comes_back_at_its_new_place(make_pool: MakePool) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell("d1"))
    running = await submitted(pool, "ann")
    assignment = await pool.running(session)
    high = await submitted(pool, "ann", priority=5)
    await pool.close()
    pool = make_pool(strategy="priority")
    await pool.scheduler.adopt()
    session = await pool.host("h1", shell("d1"))
    await session.finish(assignment.lease_id, released("not_started"), stopped=True, clean=True)
    await pool.scheduler.expire()
    assert await order_of(pool, session, 2) == [high, running]


@pytest.mark.contract("F-108")
async def test_the_loop_adopts_before_it_assigns(make_pool: MakePool) -> None:
    pool = make_pool()
    low, high = await submitted(pool, "ann"), await submitted(pool, "ann", priority=5)
    await pool.close()
    pool = make_pool(strategy="priority")
    await pool.host("h1", shell("d1"))
    with pool.fleet.wakeups.registered(task_topic(low), task_topic(high)) as assigned:
        loop = asyncio.create_task(pool.scheduler.run())
        await assigned.wait()
    loop.cancel()
    await asyncio.wait({loop})
    assert [await pool.status(high), (await pool.fleet.get(high)).task.running_on] == ["assigned", "h1/d1"]


@pytest.mark.contract("F-14", "F-106")
def test_the_example_of_the_guide_runs_as_it_stands() -> None:
    guide = Path(__file__).parents[2] / "docs" / "fleet.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(example, str(guide), "exec"), {"__name__": "guide"})  # noqa: S102 - it is our own guide
    night, day = Submission("", 0, 3 * 3_600_000_000), Submission("", 0, 12 * 3_600_000_000)
    assert strategy_named("night_owls").rank(night) < strategy_named("night_owls").rank(day)
