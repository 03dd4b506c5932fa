"""The snapshot that one pass of a strategy decides on: index heads only, whatever the queue holds."""

from __future__ import annotations

from interlock.fleet.matching import PooledDevice, mismatch
from interlock.fleet.model import Constraints, DeviceRef, TaskId
from interlock.fleet.store import Row
from interlock.fleet.strategies import QueuedTask, Snapshot, View
from interlock.stores.transaction import Transaction, constraints_of_shape, number, pooled_device, text


def read_snapshot(tx: Transaction, *, most: int, view: View) -> Snapshot:
    """The oldest few tasks of each shape that an idle device satisfies, those devices, and when to look again.

    With `View.FULL`, every task that is offered, whether a device satisfies it or not.
    """
    now = tx.now()
    devices = tuple(
        pooled_device(row, occupancy="idle", now=now, presence=tx.presence) for row in tx.rows("idle_devices")
    )
    shapes = {number(row, "id"): constraints_of_shape(text(row, "wanted")) for row in tx.rows("shapes")}
    if view is View.FULL:
        heads = [_offered(row, shapes) for row in tx.rows("ready_tasks")]
    else:
        heads = _shared_heads(tx, shapes, devices, most) + _pinned_heads(tx, shapes, devices, most)
    depth, first = tx.row("depth"), tx.row("held_first")
    return Snapshot(
        tasks=tuple(sorted(heads, key=lambda task: (task.rank, task.sequence))),
        devices=devices,
        waiting=number(depth, "queued") if depth else 0,
        revisit_at=None if first is None or first["until"] is None else number(first, "until"),
    )


def _offered(row: Row, shapes: dict[int, Constraints]) -> QueuedTask:
    wanted = shapes[number(row, "shape")]
    pin = None if row["pin"] is None else DeviceRef.parse(text(row, "pin"))
    return _queued(row, Constraints(wanted.driver_type, wanted.tags, pin))


def _shared_heads(
    tx: Transaction, shapes: dict[int, Constraints], devices: tuple[PooledDevice, ...], most: int
) -> list[QueuedTask]:
    """At most as many of each shape as one pass could place."""
    heads = []
    for shape, wanted in shapes.items():
        fitting = sum(mismatch(wanted, device) is None for device in devices)
        if fitting:
            rows = tx.rows("ready_heads", shape=shape, most=min(fitting, most))
            heads += [_queued(row, wanted) for row in rows]
    return heads


def _pinned_heads(
    tx: Transaction, shapes: dict[int, Constraints], devices: tuple[PooledDevice, ...], most: int
) -> list[QueuedTask]:
    heads = []
    wanted_ones = {row["device"] for row in tx.rows("pinned_idle")}
    for device in devices:
        if device.device_id not in wanted_ones:
            continue
        pin = str(device.ref)
        for row in tx.rows("pinned_shapes", pin=pin):
            wanted = shapes.get(number(row, "shape"))
            if wanted is None or mismatch(wanted, device) is not None:
                continue
            pinned = Constraints(wanted.driver_type, wanted.tags, device.ref)
            rows = tx.rows("pinned_heads", pin=pin, shape=row["shape"], most=min(1, most))
            heads += [_queued(head, pinned) for head in rows]
    return heads


def _queued(row: object, constraints: Constraints) -> QueuedTask:
    if not isinstance(row, dict):
        message = "a queued task is read as a mapping"
        raise TypeError(message)
    return QueuedTask(TaskId(text(row, "task")), constraints, number(row, "rank"), number(row, "seq"))
