"""The one order in which transactions of PostgreSQL lock rows, so that no two wait for each other.

Devices, offered tasks, leases; then what hangs on them: a task, its attempt, its runs. Counters last.
"""

from __future__ import annotations

from collections.abc import Sequence

from interlock.fleet.store import (
    Claim,
    EndAttempt,
    Grant,
    HandOverEffect,
    Operation,
    Renew,
    SaveRun,
    SettleCall,
    Submit,
    WithdrawEffect,
)
from interlock.stores.transaction import Transaction

_UnderLease = Renew | SaveRun | HandOverEffect | WithdrawEffect | SettleCall


def lock_first(tx: Transaction, operations: Sequence[Operation], *, always: bool = False) -> None:
    """Lock what several operations share a commit for, all in the one order, before the first of them is done.

    One alone locks for itself as it goes, unless it is `always` to be done here.
    """
    if len(operations) == 1 and not always:
        return
    grants = [operation for operation in operations if isinstance(operation, Grant)]
    if grants:
        tx.lock("lock_devices", devices=[grant.device_id for grant in grants])
        tx.lock("lock_ready", tasks=[grant.task_id for grant in grants])
    leases = [operation.lease_id for operation in operations if isinstance(operation, EndAttempt)]
    if leases:
        tx.lock("lock_devices_of_leases", leases=leases)
        tx.lock("lock_leases", leases=leases)


def lock_order(operations: Sequence[Operation]) -> tuple[str, ...]:
    """What to sort the batches of one commit by, so that each transaction takes its locks in the same order."""
    first = operations[0] if operations else None
    if isinstance(first, _UnderLease):
        return (first.lease_id,)
    if isinstance(first, Claim):
        return (first.claim_id,)
    if isinstance(first, Submit):
        return (first.submitter, first.idempotency_key or "", first.task_id)
    return ()
