"""Dispatch: which runner runs what, and that it is reported."""

from __future__ import annotations

import pytest

from fleet.pools import DONE, FAILED, Pool, shell
from interlock.errors import NotLocal
from interlock.fleet.dispatcher import TaskDispatcher
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, Ending, GoalWork, HostId, WorkflowWork


class Recording:
    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        self.ran: list[Assignment] = []

    async def __call__(self, assignment: Assignment, ledger: AttemptLedger) -> Ending:
        del ledger
        self.ran.append(assignment)
        return self.ending


@pytest.mark.contract("F-80")
@pytest.mark.parametrize(("ending", "status"), [(DONE, "done"), (FAILED, "failed")])
async def test_scenario_dispatching_a_goal_based_assignment(pool: Pool, ending: Ending, status: str) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal("find the leak")
    assignment = await pool.running(session)
    goals, workflows = Recording(ending), Recording(FAILED)
    dispatcher = TaskDispatcher(HostId("h1"), {GoalWork: goals, WorkflowWork: workflows})
    await dispatcher.dispatch(assignment, session.attempt(assignment.lease_id))
    assert await pool.status(task) == status
    assert workflows.ran == []
    assert goals.ran[0].work == GoalWork("find the leak", "agents:look")


@pytest.mark.contract("F-80")
@pytest.mark.parametrize(("ending", "status"), [(DONE, "done"), (FAILED, "failed")])
async def test_scenario_dispatching_a_workflow_based_assignment(pool: Pool, ending: Ending, status: str) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.workflow('{"name":"nightly"}', place="roof")
    assignment = await pool.running(session)
    goals, workflows = Recording(FAILED), Recording(ending)
    dispatcher = TaskDispatcher(HostId("h1"), {GoalWork: goals, WorkflowWork: workflows})
    await dispatcher.dispatch(assignment, session.attempt(assignment.lease_id))
    assert (await pool.status(task), goals.ran) == (status, [])
    work = workflows.ran[0].work
    assert isinstance(work, WorkflowWork)
    assert (work.document, dict(work.inputs)) == ('{"name":"nightly"}', {"place": "roof"})


@pytest.mark.contract("F-81")
async def test_an_assignment_of_another_host_changes_nothing(pool: Pool) -> None:
    session = await pool.host("h1", shell("d1"))
    task = await pool.goal()
    assignment = await pool.running(session)
    runner = Recording(DONE)
    dispatcher = TaskDispatcher(HostId("h2"), {GoalWork: runner, WorkflowWork: runner})
    with pytest.raises(NotLocal, match="h1/d1"):
        await dispatcher.dispatch(assignment, session.attempt(assignment.lease_id))
    assert (runner.ran, await pool.status(task)) == ([], "dispatched")
