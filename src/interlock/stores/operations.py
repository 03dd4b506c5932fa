"""Which function does which operation, and the one way to do it: alone, and undone when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.fleet import store
from interlock.fleet.store import Operation, Outcome, Refused
from interlock.stores import devices, leases, queue, reviews, runs
from interlock.stores.transaction import Refusal, Transaction

_WAYS: dict[type, Callable[[Transaction, Any], Outcome]] = {
    store.Define: queue.define,
    store.Submit: queue.submit,
    store.AdoptStrategy: queue.adopt_strategy,
    store.Grant: leases.grant,
    store.Claim: leases.claim,
    store.Renew: leases.renew,
    store.SaveRun: runs.save_run,
    store.HandOverEffect: runs.hand_over,
    store.WithdrawEffect: runs.withdraw,
    store.SettleCall: runs.settle,
    store.EndAttempt: leases.end_attempt,
    store.Cancel: leases.cancel,
    store.Resolve: reviews.resolve,
    store.Beat: devices.beat,
    store.Goodbye: leases.goodbye,
    store.ConfirmStopped: devices.confirm_stopped,
    store.SetService: devices.set_service,
    store.ForceRelease: devices.force_release,
    store.ForgetDevice: devices.forget_device,
    store.Sweep: leases.sweep,
    store.RegisterHost: devices.register_host,
}


def do(tx: Transaction, operation: Operation) -> Outcome:
    """Do one operation, or refuse it and leave nothing behind."""
    try:
        with tx.apart():
            return _WAYS[type(operation)](tx, operation)
    except Refusal as refusal:
        return Refused(refusal.code, refusal.detail)
