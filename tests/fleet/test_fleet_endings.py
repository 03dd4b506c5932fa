"""The ends of an attempt: reports, releases, cancels, and what becomes of the device."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.conftest import MakePool
from fleet.pools import DONE, FAILED, Pool, ref, released, shell
from interlock.errors import InvalidInput, LeaseSuperseded, NotFound, ReportConflict
from interlock.fleet.model import Ending, EndKind, Occupancy, TaskStatus
from interlock.fleet.transitions import (
    DEVICE_MOVES,
    TASK_MOVES,
    AttemptEnd,
    Tally,
    TaskEvent,
    close_attempt,
    retry_delay_seconds,
)

CANCELLED = Ending(EndKind.CANCELLED, "cancelled")


@pytest.mark.contract("F-50")
@pytest.mark.parametrize(
    ("ending", "status", "reason"), [(DONE, "done", "done"), (FAILED, "failed", "dispatch_failed")]
)
async def test_scenario_active_lease_reports_completion(pool: Pool, ending: Ending, status: str, reason: str) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, ending, stopped=True, clean=True)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.task.reason) == (status, reason)
    assert await pool.occupancy() == "idle"


@pytest.mark.contract("F-51")
async def test_the_same_report_is_the_same_answer_and_another_a_conflict(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, DONE, stopped=False, clean=False)
    await pool.fleet.force_release(ref("h1", "d1"))
    await session.finish(lease, DONE, stopped=True, clean=True)
    for other in (FAILED, Ending(EndKind.DONE, "completed", '{"answer":43}'), released("worker_lost")):
        with pytest.raises(ReportConflict):
            await session.finish(lease, other, stopped=True, clean=True)
    assert (await pool.fleet.get(task)).task.result == {"answer": 42}


@pytest.mark.contract("F-52")
async def test_scenario_superseded_lease_reports_completion(pool: Pool) -> None:
    one, two = await pool.host("h1", shell("d1")), await pool.host("h2", shell("d2"))
    task = await pool.goal()
    first = await pool.running(one)
    await pool.pass_time(61)
    second = await pool.running(two, "claim-2")
    with pytest.raises(LeaseSuperseded):
        await one.finish(first.lease_id, DONE, stopped=True, clean=True)
    detail = await pool.fleet.get(task)
    assert (second.number, detail.task.status, detail.task.running_on) == (2, "dispatched", "h2/d2")
    assert (detail.attempts[0].late_report or "").startswith("done completed")
    await two.finish(second.lease_id, FAILED, stopped=True, clean=True)
    assert await pool.status(task) == "failed"


@pytest.mark.contract("F-52")
async def test_f25_the_same_host_s_first_attempt_cannot_speak_for_its_second(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    task = await pool.goal()
    first = await pool.running(session)
    await pool.pass_time(61)
    second = await pool.running(session, "claim-2")
    for act in (session.renew(first.lease_id), session.finish(first.lease_id, DONE, stopped=True, clean=True)):
        with pytest.raises(LeaseSuperseded):
            await act
    assert await pool.status(task) == "dispatched"
    await session.renew(second.lease_id)


@pytest.mark.contract("F-53")
@pytest.mark.parametrize(
    ("reason", "stopped", "clean", "occupancy"),
    [
        ("not_started", True, True, "idle"),
        ("worker_lost", True, True, "idle"),
        ("worker_lost", True, False, "cleaning"),
        ("worker_lost", False, False, "stop_unconfirmed"),
        ("interrupted", True, True, "idle"),
        ("interrupted", False, False, "stop_unconfirmed"),
    ],
)
async def test_f1_a_release_gives_the_task_back(
    pool: Pool, reason: str, occupancy: str, *, stopped: bool, clean: bool
) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, released(reason), stopped=stopped, clean=clean)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.attempts[0].end, await pool.occupancy()) == ("queued", reason, occupancy)


@pytest.mark.contract("F-53")
async def test_q66_a_task_that_kills_its_worker_fails_at_the_limit(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=2)
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    for number in range(2):
        lease = (await pool.running(session, f"claim-{number}")).lease_id
        await session.finish(lease, released("worker_lost"), stopped=True, clean=True)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.task.reason) == ("failed", "worker_lost")


@pytest.mark.contract("F-54")
async def test_interruptions_have_a_bound_of_their_own(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=1)
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    for number in range(100):
        assert await pool.status(task) == "queued"
        lease = (await pool.running(session, f"claim-{number}")).lease_id
        await session.finish(lease, released("interrupted"), stopped=True, clean=True)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.task.reason, detail.task.attempts_used) == ("failed", "interrupted", 0)


@pytest.mark.contract("F-55")
async def test_a_release_is_held_for_a_back_off_and_keeps_its_place(make_pool: MakePool) -> None:
    pool = make_pool(retry_first_seconds=4.0)
    session = await pool.host("h1", shell("d1"))
    first = await pool.goal()
    lease = (await pool.running(session)).lease_id
    second = await pool.goal()
    third = await pool.goal()
    await session.finish(lease, released("worker_lost"), stopped=True, clean=True)
    assert "retry_backoff" in (await pool.fleet.why(first)).summary
    other = await pool.running(session, "claim-2")
    assert other.task_id == second
    await session.finish(other.lease_id, DONE, stopped=True, clean=True)
    await pool.pass_time(5)
    assert (await pool.running(session, "claim-3")).task_id == first
    assert await pool.status(third) == "queued"


@pytest.mark.contract("F-55")
@given(st.integers(1, 200))
def test_the_back_off_doubles_up_to_its_longest(failures: int) -> None:
    delay = retry_delay_seconds(failures, first=1.0, longest=60.0)
    assert delay == min(60.0, 2.0 ** min(failures - 1, 30))


@pytest.mark.contract("F-56")
async def test_a_queued_or_assigned_task_is_cancelled_at_once(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    assigned, queued = await pool.goal(), await pool.goal()
    await pool.scheduler.assign()
    for task in (queued, assigned):
        assert (await pool.fleet.cancel(task)).outcome == "cancelled"
        assert await pool.status(task) == "cancelled"
        assert (await pool.fleet.cancel(task)).outcome == "cancelled"
    assert await pool.occupancy() == "idle"
    assert await session.claim("claim-1", 1, 0.0) == []
    with pytest.raises(NotFound):
        await pool.fleet.cancel("task_none")


@pytest.mark.contract("F-56")
async def test_f64_a_dispatched_task_gets_a_request_that_reaches_its_host(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    assert (await pool.fleet.cancel(task)).outcome == "cancel_requested"
    assert await pool.status(task) == "dispatched"
    assert (await session.renew(lease)).cancel_requested
    assert (await session.beat("boot-1", "gen-1", [shell("d1")])).leases[0].cancel_requested
    await session.finish(lease, CANCELLED, stopped=True, clean=True)
    assert await pool.status(task) == "cancelled"


@pytest.mark.contract("F-56")
@pytest.mark.parametrize("reason", ["worker_lost", "interrupted", "not_started"])
async def test_f65_a_cancelled_task_is_never_given_back(pool: Pool, reason: str) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await pool.fleet.cancel(task)
    await session.finish(lease, released(reason), stopped=True, clean=True)
    assert await pool.status(task) == "cancelled"
    assert (await pool.scheduler.assign()).granted == ()


@pytest.mark.contract("F-56")
async def test_a_cancelled_task_whose_host_is_silent_ends_cancelled(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    await pool.fleet.cancel(task)
    await pool.pass_time(61)
    assert await pool.status(task) == "cancelled"


@pytest.mark.contract("F-56")
async def test_f8_cancel_racing_assignment_leaves_nothing_reserved(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    for _ in range(100):
        task = await pool.goal()
        await asyncio.gather(pool.scheduler.assign(), pool.fleet.cancel(task))
        assert (await pool.status(task), await pool.occupancy()) == ("cancelled", "idle")


@pytest.mark.contract("F-57")
async def test_a_done_that_arrives_before_the_cancel_was_carried_out_stands(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await pool.fleet.cancel(task)
    await session.finish(lease, DONE, stopped=True, clean=True)
    assert await pool.status(task) == "done"


@pytest.mark.contract("F-58")
async def test_f31_a_device_is_cleaning_until_its_host_says_it_is_clean(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, DONE, stopped=True, clean=False)
    waiting = await pool.goal()
    assert (await pool.scheduler.assign()).granted == ()
    assert await pool.occupancy() == "cleaning"
    await session.confirm_stopped("d1", clean=True)
    assert (await pool.scheduler.assign()).granted == (waiting,)


@pytest.mark.contract("F-58")
async def test_a_finish_without_a_confirmed_stop_leaves_the_device_unconfirmed(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, DONE, stopped=False, clean=False)
    assert await pool.occupancy() == "stop_unconfirmed"


@pytest.mark.contract("F-59")
async def test_f80_a_device_that_loses_five_in_a_row_is_quarantined_and_can_return(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=9)
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    for number in range(5):
        lease = (await pool.running(session, f"claim-{number}")).lease_id
        await session.finish(lease, released("worker_lost"), stopped=True, clean=True)
    (device,) = await pool.fleet.devices()
    assert (device.state, "5 attempts in a row" in (device.service_reason or "")) == ("quarantined", True)
    assert (await pool.scheduler.assign()).granted == ()
    await pool.fleet.set_service(ref("h1", "d1"), "in_service", None)
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-60")
def test_no_move_leaves_a_terminal_state_and_every_other_state_can_be_left() -> None:
    assert not [state for state, _ in TASK_MOVES if state.terminal]
    assert {state for state, _ in TASK_MOVES} == {state for state in TaskStatus if not state.terminal}
    assert {state for state, _ in DEVICE_MOVES} == set(Occupancy)


@pytest.mark.contract("F-60")
@given(
    end=st.sampled_from(AttemptEnd),
    claimed=st.booleans(),
    cancel_requested=st.booleans(),
    counted=st.integers(0, 5),
    stopped=st.booleans(),
    clean=st.booleans(),
)
def test_whatever_ends_an_attempt_the_tables_have_a_move_for_it(
    end: AttemptEnd, counted: int, *, claimed: bool, cancel_requested: bool, stopped: bool, clean: bool
) -> None:
    closing = close_attempt(
        end,
        claimed=claimed,
        cancel_requested=cancel_requested or end is AttemptEnd.CANCELLED,
        tally=Tally(counted, 3, 0),
        stopped=stopped,
        clean=clean,
    )
    if end in {AttemptEnd.DONE, AttemptEnd.FAILED} and not claimed:
        return
    state = TaskStatus.DISPATCHED if claimed else TaskStatus.ASSIGNED
    assert (state, closing.task) in TASK_MOVES
    assert (Occupancy.BUSY if claimed else Occupancy.RESERVED, closing.device) in DEVICE_MOVES
    if cancel_requested:
        assert closing.task is not TaskEvent.REQUEUE


@pytest.mark.contract("F-61")
@pytest.mark.parametrize("reason", ["", "it broke", "No", "a" * 65, "x\x1b[31m", "password=1"])
async def test_a_hosts_reason_is_a_word(pool: Pool, reason: str) -> None:
    session = await pool.host("h1", shell())
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    with pytest.raises(InvalidInput, match="a word"):
        await session.finish(lease, Ending(EndKind.FAILED, reason), stopped=True, clean=True)
    await session.finish(lease, Ending(EndKind.FAILED, "a" * 64), stopped=True, clean=True)
    assert (await pool.fleet.get(task)).task.reason == "a" * 64
