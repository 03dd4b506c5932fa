"""Submission: what is taken, what is refused, and that a refusal writes nothing."""

from __future__ import annotations

import asyncio

import pytest

from databases import Databases
from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, released, shell
from interlock.errors import Conflict, InvalidInput, InvalidWorkflow, NotFound, QueueFull
from interlock.fleet.model import Constraints, Ending, EndKind
from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest


@pytest.mark.contract("F-01")
async def test_a_submission_is_queued_and_its_id_returned_without_a_device(pool: Pool) -> None:
    first, second = await pool.goal(), await pool.goal()
    assert first != second
    assert await pool.status(first) == "queued"


@pytest.mark.contract("F-02")
async def test_an_unknown_or_invalid_workflow_is_refused_at_submission(pool: Pool) -> None:
    with pytest.raises(InvalidWorkflow):
        await pool.workflow("no workflow")
    with pytest.raises(NotFound):
        await pool.fleet.submit(SubmitRequest(WorkflowRequest(digest="sha256:none")))
    assert await pool.fleet.tasks() == []


@pytest.mark.contract("F-02")
async def test_a_stored_workflow_is_submitted_by_its_digest(pool: Pool) -> None:
    first = await pool.workflow('{"name":"nightly"}')
    session = await pool.host("h1", shell())
    digest = (await pool.running(session)).work.digest  # type: ignore[union-attr]
    again = await pool.fleet.submit(SubmitRequest(WorkflowRequest(digest=digest)))
    assert again != first
    assert (await pool.fleet.get(again)).task.label == "nightly"
    assert (await pool.fleet.get(await pool.goal())).task.label == "goal agents:look"


@pytest.mark.contract("F-03")
async def test_a_full_queue_refuses_and_writes_nothing(make_pool: MakePool) -> None:
    pool = make_pool(max_queue_depth=2)
    await pool.goal()
    await pool.goal()
    with pytest.raises(QueueFull):
        await pool.workflow('{"name":"late"}')
    assert len(await pool.fleet.tasks()) == 2


@pytest.mark.contract("F-03")
async def test_the_depth_limit_is_exact_under_concurrency(make_pool: MakePool) -> None:
    pool = make_pool(max_queue_depth=7)
    results = await asyncio.gather(*(pool.goal() for _ in range(40)), return_exceptions=True)
    assert sum(isinstance(result, str) for result in results) == 7
    assert sum(isinstance(result, QueueFull) for result in results) == 33


@pytest.mark.contract("F-04")
async def test_a_requeue_passes_the_depth_limit(make_pool: MakePool) -> None:
    pool = make_pool(max_queue_depth=1)
    session = await pool.host("h1", shell())
    first = await pool.goal()
    assignment = await pool.running(session)
    second = await pool.goal()
    await session.finish(assignment.lease_id, released("worker_lost"), stopped=True, clean=True)
    assert [await pool.status(task) for task in (first, second)] == ["queued", "queued"]
    with pytest.raises(QueueFull):
        await pool.goal()


@pytest.mark.contract("F-05")
async def test_an_idempotency_key_returns_the_first_task_even_when_full(make_pool: MakePool) -> None:
    pool = make_pool(max_queue_depth=1)
    first = await pool.goal("water the plants", key="k")
    assert await pool.goal("water the plants", key="k") == first
    with pytest.raises(Conflict):
        await pool.goal("burn the plants", key="k")


@pytest.mark.contract("F-05")
async def test_many_submissions_under_one_key_make_one_task(pool: Pool) -> None:
    ids = await asyncio.gather(*(pool.goal("once", key="k") for _ in range(20)))
    assert len(set(ids)) == 1


@pytest.mark.contract("F-06")
@pytest.mark.parametrize("tag", ["", "Camera", "a b", "x" * 65, "ü", 15, 15.0, None])
def test_f36_a_bad_tag_is_refused_with_the_rule(tag: object) -> None:
    with pytest.raises(InvalidInput, match="tag"):
        Constraints(tags=frozenset({tag}))  # type: ignore[arg-type]


@pytest.mark.contract("F-06")
def test_f39_a_driver_type_has_one_casing_rule() -> None:
    with pytest.raises(InvalidInput):
        Constraints(driver_type="LINUX")


@pytest.mark.contract("F-07")
async def test_live_shapes_are_bounded_and_empty_ones_dropped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.stores.queue.MAX_LIVE_SHAPES", 2)
    first = await pool.goal(tags=frozenset({"a"}))
    await pool.goal(tags=frozenset({"b"}))
    with pytest.raises(InvalidInput, match="sets of constraints"):
        await pool.goal(tags=frozenset({"c"}))
    await pool.fleet.cancel(first)
    await pool.goal(tags=frozenset({"c"}))


@pytest.mark.parametrize(
    "work",
    [
        GoalRequest("", "a:b"),
        GoalRequest("x", "no agent"),
        GoalRequest("x", "a:b", max_calls=0),
        GoalRequest("x", "a:b", max_elapsed_seconds=-1),
    ],
)
async def test_a_bad_goal_is_refused_with_what_to_change(pool: Pool, work: GoalRequest) -> None:
    with pytest.raises(InvalidInput):
        await pool.fleet.submit(SubmitRequest(work))


@pytest.mark.contract("F-74")
async def test_r58_nothing_protected_is_in_the_database_in_the_clear(make_pool: MakePool, databases: Databases) -> None:
    pool = make_pool()
    session = await pool.host("h1", shell())
    canary = "canary-4711"
    await pool.workflow('{"name":"n","secret":"canary-4711"}', password=canary)
    await pool.goal(f"use {canary}")
    assignment = await pool.running(session)
    await session.finish(
        assignment.lease_id, Ending(EndKind.DONE, "completed", f'"{canary}"'), stopped=True, clean=True
    )
    assert (await pool.fleet.get(assignment.task_id)).task.result == canary
    await pool.close()
    kept = databases.content()
    assert assignment.task_id.encode() in kept
    assert canary.encode() not in kept


async def test_the_result_survives(pool: Pool) -> None:
    session = await pool.host("h1", shell())
    task = await pool.goal()
    assignment = await pool.running(session)
    await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    assert (await pool.fleet.get(task)).task.result == {"answer": 42}
