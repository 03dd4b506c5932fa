"""How a later attempt goes on, decided from durable facts alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from interlock.actions import (
    ActionNode,
    ActionState,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
    StopReason,
)
from interlock.fleet.model import AttemptId, EntryState, History, JournalEntry, RunSave
from interlock.guard.review import (
    HISTORY_UNREADABLE,
    PLAN_CHANGED,
    FreshRun,
    SameRun,
    SettledEnd,
    SuccessorRun,
    resume,
)
from interlock.testing.ledger import DEVICE

LIMITS = SchedulerLimits(4, 10, 10, 20, 1_000, parallel_reads=True)
FIRST, SECOND = RunId.generate().serialize(), RunId.generate().serialize()
TOOL = "tool:example.agent/use"


def action(name: str, *needs: str, read: bool = False, units: int = 1) -> ScheduledAction:
    return ScheduledAction(ActionNode(name, TOOL, needs), read_only=read, resource_units=units)


# Two reads, then two effects one after the other.
ACTIONS = (action("a", read=True), action("b", read=True), action("c", "a", "b"), action("d", "c", "a"))


def save(
    states: Mapping[str, str],
    *,
    stop: str | None = None,
    run: str = FIRST,
    parent: str | None = None,
    charges: tuple[int, int, int] = (0, 0, 0),
    sequence: int = 5,
) -> RunSave:
    """A run's last save."""
    checkpoint = SchedulerCheckpoint(
        run_id=RunId.parse(run),
        plan_digest="sha256:" + "0" * 64,
        states=tuple((key, ActionState(states[key])) for key in sorted(states)),
        admitted_actions=charges[0],
        reserved_units=charges[1],
        elapsed_ns=charges[2],
        stop_reason=StopReason(stop) if stop else None,
    )
    return RunSave(run, parent, sequence, checkpoint.to_json())


def entry(name: str, state: EntryState, outcome: str | None = None, run: str = FIRST) -> JournalEntry:
    evidence = "proof" if outcome else None
    return JournalEntry(run, name, TOOL, "sha256:0", AttemptId("att_1"), DEVICE, state, 0, outcome, evidence)


def states(text: str) -> dict[str, str]:
    """`p`, `r`, `c`, `f`, `v` for pending, running, committed, failed and review_required, from `a` on."""
    words = {"p": "pending", "r": "running", "c": "committed", "f": "failed", "v": "review_required"}
    return {name: words[letter] for name, letter in zip("abcd", text, strict=True)}


def ids(run: object) -> dict[str, tuple[str, ...]]:
    assert isinstance(run, (FreshRun, SameRun, SuccessorRun))
    return {each.node.action_id: each.node.depends_on for each in run.actions}


def test_without_a_history_everything_runs() -> None:
    assert resume(ACTIONS, LIMITS, History()) == FreshRun(ACTIONS, LIMITS)


@pytest.mark.contract("G-22")
def test_a_clean_run_goes_on_as_itself() -> None:
    last = save(states("ccpp"), charges=(2, 2, 100))
    found = resume(ACTIONS, LIMITS, History((last,)))
    assert isinstance(found, SameRun)
    assert (found.run_id, found.parent_run_id, found.sequence) == (FIRST, None, 5)
    assert (found.actions, found.limits) == (ACTIONS, LIMITS)
    assert found.checkpoint == SchedulerCheckpoint.from_dict(json.loads(last.checkpoint))


@pytest.mark.contract("G-21", "G-23")
def test_a_read_in_flight_goes_on_in_a_successor_with_what_is_left() -> None:
    last = save(states("crpp"), charges=(2, 3, 100))
    found = resume(ACTIONS, LIMITS, History((last,)))
    assert isinstance(found, SuccessorRun)
    assert found.parent_run_id == FIRST
    assert ids(found) == {"b": (), "c": ("b",), "d": ("c",)}
    assert found.limits == replace(LIMITS, max_actions=8, max_total_units=17, max_elapsed_ns=900)


@pytest.mark.contract("G-19", "G-23")
@pytest.mark.parametrize("journal", [(), (entry("c", EntryState.WITHDRAWN),)])
@pytest.mark.parametrize(("text", "stop"), [("ccrp", None), ("ccvp", "cancelled"), ("ccvp", "checkpoint_failed")])
def test_an_effect_that_was_not_handed_over_goes_on(
    text: str, stop: str | None, journal: tuple[JournalEntry, ...]
) -> None:
    found = resume(ACTIONS, LIMITS, History((save(states(text), stop=stop),), journal))
    assert isinstance(found, SuccessorRun)
    assert ids(found) == {"c": (), "d": ("c",)}


@pytest.mark.contract("G-18")
@pytest.mark.parametrize("text", ["ccrp", "ccvp"])
def test_a_durable_outcome_counts_without_its_completion_save(text: str) -> None:
    journal = (entry("c", EntryState.SETTLED, "committed"),)
    found = resume(ACTIONS, LIMITS, History((save(states(text)),), journal))
    assert isinstance(found, SuccessorRun)
    assert ids(found) == {"d": ()}


@pytest.mark.contract("G-18")
def test_when_all_is_committed_the_task_is_done() -> None:
    assert resume(ACTIONS, LIMITS, History((save(states("cccc"), stop="completed"),))) == SettledEnd("completed")
    assert resume(ACTIONS, LIMITS, History((save(states("cccc")),))) == SettledEnd("completed")
    journal = (entry("d", EntryState.SETTLED, "committed"),)
    assert resume(ACTIONS, LIMITS, History((save(states("cccr")),), journal)) == SettledEnd("completed")


@pytest.mark.contract("G-20")
@pytest.mark.parametrize("text", ["ccrp", "ccvp"])
@pytest.mark.parametrize("stop", [None, "cancelled", "checkpoint_failed", "review_required", "budget_exhausted"])
def test_an_effect_in_doubt_ends_the_task_and_is_named(text: str, stop: str | None) -> None:
    journal = (entry("c", EntryState.HANDED_OVER),)
    assert resume(ACTIONS, LIMITS, History((save(states(text), stop=stop),), journal)) == SettledEnd(
        "review_required", "c"
    )


@pytest.mark.contract("G-20")
def test_doubt_under_an_earlier_run_is_not_forgotten() -> None:
    runs = (save(states("ccrp")), save({"c": "pending", "d": "pending"}, run=SECOND, parent=FIRST))
    journal = (entry("c", EntryState.HANDED_OVER),)
    assert resume(ACTIONS, LIMITS, History(runs, journal)) == SettledEnd("review_required", "c")


@pytest.mark.contract("G-24")
@pytest.mark.parametrize("text", ["ccfp", "ccrp"])
def test_a_durable_failure_ends_the_task(text: str) -> None:
    journal = (entry("c", EntryState.SETTLED, "failed"),)
    assert resume(ACTIONS, LIMITS, History((save(states(text)),), journal)) == SettledEnd("dispatch_failed", "c")
    refused = resume(ACTIONS, LIMITS, History((save(states("fccp"), stop="dispatch_failed"),)))
    assert refused == SettledEnd("dispatch_failed", "a")


@pytest.mark.contract("G-24")
@pytest.mark.parametrize("stop", ["review_required", "budget_exhausted", "clock_failed"])
def test_a_run_that_stopped_for_a_reason_of_its_own_stays_stopped(stop: str) -> None:
    assert resume(ACTIONS, LIMITS, History((save(states("cvpp"), stop=stop),))) == SettledEnd(stop, "b")
    assert resume(ACTIONS, LIMITS, History((save(states("ccpp"), stop=stop),))) == SettledEnd(stop)


@pytest.mark.contract("G-24")
@pytest.mark.parametrize("stop", ["cancelled", "checkpoint_failed"])
def test_a_run_that_was_stopped_from_outside_goes_on_in_another(stop: str) -> None:
    found = resume(ACTIONS, LIMITS, History((save(states("ccpp"), stop=stop),)))
    assert isinstance(found, SuccessorRun)
    assert found.parent_run_id == FIRST


@pytest.mark.contract("G-22", "G-23")
def test_limits_are_counted_over_the_whole_chain() -> None:
    first = save(states("crpp"), charges=(2, 3, 100))
    second = save({"b": "committed", "c": "pending", "d": "pending"}, run=SECOND, parent=FIRST, charges=(1, 2, 30))
    same = resume(ACTIONS, LIMITS, History((first, second)))
    assert isinstance(same, SameRun)
    assert (same.run_id, same.parent_run_id) == (SECOND, FIRST)
    assert same.limits == replace(LIMITS, max_actions=8, max_total_units=17, max_elapsed_ns=900)
    assert ids(same) == {"b": (), "c": ("b",), "d": ("c",)}
    interrupted = replace(second, checkpoint=second.checkpoint.replace('["c","pending"]', '["c","running"]'))
    third = resume(ACTIONS, LIMITS, History((first, interrupted)))
    assert isinstance(third, SuccessorRun)
    assert third.parent_run_id == SECOND
    assert third.limits == replace(LIMITS, max_actions=7, max_total_units=15, max_elapsed_ns=870)
    assert ids(third) == {"c": (), "d": ("c",)}


@pytest.mark.contract("G-25")
@pytest.mark.parametrize("charges", [(10, 0, 0), (0, 20, 0), (0, 0, 1_000), (9, 0, 0), (0, 19, 0)])
def test_what_cannot_be_paid_for_is_not_begun(charges: tuple[int, int, int]) -> None:
    history = History((save(states("ccrp"), charges=charges),))
    assert resume(ACTIONS, LIMITS, history) == SettledEnd("budget_exhausted")


@pytest.mark.contract("G-25")
def test_a_graph_that_does_not_fit_is_not_begun() -> None:
    assert resume(ACTIONS, replace(LIMITS, max_actions=3), History()) == SettledEnd("budget_exhausted")
    assert resume((action("a", units=11),), LIMITS, History()) == SettledEnd("budget_exhausted")


@pytest.mark.contract("G-36")
def test_a_plan_that_is_to_be_run_in_part_may_be_larger_than_its_limits() -> None:
    tight = replace(LIMITS, max_actions=3)
    assert resume(ACTIONS, tight, History(), partial=True) == FreshRun(ACTIONS, tight)


@pytest.mark.contract("G-26")
def test_r55_a_checkpoint_of_another_plan_or_a_broken_one_is_not_gone_on_with() -> None:
    assert resume(ACTIONS[:2], LIMITS, History((save(states("ccpp")),))) == SettledEnd(PLAN_CHANGED)
    for text in ("{", "[]", '{"states":[]}', "null"):
        assert resume(ACTIONS, LIMITS, History((RunSave(FIRST, None, 1, text),))) == SettledEnd(HISTORY_UNREADABLE)


@pytest.mark.contract("G-18", "G-20", "G-23")
def test_whatever_is_found_no_effect_is_run_that_may_have_begun() -> None:
    kinds = [
        None,
        entry("c", EntryState.HANDED_OVER),
        entry("c", EntryState.WITHDRAWN),
        entry("c", EntryState.SETTLED, "committed"),
        entry("c", EntryState.SETTLED, "failed"),
    ]
    stops = [None, *(each.value for each in StopReason)]
    seen = set()
    for letter, found, stop in itertools.product("prcfv", kinds, stops):
        journal = () if found is None else (found,)
        decided = resume(ACTIONS, LIMITS, History((save(states(f"cc{letter}p"), stop=stop),), journal))
        seen.add(type(decided))
        began = letter == "c" or (found is not None and found.state is not EntryState.WITHDRAWN)
        if isinstance(decided, SuccessorRun):
            assert not (began and "c" in ids(decided))
            assert stop in {None, "cancelled", "checkpoint_failed"}
        elif isinstance(decided, SameRun):
            assert stop is None
            assert letter == "c" or not began
    assert seen == {SameRun, SuccessorRun, SettledEnd}
