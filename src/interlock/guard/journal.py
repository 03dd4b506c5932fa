"""Where an action stands, by its checkpoint and its journal. Pure: the one rule for what a crash left."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from interlock.actions import ActionState, DispatchOutcome
from interlock.fleet.model import EntryState, JournalEntry, ReviewAnswer


class Standing(StrEnum):
    """What is known of an action once its attempt is gone."""

    NOT_HANDED_OVER = "not_handed_over"
    COMMITTED = "committed"
    FAILED = "failed"
    DROPPED = "dropped"
    IN_DOUBT = "in_doubt"


_ANSWERED = {
    ReviewAnswer.HAPPENED: Standing.COMMITTED,
    ReviewAnswer.DID_NOT_HAPPEN: Standing.NOT_HANDED_OVER,
    ReviewAnswer.DROP: Standing.DROPPED,
}


def standing(state: ActionState, entries: Iterable[JournalEntry]) -> Standing:
    """The standing of an action in this checkpoint state, with these journal entries under any run of its task.

    A completion save comes after the durable outcome, so `committed` there is final. Otherwise the journal has the
    word: an entry is believed where it is settled or withdrawn, and any other is doubt. An action without an entry
    never reached its tool as an effect: it was refused, it was a read, or it had not been handed over.
    """
    if state is ActionState.COMMITTED:
        return Standing.COMMITTED
    found = {entry_standing(entry) for entry in entries}
    for each in (Standing.IN_DOUBT, Standing.DROPPED, Standing.COMMITTED, Standing.FAILED):
        if each in found:
            return each
    return Standing.FAILED if state is ActionState.FAILED else Standing.NOT_HANDED_OVER


def entry_standing(entry: JournalEntry) -> Standing:
    """What one entry shows by itself. Committed needs evidence, or a person's word; the rest is doubt."""
    if entry.answer is not None:
        return _ANSWERED[ReviewAnswer(entry.answer)]
    if entry.state is EntryState.WITHDRAWN:
        return Standing.NOT_HANDED_OVER
    if entry.state is EntryState.SETTLED:
        if entry.outcome == DispatchOutcome.COMMITTED and entry.evidence:
            return Standing.COMMITTED
        if entry.outcome == DispatchOutcome.FAILED:
            return Standing.FAILED
    return Standing.IN_DOUBT
