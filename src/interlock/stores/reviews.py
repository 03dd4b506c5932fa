"""The operation that settles doubt: one guarded write of every answer and of the task that goes on."""

from __future__ import annotations

from interlock.fleet.model import ReviewAnswer, TaskStatus
from interlock.fleet.store import Applied, Outcome, Replayed, Resolve, Row
from interlock.stores.queue import offer
from interlock.stores.transaction import Refusal, Transaction, number, text


def resolve(tx: Transaction, operation: Resolve) -> Outcome:
    """Write the answers and queue the successor, at most one for a task."""
    tx.lock("lock_task", task=operation.task_id)
    task = tx.row("task", task=operation.task_id)
    if task is None:
        raise Refusal("not_found", f"there is no task {operation.task_id}")
    if task["end_status"] is None:
        raise Refusal("not_ended", "the task has not ended: its attempts may still settle the doubt")
    if task["successor"] is not None:
        if task["successor"] == operation.successor_id:
            return Replayed(operation.successor_id)
        raise Refusal("resolved_before", text(task, "successor"))
    doubts = tx.rows("doubts_of_task", task=operation.task_id)
    if not doubts:
        raise Refusal("nothing_in_doubt", "no effect of the task is in doubt")
    _check(tx, operation, doubts)
    for doubt in doubts:
        key = {"run_id": text(doubt, "run_id"), "action_id": text(doubt, "action_id")}
        answer = operation.answers[key["run_id"], key["action_id"]]
        tx.write("answer_entry", task=operation.task_id, answer=answer, answered_by=operation.answered_by, **key)
    tx.write("audit", what=f"resolve {operation.task_id}", device=None, attempt=doubts[-1]["attempt"])
    return Applied(_continue(tx, operation, task))


def _check(tx: Transaction, operation: Resolve, doubts: list[Row]) -> None:
    """Every doubt is answered, nothing else is, and no *did not happen* comes before it can be true."""
    wanted = {(text(doubt, "run_id"), text(doubt, "action_id")) for doubt in doubts}
    if unknown := operation.answers.keys() - wanted:
        raise Refusal("not_in_doubt", ", ".join(sorted(action for _, action in unknown)))
    if missing := wanted - operation.answers.keys():
        raise Refusal("answers_missing", ", ".join(sorted(action for _, action in missing)))
    for doubt in doubts:
        answer = operation.answers[text(doubt, "run_id"), text(doubt, "action_id")]
        if answer == ReviewAnswer.DID_NOT_HAPPEN:
            _check_settled(tx, operation, doubt)


def _check_settled(tx: Transaction, operation: Resolve, doubt: Row) -> None:
    if doubt["stopped_at"] is None:
        raise Refusal("stop_unconfirmed", text(doubt, "action_id"))
    if tx.now() < number(doubt, "stopped_at") + operation.settles.get(text(doubt, "tool_id"), 0):
        raise Refusal("not_settled", text(doubt, "action_id"))


def _continue(tx: Transaction, operation: Resolve, task: Row) -> str | None:
    """Queue the successor at the end of its rank, past the depth limit. Only a failed task has one."""
    if task["end_status"] != TaskStatus.FAILED.value:
        return None
    tx.row("insert_successor", successor=operation.successor_id, task=operation.task_id)
    tx.write("inherit_outputs", successor=operation.successor_id, task=operation.task_id)
    successor = tx.row("task", task=operation.successor_id)
    if successor is None:
        raise Refusal("not_found")
    tx.count(1)
    offer(tx, successor)
    return operation.successor_id
