"""Assignment: who gets what, and why the others do not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, ref, shell
from interlock.errors import Conflict, InvalidInput, NotFound, UnknownStrategy
from interlock.fleet.matching import PooledDevice, mismatch, obstacle
from interlock.fleet.model import (
    AttemptId,
    Constraints,
    DeviceId,
    DeviceRef,
    HostId,
    LeaseId,
    Occupancy,
    Service,
    TaskId,
)
from interlock.fleet.store import Applied, DeviceReport, Grant, Refused
from interlock.fleet.strategies import QueuedTask, Snapshot, Submission, register_strategy


@pytest.mark.contract("F-10", "F-15")
async def test_scenario_matching_idle_device_available(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    task = await pool.goal()
    assert (await pool.scheduler.assign()).granted == (task,)
    detail = await pool.fleet.get(task)
    (attempt,) = detail.attempts
    assert (detail.task.status, detail.task.running_on, attempt.number) == ("assigned", "h1/d1", 1)
    (lease,) = await pool.store.rows("lease_of_task", task=task)
    assert (lease["host"], lease["attempt"]) == ("h1", attempt.attempt_id)
    assert lease["expires_at"] == pool.clock.now() + 30_000_000
    assert await pool.occupancy() == "reserved"


@pytest.mark.contract("F-11")
async def test_scenario_no_matching_device_available(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    task = await pool.goal(driver_type="browser")
    assert (await pool.scheduler.assign()).granted == ()
    assert await pool.status(task) == "queued"
    await pool.host("h2", shell("d1", driver="browser"))
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-12")
def test_scenario_unknown_assignment_strategy_configured(make_pool: MakePool) -> None:
    with pytest.raises(UnknownStrategy, match="fifo_match"):
        make_pool(strategy="no_such_one")


@pytest.mark.contract("F-13")
async def test_scenario_default_fifo_strategy_orders_by_submission_time(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    first, second = await pool.goal(), await pool.goal(driver_type="shell")
    await pool.scheduler.assign()
    assert [await pool.status(task) for task in (first, second)] == ["assigned", "queued"]


@pytest.mark.contract("F-13")
async def test_f74_fifo_holds_across_restarts_and_equal_times(make_pool: MakePool) -> None:
    pool = make_pool()
    tasks = [await pool.goal() for _ in range(6)]
    await pool.close()
    pool = make_pool()
    session = await pool.host("h1", shell("d1"))
    ran = []
    for number in range(6):
        assignment = await pool.running(session, f"claim-{number}")
        ran.append(assignment.task_id)
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    assert ran == tasks


@pytest.mark.contract("F-13")
async def test_fifo_takes_the_first_device_by_host_and_serial(pool: Pool) -> None:
    await pool.host("h2", shell("a"))
    await pool.host("h1", shell("z"), shell("b"))
    task = await pool.goal()
    await pool.scheduler.assign()
    assert (await pool.fleet.get(task)).task.running_on == "h1/b"


NUMBERS = itertools.count()


class NewestFirst:
    def rank(self, submission: Submission) -> int:
        del submission
        return 0

    def pair(self, snapshot: Snapshot) -> list[tuple[QueuedTask, PooledDevice]]:
        tasks = sorted(snapshot.tasks, key=lambda task: -task.sequence)
        return list(zip(tasks, snapshot.devices, strict=False))


@pytest.mark.contract("F-14")
async def test_scenario_adding_a_new_strategy_requires_no_scheduler_edit(make_pool: MakePool) -> None:
    name = f"newest_first_{next(NUMBERS)}"
    register_strategy(name)(NewestFirst)
    with pytest.raises(InvalidInput):
        register_strategy(name)(NewestFirst)
    pool = make_pool(strategy=name)
    await pool.host("h1", shell("d1"), shell("d2"))
    tasks = [await pool.goal() for _ in range(2)]
    await pool.scheduler.assign()
    assert (await pool.fleet.get(tasks[1])).task.running_on == "h1/d1"


def grant(task: TaskId, device: str, number: int) -> Grant:
    return Grant(AttemptId(f"att_{number}"), LeaseId(f"lease_{number}"), task, DeviceId(device), 30_000_000)


@pytest.mark.contract("F-15", "F-17")
async def test_a_device_is_never_leased_twice_nor_a_task(pool: Pool) -> None:
    await pool.host("h1", shell("d1"), shell("d2"))
    tasks = [await pool.goal() for _ in range(3)]
    one, two = [view.device_id for view in await pool.fleet.devices()]
    outcomes = await pool.store.commit(
        [grant(tasks[0], one, 1), grant(tasks[1], one, 2), grant(tasks[0], two, 3), grant(tasks[2], two, 4)]
    )
    assert [type(outcome) for outcome in outcomes] == [Applied, Refused, Refused, Applied]
    assert [outcome.code for outcome in outcomes if isinstance(outcome, Refused)] == ["device_reserved", "task_moved"]
    assert await pool.status(tasks[1]) == "queued"


class Stubborn:
    """Pairs the first task with the wrong device, as a strategy with a slip would."""

    def rank(self, submission: Submission) -> int:
        del submission
        return 0

    def pair(self, snapshot: Snapshot) -> list[tuple[QueuedTask, PooledDevice]]:
        wrong, right = snapshot.devices
        first, second = snapshot.tasks
        return [(first, right), (first, wrong), (second, right), (second, wrong)]


@pytest.mark.contract("F-17")
async def test_f17_a_refused_pair_does_not_cost_the_others_the_pass(make_pool: MakePool) -> None:
    name = f"stubborn_{next(NUMBERS)}"
    register_strategy(name)(Stubborn)
    pool = make_pool(strategy=name)
    await pool.host("h1", shell("d1", "a"), shell("d2", "b"))
    wants_a, wants_any = await pool.goal(tags=frozenset({"a"})), await pool.goal()
    report = await pool.scheduler.assign()
    assert report.granted == (wants_any,)
    assert [(task, code) for task, _, code in report.refused] == [(wants_a, "device_unsuitable")]


@pytest.mark.contract("F-16", "F-40")
async def test_scenario_later_iteration_sees_a_stale_idle_snapshot(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    first = await pool.goal()
    await pool.running(session)
    await pool.beat()
    second = await pool.goal()
    assert (await pool.scheduler.assign()).granted == ()
    assert [await pool.status(task) for task in (first, second)] == ["dispatched", "queued"]
    assert await pool.occupancy() == "busy"


@pytest.mark.contract("F-18")
async def test_f13_an_unmatchable_head_holds_nobody_up(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    head, pinned = await pool.goal(tags=frozenset({"unicorn"})), await pool.goal(device=ref("h9", "gone"))
    task = await pool.goal()
    assert (await pool.scheduler.assign()).granted == (task,)
    assert [await pool.status(each) for each in (head, pinned)] == ["queued", "queued"]


@pytest.mark.contract("F-19")
async def test_f35_every_tag_of_a_task_is_needed(pool: Pool) -> None:
    await pool.host("h1", shell("d1", "a"), shell("d2", "b"))
    task = await pool.goal(tags=frozenset({"a", "b"}))
    assert (await pool.scheduler.assign()).granted == ()
    await pool.host("h2", shell("d3", "a", "b", "c"))
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-19")
async def test_f38_an_exclusive_tag_keeps_a_device_for_those_who_ask(pool: Pool) -> None:
    await pool.host("h1", shell("d1", exclusive=("gpu",)))
    plain = await pool.goal()
    assert (await pool.scheduler.assign()).granted == ()
    asks = await pool.goal(tags=frozenset({"gpu"}))
    assert (await pool.scheduler.assign()).granted == (asks,)
    assert await pool.status(plain) == "queued"


@pytest.mark.contract("F-19")
async def test_f42_a_pinned_task_takes_its_device_or_waits(pool: Pool) -> None:
    await pool.host("h1", shell("d1"), shell("d2"))
    task, other = await pool.goal(device=ref("h1", "d2")), await pool.goal(device=ref("h1", "d2"))
    assert (await pool.scheduler.assign()).granted == (task,)
    assert (await pool.fleet.get(task)).task.running_on == "h1/d2"
    assert await pool.status(other) == "queued"


@pytest.mark.contract("F-19")
async def test_a_pinned_task_that_its_device_cannot_run_starves_no_other_pinned_one(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    await pool.goal(device=ref("h1", "d1"), tags=frozenset({"unicorn"}))
    task = await pool.goal(device=ref("h1", "d1"))
    assert (await pool.scheduler.assign()).granted == (task,)


TAGS = st.frozensets(st.sampled_from("abcd"), max_size=3)
DEVICES = st.builds(
    PooledDevice,
    device_id=st.just("dev"),
    ref=st.builds(DeviceRef, st.sampled_from([HostId("h1"), HostId("h2")]), st.sampled_from(["s1", "s2"])),
    driver_type=st.sampled_from(["shell", "browser"]),
    tags=TAGS,
    exclusive_tags=TAGS,
    occupancy=st.sampled_from(list(Occupancy)),
    service=st.sampled_from(list(Service)),
    present=st.booleans(),
)
CONSTRAINTS = st.builds(
    Constraints,
    driver_type=st.sampled_from([None, "shell", "browser"]),
    tags=TAGS,
    device=st.sampled_from([None, ref("h1", "s1"), ref("h2", "s2")]),
)


@pytest.mark.contract("F-19", "F-20")
@given(CONSTRAINTS, DEVICES)
def test_f40_the_explanation_agrees_with_a_plain_reading_of_the_rules(
    wanted: Constraints, device: PooledDevice
) -> None:
    fits = (
        wanted.driver_type in {None, device.driver_type}
        and wanted.tags <= device.tags
        and (not device.exclusive_tags or bool(device.exclusive_tags & wanted.tags))
        and wanted.device in {None, device.ref}
    )
    free = device.present and device.service == "in_service" and device.occupancy == "idle"
    assert (mismatch(wanted, device) is None) == fits
    assert (obstacle(wanted, device) is None) == (fits and free)


@pytest.mark.contract("F-20")
async def test_why_names_the_failing_predicate_of_each_device(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2", "camera"), shell("d3", "camera", driver="browser"))
    await pool.goal(device=ref("h1", "d2"))
    await pool.running(session)
    waiting = await pool.goal(driver_type="shell", tags=frozenset({"camera"}))
    why = await pool.fleet.why(waiting)
    assert {obstacle.device: obstacle.reason for obstacle in why.obstacles} == {
        "h1/d1": "it lacks camera",
        "h1/d2": "it is busy",
        "h1/d3": "its driver is browser, not shell",
    }
    assert (why.ahead, why.summary) == (0, "every device that satisfies it is taken")
    nobody = await pool.goal(tags=frozenset({"unicorn"}))
    assert "no device satisfies it" in (await pool.fleet.why(nobody)).summary


@pytest.mark.contract("F-21")
async def test_f29_devices_of_a_silent_host_are_no_candidates(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    await pool.pass_time(31, beating=False)
    task = await pool.goal()
    assert (await pool.scheduler.assign()).granted == ()
    assert (await pool.fleet.why(task)).obstacles[0].reason == "its host has not been heard of"
    await pool.beat()
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-11")
async def test_f15_a_host_that_comes_after_a_day_is_used_at_once(pool: Pool) -> None:
    task = await pool.goal()
    pool.clock.advance(24 * 3600)
    await pool.host("h1", shell("d1"))
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-11")
async def test_f14_a_device_that_gains_a_tag_or_returns_to_service_is_used(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal(tags=frozenset({"camera"}))
    assert (await pool.scheduler.assign()).granted == ()
    await session.beat("boot-1", "gen-1", [shell("d1", "camera")])
    await pool.fleet.set_service(ref("h1", "d1"), "draining", "maintenance")
    assert (await pool.scheduler.assign()).granted == ()
    await pool.fleet.set_service(ref("h1", "d1"), "in_service", None)
    assert (await pool.scheduler.assign()).granted == (task,)


async def test_f44_a_malformed_device_is_quarantined_and_the_rest_registers(pool: Pool) -> None:
    session = await pool.host("h1", replace(shell("d1"), fault="its tags cannot be read"), shell("d2"))
    task = await pool.goal()
    await pool.scheduler.assign()
    assert (await pool.fleet.get(task)).task.running_on == "h1/d2"
    assert (await pool.fleet.devices())[0].service_reason == "its tags cannot be read"
    assert session.host == "h1"


@pytest.mark.contract("F-42")
async def test_f44_two_devices_under_one_serial_are_quarantined_and_the_rest_registers(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d1", "other"), shell("d2"))
    first, second = await pool.fleet.devices()
    assert (first.name, first.service, second.service) == ("h1/d1", "quarantined", "in_service")
    assert first.service_reason == "2 devices are reported under this serial: give each its own"
    await session.beat("boot-1", "gen-1", [shell("d1"), shell("d2")])
    await pool.fleet.set_service(ref("h1", "d1"), "in_service", None)
    assert [device.service for device in await pool.fleet.devices()] == ["in_service", "in_service"]
    await session.beat("boot-1", "gen-1", [shell("d1"), shell("d1"), shell("d2")])
    assert [device.service for device in await pool.fleet.devices()] == ["quarantined", "in_service"]


@pytest.mark.contract("F-42")
@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (shell("no name"), "is not a serial"),
        (shell("x" * 200), "is not a serial"),
        (shell(""), "is not a serial"),
        (shell("a/../b"), "is not a serial"),
        (shell("d1", "Not A Tag"), "is not a tag"),
        (shell("d1", exclusive=("",)), "is not a tag"),
        (shell("d1", driver="Sh ell"), "is not a driver type"),
        (shell("d1", *(f"t{number}" for number in range(200))), "tags"),
    ],
)
async def test_f44_a_report_that_is_none_harms_no_other_device(pool: Pool, report: DeviceReport, reason: str) -> None:
    await pool.host("h1", report, shell("fine"))
    task = await pool.goal()
    await pool.scheduler.assign()
    assert (await pool.fleet.get(task)).task.running_on == "h1/fine"
    (faulty,) = [device for device in await pool.fleet.devices() if device.name != "h1/fine"]
    assert faulty.service == "quarantined"
    assert reason in (faulty.service_reason or "")
    assert len(faulty.service_reason or "") <= 200


@pytest.mark.contract("F-43")
async def test_a_device_that_is_gone_for_good_is_forgotten_and_comes_back_where_it_was(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    device = ref("h1", "d1")
    with pytest.raises(Conflict, match="still reports"):
        await pool.fleet.forget_device(device)
    await session.beat("boot-1", "gen-1", [shell("d2")])
    await pool.fleet.forget_device(device)
    await pool.fleet.forget_device(device)
    assert [each.name for each in await pool.fleet.devices()] == ["h1/d2"]
    with pytest.raises(NotFound):
        await pool.fleet.forget_device(ref("h1", "d9"))
    fence = (await pool.store.rows("device", host="h1", serial="d1"))[0]["fence"]
    await session.beat("boot-1", "gen-1", [shell("d1"), shell("d2")])
    assert [(each.name, each.state) for each in await pool.fleet.devices()] == [("h1/d1", "idle"), ("h1/d2", "idle")]
    assert (await pool.store.rows("device", host="h1", serial="d1"))[0]["fence"] == fence


@pytest.mark.contract("F-43")
async def test_a_device_that_an_attempt_holds_is_not_forgotten(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    await pool.running(session)
    await session.beat("boot-1", "gen-1", [])
    with pytest.raises(Conflict, match="an attempt holds"):
        await pool.fleet.forget_device(ref("h1", "d1"))
    await pool.pass_time(61, beating=False)
    await pool.fleet.forget_device(ref("h1", "d1"))
    assert await pool.fleet.devices() == []
    await session.beat("boot-1", "gen-1", [shell("d1")])
    assert await pool.occupancy() == "stop_unconfirmed"


@pytest.mark.contract("F-43")
async def test_a_device_of_a_host_that_is_gone_is_forgotten(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    pool.clock.advance(31)
    await pool.fleet.forget_device(ref("h1", "d1"))
    assert await pool.fleet.devices() == []


async def test_a_device_that_its_host_no_longer_reports_is_no_candidate(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await session.beat("boot-1", "gen-1", [])
    task = await pool.goal()
    assert (await pool.scheduler.assign()).granted == ()
    await session.beat("boot-1", "gen-1", [shell("d1")])
    assert (await pool.scheduler.assign()).granted == (task,)
