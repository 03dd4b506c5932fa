"""The one table from a stop reason to the end of an attempt."""

from __future__ import annotations

import pytest

from interlock.actions import StopReason
from interlock.fleet.model import Ending, EndKind
from interlock.runners.endings import ending_of

TABLE = {
    StopReason.COMPLETED: (EndKind.DONE, "completed"),
    StopReason.DISPATCH_FAILED: (EndKind.FAILED, "dispatch_failed"),
    StopReason.BUDGET_EXHAUSTED: (EndKind.FAILED, "budget_exhausted"),
    StopReason.REVIEW_REQUIRED: (EndKind.FAILED, "review_required"),
    StopReason.CLOCK_FAILED: (EndKind.FAILED, "clock_failed"),
    StopReason.CANCELLED: (EndKind.RELEASED, "interrupted"),
    StopReason.CHECKPOINT_FAILED: (EndKind.RELEASED, "worker_lost"),
}


@pytest.mark.contract("G-45")
@pytest.mark.parametrize("reason", list(StopReason))
@pytest.mark.parametrize("asked", [True, False])
def test_every_stop_reason_has_its_ending(reason: StopReason, asked: bool) -> None:  # noqa: FBT001 - a table of cases
    kind, word = TABLE[reason]
    if reason is StopReason.CANCELLED and asked:
        kind, word = EndKind.CANCELLED, "cancelled"
    output = "{}" if kind in {EndKind.DONE, EndKind.FAILED} else None
    assert ending_of(reason, cancel_asked=asked, output="{}") == Ending(kind, word, output)
