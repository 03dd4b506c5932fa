"""How the end of a run becomes the end of its attempt: one table."""

from __future__ import annotations

from interlock.actions import StopReason
from interlock.fleet.model import Ending, EndKind

_KINDS = {
    StopReason.COMPLETED: EndKind.DONE,
    StopReason.DISPATCH_FAILED: EndKind.FAILED,
    StopReason.BUDGET_EXHAUSTED: EndKind.FAILED,
    StopReason.REVIEW_REQUIRED: EndKind.FAILED,
    StopReason.CLOCK_FAILED: EndKind.FAILED,
    StopReason.CANCELLED: EndKind.RELEASED,
    StopReason.CHECKPOINT_FAILED: EndKind.RELEASED,
}
_RELEASE_REASONS = {StopReason.CANCELLED: "interrupted", StopReason.CHECKPOINT_FAILED: "worker_lost"}


def ending_of(reason: StopReason, *, cancel_asked: bool, output: str | None = None) -> Ending:
    """The ending for a stop reason. `cancelled` ends the task where a person asked for it, else it is given back.

    `output` is JSON, for the submitter alone: what a done task gives, or the cause of each step that failed.
    """
    if reason is StopReason.CANCELLED and cancel_asked:
        return Ending(EndKind.CANCELLED, StopReason.CANCELLED.value)
    kind = _KINDS[reason]
    if kind is EndKind.RELEASED:
        return Ending(kind, _RELEASE_REASONS[reason])
    return Ending(kind, reason.value, output)


def failed(reason: str, output: str | None = None) -> Ending:
    """The ending of a task that failed for a reason which no run has; `output` says more, for its submitter alone."""
    return Ending(EndKind.FAILED, str(reason), output)
