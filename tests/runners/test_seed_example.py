"""Two fetches and what joins them: the run level with the real guard and the real store injected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.pools import Pool, shell
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    ScheduledAction,
    SchedulerLimits,
    StopReason,
)
from interlock.fleet import reading
from interlock.fleet.model import Assignment
from interlock.fleet.session import HostSession, LeasedAttempt
from interlock.fleet.settings import FleetSettings
from interlock.guard.bindings import template
from interlock.guard.dispatcher import Guard, ToolDispatcher
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.review import SettledEnd, SuccessorRun, resume
from interlock.guard.tools import Access, CallContext, Parameter, ToolContract, ToolResult
from interlock.guard.vault import Vault, new_key
from interlock.runners.saving import RunSaver
from interlock.stores.sqlite import SqliteStore
from interlock.testing.clock import ManualClock
from interlock.testing.tools import ScriptedTool, committed

FETCH = ToolContract("tool:example.agent/fetch", Access.READ, (Parameter("source"),))
REVIEW = ToolContract("tool:example.agent/review", parameters=(Parameter("left"), Parameter("right")))
CONTRACTS = {FETCH.id: FETCH, REVIEW.id: REVIEW}
BINDINGS = {
    "left": template({"source": "l"}),
    "right": template({"source": "r"}),
    "join": template({"left": "${steps.left.source}", "right": "${steps.right.source}"}),
}

ACTIONS = (
    ScheduledAction(ActionNode("left", "tool:example.agent/fetch"), read_only=True),
    ScheduledAction(ActionNode("right", "tool:example.agent/fetch"), read_only=True),
    ScheduledAction(ActionNode("join", "tool:example.agent/review", ("left", "right"))),
)
LIMITS = SchedulerLimits(
    max_concurrency=2,
    max_actions=3,
    max_inflight_units=2,
    max_total_units=3,
    max_elapsed_ns=30_000_000_000,
    parallel_reads=True,
)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    clock = ManualClock()
    store = SqliteStore.open(tmp_path / "fleet.db", clock=clock)
    opened = Pool(store, clock, FleetSettings(retry_first_seconds=0.0), Vault([new_key()]))
    yield opened
    assert await opened.fleet.violations() == []
    await opened.close()


class Injected:
    """The two objects that a scheduler is given, for one claimed attempt."""

    def __init__(self, session: HostSession, assignment: Assignment, clock: ManualClock, run_id: RunId) -> None:
        self.fetch, self.review = ScriptedTool(FETCH), ScriptedTool(REVIEW)
        self.watch = LeaseWatch(clock.elapsed() + 1_000)
        self.signal = CancellationSignal()
        ledger = LeasedAttempt(session, assignment.lease_id)
        tools = {FETCH.id: self.fetch, REVIEW.id: self.review}
        policy = Policy.allowing(["example.agent"])
        guard = Guard(tools, policy, ledger, self.watch, assignment.device, assignment.fence, clock)
        self.dispatcher = ToolDispatcher(guard, CONTRACTS, BINDINGS, self.signal)
        self.save = RunSaver(ledger, self.watch, run_id.serialize(), None)


async def claimed(pool: Pool) -> tuple[HostSession, Assignment]:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    await pool.goal()
    return session, await pool.running(session)


@pytest.mark.contract("G-12", "G-13", "G-17", "G-46")
async def test_two_fetches_overlap_and_are_joined_through_the_real_guard_and_store(pool: Pool) -> None:
    session, assignment = await claimed(pool)
    run_id = RunId.generate()
    injected = Injected(session, assignment, pool.clock, run_id)
    both_inside = asyncio.Barrier(2)

    async def meet(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        await both_inside.wait()
        return committed(arguments, call)

    injected.fetch.script = meet
    scheduler = ActionScheduler(ACTIONS, LIMITS, injected.dispatcher, injected.save)
    async with asyncio.timeout(10):
        result = await scheduler.run(run_id, cancellation=injected.signal)
    assert result.stop_reason is StopReason.COMPLETED
    assert injected.review.calls == [{"left": "l", "right": "r"}]
    (saved,) = (await reading.history(pool.store, assignment.task_id)).runs
    assert saved.checkpoint == result.to_json()
    (entry,) = await pool.store.rows("journal_of_task", task=assignment.task_id)
    assert (entry["action_id"], entry["state"], entry["outcome"]) == ("join", "settled", "committed")


@pytest.mark.contract("G-15", "G-20")
@pytest.mark.parametrize("took_place", [True, False])
async def test_a_lease_lost_around_the_effect_leaves_it_once_or_in_doubt(pool: Pool, *, took_place: bool) -> None:
    session, assignment = await claimed(pool)
    run_id = RunId.generate()
    injected = Injected(session, assignment, pool.clock, run_id)

    async def lose(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        await pool.pass_time(61)
        return committed(arguments, call)

    (injected.review if took_place else injected.fetch).script = lose
    scheduler = ActionScheduler(ACTIONS, LIMITS, injected.dispatcher, injected.save)
    result = await scheduler.run(run_id, cancellation=injected.signal)
    assert result.stop_reason in {StopReason.CHECKPOINT_FAILED, StopReason.CANCELLED}
    assert injected.watch.lost
    assert len(injected.review.calls) == took_place
    again = await pool.running(session, "claim-2")
    following = resume(ACTIONS, LIMITS, again.history)
    if took_place:
        assert following == SettledEnd("review_required", "join")
    else:
        # These limits hold the graph once and no more: what a recovery needs on top is for the caller to grant.
        assert following == SettledEnd("budget_exhausted")
        assert isinstance(
            resume(ACTIONS, replace(LIMITS, max_actions=9, max_total_units=9), again.history), SuccessorRun
        )
        assert again.history.journal == ()


@pytest.mark.contract("G-07")
async def test_r29_what_depends_on_a_refused_action_never_begins(pool: Pool) -> None:
    session, assignment = await claimed(pool)
    run_id = RunId.generate()
    injected = Injected(session, assignment, pool.clock, run_id)
    injected.fetch.script = lambda *_: ToolResult(DispatchOutcome.FAILED)
    result = await ActionScheduler(ACTIONS, LIMITS, injected.dispatcher, injected.save).run(run_id)
    assert result.stop_reason is StopReason.DISPATCH_FAILED
    assert injected.review.calls == []
