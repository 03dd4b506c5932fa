"""What is forgotten, and what is not."""

from __future__ import annotations

import pytest

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, shell
from fleet.test_fleet_reviews import doubtful, in_flight
from interlock.errors import NotFound
from interlock.fleet import HostSession
from interlock.testing.clock import ManualClock

DAY = 86_400.0


async def known(pool: Pool, *tasks: str) -> list[bool]:
    found = []
    for task in tasks:
        try:
            await pool.fleet.get(task)
        except NotFound:
            found.append(False)
        else:
            found.append(True)
    return found


async def ended(pool: Pool, session: HostSession, name: str) -> str:
    task = await pool.goal()
    assignment = await pool.running(session, name)
    await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    return str(task)


@pytest.mark.contract("F-113")
async def test_a_task_that_ended_long_ago_is_forgotten_whole_and_its_key_with_it(
    make_pool: MakePool, clock: ManualClock
) -> None:
    pool = make_pool(keep_history_seconds=DAY)
    session = await pool.host("h1", shell("d1"))
    keyed = await pool.goal(key="once")
    await session.finish((await pool.running(session, "c0")).lease_id, DONE, stopped=True, clean=True)
    clock.advance(DAY - 10)
    await pool.beat()
    young = await ended(pool, session, "c1")
    queued = await pool.goal(tags=frozenset({"no-such"}))
    await pool.scheduler.expire()
    assert await known(pool, keyed, young, queued) == [True, True, True]
    clock.advance(10)
    await pool.scheduler.expire()
    assert await known(pool, keyed, young, queued) == [False, True, True]
    assert await pool.goal(key="once") != keyed
    clock.advance(100 * DAY)
    await pool.scheduler.expire()
    assert await known(pool, young, queued) == [False, True]


@pytest.mark.contract("F-113")
async def test_without_a_limit_nothing_is_forgotten(pool: Pool, clock: ManualClock) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await ended(pool, session, "c0")
    clock.advance(10_000 * DAY)
    await pool.scheduler.expire()
    assert await known(pool, task) == [True]


@pytest.mark.contract("F-113")
async def test_the_history_is_looked_through_a_hundred_tasks_at_a_time(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(keep_history_seconds=DAY)
    tasks = [await pool.goal() for _ in range(120)]
    for task in tasks[1:]:
        await pool.fleet.cancel(task)
    clock.advance(DAY)
    await pool.scheduler.expire()
    assert sum(await known(pool, *tasks)) == 21
    await pool.scheduler.expire()
    assert await known(pool, *tasks) == [True] + [False] * 119
    await pool.fleet.cancel(tasks[0])
    clock.advance(DAY)
    await pool.scheduler.expire()
    assert await known(pool, tasks[0]) == [False]


@pytest.mark.contract("F-113")
async def test_a_task_in_doubt_stays_and_one_that_is_continued_goes_after_what_continues_it(
    make_pool: MakePool, clock: ManualClock
) -> None:
    pool = make_pool(keep_history_seconds=DAY)
    _, task = await doubtful(pool)
    clock.advance(100 * DAY)
    await pool.beat()
    await pool.scheduler.expire()
    assert await known(pool, task) == [True]
    successor = str((await pool.fleet.resolve(task, {"b": "happened"}, "ada")).successor_id)
    await pool.scheduler.expire()
    assert await known(pool, task, successor) == [True, True]
    await pool.fleet.cancel(successor)
    clock.advance(DAY)
    await pool.scheduler.expire()
    assert await known(pool, task, successor) == [True, False]
    await pool.scheduler.expire()
    assert await known(pool, task, successor) == [False, False]
    for query in ("runs_of_task", "journal_of_task", "attempts_of_task", "task_outputs"):
        assert await pool.store.rows(query, task=task) == []


@pytest.mark.contract("F-113")
async def test_a_task_stays_while_its_device_waits_for_its_end(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(keep_history_seconds=DAY, max_attempts=1)
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    assignment = await pool.running(session)
    await session.finish(assignment.lease_id, DONE, stopped=False, clean=False)
    clock.advance(DAY)
    await pool.beat()
    await pool.scheduler.expire()
    assert await known(pool, task) == [True]
    await session.confirm_stopped("d1", clean=True)
    await pool.scheduler.expire()
    assert await known(pool, task) == [False]


@pytest.mark.contract("F-113")
async def test_a_task_with_a_live_effect_stays(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(keep_history_seconds=DAY)
    _, assignment = await in_flight(pool)
    clock.advance(DAY)
    await pool.scheduler.expire()
    assert await known(pool, assignment.task_id) == [True]
