"""What must not bring the fleet down, or keep it from going on: strategies, hosts, clocks and rows that misbehave."""

from __future__ import annotations

import pytest

from databases import Databases
from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, ref, released, shell
from interlock.errors import Conflict, InvalidInput, LeaseSuperseded, NotFound, QueueFull
from interlock.fleet.model import Constraints, HandOver, RunSave, Settlement
from interlock.fleet.strategies import Snapshot, Submission, register_strategy

RUN = "run_" + "1" * 32
CHECKPOINT = (
    '{"plan_digest":"p","states":[["a","running"]],"admitted_actions":1,"reserved_units":1,"elapsed_ns":1,'
    '"stop_reason":null}'
)


class Broken:
    """A strategy that gives whatever the test wants."""

    ranked: object = 0
    paired: object = ()

    def rank(self, submission: Submission) -> int:
        del submission
        return self.ranked  # type: ignore[return-value]

    def pair(self, snapshot: Snapshot) -> list[object]:
        if self.paired is ValueError:
            raise ValueError
        if self.paired == "generator":
            return zip(snapshot.tasks, snapshot.devices, strict=False)  # type: ignore[return-value]
        return self.paired  # type: ignore[return-value]


register_strategy("broken")(Broken)  # type: ignore[type-var]


@pytest.mark.contract("F-17")
@pytest.mark.parametrize("paired", [ValueError, [1, 2], [(1, 2)], None, "text", "generator"])
async def test_q21_a_strategy_that_misbehaves_costs_its_pass_and_never_the_loop(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, paired: object
) -> None:
    monkeypatch.setattr(Broken, "paired", paired)
    pool = make_pool(strategy="broken")
    await pool.host("h1", shell("d1"))
    task = await pool.goal()
    assert await pool.scheduler._try_to_assign() is False
    assert await pool.status(task) == ("assigned" if paired == "generator" else "queued")


@pytest.mark.parametrize("rank", ["abc", 1.5, True, 2**70, None])
async def test_q23_a_rank_that_is_none_is_refused_and_leaves_no_poison(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, rank: object
) -> None:
    monkeypatch.setattr(Broken, "ranked", rank)
    pool = make_pool(strategy="broken")
    with pytest.raises(InvalidInput, match="rank"):
        await pool.goal()
    assert await pool.fleet.tasks() == []


@pytest.mark.contract("F-39")
async def test_f2_repeated_outages_keep_no_dead_lease_alive(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    for _ in range(6):
        pool.clock.advance(16)
        await pool.scheduler.expire()
    assert await pool.status(task) == "queued"


@pytest.mark.contract("F-39")
async def test_a_holder_that_was_heard_of_again_gets_its_grace_again(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    lease = (await pool.running(session)).lease_id
    for _ in range(5):
        pool.clock.advance(3600)
        await pool.scheduler.expire()
        await session.renew(lease)
    assert await pool.status(task) == "dispatched"


@pytest.mark.contract("F-38")
async def test_f51_a_clock_that_was_ahead_and_is_put_back_does_not_stop_time(make_pool: MakePool) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    await pool.running(session)
    start = pool.clock.now()
    pool.clock.step_to(start + 365 * 86_400 * 1_000_000)
    await pool.scheduler.expire()
    assert await pool.status(task) == "dispatched"
    pool.clock.step_to(start)
    await pool.pass_time(70, beating=False)
    assert await pool.status(task) == "queued"


@pytest.mark.contract("F-37")
async def test_f66_a_late_confirmation_of_one_attempt_frees_nothing_of_another(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    first = await pool.running(session)
    await pool.pass_time(61)
    await session.confirm_stopped("d1", clean=True, attempt_id=first.attempt_id)
    second = await pool.running(session, "claim-2")
    await pool.pass_time(61)
    await session.confirm_stopped("d1", clean=True, attempt_id=first.attempt_id)
    assert await pool.occupancy() == "stop_unconfirmed"
    await session.confirm_stopped("d1", clean=True, attempt_id=second.attempt_id)
    assert await pool.occupancy() == "idle"
    with pytest.raises(NotFound):
        await session.confirm_stopped("d1", clean=True, attempt_id="att_none")


@pytest.mark.contract("F-102")
async def test_a_stop_confirmed_after_a_forced_release_lets_did_not_happen_be_said(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=1)
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    assignment = await pool.running(session)
    await session.save(assignment.lease_id, RunSave(RUN, None, 1, CHECKPOINT))
    await session.hand_over(assignment.lease_id, HandOver(RUN, "a", "tool:a.b/c", "sha256:1"))
    await pool.fleet.force_release(ref("h1", "d1"))
    with pytest.raises(Conflict):
        await pool.fleet.resolve(assignment.task_id, {"a": "did_not_happen"}, "ada")
    await session.confirm_stopped("d1", clean=True, attempt_id=assignment.attempt_id)
    assert (await pool.fleet.resolve(assignment.task_id, {"a": "did_not_happen"}, "ada")).successor_id


@pytest.mark.contract("F-101")
async def test_an_answer_about_a_task_that_is_done_submits_nothing(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    first = await pool.running(session)
    await session.save(first.lease_id, RunSave(RUN, None, 1, CHECKPOINT))
    await session.hand_over(first.lease_id, HandOver(RUN, "a", "tool:a.b/c", "sha256:1"))
    await session.finish(first.lease_id, released("worker_lost"), stopped=True, clean=True)
    second = await pool.running(session, "claim-2")
    await session.finish(second.lease_id, DONE, stopped=True, clean=True)
    assert (await pool.fleet.resolve(second.task_id, {"a": "happened"}, "ada")).successor_id is None


@pytest.mark.contract("F-105")
async def test_a_later_attempt_on_another_device_has_no_word_on_an_earlier_effect(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    await pool.goal()
    first = await pool.running(session)
    await session.save(first.lease_id, RunSave(RUN, None, 1, CHECKPOINT))
    await session.hand_over(first.lease_id, HandOver(RUN, "a", "tool:a.b/c", "sha256:1"))
    await pool.pass_time(61)
    second = await pool.running(session, "claim-2")
    assert second.device.serial == "d2"
    settled = Settlement(RUN, "a", "committed", effect=True, evidence="e")
    for _ in ("before the stop is confirmed", "after"):
        for act in (session.withdraw(second.lease_id, RUN, "a"), session.settle(second.lease_id, settled)):
            with pytest.raises(Conflict, match="not_to_be_told"):
                await act
        await session.confirm_stopped("d1", clean=True, attempt_id=first.attempt_id)


@pytest.mark.contract("F-72")
async def test_an_effect_is_not_committed_without_evidence(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.save(lease, RunSave(RUN, None, 1, CHECKPOINT))
    await session.hand_over(lease, HandOver(RUN, "a", "tool:a.b/c", "sha256:1"))
    with pytest.raises(Conflict, match="no_evidence"):
        await session.settle(lease, Settlement(RUN, "a", "committed", effect=True))


@pytest.mark.contract("F-03")
async def test_f71_a_refused_workflow_leaves_no_definition(make_pool: MakePool, databases: Databases) -> None:
    pool = make_pool(max_queue_depth=1)
    await pool.goal()
    with pytest.raises(QueueFull):
        await pool.workflow('{"name":"late"}')
    assert databases.execute("SELECT count(*) FROM workflow") == [(0,)]


async def test_q23_a_task_that_cannot_be_read_fails_alone(make_pool: MakePool, databases: Databases) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell("d1"), shell("d2"))
    damaged, sound = await pool.goal(), await pool.goal()
    databases.execute("UPDATE task SET sealed = 'gAAAAA' WHERE seq = (SELECT min(seq) FROM task)")
    await pool.scheduler.assign()
    (assignment,) = await session.claim("claim-1", 2, 0.0)
    assert assignment.task_id == sound
    (row,) = await pool.store.rows("task", task=damaged)
    assert (row["status"], row["end_reason"]) == ("failed", "task_unreadable")
    await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)


def test_a_task_has_no_more_than_64_tags() -> None:
    Constraints(tags=frozenset(f"t{number}" for number in range(64)))
    with pytest.raises(InvalidInput, match="at most 64"):
        Constraints(tags=frozenset(f"t{number}" for number in range(65)))


async def test_not_started_is_not_believed_of_a_device_whose_processes_may_live(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    await session.finish(lease, released("not_started"), stopped=False, clean=False)
    assert await pool.occupancy() == "stop_unconfirmed"
    with pytest.raises(LeaseSuperseded):
        await session.renew(lease)
