"""How long a task may wait, from when on it may run, what a full queue answers, and estimates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, released, shell
from interlock.errors import Conflict, InvalidInput, QueueFull
from interlock.fleet import Constraints, GoalRequest, HostSession, SubmitRequest
from interlock.fleet.estimates import eligible, seconds_until_free
from interlock.fleet.matching import PooledDevice
from interlock.fleet.model import DeviceRef, HostId, Service
from interlock.fleet.transitions import retry_delay_seconds, spread
from interlock.testing.clock import ManualClock

WORK = SubmitRequest(GoalRequest("look around", "agents:look"))


def in_seconds(clock: ManualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1_000_000, UTC) + timedelta(seconds=seconds)


async def ended_as(pool: Pool, task: str) -> tuple[str, str | None]:
    found = (await pool.fleet.get(task)).task
    return found.status, found.reason


@pytest.mark.contract("F-109")
async def test_a_task_is_held_until_it_may_run_and_keeps_its_place(pool: Pool, clock: ManualClock) -> None:
    held = await pool.fleet.submit(replace(WORK, not_before=in_seconds(clock, 60)))
    session = await pool.host("h1", shell("d1"))
    await pool.pass_time(55)
    assert (await pool.scheduler.assign()).granted == ()
    assert "not_before" in (await pool.fleet.why(held)).summary
    later = await pool.goal()
    await pool.pass_time(5)
    assert (await pool.running(session)).task_id == held
    assert await pool.status(later) == "queued"


@pytest.mark.contract("F-109")
async def test_a_time_that_has_passed_holds_nothing(pool: Pool, clock: ManualClock) -> None:
    await pool.host("h1", shell("d1"))
    task = await pool.fleet.submit(replace(WORK, not_before=in_seconds(clock, -1)))
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-109")
async def test_held_tasks_count_for_the_limit_and_can_be_cancelled(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(max_queue_depth=1)
    held = await pool.fleet.submit(replace(WORK, not_before=in_seconds(clock, 60)))
    with pytest.raises(QueueFull):
        await pool.goal()
    await pool.fleet.cancel(held)
    assert await pool.status(await pool.goal()) == "queued"


@pytest.mark.contract("F-110")
@pytest.mark.parametrize("queue_timeout", [600, 600.0])
async def test_f69_a_task_that_waits_for_too_long_ends_at_that_time(
    pool: Pool, clock: ManualClock, queue_timeout: float
) -> None:
    task = await pool.fleet.submit(replace(WORK, queue_timeout_seconds=queue_timeout))
    patient = await pool.goal()
    clock.advance(599.9)
    await pool.scheduler.expire()
    assert await pool.status(task) == "queued"
    clock.advance(0.1)
    await pool.scheduler.expire()
    assert await ended_as(pool, task) == ("failed", "queue_timeout")
    assert await pool.status(patient) == "queued"


@pytest.mark.contract("F-110")
async def test_f68_a_task_that_has_waited_for_too_long_is_never_assigned(pool: Pool, clock: ManualClock) -> None:
    task = await pool.fleet.submit(replace(WORK, queue_timeout_seconds=10.0))
    clock.advance(10)
    await pool.host("h1", shell("d1"))
    report = await pool.scheduler.assign()
    assert (report.granted, [code for _, _, code in report.refused]) == ((), ["task_moved"])
    await pool.scheduler.expire()
    assert await ended_as(pool, task) == ("failed", "queue_timeout")


@pytest.mark.contract("F-110")
async def test_what_is_held_does_not_wait_and_each_wait_counts_for_itself(pool: Pool, clock: ManualClock) -> None:
    held = replace(WORK, not_before=in_seconds(clock, 60), queue_timeout_seconds=10.0)
    task = await pool.fleet.submit(held)
    session = await pool.host("h1", shell("d1"))
    await pool.pass_time(65)
    assignment = await pool.running(session)
    await pool.pass_time(20)
    await session.finish(assignment.lease_id, released("not_started"), stopped=True, clean=True)
    await session.beat("boot-1", "gen-1", [])
    await pool.pass_time(5, beating=False)
    assert await pool.status(task) == "queued"
    await pool.pass_time(10, beating=False)
    assert await ended_as(pool, task) == ("failed", "queue_timeout")


@pytest.mark.contract("F-110")
async def test_the_fleet_may_say_how_long_a_task_waits_where_its_submission_does_not(
    make_pool: MakePool, clock: ManualClock
) -> None:
    pool = make_pool(queue_timeout_seconds=5.0)
    impatient, patient = await pool.goal(), await pool.fleet.submit(replace(WORK, queue_timeout_seconds=50.0))
    clock.advance(6)
    await pool.scheduler.expire()
    assert [await pool.status(impatient), await pool.status(patient)] == ["failed", "queued"]


@pytest.mark.contract("F-109", "F-110")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"not_before": datetime(2030, 1, 1)}, "offset from UTC"),  # noqa: DTZ001 - that it has none is the point
        ({"queue_timeout_seconds": 0}, "more than 0"),
        ({"queue_timeout_seconds": float("nan")}, "more than 0"),
        ({"queue_timeout_seconds": 1e12}, "at most"),
        ({"queue_timeout_seconds": True}, "more than 0"),
    ],
)
async def test_a_wait_that_is_none_is_refused(pool: Pool, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await pool.fleet.submit(replace(WORK, **wrong))


@pytest.mark.contract("F-05")
async def test_another_time_under_the_same_key_is_another_body(pool: Pool, clock: ManualClock) -> None:
    keyed = replace(WORK, idempotency_key="k", not_before=in_seconds(clock, 60))
    task = await pool.fleet.submit(keyed)
    assert await pool.fleet.submit(keyed) == task
    with pytest.raises(Conflict):
        await pool.fleet.submit(replace(keyed, not_before=in_seconds(clock, 61)))


async def full(make_pool: MakePool) -> Pool:
    """A pool of three devices, one of them out of service, whose queue holds the one task that it may."""
    pool = make_pool(max_queue_depth=1)
    await pool.host("h1", shell("d1", "gpu"), shell("d2"), shell("d3", "gpu"))
    await pool.fleet.set_service(DeviceRef(HostId("h1"), "d3"), "draining", None)
    return pool


async def refusal(pool: Pool, **wanted: Any) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        await pool.fleet.submit(replace(WORK, constraints=Constraints(**wanted)))
    return caught.value


@pytest.mark.contract("F-111")
async def test_f71_a_full_queue_says_how_many_devices_there_are_and_when_to_come_back(
    make_pool: MakePool, clock: ManualClock
) -> None:
    pool = await full(make_pool)
    await pool.goal()
    told = await refusal(pool, tags=frozenset({"gpu"}))
    assert told.facts == {"eligible_devices": 1, "retry_after_seconds": None}
    session = pool.sessions["h1"]
    for number in range(2):
        assignment = await pool.running(session, f"claim-{number}")
        clock.advance(40)
        await pool.beat()
        await session.renew(assignment.lease_id)
        clock.advance(20)
        await pool.beat()
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
        await pool.goal()
    told = await refusal(pool)
    assert told.facts == {"eligible_devices": 2, "retry_after_seconds": 30.0}
    assert "in about 30 s" in str(told)


@pytest.mark.contract("F-111")
async def test_a_full_queue_looks_at_the_devices_once_a_second_at_most(make_pool: MakePool, clock: ManualClock) -> None:
    pool = await full(make_pool)
    await pool.goal()
    assert (await refusal(pool)).eligible_devices == 2
    await pool.fleet.set_service(DeviceRef(HostId("h1"), "d3"), "in_service", None)
    assert (await refusal(pool)).eligible_devices == 2
    clock.advance(1)
    assert (await refusal(pool)).eligible_devices == 3


@pytest.mark.contract("F-112")
async def test_why_tells_the_place_and_about_how_long(pool: Pool, clock: ManualClock) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    tasks = [await pool.goal() for _ in range(3)]
    assert (await pool.fleet.why(tasks[1])).about_seconds is None
    await serve_for(pool, session, clock, 30)
    await pool.running(session, "last")
    found = [await pool.fleet.why(task) for task in tasks]
    assert [(each.ahead, each.about_seconds) for each in found] == [(None, None), (0, 30.0), (1, 60.0)]


async def serve_for(pool: Pool, session: HostSession, clock: ManualClock, seconds: float) -> None:
    assignment = await pool.running(session, f"claim-{seconds}")
    clock.advance(seconds)
    await pool.beat()
    await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)


def pooled(took: int | None, **more: Any) -> PooledDevice:
    return PooledDevice("dev", DeviceRef(HostId("h1"), "d1"), "shell", frozenset(), took=took, **more)


@pytest.mark.contract("F-111")
def test_an_estimate_is_the_mean_hold_shared_among_the_devices() -> None:
    assert seconds_until_free([pooled(10_000_000), pooled(20_000_000), pooled(None)], 4) == 20.0
    assert seconds_until_free([pooled(None)], 1) is None
    assert seconds_until_free([], 1) is None
    out = [pooled(1, present=False), pooled(1, service=Service.QUARANTINED), pooled(1)]
    assert eligible(Constraints(), out) == out[2:]


@pytest.mark.contract("F-55")
@given(failures=st.integers(1, 200), lease=st.text())
def test_the_back_off_is_spread_over_a_fifth_by_the_lease_that_was_lost(failures: int, lease: str) -> None:
    whole = retry_delay_seconds(failures, first=1.0, longest=60.0)
    delay = retry_delay_seconds(failures, first=1.0, longest=60.0, spread=spread(lease))
    assert 0.8 * whole <= delay <= whole
    assert spread(lease) == spread(lease)


@pytest.mark.contract("F-55")
async def test_what_was_lost_together_does_not_come_back_together(make_pool: MakePool) -> None:
    pool = make_pool(retry_first_seconds=40.0)
    session = await pool.host("h1", *(shell(f"d{number}") for number in range(4)))
    tasks = [await pool.goal() for _ in range(4)]
    await pool.scheduler.assign()
    for assignment in await session.claim("all", 4, 0.0):
        await session.finish(assignment.lease_id, released("worker_lost"), stopped=True, clean=True)
    until = {(await pool.fleet.get(task)).task.held_until for task in tasks}
    assert len(until) == 4
