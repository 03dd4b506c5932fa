"""What a plan admits, charges and restores, without a loop, a clock or a store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.stage import RUN, effect, limits, read, state_words
from actions.test_actions_values import code_of
from interlock.actions import (
    ActionState,
    Cause,
    Outline,
    Plan,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
    StopReason,
    Why,
)

PENDING, RUNNING, COMMITTED = ActionState.PENDING, ActionState.RUNNING, ActionState.COMMITTED
OVER, REVIEW = ActionState.FAILED, ActionState.REVIEW_REQUIRED


class Table:
    """A plan spoken to by ids."""

    def __init__(
        self,
        actions: Iterable[ScheduledAction],
        bounds: SchedulerLimits,
        checkpoint: SchedulerCheckpoint | None = None,
    ) -> None:
        self.outline = Outline.of(actions, bounds)
        self.plan = Plan(self.outline, RUN, checkpoint)

    def admitted(self) -> str:
        """The ids that are admitted now, one after another."""
        found = []
        while (rank := self.plan.admit()) is not None:
            found.append(self.plan.action_id(rank))
        return " ".join(found)

    def settle(self, *keys: str, state: ActionState = COMMITTED) -> None:
        for key in keys:
            self.plan.settle(self.outline.ranks[key], state)

    def why(self, key: str) -> tuple[Cause, tuple[str, ...]]:
        why = self.plan.why(key)
        return why.cause, why.action_ids


@pytest.mark.contract("A-20", "A-21")
def test_ready_actions_go_by_ascending_id_and_only_once_all_they_need_is_committed() -> None:
    table = Table([read("d", "a", "b"), read("c"), read("b"), read("a")], limits())
    assert table.admitted() == "a b c"
    table.settle("a")
    assert table.admitted() == ""
    table.settle("b")
    assert table.admitted() == "d"


@pytest.mark.contract("A-22", "A-07")
def test_without_parallel_reads_nothing_overlaps() -> None:
    table = Table([read("a"), read("b")], limits(parallel=False))
    assert table.admitted() == "a"
    table.settle("a")
    assert table.admitted() == "b"


@pytest.mark.contract("A-23")
def test_reads_overlap_up_to_the_concurrency() -> None:
    table = Table([read("a"), read("b"), read("c")], limits(concurrency=2))
    assert table.admitted() == "a b"
    table.settle("b")
    assert table.admitted() == "c"


@pytest.mark.contract("A-24", "A-25")
def test_an_effect_runs_alone_and_nothing_behind_it_starts_before_it() -> None:
    table = Table([read("a"), effect("b"), read("c"), effect("d")], limits())
    assert table.admitted() == "a"
    table.settle("a")
    assert table.admitted() == "b"
    table.settle("b")
    assert table.admitted() == "c"
    table.settle("c")
    assert table.admitted() == "d"


@pytest.mark.contract("A-25")
def test_an_effect_that_becomes_ready_stops_the_reads_behind_it_and_not_those_before_it() -> None:
    table = Table([read("a"), read("b", "a"), effect("c", "a"), read("d"), read("e", "a")], limits())
    assert table.admitted() == "a d"
    table.settle("a")
    assert table.admitted() == "b"
    table.settle("b")
    assert table.admitted() == ""
    table.settle("d")
    assert table.admitted() == "c"
    table.settle("c")
    assert table.admitted() == "e"


@pytest.mark.contract("A-26")
def test_r66_a_smaller_read_passes_a_large_one_that_does_not_fit_beside_the_others() -> None:
    actions = [read("a", units=3), read("b", units=4), read("c", units=2), read("d", units=2), effect("e")]
    table = Table(actions, limits(inflight=5))
    assert table.admitted() == "a c"
    table.settle("a")
    assert table.admitted() == "d"
    table.settle("c")
    assert table.admitted() == ""
    table.settle("d")
    assert table.admitted() == "b"
    table.settle("b")
    assert table.admitted() == "e"


@pytest.mark.contract("A-27")
@pytest.mark.parametrize("kind", [read, effect])
def test_an_action_that_does_not_fit_even_alone_ends_admission(kind: Callable[..., ScheduledAction]) -> None:
    table = Table([kind("a", units=6), read("b")], limits(inflight=5))
    assert table.admitted() == ""
    assert table.plan.conclusion is StopReason.BUDGET_EXHAUSTED
    assert table.plan.charges.admitted_actions == 0


@pytest.mark.contract("A-28", "A-29")
def test_charges_are_made_on_admission_and_never_given_back() -> None:
    table = Table([read("a", units=2), read("b", units=3), read("c")], limits(units=5))
    assert table.admitted() == "a b"
    assert (table.plan.charges.admitted_actions, table.plan.charges.reserved_units) == (2, 5)
    table.settle("a", state=REVIEW)
    table.settle("b")
    assert table.admitted() == ""
    assert table.plan.charges.reserved_units == 5
    assert table.plan.conclusion is StopReason.BUDGET_EXHAUSTED


@pytest.mark.contract("A-28")
def test_r61_of_eight_ready_reads_exactly_as_many_are_admitted_as_the_limit_says() -> None:
    table = Table([read(f"n{number}") for number in range(8)], limits(concurrency=64, actions=6))
    assert len(table.admitted().split()) == 6
    assert table.plan.charges.admitted_actions == 6


@pytest.mark.contract("A-29")
def test_once_a_budget_is_used_up_nothing_cheaper_goes_either() -> None:
    table = Table([read("a", units=3), read("b", units=3), read("c", units=1)], limits(units=5))
    assert table.admitted() == "a"
    assert table.why("c") == (Cause.BUDGET, ())
    table.settle("a")
    assert table.admitted() == ""


@pytest.mark.contract("A-29")
def test_once_a_budget_is_used_up_nothing_goes_that_becomes_ready_later() -> None:
    table = Table([read("a"), read("b", "a"), read("c"), read("d", "c"), read("z", units=3)], limits(units=4))
    assert table.admitted() == "a c"
    assert table.why("z") == (Cause.BUDGET, ())
    table.settle("a")
    assert table.admitted() == ""
    table.settle("c")
    assert table.admitted() == ""
    assert table.plan.conclusion is StopReason.BUDGET_EXHAUSTED


@pytest.mark.contract("A-20")
@pytest.mark.parametrize("state", [OVER, REVIEW])
def test_what_depends_on_an_action_that_was_not_committed_is_never_ready(state: ActionState) -> None:
    table = Table([effect("a"), effect("b", "a")], limits())
    assert table.admitted() == "a"
    table.settle("a", state=state)
    assert table.admitted() == ""
    assert table.why("b") == (Cause.DEPENDENCIES, ("a",))


@pytest.mark.contract("A-33")
def test_why_names_what_each_action_waits_for() -> None:
    actions = [read("a", units=3), effect("b", "a"), read("c", units=3), read("d"), effect("e"), read("f")]
    table = Table(actions, limits(inflight=4, concurrency=2))
    assert table.why("a") == (Cause.NEXT, ())
    assert table.admitted() == "a d"
    assert table.why("a") == (Cause.RUNNING, ())
    assert table.why("b") == (Cause.DEPENDENCIES, ("a",))
    assert table.why("c") == (Cause.CONCURRENCY, ("a", "d"))
    assert table.why("f") == (Cause.BARRIER, ("e",))
    table.settle("d")
    assert table.why("c") == (Cause.UNITS, ("a",))
    assert table.why("d") == (Cause.SETTLED, ())
    assert table.why("e") == (Cause.EXCLUSIVE, ("a",))
    table.settle("a")
    assert table.why("c") == (Cause.BARRIER, ("b",))
    assert table.admitted() == "b"
    assert table.why("c") == (Cause.EXCLUSIVE, ("b",))
    assert table.plan.why("c", stopped=True) == Why(PENDING, Cause.RUN_STOPPED)
    assert code_of(table.plan.why, "nobody") == "invalid_action"


actions_of_a_size = st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.sets(st.integers(0, 5))), max_size=6)


@pytest.mark.contract("A-33", "A-26", "A-25")
@given(actions_of_a_size, st.integers(1, 3), st.integers(1, 5), st.booleans(), st.data())
def test_what_is_admitted_next_is_the_first_action_that_why_says_can_go(
    shapes: list[tuple[bool, int, set[int]]], concurrency: int, inflight: int, parallel: Any, data: st.DataObject
) -> None:
    actions = [
        (read if is_read else effect)(f"n{place}", *(f"n{each}" for each in sorted(needs) if each < place), units=units)
        for place, (is_read, units, needs) in enumerate(shapes)
    ]
    table = Table(actions, limits(concurrency=concurrency, inflight=inflight, parallel=parallel, units=12))
    running: list[str] = []
    for _ in range(30):
        admissible = [key for key in table.outline.ids if table.why(key)[0] is Cause.NEXT]
        spent = [key for key in table.outline.ids if table.why(key)[0] is Cause.BUDGET]
        rank = table.plan.admit()
        if rank is not None:
            running.append(table.plan.action_id(rank))
            assert admissible[0] == running[-1]
        elif running:
            assert not admissible or min(spent) < admissible[0]
            table.settle(running.pop(data.draw(st.integers(0, len(running) - 1))))
        else:
            return


def checkpoint_of(
    table: Table, words: str, charges: tuple[int, int], stop_reason: StopReason | None = None
) -> SchedulerCheckpoint:
    """A checkpoint with these states, by initial."""
    letters = {"p": PENDING, "r": RUNNING, "c": COMMITTED, "f": OVER, "v": REVIEW}
    pairs = tuple(zip(table.outline.ids, map(letters.__getitem__, words), strict=True))
    return SchedulerCheckpoint(RUN, table.outline.digest, pairs, *charges, elapsed_ns=5, stop_reason=stop_reason)


GRAPH = [effect("a"), effect("b", "a", units=3), effect("c", "a")]


@pytest.mark.contract("A-80")
def test_a_checkpoint_of_another_run_plan_or_graph_is_refused() -> None:
    table = Table(GRAPH, limits())
    good = checkpoint_of(table, "cpp", (1, 1))
    assert Plan(table.outline, RUN, good).admit() == 1
    other_run = replace(good, run_id=RunId.generate())
    other_plan = replace(good, plan_digest="sha256:" + "0" * 64)
    fewer = replace(good, states=good.states[:2])
    renamed = replace(good, states=(*good.states[:2], ("d", PENDING)))
    for wrong in (other_run, other_plan, fewer, renamed):
        assert code_of(Plan, table.outline, RUN, wrong) == "checkpoint_identity_mismatch"


@pytest.mark.contract("A-81")
@pytest.mark.parametrize("words", ["pcp", "pprp"[:3], "ppr", "rcp", "fpc", "vpv", "pfp"])
def test_a_checkpoint_that_ran_ahead_of_a_dependency_is_refused(words: str) -> None:
    table = Table(GRAPH, limits())
    refused = code_of(Plan, table.outline, RUN, checkpoint_of(table, words, (3, 5)))
    assert refused == "checkpoint_dependency_mismatch"


@pytest.mark.contract("A-82", "A-28")
def test_a_checkpoint_with_impossible_charges_is_refused() -> None:
    table = Table(GRAPH, limits(actions=4, units=9))
    for charges in ((2, 4), (3, 5), (3, 9), (4, 6)):
        Plan(table.outline, RUN, checkpoint_of(table, "ccp", charges))
    for charges in ((1, 4), (2, 3), (2, 5), (3, 4), (5, 9), (4, 10), (4, 5)):
        refused = code_of(Plan, table.outline, RUN, checkpoint_of(table, "ccp", charges))
        assert refused == "checkpoint_budget_mismatch"


@pytest.mark.contract("A-83")
def test_a_checkpoint_that_claims_completion_falsely_is_refused() -> None:
    table = Table(GRAPH, limits())
    Plan(table.outline, RUN, checkpoint_of(table, "ccc", (3, 5), StopReason.COMPLETED))
    refused = code_of(Plan, table.outline, RUN, checkpoint_of(table, "ccp", (2, 4), StopReason.COMPLETED))
    assert refused == "checkpoint_completion_mismatch"


@pytest.mark.contract("A-86", "A-28")
def test_a_clean_checkpoint_goes_on_under_what_is_left_of_its_budgets() -> None:
    table = Table(GRAPH, limits(actions=2, units=5))
    restored = Table(GRAPH, limits(actions=2, units=5), checkpoint_of(table, "cpp", (1, 1)))
    assert restored.admitted() == "b"
    restored.settle("b")
    assert restored.admitted() == ""
    assert restored.plan.conclusion is StopReason.BUDGET_EXHAUSTED
    assert state_words(restored.plan.snapshot(9)) == "ccp"


def lines_of_a_run(count: int) -> int:
    """How many lines the plan's modules execute for a whole run of reads, each with three parents."""
    actions = []
    for number in range(count):
        parents = {f"n{(number * 7919 + salt * 104_729) % number:05}" for salt in range(3)} if number else set()
        actions.append(read(f"n{number:05}", *sorted(parents), units=1 + number % 3))
    table = Table(actions, limits(concurrency=8, actions=count, inflight=9, units=3 * count))
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "interlock/actions" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    running: list[int] = []
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        while True:
            while (rank := table.plan.admit()) is not None:
                running.append(rank)
                table.plan.snapshot(0)
            if not running:
                break
            table.plan.settle(running.pop(0), COMMITTED)
            table.plan.snapshot(0)
    finally:
        sys.settrace(before)
    assert table.plan.complete
    return lines


@pytest.mark.contract("A-32")
def test_the_work_of_a_run_grows_with_its_actions_and_no_faster() -> None:
    small, large = lines_of_a_run(300), lines_of_a_run(1_200)
    assert large < 4 * small * 1.3
