"""Doubt, and a person's answer: one guarded write, one successor, and no *did not happen* before it can be true."""

from __future__ import annotations

import asyncio

import pytest

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, ref, shell
from interlock.errors import Conflict, InvalidInput, NotFound, QueueFull
from interlock.fleet.model import Assignment, Ending, EndKind, HandOver, RunSave, Settlement
from interlock.fleet.session import HostSession

RUN = "run_" + "1" * 32
CHECKPOINT = (
    '{"plan_digest":"p","states":[["a","running"],["b","running"]],"admitted_actions":2,"reserved_units":2,'
    '"elapsed_ns":2,"stop_reason":null}'
)
REVIEW = Ending(EndKind.FAILED, "review_required")


async def in_flight(pool: Pool, tool: str = "tool:a.b/c") -> tuple[HostSession, Assignment]:
    """A task whose effect `b` was handed over, and nothing more is known."""
    session = await pool.host("h1", shell("d1"))
    await pool.goal(tags=frozenset())
    assignment = await pool.running(session)
    await session.save(assignment.lease_id, RunSave(RUN, None, 1, CHECKPOINT))
    await session.hand_over(assignment.lease_id, HandOver(RUN, "a", tool, "sha256:1"))
    settled = Settlement(RUN, "a", "committed", effect=True, output='"kept"', evidence="e")
    await session.settle(assignment.lease_id, settled)
    committed = CHECKPOINT.replace("states", "changed").replace('["a","running"],["b","running"]', '["a","committed"]')
    await session.save(assignment.lease_id, RunSave(RUN, None, 2, committed))
    await session.hand_over(assignment.lease_id, HandOver(RUN, "b", tool, "sha256:2"))
    return session, assignment


async def doubtful(pool: Pool, tool: str = "tool:a.b/c", *, stopped: bool = True) -> tuple[HostSession, str]:
    session, assignment = await in_flight(pool, tool)
    await session.finish(assignment.lease_id, REVIEW, stopped=stopped, clean=stopped)
    return session, assignment.task_id


@pytest.mark.contract("F-100")
async def test_effects_in_doubt_are_listed_once_their_task_has_ended(pool: Pool) -> None:
    session, assignment = await in_flight(pool)
    assert await pool.fleet.reviews() == []
    await session.finish(assignment.lease_id, REVIEW, stopped=False, clean=False)
    (doubt,) = await pool.fleet.reviews()
    assert (doubt.task_id, doubt.action_id, doubt.device, doubt.reason) == (
        assignment.task_id,
        "b",
        "h1/d1",
        "review_required",
    )
    assert doubt.stop_confirmed_at is None
    await session.confirm_stopped("d1", clean=True)
    (doubt,) = await pool.fleet.reviews()
    assert doubt.stop_confirmed_at is not None


@pytest.mark.contract("F-100")
@pytest.mark.parametrize("end", ["lease_expired", "cancelled"])
async def test_doubt_is_listed_whatever_the_task_ended_for(make_pool: MakePool, end: str) -> None:
    pool = make_pool(max_attempts=1)
    session, assignment = await in_flight(pool)
    if end == "cancelled":
        await pool.fleet.cancel(assignment.task_id)
        await session.finish(assignment.lease_id, Ending(EndKind.CANCELLED, "cancelled"), stopped=True, clean=True)
    else:
        await pool.pass_time(61)
    (doubt,) = await pool.fleet.reviews()
    assert doubt.reason == end


@pytest.mark.contract("F-101")
@pytest.mark.parametrize("answer", ["happened", "did_not_happen", "drop"])
async def test_an_answer_submits_one_successor_that_inherits_the_record(pool: Pool, answer: str) -> None:
    session, task = await doubtful(pool)
    resolution = await pool.fleet.resolve(task, {"b": answer}, "ada")
    assert resolution.successor_id is not None
    old, new = await pool.fleet.get(task), await pool.fleet.get(resolution.successor_id)
    assert (old.task.status, old.task.continued_by) == ("failed", resolution.successor_id)
    assert (new.task.status, new.task.continues) == ("queued", task)
    assert [effect.standing for effect in old.effects] == ["committed", answer]
    assert await pool.fleet.reviews() == []
    following = await pool.running(session, "claim-2")
    assert following.task_id == resolution.successor_id
    assert [run.run_id for run in following.history.runs] == [RUN]
    assert following.history.reviewed_run_id == RUN
    assert [entry.answer for entry in following.history.journal] == [None, answer]
    assert await session.output(following.lease_id, "a") == "kept"


@pytest.mark.contract("F-101")
async def test_at_most_one_successor_whoever_answers_at_once(pool: Pool) -> None:
    _, task = await doubtful(pool)
    answers = [pool.fleet.resolve(task, {"b": "happened"}, f"person {number}") for number in range(8)]
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert sum("was resolved before" in str(result) for result in results if isinstance(result, Conflict)) == 7
    assert len(await pool.fleet.tasks()) == 2


@pytest.mark.contract("F-101")
async def test_a_successor_passes_the_depth_limit(make_pool: MakePool) -> None:
    pool = make_pool(max_queue_depth=1)
    _, task = await doubtful(pool)
    await pool.goal(device=ref("h9", "none"))
    with pytest.raises(QueueFull):
        await pool.goal()
    assert (await pool.fleet.resolve(task, {"b": "drop"}, "ada")).successor_id is not None


@pytest.mark.contract("F-102")
async def test_did_not_happen_waits_for_the_confirmed_stop_and_happened_does_not(pool: Pool) -> None:
    session, task = await doubtful(pool, stopped=False)
    with pytest.raises(Conflict, match="may still happen"):
        await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")
    # An operator who frees the device says nothing of the processes.
    await pool.fleet.force_release(ref("h1", "d1"))
    with pytest.raises(Conflict, match="may still happen"):
        await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")
    assert (await pool.fleet.resolve(task, {"b": "happened"}, "ada")).successor_id is not None
    assert session.host == "h1"


@pytest.mark.contract("F-115")
async def test_an_operator_who_saw_that_nothing_runs_confirms_the_stop_on_that_device_alone(pool: Pool) -> None:
    session, task = await doubtful(pool, stopped=False)
    await pool.host("h2", shell("d1"))
    await pool.fleet.force_release(ref("h2", "d1"), stopped=True)
    with pytest.raises(Conflict, match="--stopped"):
        await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")
    # Said after the device was freed already, it counts as well: it is about what is in doubt there.
    await pool.fleet.force_release(ref("h1", "d1"))
    await pool.fleet.force_release(ref("h1", "d1"), stopped=True)
    assert (await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")).successor_id is not None
    assert session.host == "h1"


@pytest.mark.contract("F-102")
async def test_did_not_happen_waits_for_the_settling_time_of_the_tool(pool: Pool) -> None:
    _, task = await doubtful(pool, "tool:slow.net/send")
    with pytest.raises(Conflict, match="wait a little"):
        await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")
    pool.clock.advance(10)
    assert (await pool.fleet.resolve(task, {"b": "did_not_happen"}, "ada")).successor_id is not None


@pytest.mark.contract("F-103")
async def test_an_answer_for_a_cancelled_task_is_noted_and_nothing_is_submitted(pool: Pool) -> None:
    session, assignment = await in_flight(pool)
    await pool.fleet.cancel(assignment.task_id)
    await session.finish(assignment.lease_id, Ending(EndKind.CANCELLED, "cancelled"), stopped=True, clean=True)
    assert (await pool.fleet.resolve(assignment.task_id, {"b": "happened"}, "ada")).successor_id is None
    assert await pool.fleet.reviews() == []
    assert len(await pool.fleet.tasks()) == 1


@pytest.mark.contract("F-104")
async def test_r19_an_answer_that_is_none_or_missing_or_of_nothing_is_refused_and_writes_nothing(pool: Pool) -> None:
    _, task = await doubtful(pool)
    for answers in ({}, {"b": "yes"}, {"b": ""}, {"a": "happened"}, {"b": "drop", "z": "drop"}):
        with pytest.raises(InvalidInput):
            await pool.fleet.resolve(task, answers, "ada")
    with pytest.raises(NotFound):
        await pool.fleet.resolve("task_none", {"b": "drop"}, "ada")
    assert len(await pool.fleet.reviews()) == 1


@pytest.mark.contract("F-104")
async def test_r14_a_task_that_goes_on_or_is_done_cannot_be_resolved(pool: Pool) -> None:
    session, assignment = await in_flight(pool)
    with pytest.raises(Conflict, match="has not ended"):
        await pool.fleet.resolve(assignment.task_id, {"b": "happened"}, "ada")
    await session.settle(assignment.lease_id, Settlement(RUN, "b", "committed", effect=True, evidence="e"))
    await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    with pytest.raises((Conflict, InvalidInput)):
        await pool.fleet.resolve(assignment.task_id, {}, "ada")


@pytest.mark.contract("F-105")
async def test_a_later_attempt_may_settle_what_an_earlier_one_left_in_doubt(pool: Pool) -> None:
    session, assignment = await in_flight(pool)
    await pool.pass_time(61)
    await session.confirm_stopped("d1", clean=True)
    second = await pool.running(session, "claim-2")
    assert [entry.stop_confirmed for entry in second.history.journal] == [True, True]
    probed = Settlement(RUN, "b", "committed", effect=True, output='"seen"', evidence="probe")
    await session.settle(second.lease_id, probed)
    detail = await pool.fleet.get(assignment.task_id)
    assert [effect.standing for effect in detail.effects] == ["committed", "committed"]
