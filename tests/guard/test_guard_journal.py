"""The rule for what a crash left: from checkpoint state and journal to what is known."""

from __future__ import annotations

import itertools

import pytest

from interlock.actions import ActionState
from interlock.fleet.model import AttemptId, EntryState, JournalEntry
from interlock.guard.journal import Standing, standing
from interlock.testing.ledger import DEVICE


def entry(state: EntryState, outcome: str | None = None, evidence: str | None = None) -> JournalEntry:
    return JournalEntry(
        "run_1", "a", "tool:example.agent/send", "sha256:0", AttemptId("att_1"), DEVICE, state, 0, outcome, evidence
    )


COMMITTED = entry(EntryState.SETTLED, "committed", "digest")
FAILED = entry(EntryState.SETTLED, "failed")
HANDED_OVER = entry(EntryState.HANDED_OVER)
WITHDRAWN = entry(EntryState.WITHDRAWN)
OPEN = (ActionState.PENDING, ActionState.RUNNING, ActionState.REVIEW_REQUIRED)


@pytest.mark.contract("G-18")
@pytest.mark.parametrize("state", OPEN)
def test_a_durable_outcome_with_evidence_counts_without_a_completion_save(state: ActionState) -> None:
    assert standing(state, [COMMITTED]) is Standing.COMMITTED
    assert standing(state, [FAILED]) is Standing.FAILED


@pytest.mark.contract("G-18")
@pytest.mark.parametrize("entries", [(), (COMMITTED,), (HANDED_OVER,)])
def test_a_completion_save_is_final(entries: tuple[JournalEntry, ...]) -> None:
    assert standing(ActionState.COMMITTED, entries) is Standing.COMMITTED


@pytest.mark.contract("G-19")
@pytest.mark.parametrize("state", OPEN)
def test_what_was_withdrawn_or_never_handed_over_did_not_begin(state: ActionState) -> None:
    assert standing(state, []) is Standing.NOT_HANDED_OVER
    assert standing(state, [WITHDRAWN]) is Standing.NOT_HANDED_OVER


@pytest.mark.contract("G-20")
@pytest.mark.parametrize("state", [*OPEN, ActionState.FAILED])
@pytest.mark.parametrize(
    "found",
    [
        HANDED_OVER,
        entry(EntryState.SETTLED, "review_required", "digest"),
        entry(EntryState.SETTLED, "committed", None),
        entry(EntryState.SETTLED, "committed", ""),
        entry(EntryState.SETTLED, None),
        entry(EntryState.SETTLED, "done", "digest"),
    ],
)
def test_all_else_that_was_handed_over_is_in_doubt(state: ActionState, found: JournalEntry) -> None:
    assert standing(state, [found]) is Standing.IN_DOUBT


@pytest.mark.contract("G-20")
def test_doubt_under_any_run_outweighs_what_other_runs_say() -> None:
    for others in itertools.permutations([HANDED_OVER, WITHDRAWN, COMMITTED, FAILED]):
        assert standing(ActionState.RUNNING, others) is Standing.IN_DOUBT
    assert standing(ActionState.RUNNING, [WITHDRAWN, COMMITTED]) is Standing.COMMITTED


def test_a_failure_without_an_entry_was_a_refusal_or_a_read() -> None:
    assert standing(ActionState.FAILED, []) is Standing.FAILED
