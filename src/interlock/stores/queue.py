"""Operations on the queue: define, submit, cancel, and the ways into it and out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from interlock.fleet.model import TaskStatus
from interlock.fleet.store import AdoptStrategy, Applied, Cancel, Define, Outcome, Ranker, Replayed, Row, Submit
from interlock.fleet.strategies import Submission, uses_history
from interlock.fleet.transitions import TASK_MOVES, TaskEvent
from interlock.stores.transaction import (
    Refusal,
    Transaction,
    constraints_of,
    number,
    shape_text,
    tags_text,
    text,
)

MAX_LIVE_SHAPES = 1_000
QUEUE_TIMEOUT = "queue_timeout"
_RANK_BOUND = 2**63
_LOOKS = 5


def define(tx: Transaction, operation: Define) -> Outcome:
    """Keep a workflow definition under its digest."""
    written = tx.write("define_workflow", digest=operation.digest, name=operation.name, sealed=operation.sealed)
    return Applied() if written else Replayed()


def submit(tx: Transaction, operation: Submit) -> Outcome:
    """Queue a task, unless it was queued before or there is no room."""
    replayed = _submitted_before(tx, operation)
    if replayed is not None:
        return replayed
    if operation.definition is not None:
        define(tx, operation.definition)
    if operation.workflow is not None and tx.row("workflow", digest=operation.workflow) is None:
        raise Refusal("not_found", "there is no workflow definition of that digest: store it first")
    if not _insert(tx, operation):
        # Somebody else has submitted it since this looked.
        return _submitted_before(tx, operation) or _moved()
    if not tx.enter(operation.max_queue_depth):
        raise Refusal("queue_full")
    if operation.not_before is not None and operation.not_before > tx.now():
        tx.write("insert_held", task=operation.task_id, until=operation.not_before, reason="not_before")
    else:
        offer(tx, _task(tx, operation.task_id), limit_shapes=True)
    return Applied(operation.task_id)


def _submitted_before(tx: Transaction, operation: Submit) -> Outcome | None:
    key = operation.idempotency_key
    first = None if key is None else tx.row("task_by_key", submitter=operation.submitter, key=key)
    first = first or tx.row("task", task=operation.task_id)
    if first is None:
        return None
    if first["body_digest"] != operation.body_digest:
        raise Refusal("idempotency_conflict", text(first, "id"))
    return Replayed(text(first, "id"))


def adopt_strategy(tx: Transaction, operation: AdoptStrategy) -> Outcome:
    """Give every task that is not ended the rank that this strategy would have given it, unless it did."""
    if not tx.write("adopt_strategy", name=operation.name):
        return Replayed(0)
    tx.write("forget_shares")
    tasks = tx.rows("unended_tasks")
    for task in tasks:
        submission = Submission(text(task, "submitter"), number(task, "priority"), number(task, "submitted_at"))
        rank = _rank(tx, operation.ranker, submission)
        tx.write("rerank_task", task=task["id"], rank=rank)
        tx.write("rerank_ready", task=task["id"], rank=rank)
    return Applied(len(tasks))


def _rank(tx: Transaction, ranker: Ranker, submission: Submission) -> int:
    if uses_history(ranker):
        share = tx.row("share", submitter=submission.submitter)
        submission = replace(submission, submitter_rank=None if share is None else number(share, "rank"))
    rank = checked_rank(ranker, submission)
    if uses_history(ranker):
        tx.write("keep_share", submitter=submission.submitter, rank=rank)
    return rank


def checked_rank(ranker: Ranker, submission: Submission) -> int:
    """The rank that a strategy gives, which has to be one."""
    rank = ranker.rank(submission)
    if isinstance(rank, bool) or not isinstance(rank, int) or abs(rank) >= _RANK_BOUND:
        raise Refusal("invalid_rank", "the strategy gave a rank that is no whole number of 64 bits: mend the strategy")
    return rank


def _reached_rank(tx: Transaction, operation: Submit) -> int:
    """The rank that the queue has come to, for tasks with these constraints."""
    shape = tx.row("shape", wanted=shape_text(operation.constraints))
    pin = operation.constraints.device
    head = None
    if shape is not None and pin is None:
        head = tx.row("ready_heads", shape=shape["id"], most=1)
    elif shape is not None:
        head = tx.row("pinned_heads", pin=str(pin), shape=shape["id"], most=1)
    if head is not None:
        return number(head, "rank")
    last = tx.row("strategy")
    return 0 if last is None else number(last, "granted_rank")


def _moved() -> NoReturn:
    raise Refusal("task_moved")


def _insert(tx: Transaction, operation: Submit) -> bool:
    now = tx.now()
    constraints = operation.constraints
    reached = _reached_rank(tx, operation) if uses_history(operation.ranker) else 0
    rank = _rank(tx, operation.ranker, Submission(operation.submitter, operation.priority, now, reached))
    made = tx.row(
        "insert_task",
        task=operation.task_id,
        kind=operation.kind,
        label=operation.label,
        sealed=operation.sealed,
        body_digest=operation.body_digest,
        workflow=operation.workflow,
        driver_type=constraints.driver_type,
        tags=tags_text(constraints.tags),
        pin=None if constraints.device is None else str(constraints.device),
        rank=rank,
        submitter=operation.submitter,
        priority=operation.priority,
        idempotency_key=operation.idempotency_key,
        max_attempts=operation.max_attempts,
        submitted_at=now,
        not_before=operation.not_before,
        queue_timeout=operation.queue_timeout,
    )
    return made is not None


def _task(tx: Transaction, task_id: str) -> Row:
    task = tx.row("task", task=task_id)
    if task is None:
        raise Refusal("not_found", f"there is no task {task_id}")
    return task


def offer(tx: Transaction, task: Row, *, limit_shapes: bool = False) -> None:
    """Put a queued task among those that a strategy may see, at the place that its rank and sequence give it.

    From now on counts how long it may wait.
    """
    tx.write(
        "insert_ready",
        task=task["id"],
        shape=_intern_shape(tx, shape_text(constraints_of(task)), limited=limit_shapes),
        pin=task["pin"],
        rank=task["rank"],
        seq=task["seq"],
        until=None if task["queue_timeout"] is None else tx.now() + number(task, "queue_timeout"),
    )


def _intern_shape(tx: Transaction, wanted: str, *, limited: bool) -> int:
    for _ in range(_LOOKS):
        known = tx.row("shape", wanted=wanted)
        if known is not None:
            return number(known, "id")
        # A shape that others see at once: two transactions that make the same ones must not wait for each other.
        with tx.aside() as aside:
            _make_shape(aside, wanted, limited=limited)
    raise Refusal("too_many_shapes", "the shape was dropped as often as it was made: try again")


def _make_shape(tx: Transaction, wanted: str, *, limited: bool) -> None:
    tx.lock("lock_shapes")
    live = tx.row("shape_count")
    if limited and live is not None and number(live, "live") >= MAX_LIVE_SHAPES and not drop_empty_shapes(tx):
        raise Refusal("too_many_shapes", f"{MAX_LIVE_SHAPES} different sets of constraints are queued already")
    tx.write("insert_shape", wanted=wanted)


def drop_empty_shapes(tx: Transaction) -> int:
    """Forget the shapes that no offered task has, and say how many."""
    return sum(tx.write("drop_shape", shape=shape["id"]) for shape in tx.rows("empty_shapes"))


def requeue(tx: Transaction, task: Row, *, delay: int, reason: str) -> None:
    """Put a task back at its old place, past the depth limit, to be offered after a delay in microseconds."""
    tx.count(1)
    if delay > 0:
        tx.write("insert_held", task=task["id"], until=tx.now() + delay, reason=reason)
    else:
        offer(tx, task)


def leave(tx: Transaction, task_id: str) -> bool:
    """Take a task out of the queue, offered or held. False when it was not there."""
    if not tx.write("delete_ready", task=task_id) and not tx.write("delete_held", task=task_id):
        return False
    tx.count(-1)
    return True


def take(tx: Transaction, task_id: str) -> None:
    """Take an offered task out of the queue; a held or overdue one stays, and the operation is refused."""
    if not tx.write("take_ready", task=task_id):
        raise Refusal("task_moved")
    tx.count(-1)


def offer_due(tx: Transaction) -> int:
    """Offer the held tasks whose time has come, and say how many."""
    due = [held for held in tx.rows("held_due") if tx.write("delete_held", task=held["task"])]
    for held in due:
        offer(tx, _task(tx, text(held, "task")))
    return len(due)


def time_out(tx: Transaction) -> int:
    """End the tasks that have waited for too long, and say how many."""
    overdue = [text(ready, "task") for ready in tx.rows("ready_overdue")]
    overdue = [task_id for task_id in overdue if leave(tx, task_id)]
    for task_id in overdue:
        end_task(tx, _task(tx, task_id), TaskEvent.TIME_OUT, reason=QUEUE_TIMEOUT)
    return len(overdue)


def end_task(tx: Transaction, task: Row, event: TaskEvent, *, reason: str, result: str | None = None) -> None:
    """Make a task terminal by an event of the table of moves."""
    status = TASK_MOVES[TaskStatus(text(task, "status")), event]
    if not status.terminal:
        message = f"{event} does not end a task"
        raise ValueError(message)
    if not tx.write("end_task", task=task["id"], status=status.value, reason=reason, result=result):
        raise Refusal("task_moved")


def cancel_queued(tx: Transaction, task: Row) -> Outcome | None:
    """Cancel a task that nobody has; None where somebody has it by now."""
    if not leave(tx, text(task, "id")):
        return None
    end_task(tx, task, TaskEvent.CANCEL, reason="cancelled")
    return Applied(TaskStatus.CANCELLED.value)


def task_to_cancel(tx: Transaction, operation: Cancel) -> Row:
    """The row of a task that somebody wants cancelled."""
    return _task(tx, operation.task_id)
