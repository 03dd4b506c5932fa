"""Operations on leases: grant, claim, renew, the ends of an attempt, cancel and the sweep."""

from __future__ import annotations

import json

from interlock.fleet.matching import obstacle
from interlock.fleet.model import Occupancy, Service, TaskStatus
from interlock.fleet.store import (
    Applied,
    Cancel,
    Claim,
    Closed,
    EndAttempt,
    Goodbye,
    Grant,
    Outcome,
    Renew,
    Replayed,
    Row,
    Sweep,
    Swept,
)
from interlock.fleet.transitions import (
    DEVICE_MOVES,
    RELEASES,
    UNCOUNTED,
    AttemptEnd,
    Closing,
    DeviceEvent,
    Tally,
    TaskEvent,
    close_attempt,
    retry_delay_seconds,
    spread,
)
from interlock.stores.history import forget
from interlock.stores.queue import (
    cancel_queued,
    drop_empty_shapes,
    end_task,
    offer_due,
    requeue,
    take,
    task_to_cancel,
    time_out,
)
from interlock.stores.transaction import Refusal, Transaction, constraints_of, number, pooled_device, text

LOSSES_TO_QUARANTINE = 5
_LOOKS = 20
_MICROSECONDS = 1_000_000


def grant(tx: Transaction, operation: Grant) -> Outcome:
    """Bind a queued task to an idle device, if both still are, under a lease that is to be claimed soon."""
    if tx.row("attempt", attempt=operation.attempt_id) is not None:
        return Replayed(operation.attempt_id)
    tx.lock("lock_device", device=operation.device_id)
    take(tx, operation.task_id)
    idle = tx.row("delete_idle", device=operation.device_id)
    if idle is None:
        raise Refusal("device_reserved")
    device = tx.row("device_by_id", device=operation.device_id)
    task = tx.row("task", task=operation.task_id)
    if device is None or task is None:
        raise Refusal("not_found")
    seen = pooled_device(device, occupancy="idle", now=tx.now(), presence=tx.presence)
    reason = obstacle(constraints_of(task), seen)
    if reason is not None:
        raise Refusal("device_unsuitable", reason)
    _bind(tx, operation, device, idle)
    if operation.notes_rank:
        tx.write("note_granted", rank=task["rank"])
    return Applied(operation.attempt_id)


def _bind(tx: Transaction, operation: Grant, device: Row, idle: Row) -> None:
    fence = tx.row("raise_fence", device=operation.device_id, idle_since=idle["since"])
    attempt_number = tx.row("next_number", task=operation.task_id)
    if fence is None or attempt_number is None:
        raise Refusal("not_found")
    tx.write(
        "insert_attempt",
        attempt=operation.attempt_id,
        lease=operation.lease_id,
        task=operation.task_id,
        number=attempt_number["number"],
        device=operation.device_id,
        host=device["host"],
        serial=device["serial"],
        fence=fence["fence"],
    )
    tx.write(
        "insert_lease",
        lease=operation.lease_id,
        attempt=operation.attempt_id,
        task=operation.task_id,
        device=operation.device_id,
        host=device["host"],
        ttl=operation.claim_ttl,
    )


def claim(tx: Transaction, operation: Claim) -> Outcome:
    """Take assigned attempts of a host; applied with their lease ids and how long each lease is good from now."""
    tx.lock("lock_claim", claim_id=operation.claim_id)
    before = tx.rows("attempts_by_claim", claim_id=operation.claim_id)
    if before:
        return _claimed_before(tx, operation, before)
    asked = {"host": operation.host, "generation": operation.generation, "most": operation.limit}
    found = [text(lease, "id") for lease in tx.rows("lock_leases_to_claim", **asked)]
    if not found:
        return Applied(())
    claimed = {
        text(lease, "id") for lease in tx.rows("claim_leases", leases=json.dumps(found), ttl=operation.lease_ttl)
    }
    taken = [lease for lease in found if lease in claimed]
    tx.write("claim_attempts", leases=json.dumps(taken), claim_id=operation.claim_id)
    return Applied(tuple((lease, operation.lease_ttl) for lease in taken))


def _claimed_before(tx: Transaction, operation: Claim, attempts: list[Row]) -> Outcome:
    if any(attempt["host"] != operation.host for attempt in attempts):
        raise Refusal("lease_superseded")
    now = tx.now()
    live = [tx.row("lease", lease=attempt["lease"]) for attempt in attempts]
    left = [(text(row, "id"), number(row, "expires_at") - now) for row in live if row is not None]
    left = [(lease, remaining) for lease, remaining in left if remaining > 0]
    if not left:
        raise Refusal("lease_superseded")
    return Replayed(tuple(left))


def live_lease(tx: Transaction, host: str, lease_id: str) -> Row:
    """The row of a claimed lease of this host that is still good: the fence, which every guarded write passes first.

    The row is locked before the time is judged, so that no sweep can come in between.
    """
    lease = tx.row("lock_lease", lease=lease_id)
    if lease is None or lease["host"] != host or lease["state"] != "claimed":
        raise Refusal("lease_superseded")
    if number(lease, "expires_at") <= tx.now():
        raise Refusal("lease_superseded")
    return lease


def renew(tx: Transaction, operation: Renew) -> Outcome:
    """Extend a lease that is still good. Applied with whether a cancel was asked for."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    if not tx.write("renew_lease", lease=operation.lease_id, ttl=operation.lease_ttl):
        raise Refusal("lease_superseded")
    task = tx.row("task", task=lease["task"])
    return Applied(task is not None and task["cancel_requested_at"] is not None)


def end_attempt(tx: Transaction, operation: EndAttempt) -> Outcome:
    """Close an attempt as its host reports. A report under a lost lease changes nothing and is kept as evidence."""
    # Whoever ends an attempt holds its device, so what its record says after that stays true.
    tx.lock("lock_device_of_lease", lease=operation.lease_id)
    attempt = tx.row("attempt_by_lease", lease=operation.lease_id)
    if attempt is None or attempt["host"] != operation.host:
        raise Refusal("lease_superseded")
    if attempt["report"] is not None:
        if attempt["report"] != operation.report:
            raise Refusal("report_conflict", text(attempt, "report"))
        return Replayed(Closed(text(attempt, "task"), text(attempt, "id")))
    try:
        lease = live_lease(tx, operation.host, operation.lease_id)
    except Refusal:
        tx.write("keep_late_report", attempt=attempt["id"], report=operation.report)
        return Applied("lease_superseded")
    _close(tx, lease, operation)
    return Applied(Closed(text(attempt, "task"), text(attempt, "id")))


def _close(tx: Transaction, lease: Row, ended: EndAttempt) -> None:
    """End an attempt: its lease, its device, its task and its record, in one transaction."""
    task = tx.row("task", task=lease["task"])
    if task is None:
        raise Refusal("not_found")
    claimed = lease["state"] == "claimed"
    tally = Tally(number(task, "counted"), number(task, "max_attempts"), number(task, "uncounted"))
    closing = close_attempt(
        ended.end,
        claimed=claimed,
        cancel_requested=task["cancel_requested_at"] is not None or ended.end is AttemptEnd.CANCELLED,
        tally=tally,
        stopped=ended.stopped,
        clean=ended.clean,
    )
    tx.write("delete_lease", lease=lease["id"])
    _vacate(tx, lease, closing.device, claimed=claimed)
    if closing.device is not DeviceEvent.LOST:
        tx.write("note_stop", attempt=lease["attempt"])
    _judge_device(tx, lease, ended.end, claimed=claimed)
    _move_task(tx, task, closing, ended)
    record = {"end_kind": ended.end.value, "reason": ended.reason, "report": ended.report}
    tx.write("end_attempt", attempt=lease["attempt"], **record)


def _vacate(tx: Transaction, lease: Row, event: DeviceEvent, *, claimed: bool) -> None:
    occupancy = DEVICE_MOVES[Occupancy.BUSY if claimed else Occupancy.RESERVED, event]
    if occupancy is Occupancy.IDLE:
        tx.write("insert_idle", device=lease["device"])
    else:
        tx.write("insert_vacating", device=lease["device"], state=occupancy.value, attempt=lease["attempt"])


def _judge_device(tx: Transaction, lease: Row, end: AttemptEnd, *, claimed: bool) -> None:
    """Quarantine a device that has failed its tasks several times in a row; one that worked starts anew."""
    if end not in {AttemptEnd.LEASE_EXPIRED, AttemptEnd.WORKER_LOST}:
        if end not in UNCOUNTED:
            tx.write("forget_losses", device=lease["device"])
        return
    if not claimed:
        return
    device = tx.row("count_loss", device=lease["device"])
    if device and number(device, "losses") >= LOSSES_TO_QUARANTINE and device["service"] == Service.IN_SERVICE.value:
        reason = f"{LOSSES_TO_QUARANTINE} attempts in a row were lost on it, the last by {end.value}"
        tx.write("set_service", device=lease["device"], service=Service.QUARANTINED.value, reason=reason)


def _move_task(tx: Transaction, task: Row, closing: Closing, ended: EndAttempt) -> None:
    if ended.end is AttemptEnd.LEASE_EXPIRED or ended.end in RELEASES:
        uncounted = ended.end in UNCOUNTED
        tx.write("count_end", task=task["id"], counted=int(not uncounted), uncounted=int(uncounted))
    if closing.task is not TaskEvent.REQUEUE:
        reason = ended.reason if closing.task is TaskEvent.FINISH_FAILED else closing.reason
        end_task(tx, task, closing.task, reason=reason, result=ended.result)
        return
    failures = number(task, "counted") + number(task, "uncounted") + 1
    delay = retry_delay_seconds(
        failures,
        first=ended.retry_first / _MICROSECONDS,
        longest=ended.retry_longest / _MICROSECONDS,
        spread=spread(ended.lease_id),
    )
    requeue(tx, task, delay=int(delay * _MICROSECONDS), reason="retry_backoff")


def expire(tx: Transaction, lease: Row, sweep: Sweep) -> None:
    """End an attempt whose deadline has passed, or that an operator ends by force."""
    ended = EndAttempt(
        host=lease["host"],  # type: ignore[arg-type]
        lease_id=lease["id"],  # type: ignore[arg-type]
        end=AttemptEnd.LEASE_EXPIRED,
        reason=AttemptEnd.LEASE_EXPIRED.value,
        retry_first=sweep.retry_first,
        retry_longest=sweep.retry_longest,
    )
    _close(tx, lease, ended)


def sweep(tx: Transaction, operation: Sweep) -> Outcome:
    """End what has expired and what has waited for too long, each apart, and offer what is due."""
    expired = 0
    for lease in tx.rows("leases_expired"):
        expired += end_expired(tx, lease, operation)
    timed_out = time_out(tx)
    offered = offer_due(tx)
    forgotten = 0 if operation.keep_history is None else forget(tx, operation.keep_history)
    end_sweep(tx)
    return Applied(Swept(expired, offered, timed_out, forgotten))


def end_expired(tx: Transaction, seen: Row, operation: Sweep) -> bool:
    """End one attempt, if its deadline has passed still, and say whether it did."""
    tx.lock("lock_device", device=seen["device"])
    lease = tx.row("lock_lease", lease=seen["id"])
    if lease is None or number(lease, "expires_at") > tx.now():
        return False
    try:
        with tx.apart():
            expire(tx, lease, operation)
    except Refusal:
        return False
    return True


def end_sweep(tx: Transaction) -> None:
    """Forget the shapes that nobody waits with, and remember that there was a sweep."""
    drop_empty_shapes(tx)
    tx.write("upkeep_swept")


def goodbye(tx: Transaction, operation: Goodbye) -> Outcome:
    """A host leaves: what it has not claimed goes back at once."""
    if not tx.write("goodbye", host=operation.host, generation=operation.generation):
        raise Refusal("another_generation")
    tx.lock("lock_assigned_of_host", host=operation.host)
    for seen in tx.rows("assigned_of_host", host=operation.host):
        lease = tx.row("lock_lease", lease=seen["id"])
        if lease is None or lease["state"] != "assigned":
            continue
        not_started = EndAttempt(
            operation.host,
            lease["id"],  # type: ignore[arg-type]
            AttemptEnd.NOT_STARTED,
            AttemptEnd.NOT_STARTED.value,
            retry_first=0,
        )
        _close(tx, lease, not_started)
    return Applied()


def cancel(tx: Transaction, operation: Cancel) -> Outcome:
    """Cancel what nobody runs, ask for the rest; applied with which it was, or with the status of a terminal task."""
    for _ in range(_LOOKS):
        task = task_to_cancel(tx, operation)
        status = TaskStatus(text(task, "status"))
        if status.terminal:
            return Applied(status.value)
        lease = tx.row("lease_of_task", task=operation.task_id)
        cancelled = cancel_queued(tx, task) if lease is None else _cancel_leased(tx, lease)
        # Between two looks the task may go from the queue to a device, or back: neither has it then.
        if cancelled is not None:
            return cancelled
    raise Refusal("task_moved")


def _cancel_leased(tx: Transaction, seen: Row) -> Outcome | None:
    tx.lock("lock_device", device=seen["device"])
    lease = tx.row("lock_lease", lease=seen["id"])
    if lease is None:
        return None
    if lease["state"] == "claimed":
        tx.write("request_cancel", task=lease["task"])
        return Applied("cancel_requested")
    cancelled = EndAttempt(
        lease["host"],  # type: ignore[arg-type]
        lease["id"],  # type: ignore[arg-type]
        AttemptEnd.CANCELLED,
        AttemptEnd.CANCELLED.value,
    )
    _close(tx, lease, cancelled)
    return Applied(TaskStatus.CANCELLED.value)
