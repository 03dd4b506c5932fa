"""Claims, renewals and deadlines."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, ref, released, shell
from interlock.errors import Conflict, InterlockError, LeaseSuperseded, NotPermitted
from interlock.fleet.model import LeaseId
from interlock.stores.leases import live_lease
from interlock.stores.times import StoreTimes
from interlock.stores.transaction import Refusal


@pytest.mark.contract("F-30")
async def test_scenario_owning_host_claims_once(pool: Pool) -> None:
    one, two = await pool.host("h1", shell("d1")), await pool.host("h2")
    task = await pool.goal()
    await pool.scheduler.assign()
    assert await two.claim("claim-2", 1, 0.0) == []
    (assignment,) = await one.claim("claim-1", 1, 0.0)
    assert (assignment.task_id, assignment.number, assignment.lease_seconds) == (task, 1, 60.0)
    assert await pool.status(task) == "dispatched"
    assert await one.claim("claim-3", 1, 0.0) == []


@pytest.mark.contract("F-30", "F-33")
async def test_a_lease_that_was_not_claimed_is_good_for_nothing(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.scheduler.assign()
    (lease,) = await pool.store.rows("lease_of_task", task=task)
    lease_id = LeaseId(str(lease["id"]))
    for act in (session.renew(lease_id), session.finish(lease_id, DONE, stopped=True, clean=True)):
        with pytest.raises(LeaseSuperseded):
            await act
    assert await pool.status(task) == "assigned"


@pytest.mark.contract("F-30")
async def test_a_host_is_known_by_its_credential_and_not_by_its_name(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    for credential in ("h1", "credential of h2", ""):
        with pytest.raises(NotPermitted):
            await pool.fleet.host(credential)
    await pool.fleet.register_host("h1", "another credential")
    with pytest.raises(NotPermitted):
        await pool.fleet.host("credential of h1")


@pytest.mark.contract("F-30")
async def test_everything_under_a_lease_is_refused_to_another_host(pool: Pool) -> None:
    one, two = await pool.host("h1", shell("d1")), await pool.host("h2", shell("d2"))
    await pool.goal()
    lease = (await pool.running(one)).lease_id
    for act in (two.renew(lease), two.finish(lease, DONE, stopped=True, clean=True), two.output(lease, "a")):
        with pytest.raises(LeaseSuperseded):
            await act
    await one.finish(lease, DONE, stopped=True, clean=True)


@pytest.mark.contract("F-31")
async def test_scenario_concurrent_claims_race(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    await pool.scheduler.assign()
    claims = await asyncio.gather(*(session.claim(f"claim-{number}", 1, 0.0) for number in range(16)))
    assert sorted(len(claim) for claim in claims) == [0] * 15 + [1]


@pytest.mark.contract("F-31")
async def test_a_claim_takes_no_more_than_it_asked_for(pool: Pool) -> None:
    session = await pool.host("h1", *(shell(f"d{number}") for number in range(5)))
    for _ in range(5):
        await pool.goal()
    await pool.scheduler.assign()
    assert len(await session.claim("claim-1", 2, 0.0)) == 2
    assert len(await session.claim("claim-2", 9, 0.0)) == 3


@pytest.mark.contract("F-32")
async def test_a_claim_whose_answer_was_lost_is_asked_again(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    await pool.goal()
    await pool.scheduler.assign()
    (first,) = await session.claim("claim-1", 5, 0.0)
    await pool.goal()
    await pool.scheduler.assign()
    pool.clock.advance(10)
    (again,) = await session.claim("claim-1", 5, 0.0)
    assert (again.lease_id, again.lease_seconds) == (first.lease_id, 50.0)
    await pool.pass_time(61)
    with pytest.raises(LeaseSuperseded):
        await session.claim("claim-1", 5, 0.0)


@pytest.mark.contract("F-33")
async def test_q10_a_renewed_lease_lives_as_long_as_it_is_renewed(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    for _ in range(40):
        await pool.pass_time(15)
        assert (await session.renew(lease)).lease_seconds == 60.0
    assert len((await pool.fleet.get(task)).attempts) == 1


@pytest.mark.contract("F-33", "F-73")
async def test_f62_an_expired_lease_is_refused_at_once_swept_or_not(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await pool.pass_time(55)
    pool.clock.advance(5)
    with pytest.raises(LeaseSuperseded):
        await session.renew(lease)
    await pool.scheduler.expire()
    with pytest.raises(LeaseSuperseded):
        await session.renew(lease)


@pytest.mark.contract("F-33")
async def test_q27_two_renewals_in_a_row_may_fail(pool: Pool) -> None:
    settings = pool.fleet.settings
    assert settings.lease_ttl_seconds > 3 * settings.renew_every_seconds


@pytest.mark.contract("F-34")
async def test_f12_an_unclaimed_attempt_ends_on_the_claim_deadline(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.scheduler.assign()
    await pool.pass_time(29)
    assert await pool.status(task) == "assigned"
    await pool.pass_time(1)
    assert (await pool.status(task), await pool.occupancy()) == ("queued", "idle")
    (attempt,) = (await pool.fleet.get(task)).attempts
    assert (attempt.end, attempt.claimed_at) == ("lease_expired", None)


@pytest.mark.contract("F-30", "F-34")
async def test_an_attempt_past_its_claim_deadline_cannot_be_claimed_swept_or_not(make_pool: MakePool) -> None:
    pool = make_pool(times=StoreTimes(outage=1_000.0))
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.scheduler.assign()
    pool.clock.advance(30)
    assert await session.claim("claim-1", 1, 0.0) == []
    assert await pool.status(task) == "assigned"


@pytest.mark.contract("F-34")
async def test_f70_unclaimed_attempts_are_bounded(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    task = await pool.goal()
    for _ in range(3):
        await pool.scheduler.assign()
        await pool.pass_time(31)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.task.reason, len(detail.attempts)) == ("failed", "lease_expired", 3)


@pytest.mark.contract("F-35")
async def test_scenario_lease_expires_with_attempts_remaining(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    task = await pool.goal()
    await pool.running(session)
    later = await pool.goal(device=ref("h1", "d1"))
    await pool.pass_time(61)
    assert await pool.status(task) == "queued"
    (attempt,) = (await pool.fleet.get(task)).attempts
    assert (attempt.end, attempt.reason) == ("lease_expired", "lease_expired")
    second = await pool.running(session, "claim-2")
    assert (second.task_id, second.number, second.device.serial) == (task, 2, "d2")
    assert await pool.status(later) == "queued"


@pytest.mark.contract("F-36")
async def test_scenario_lease_expires_at_attempt_limit(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=1)
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    await pool.pass_time(61)
    detail = await pool.fleet.get(task)
    assert (detail.task.status, detail.task.reason) == ("failed", "lease_expired")
    assert await pool.store.rows("lease_of_task", task=task) == []


@pytest.mark.contract("F-37")
async def test_the_device_of_a_lost_attempt_stays_out_until_its_host_confirms(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    await pool.pass_time(61)
    assert await pool.occupancy() == "stop_unconfirmed"
    assert (await pool.scheduler.assign()).granted == ()
    await session.confirm_stopped("d1", clean=False)
    assert await pool.occupancy() == "cleaning"
    assert (await pool.scheduler.assign()).granted == ()
    await session.confirm_stopped("d1", clean=True)
    assert (await pool.scheduler.assign()).granted == (task,)


@pytest.mark.contract("F-37")
async def test_another_kernel_boot_proves_the_stop_and_another_generation_does_not(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    await pool.running(session)
    await pool.pass_time(61)
    await session.beat("boot-1", "gen-2", [shell("d1")])
    assert await pool.occupancy() == "stop_unconfirmed"
    await session.beat("boot-2", "gen-3", [shell("d1")])
    assert await pool.occupancy() == "cleaning"


@pytest.mark.contract("F-37")
async def test_f3_an_operator_can_always_force_a_release(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    await pool.fleet.force_release(ref("h1", "d1"))
    assert (await pool.occupancy(), await pool.status(task)) == ("idle", "queued")
    with pytest.raises(LeaseSuperseded):
        await session.finish(lease, DONE, stopped=True, clean=True)
    await pool.fleet.force_release(ref("h1", "d1"))
    assert await pool.occupancy() == "idle"


@pytest.mark.contract("F-38")
async def test_q36_the_store_s_clock_never_goes_back(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    pool.clock.step_to(pool.clock.now() - 3600 * 1_000_000)
    await session.finish((await session.claim("claim-1", 1, 0.0))[0].lease_id, DONE, stopped=True, clean=True)
    (attempt,) = (await pool.fleet.get(task)).attempts
    assert attempt.assigned_at
    assert attempt.claimed_at
    assert attempt.ended_at
    assert attempt.assigned_at <= attempt.claimed_at <= attempt.ended_at


@pytest.mark.contract("F-38")
async def test_the_clock_is_not_earlier_after_a_restart(make_pool: MakePool) -> None:
    pool = make_pool()
    task = await pool.goal()
    await pool.close()
    pool.clock.step_to(pool.clock.now() - 3600 * 1_000_000)
    pool = make_pool()
    later = await pool.goal()
    first, second = (await pool.fleet.get(task)).task, (await pool.fleet.get(later)).task
    assert first.submitted_at
    assert second.submitted_at
    assert first.submitted_at <= second.submitted_at


@pytest.mark.contract("F-39")
async def test_f50_an_outage_gives_every_lease_one_grace_period(make_pool: MakePool) -> None:
    pool = make_pool(times=StoreTimes(grace=20.0))
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    pool.clock.advance(6 * 3600)
    await pool.scheduler.expire()
    assert await pool.status(task) == "dispatched"
    await session.renew(lease)
    await pool.pass_time(59)
    assert await pool.status(task) == "dispatched"
    await pool.pass_time(2)
    assert await pool.status(task) == "queued"


@pytest.mark.contract("F-39")
async def test_the_first_word_after_an_outage_may_be_the_holder_s(make_pool: MakePool) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await pool.close()
    pool.clock.advance(600)
    again = make_pool()
    session = await again.fleet.host("credential of h1")
    assert not (await session.renew(lease)).cancel_requested


@pytest.mark.contract("F-39")
async def test_f10_a_grace_period_is_given_once(make_pool: MakePool) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    pool.clock.advance(3600)
    await pool.pass_time(66)
    assert await pool.status(task) == "queued"


@pytest.mark.contract("F-40")
async def test_a_beat_neither_frees_nor_takes(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    await pool.scheduler.assign()
    for expected in ("reserved", "busy"):
        await pool.beat()
        assert await pool.occupancy() == expected
        await session.claim("claim-1", 1, 0.0)


@pytest.mark.contract("F-40")
async def test_f7_a_host_that_registers_again_keeps_its_devices(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    (before,) = await pool.fleet.devices()
    await pool.host("h1", shell("d1"))
    (after,) = await pool.fleet.devices()
    assert before == after


@pytest.mark.contract("F-41")
async def test_f26_no_id_comes_back_and_fences_only_grow(make_pool: MakePool) -> None:
    fences, ids = [], set()
    for number in range(4):
        pool = make_pool()
        session = await pool.host("h1", shell("d1"))
        await pool.goal()
        assignment = await pool.running(session, f"claim-{number}")
        fences.append(assignment.fence)
        ids |= {assignment.lease_id, assignment.attempt_id}
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
        await pool.close()
    assert fences == [1, 2, 3, 4]
    assert len(ids) == 8


@pytest.mark.contract("F-32")
async def test_a_waiting_claim_is_woken_by_an_assignment(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    claim = asyncio.create_task(session.claim("claim-1", 1, 20.0))
    await asyncio.sleep(0)
    task = await pool.goal()
    await pool.scheduler.assign()
    (assignment,) = await asyncio.wait_for(claim, 10)
    assert assignment.task_id == task


@pytest.mark.contract("F-73")
@given(late=st.integers(0, 10**9))
def test_a_lease_is_good_for_exactly_as_long_as_it_says(late: int) -> None:
    class OneLease:
        def row(self, query: str, **parameters: object) -> dict[str, object]:
            del query, parameters
            return {"host": "h1", "state": "claimed", "expires_at": 500_000_000}

        def now(self) -> int:
            return late

    if late < 500_000_000:
        live_lease(OneLease(), "h1", "lease")  # type: ignore[arg-type]
    else:
        with pytest.raises(Refusal):
            live_lease(OneLease(), "h1", "lease")  # type: ignore[arg-type]


async def test_an_unknown_lease_is_refused_like_a_lost_one(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    for act in (session.renew(LeaseId("lease_none")), session.finish(LeaseId("x"), DONE, stopped=True, clean=True)):
        with pytest.raises(LeaseSuperseded):
            await act


@pytest.mark.contract("F-32")
async def test_the_time_that_a_claim_waited_is_added_to_what_its_lease_is_good_for(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    claim = asyncio.create_task(session.claim("claim-1", 1, 20.0))
    await pool.store.rows("clock")
    pool.clock.advance(12)
    await pool.goal()
    await pool.scheduler.assign()
    (assignment,) = await asyncio.wait_for(claim, 10)
    (lease,) = await pool.store.rows("lease", lease=assignment.lease_id)
    assert assignment.lease_seconds == 72.0
    assert lease["expires_at"] == pool.clock.now() + 60_000_000


@pytest.mark.contract("F-44")
async def test_f47_what_still_waits_for_a_generation_that_is_gone_takes_nothing(pool: Pool) -> None:
    await pool.host("h1", shell("d1"))
    before = await pool.fleet.host("credential of h1")
    after = await pool.fleet.host("credential of h1")
    waiting = asyncio.create_task(before.claim("claim-1", 1, 20.0))
    await after.beat("boot-1", "gen-2", [shell("d1")])
    task = await pool.goal()
    await pool.scheduler.assign()
    assert await before.claim("claim-2", 1, 0.0) == []
    assert await pool.status(task) == "assigned"
    (assignment,) = await after.claim("claim-3", 1, 0.0)
    assert assignment.task_id == task
    pool.fleet.wakeups.end()
    assert await waiting == []


@pytest.mark.contract("F-32")
async def test_a_lost_answer_is_found_again_by_a_claim_that_would_wait(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    first = await pool.running(session)
    (again,) = await asyncio.wait_for(session.claim("claim-1", 1, 20.0), 10)
    assert again == first


async def test_f57_a_host_that_says_goodbye_gives_back_what_it_has_not_claimed(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.scheduler.assign()
    await session.goodbye("gen-1")
    assert (await pool.status(task), await pool.occupancy()) == ("queued", "idle")
    assert (await pool.fleet.devices())[0].state == "absent"


async def test_f32_the_goodbye_of_an_old_generation_removes_nothing(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await session.beat("boot-1", "gen-2", [shell("d1")])
    await session.goodbye("gen-1")
    assert (await pool.fleet.devices())[0].present


async def test_a_release_for_another_reason_is_refused(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    with pytest.raises(InterlockError, match="not_started"):
        await session.finish(lease, released("bored"), stopped=True, clean=True)
    with pytest.raises(Conflict):
        await session.withdraw(lease, "run", "a")
