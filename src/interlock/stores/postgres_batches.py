"""Operations of one kind that share a commit of PostgreSQL, done by a few statements for all of them.

Lock what is needed in the one order, keep what still holds, write that. What is out of the ordinary is left, before
anything is written, to the way that does one operation after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from interlock.fleet.matching import obstacle
from interlock.fleet.model import Occupancy, TaskStatus
from interlock.fleet.store import Applied, Closed, EndAttempt, Grant, Operation, Outcome, Refused, Row, Submit
from interlock.fleet.strategies import Submission, uses_history
from interlock.fleet.transitions import DEVICE_MOVES, REPORTS, TASK_MOVES, DeviceEvent, Tally, TaskEvent, close_attempt
from interlock.stores.operations import do
from interlock.stores.postgres_locks import lock_first
from interlock.stores.queue import checked_rank
from interlock.stores.transaction import (
    Refusal,
    Transaction,
    constraints_of,
    number,
    pooled_device,
    shape_text,
    tags_text,
    text,
)

Given = dict[str, object]


class Raced(Exception):
    """Somebody else wrote what these operations were about to write: all is undone, and done one after the other."""


def done_together(tx: Transaction, operations: Sequence[Operation]) -> list[Outcome] | None:
    """The outcome of each operation, or None where they are to be done one after the other."""
    kinds = {type(operation) for operation in operations}
    way = _WAYS.get(kinds.pop()) if len(kinds) == 1 else None
    return None if way is None else way(tx, operations)


def _submitted(tx: Transaction, submissions: Sequence[Submit]) -> list[Outcome] | None:
    if not all(map(_is_plain, submissions)) or _known_before(tx, submissions):
        return None
    wanted = {each.task_id: shape_text(each.constraints) for each in submissions}
    shapes = {text(row, "wanted"): row["id"] for row in tx.rows("shapes_named", wanted=sorted(set(wanted.values())))}
    if not shapes.keys() >= set(wanted.values()):
        return None
    now = tx.now()
    outcomes: list[Outcome] = []
    given: list[Given] = []
    for each in submissions:
        try:
            rank = checked_rank(each.ranker, Submission(each.submitter, each.priority, now))
        except Refusal as refusal:
            outcomes.append(Refused(refusal.code, refusal.detail))
            continue
        if not tx.enter(each.max_queue_depth):
            outcomes.append(Refused("queue_full"))
            continue
        outcomes.append(Applied(each.task_id))
        given.append(_row_of(each, rank, now) | {"shape": shapes[wanted[each.task_id]], "place": len(given)})
    _write(tx, "submit_tasks", given)
    return outcomes


def _is_plain(submission: Submit) -> bool:
    brings = submission.definition is not None or submission.workflow is not None
    return not brings and submission.not_before is None and not uses_history(submission.ranker)


def _known_before(tx: Transaction, submissions: Sequence[Submit]) -> bool:
    """Whether any of them may be one that was submitted before, or twice here."""
    keys = [(each.submitter, each.idempotency_key) for each in submissions if each.idempotency_key is not None]
    tasks = [each.task_id for each in submissions]
    if len(set(keys)) < len(keys) or len(set(tasks)) < len(tasks):
        return True
    submitters, named = [key[0] for key in keys], [key[1] for key in keys]
    return bool(tx.rows("tasks_known", tasks=tasks, submitters=submitters, keys=named))


def _row_of(submission: Submit, rank: int, now: int) -> Given:
    constraints = submission.constraints
    return {
        "task": submission.task_id,
        "kind": submission.kind,
        "label": submission.label,
        "sealed": submission.sealed,
        "body_digest": submission.body_digest,
        "driver_type": constraints.driver_type,
        "tags": tags_text(constraints.tags),
        "pin": None if constraints.device is None else str(constraints.device),
        "rank": rank,
        "submitter": submission.submitter,
        "priority": submission.priority,
        "idempotency_key": submission.idempotency_key,
        "max_attempts": submission.max_attempts,
        "submitted_at": now,
        "queue_timeout": submission.queue_timeout,
    }


def _granted(tx: Transaction, grants: Sequence[Grant]) -> list[Outcome] | None:
    if any(grant.notes_rank for grant in grants):
        return None
    tx.lock("lock_devices", devices=[grant.device_id for grant in grants])
    tasks = {row["task"]: row for row in tx.rows("tasks_to_grant", tasks=[grant.task_id for grant in grants])}
    devices = {row["id"]: row for row in tx.rows("devices_to_grant", devices=[grant.device_id for grant in grants])}
    if tx.rows("attempts_known", attempts=[grant.attempt_id for grant in grants]):
        return None
    now = tx.now()
    outcomes: list[Outcome] = []
    given: list[Given] = []
    for grant in grants:
        task, device = tasks.get(grant.task_id), devices.get(grant.device_id)
        refused = _grant_refused(tx, task, device, now)
        if refused is not None or task is None:
            outcomes.append(refused or Refused("task_moved"))
            continue
        # Whoever comes later in this commit finds neither of them any more.
        del tasks[grant.task_id], devices[grant.device_id]
        ids = {"attempt": grant.attempt_id, "lease": grant.lease_id, "task": grant.task_id, "device": grant.device_id}
        given.append(ids | {"number": task["number"], "ttl": grant.claim_ttl})
        outcomes.append(Applied(grant.attempt_id))
    _write(tx, "grant_attempts", given)
    tx.count(-len(given))
    return outcomes


def _grant_refused(tx: Transaction, task: Row | None, device: Row | None, now: int) -> Refused | None:
    """Why a pair cannot be granted, as `leases.grant` says it."""
    if task is None or (task["until"] is not None and number(task, "until") <= now):
        return Refused("task_moved")
    if device is None or device["idle_since"] is None:
        return Refused("device_reserved")
    seen = pooled_device(device, occupancy=Occupancy.IDLE.value, now=now, presence=tx.presence)
    reason = obstacle(constraints_of(task), seen)
    return None if reason is None else Refused("device_unsuitable", reason)


def _ended(tx: Transaction, ends: Sequence[EndAttempt]) -> list[Outcome] | None:
    lock_first(tx, ends, always=True)
    found = {row["lease"]: row for row in tx.rows("attempts_to_end", leases=[end.lease_id for end in ends])}
    now = tx.now()
    given: list[Given] = []
    outcomes: dict[int, Outcome] = {}
    for place, end in enumerate(ends):
        closing = _plain_end(end, found.pop(end.lease_id, None), now)
        if closing is not None:
            given.append(closing)
            outcomes[place] = Applied(Closed(str(closing["task"]), str(closing["attempt"])))
    _write(tx, "end_attempts", given)
    for place, end in enumerate(ends):
        if place not in outcomes:
            outcomes[place] = do(tx, end)
    return [outcomes[place] for place in range(len(ends))]


def _plain_end(end: EndAttempt, row: Row | None, now: int) -> Given | None:
    """What to write for a first report of how a run ended, under a lease that is good. None for all else."""
    if row is None or end.end not in REPORTS or row["report"] is not None or row["state"] != "claimed":
        return None
    if end.host != row["attempt_host"] or end.host != row["host"] or number(row, "expires_at") <= now:
        return None
    closing = close_attempt(
        end.end,
        claimed=True,
        cancel_requested=row["cancel_requested_at"] is not None,
        tally=Tally(number(row, "counted"), number(row, "max_attempts"), number(row, "uncounted")),
        stopped=end.stopped,
        clean=end.clean,
    )
    occupancy = DEVICE_MOVES[Occupancy.BUSY, closing.device]
    return {
        "lease": end.lease_id,
        "attempt": row["attempt"],
        "device": row["device"],
        "task": row["task"],
        "occupancy": occupancy.value,
        "stopped": closing.device is not DeviceEvent.LOST,
        "end_kind": end.end.value,
        "reason": end.reason,
        "report": end.report,
        "status": TASK_MOVES[TaskStatus.DISPATCHED, closing.task].value,
        "task_reason": end.reason if closing.task is TaskEvent.FINISH_FAILED else closing.reason,
        "result": end.result,
    }


def _write(tx: Transaction, query: str, given: Iterable[Given]) -> None:
    """Write all rows by one statement.

    Raises:
        Raced: It did not write every one of them.
    """
    rows = list(given)
    if rows and tx.write(query, given=json.dumps(rows)) != len(rows):
        raise Raced


_WAYS: dict[type, Callable[[Transaction, Sequence[Any]], list[Outcome] | None]] = {
    Submit: _submitted,
    Grant: _granted,
    EndAttempt: _ended,
}
