"""What is written under a lease, and that nothing is once it is lost: the fence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, shell
from interlock.errors import Conflict, InterlockError, LeaseSuperseded, NotFound
from interlock.fleet.model import Assignment, HandOver, LeaseId, RunSave, Settlement
from interlock.fleet.session import HostSession
from interlock.stores.runs import chain_digest, regression

RUN = "run_" + "1" * 32


@dataclass
class Written:
    """A run as its runner would save it."""

    session: HostSession
    assignment: Assignment
    sequence: int = 0
    states: dict[str, str] = field(default_factory=lambda: {"a": "pending", "b": "pending"})
    charged: int = 0

    def checkpoint(self, **changes: object) -> str:
        said = {
            "plan_digest": "sha256:0",
            "states": [[action, state] for action, state in sorted(self.states.items())],
            "admitted_actions": self.charged,
            "reserved_units": self.charged,
            "elapsed_ns": self.charged,
            "stop_reason": None,
        }
        return json.dumps({**said, **changes})

    def admit(self, action: str) -> RunSave:
        self.states[action] = "running"
        self.charged += 1
        return self.following()

    def following(self, **changes: object) -> RunSave:
        self.sequence += 1
        return RunSave(RUN, None, self.sequence, self.checkpoint(**changes))

    async def save(self, save: RunSave) -> None:
        await self.session.save(self.assignment.lease_id, save)


async def written(pool: Pool) -> Written:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    await pool.goal()
    return Written(session, await pool.running(session))


def hand_over(action: str = "a") -> HandOver:
    return HandOver(RUN, action, "tool:a.b/c", "sha256:1")


@pytest.mark.contract("F-70", "F-75")
async def test_a_checkpoint_is_stored_and_handed_to_the_next_attempt(pool: Pool) -> None:
    run = await written(pool)
    await run.save(run.admit("a"))
    run.states["a"] = "committed"
    last = run.following()
    await run.save(last)
    await run.save(last)
    (row,) = await pool.store.rows("run", run_id=RUN)
    assert row["digest"] == chain_digest(2, str(row["previous"]), last.checkpoint)
    await pool.pass_time(61)
    again = await pool.running(run.session, "claim-2")
    assert again.history.runs == (last,)


@pytest.mark.contract("F-70")
async def test_q04_a_save_that_does_not_extend_the_last_one_is_refused(pool: Pool) -> None:
    run = await written(pool)
    first = run.admit("a")
    with pytest.raises(Conflict):
        await run.save(RunSave(RUN, None, 2, first.checkpoint))
    await run.save(first)
    for save in (
        RunSave(RUN, None, 3, first.checkpoint),
        RunSave(RUN, None, 1, run.checkpoint(elapsed_ns=5)),
        RunSave(RUN, "run_parent", 2, first.checkpoint),
        RunSave(RUN, None, 2, run.checkpoint(plan_digest="sha256:other")),
        RunSave(RUN, None, 2, run.checkpoint(admitted_actions=0)),
    ):
        with pytest.raises(Conflict):
            await run.save(save)


@pytest.mark.contract("F-70")
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"states":[["a","running"]]}', "null", '{"states":5}'])
async def test_what_is_no_checkpoint_is_refused(pool: Pool, text: str) -> None:
    run = await written(pool)
    with pytest.raises(Conflict, match="the checkpoint is none"):
        await run.save(RunSave(RUN, None, 1, text))


@pytest.mark.contract("F-70")
def test_a_checkpoint_never_takes_back_what_was_said() -> None:
    before: dict[str, object] = {
        "plan_digest": "p",
        "states": [["a", "committed"], ["b", "running"]],
        "stop_reason": None,
    }
    before |= {"admitted_actions": 2, "reserved_units": 2, "elapsed_ns": 2}
    assert regression(json.dumps(before), json.dumps(before)) is None
    for change in (
        {"states": [["a", "pending"], ["b", "running"]]},
        {"states": [["b", "running"]]},
        {"reserved_units": 1},
        {"elapsed_ns": 1},
    ):
        assert regression(json.dumps(before), json.dumps({**before, **change}))
    stopped = json.dumps({**before, "stop_reason": "cancelled"})
    assert regression(stopped, json.dumps(before))


@pytest.mark.contract("F-70", "F-71", "F-72", "F-73")
@pytest.mark.parametrize("swept", [False, True])
async def test_the_fence_after_a_lost_lease_nothing_is_written(pool: Pool, *, swept: bool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    await run.save(run.admit("a"))
    await run.session.hand_over(lease, hand_over())
    await pool.pass_time(55)
    pool.clock.advance(5)
    if swept:
        await pool.scheduler.expire()
    settlement = Settlement(RUN, "a", "committed", effect=True, output='"o"', evidence="e")
    for act in (
        run.save(run.following()),
        run.session.hand_over(lease, hand_over("b")),
        run.session.withdraw(lease, RUN, "a"),
        run.session.settle(lease, settlement),
        run.session.settle(lease, Settlement(RUN, "b", "committed", effect=False, output='"o"')),
        run.session.finish(lease, DONE, stopped=True, clean=True),
        run.session.renew(lease),
    ):
        with pytest.raises(LeaseSuperseded):
            await act
    await pool.scheduler.expire()
    again = await pool.running(run.session, "claim-2")
    assert len(again.history.runs) == 1
    assert again.history.runs[0].sequence == 1
    (entry,) = again.history.journal
    assert (entry.state, entry.attempt_id) == ("handed_over", run.assignment.attempt_id)


@pytest.mark.contract("F-71")
async def test_a_superseded_attempt_cannot_write_beside_the_live_one(pool: Pool) -> None:
    run = await written(pool)
    await run.save(run.admit("a"))
    await pool.pass_time(61)
    again = await pool.running(run.session, "claim-2")
    with pytest.raises(LeaseSuperseded):
        await run.session.hand_over(run.assignment.lease_id, hand_over())
    await run.session.hand_over(again.lease_id, hand_over())


@pytest.mark.contract("F-71")
async def test_an_effect_is_handed_over_once_and_only_when_admitted(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    with pytest.raises(Conflict, match="not_admitted"):
        await run.session.hand_over(lease, hand_over())
    await run.save(run.admit("a"))
    with pytest.raises(Conflict, match="not_admitted"):
        await run.session.hand_over(lease, hand_over("b"))
    await run.session.hand_over(lease, hand_over())
    with pytest.raises(Conflict, match="handed_over_before"):
        await run.session.hand_over(lease, hand_over())


@pytest.mark.contract("F-71")
async def test_a_run_of_another_task_cannot_be_written(pool: Pool) -> None:
    run = await written(pool)
    await run.save(run.admit("a"))
    await pool.goal()
    other = await pool.running(run.session, "claim-2")
    for act in (
        run.session.save(other.lease_id, run.following()),
        run.session.hand_over(other.lease_id, hand_over()),
    ):
        with pytest.raises(Conflict):
            await act


@pytest.mark.contract("F-72")
async def test_outcome_evidence_and_output_are_one_write(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    settled = Settlement(RUN, "a", "committed", effect=True, output='{"x":1}', evidence="marker 7")
    await run.save(run.admit("a"))
    with pytest.raises(Conflict, match="not_handed_over"):
        await run.session.settle(lease, settled)
    with pytest.raises(NotFound):
        await run.session.output(lease, "a")
    await run.session.hand_over(lease, hand_over())
    await run.session.settle(lease, settled)
    await run.session.settle(lease, settled)
    assert await run.session.output(lease, "a") == {"x": 1}
    with pytest.raises(Conflict):
        await run.session.settle(lease, Settlement(RUN, "a", "failed", effect=True))
    (effect,) = (await pool.fleet.get(run.assignment.task_id)).effects
    assert (effect.standing, effect.evidence) == ("committed", "marker 7")


@pytest.mark.contract("F-72")
async def test_a_withdrawn_effect_cannot_be_settled_and_a_settled_one_not_withdrawn(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    await run.save(run.admit("a"))
    await run.session.hand_over(lease, hand_over())
    await run.session.withdraw(lease, RUN, "a")
    await run.session.withdraw(lease, RUN, "a")
    with pytest.raises(Conflict):
        await run.session.settle(lease, Settlement(RUN, "a", "committed", effect=True, evidence="e"))
    (entry,) = (await pool.fleet.get(run.assignment.task_id)).effects
    assert entry.standing == "withdrawn"


async def test_an_effect_without_a_word_is_listed_in_doubt_once_its_task_has_ended(make_pool: MakePool) -> None:
    pool = make_pool(max_attempts=1)
    run = await written(pool)
    await run.save(run.admit("a"))
    await run.session.hand_over(run.assignment.lease_id, hand_over())
    assert (await pool.fleet.get(run.assignment.task_id)).task.in_doubt == ()
    await pool.pass_time(61)
    detail = await pool.fleet.get(run.assignment.task_id)
    assert (detail.task.in_doubt, detail.effects[0].standing) == (("a",), "in_doubt")


async def test_the_ledger_of_an_attempt_is_the_session_under_its_lease(pool: Pool) -> None:
    run = await written(pool)
    ledger = run.session.attempt(run.assignment.lease_id)
    await ledger.save(run.admit("a"))
    await ledger.hand_over(hand_over())
    await ledger.settle(Settlement(RUN, "a", "committed", effect=True, output="1", evidence="e"))
    assert await ledger.output("a") == 1
    await ledger.save(run.admit("b"))
    await ledger.hand_over(hand_over("b"))
    await ledger.withdraw(RUN, "b")
    await ledger.finish(DONE)
    assert await pool.status(run.assignment.task_id) == "done"
    with pytest.raises(InterlockError):
        await run.session.attempt(LeaseId("none")).output("a")
