"""What is written under a lease, and that nothing is once it is lost: the fence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest

from databases import Databases
from fleet.conftest import MakePool
from fleet.pools import DONE, Pool, shell
from interlock.errors import CancelRequested, Conflict, InterlockError, LeaseSuperseded, NotFound
from interlock.fleet.checkpoints import CHARGES, chain_digest
from interlock.fleet.model import Assignment, HandOver, LeaseId, RunSave, Settlement
from interlock.fleet.session import HostSession

RUN = "run_" + "1" * 32


@dataclass
class Written:
    """A run as its runner would save it: the first time whole, then what changed."""

    session: HostSession
    assignment: Assignment
    sequence: int = 0
    states: dict[str, str] = field(default_factory=lambda: {"a": "pending", "b": "pending"})
    charged: int = 0

    def whole(self, **changes: object) -> str:
        return self._text({"states": [[action, state] for action, state in sorted(self.states.items())], **changes})

    def changed(self, *actions: str, **changes: object) -> str:
        return self._text({"changed": [[action, self.states[action]] for action in actions], **changes})

    def _text(self, said: dict[str, object]) -> str:
        charges = dict.fromkeys(CHARGES, self.charged)
        return json.dumps({"plan_digest": "sha256:0", **charges, "stop_reason": None, **said}, separators=(",", ":"))

    def admit(self, action: str) -> RunSave:
        self.states[action] = "running"
        self.charged += 1
        return self.following(action)

    def end(self, action: str, state: str = "committed") -> RunSave:
        self.states[action] = state
        return self.following(action)

    def following(self, *actions: str, **changes: object) -> RunSave:
        self.sequence += 1
        text = self.whole(**changes) if self.sequence == 1 else self.changed(*actions, **changes)
        return RunSave(RUN, None, self.sequence, text)

    async def save(self, save: RunSave) -> None:
        await self.session.save(self.assignment.lease_id, save)


async def written(pool: Pool) -> Written:
    session = await pool.host("h1", shell("d1"), shell("d2"))
    await pool.goal()
    return Written(session, await pool.running(session))


def hand_over(action: str = "a") -> HandOver:
    return HandOver(RUN, action, "tool:a.b/c", "sha256:1")


@pytest.mark.contract("F-70", "F-75")
async def test_checkpoints_are_stored_as_differences_and_handed_to_the_next_attempt_whole(pool: Pool) -> None:
    run = await written(pool)
    saves = [run.admit("a"), run.end("a"), run.admit("b")]
    for save in saves:
        await run.save(save)
        await run.save(save)
    digest = ""
    for row, save in zip(await pool.store.rows("saves_of_run", run_id=RUN), saves, strict=True):
        digest = chain_digest(save.sequence, digest, save.checkpoint)
        assert row == {"sequence": save.sequence, "digest": digest, "body": save.checkpoint}
    (head,) = await pool.store.rows("run", run_id=RUN)
    assert (head["sequence"], head["digest"], head["admitted_actions"]) == (3, digest, 2)
    (view,) = (await pool.fleet.get(run.assignment.task_id)).runs
    assert (view.states, view.saves, view.reserved_units) == ({"a": "committed", "b": "running"}, 3, 2)
    await pool.pass_time(61)
    again = await pool.running(run.session, "claim-2")
    assert [(save.sequence, json.loads(save.checkpoint)) for save in again.history.runs] == [
        (3, json.loads(run.whole()))
    ]


@pytest.mark.contract("F-70")
async def test_q04_a_save_that_does_not_extend_the_last_one_is_refused(pool: Pool) -> None:
    run = await written(pool)
    first = run.admit("a")
    for save in (RunSave(RUN, None, 2, first.checkpoint), RunSave(RUN, None, 1, run.changed("a"))):
        with pytest.raises(Conflict):
            await run.save(save)
    await run.save(first)
    text = run.end("a").checkpoint
    for save in (
        RunSave(RUN, None, 3, text),
        RunSave(RUN, None, 1, run.whole(elapsed_ns=5)),
        RunSave(RUN, "run_parent", 2, text),
        RunSave(RUN, None, 2, run.whole()),
        RunSave(RUN, None, 2, run.changed("a", plan_digest="sha256:other")),
        *(RunSave(RUN, None, 2, run.changed("a", **{charge: 0})) for charge in CHARGES),
    ):
        with pytest.raises(Conflict, match="stale_save"):
            await run.save(save)
    await run.save(RunSave(RUN, None, 2, text))


@pytest.mark.contract("F-70")
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"states":[["a","running"]]}', "null", '{"states":5}'])
async def test_what_is_no_checkpoint_is_refused(pool: Pool, text: str) -> None:
    run = await written(pool)
    with pytest.raises(Conflict, match="the checkpoint is none"):
        await run.save(RunSave(RUN, None, 1, text))
    await run.save(run.admit("a"))
    with pytest.raises(Conflict, match="the save is none"):
        await run.save(RunSave(RUN, None, 2, text.replace("states", "changed")))


@pytest.mark.contract("F-70")
@pytest.mark.parametrize(
    "changes", [{"elapsed_ns": -1}, {"elapsed_ns": True}, {"reserved_units": 2**63}, {"plan_digest": 1}]
)
async def test_a_checkpoint_whose_numbers_are_none_is_refused(pool: Pool, changes: dict[str, object]) -> None:
    run = await written(pool)
    with pytest.raises(Conflict, match="the checkpoint is none"):
        await run.save(RunSave(RUN, None, 1, run.whole(**changes)))


@pytest.mark.contract("F-70")
@pytest.mark.parametrize("before", ["pending", "running", "committed", "failed", "review_required"])
@pytest.mark.parametrize("after", ["pending", "running", "committed", "failed", "review_required"])
async def test_an_action_only_goes_forward(pool: Pool, before: str, after: str) -> None:
    run = await written(pool)
    run.states["a"] = before
    await run.save(run.following())
    run.states |= {"a": after, "b": "running"}
    save = run.following("b", "a")
    ways = {("pending", "running"), *(("running", end) for end in ("committed", "failed", "review_required"))}
    if (before, after) in ways:
        await run.save(save)
        return
    with pytest.raises(Conflict, match="stale_save"):
        await run.save(save)
    (view,) = (await pool.fleet.get(run.assignment.task_id)).runs
    assert (view.states, view.saves) == ({"a": before, "b": "pending"}, 1)


@pytest.mark.contract("F-70")
@pytest.mark.parametrize(
    "pairs", [[["z", "running"]], [["a", "lost"]], [["a", "running"], ["a", "committed"]], [["a"]]]
)
async def test_a_change_of_what_the_run_does_not_have_is_refused(pool: Pool, pairs: list[object]) -> None:
    run = await written(pool)
    await run.save(run.following())
    with pytest.raises(Conflict, match="stale_save"):
        await run.save(run.following(changed=pairs))


@pytest.mark.contract("F-70")
async def test_a_stopped_run_stays_stopped(pool: Pool) -> None:
    run = await written(pool)
    await run.save(run.admit("a"))
    run.states["a"] = "review_required"
    await run.save(run.following("a", stop_reason="review_required"))
    run.states["b"] = "running"
    with pytest.raises(Conflict, match="the run had stopped"):
        await run.save(run.following("b"))


@pytest.mark.contract("F-75")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE run_save SET body = replace(body, 'committed', 'running') WHERE sequence = 2",
        "DELETE FROM run_save WHERE sequence = 1",
        "DELETE FROM run_save WHERE sequence = 2",
        "DELETE FROM run_save WHERE sequence = 3",
        "UPDATE run_save SET sequence = -sequence",
        "UPDATE run_save SET (body, digest) = (SELECT body, digest FROM run_save WHERE sequence = 1)",
        "UPDATE run SET sequence = 2",
    ],
)
async def test_saves_that_are_not_what_was_written_are_given_to_nobody(
    make_pool: MakePool, databases: Databases, damage: str
) -> None:
    pool = make_pool()
    run = await written(pool)
    for save in (run.admit("a"), run.end("a"), run.admit("b")):
        await run.save(save)
    databases.execute(damage)
    await pool.pass_time(61)
    again = await pool.running(run.session, "claim-2")
    assert [save.checkpoint for save in again.history.runs] == [""]


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


@pytest.mark.contract("F-117")
async def test_once_a_cancel_is_on_record_no_effect_is_handed_over(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    await run.save(run.admit("a"))
    entry = replace(hand_over(), nonce="nonce")
    await run.session.hand_over(lease, entry)
    assert (await pool.fleet.cancel(run.assignment.task_id)).outcome == "cancel_requested"
    await run.session.hand_over(lease, entry)  # the same one, whose answer was lost
    await run.session.settle(lease, Settlement(RUN, "a", "committed", effect=True, output='"o"', evidence="e"))
    await run.save(run.end("a"))
    await run.save(run.admit("b"))
    with pytest.raises(CancelRequested):
        await run.session.hand_over(lease, hand_over("b"))
    assert [entry.action_id for entry in (await pool.fleet.get(run.assignment.task_id)).effects] == ["a"]


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


@pytest.mark.contract("F-76")
async def test_a_hand_over_whose_answer_was_lost_is_asked_again_by_its_nonce(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    await run.save(run.admit("a"))
    entry = replace(hand_over(), nonce="n1")
    await run.session.hand_over(lease, entry)
    await run.session.hand_over(lease, entry)
    assert len(await pool.store.rows("journal_of_task", task=run.assignment.task_id)) == 1
    with pytest.raises(Conflict, match="handed_over_before"):
        await run.session.hand_over(lease, replace(entry, nonce="n2"))
    await run.session.withdraw(lease, RUN, "a")
    with pytest.raises(Conflict, match="handed_over_before"):
        await run.session.hand_over(lease, entry)


@pytest.mark.contract("F-76")
async def test_a_later_attempt_cannot_take_over_a_hand_over_by_its_nonce(pool: Pool) -> None:
    run = await written(pool)
    await run.save(run.admit("a"))
    entry = replace(hand_over(), nonce="n1")
    await run.session.hand_over(run.assignment.lease_id, entry)
    await pool.pass_time(61)
    again = await pool.running(run.session, "claim-2")
    with pytest.raises(Conflict, match="handed_over_before"):
        await run.session.hand_over(again.lease_id, entry)


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


@pytest.mark.contract("F-79")
async def test_what_is_no_read_in_flight_is_not_settled_as_one(pool: Pool) -> None:
    run = await written(pool)
    lease = run.assignment.lease_id
    read = Settlement(RUN, "a", "committed", effect=False, output='"made up"')
    with pytest.raises(Conflict, match="not_admitted"):
        await run.session.settle(lease, read)
    await run.save(run.admit("a"))
    await run.session.settle(lease, read)
    await run.session.settle(lease, read)
    with pytest.raises(Conflict, match="not_admitted"):
        await run.session.settle(lease, replace(read, action_id="b"))
    await run.save(run.admit("b"))
    await run.session.hand_over(lease, hand_over("b"))
    with pytest.raises(Conflict, match="handed_over_before"):
        await run.session.settle(lease, replace(read, action_id="b"))
    await run.save(run.end("a"))
    with pytest.raises(Conflict, match="not_admitted"):
        await run.session.settle(lease, replace(read, output='"another"'))
    assert (await pool.fleet.get(run.assignment.task_id)).outputs == {"a": "made up"}


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
