"""Operations on hosts and devices: who is there, what is free, and what an operator says of it."""

from __future__ import annotations

from interlock.fleet.model import Occupancy, Service
from interlock.fleet.store import (
    Applied,
    Beat,
    ConfirmStopped,
    DeviceReport,
    ForceRelease,
    ForgetDevice,
    Outcome,
    RegisterHost,
    Replayed,
    Row,
    SetService,
    Sweep,
)
from interlock.fleet.transitions import DEVICE_MOVES, DeviceEvent
from interlock.stores.leases import expire
from interlock.stores.transaction import Refusal, Transaction, number, tags_text, text


def register_host(tx: Transaction, operation: RegisterHost) -> Outcome:
    """Make a host known under the hash of its credential."""
    tx.write("register_host", host=operation.host, token_hash=operation.token_hash)
    return Applied()


def beat(tx: Transaction, operation: Beat) -> Outcome:
    """Hear of a host: its devices are registered, and what its reservations are is left alone."""
    host = tx.row("host", host=operation.host)
    if host is None:
        raise Refusal("not_found")
    tx.write("beat", host=operation.host, boot_id=operation.boot_id, generation=operation.generation)
    if host["boot_id"] not in {None, operation.boot_id}:
        _after_boot(tx, operation)
    known = {text(device, "serial"): device for device in tx.rows("devices_of_host", host=operation.host)}
    # In the order of the device's id, as everybody locks devices.
    for report in sorted(operation.devices, key=lambda each: str(known.get(each.serial, {}).get("id", ""))):
        _report(tx, operation, report, known.get(report.serial))
    reported = {report.serial for report in operation.devices}
    for device in (device for serial, device in known.items() if serial not in reported):
        if device["reported"]:
            tx.write("unreport_device", device=device["id"])
    leases = tx.rows("leases_of_host", host=operation.host)
    vacating = tx.rows("vacating_of_host", host=operation.host)
    return Applied((leases, vacating))


def _after_boot(tx: Transaction, operation: Beat) -> None:
    """Nothing that ran before a kernel's boot is running after it."""
    for device in tx.rows("vacating_of_host", host=operation.host):
        tx.write("start_cleaning", device=device["device"])
        tx.write("note_stop", attempt=device["attempt"])


def _report(tx: Transaction, operation: Beat, report: DeviceReport, known: Row | None) -> None:
    capabilities = {
        "driver_type": report.driver_type,
        "tags": tags_text(report.tags | report.exclusive_tags),
        "exclusive_tags": tags_text(report.exclusive_tags),
    }
    if known is None:
        device = tx.new_device_id()
        service = Service.IN_SERVICE if report.fault is None else Service.QUARANTINED
        tx.write(
            "insert_device",
            device=device,
            host=operation.host,
            serial=report.serial,
            service=service.value,
            service_reason=report.fault,
            **capabilities,
        )
        tx.write("insert_idle", device=device)
        return
    if report.fault is not None:
        tx.write("set_service", device=known["id"], service=Service.QUARANTINED.value, reason=report.fault)
    if not known["reported"] or any(known[name] != value for name, value in capabilities.items()):
        tx.write("update_device", device=known["id"], **capabilities)


def _device(tx: Transaction, host: str, serial: str) -> Row:
    """The row of a device, whose attempts begin and end only with this transaction."""
    device = tx.row("device", host=host, serial=serial)
    if device is None:
        raise Refusal("not_found", f"there is no device {host}/{serial}")
    tx.lock("lock_device", device=device["id"])
    return device


def confirm_stopped(tx: Transaction, operation: ConfirmStopped) -> Outcome:
    """Take a host's word that an ended attempt has left its device; a device that is free already stays so."""
    device = _device(tx, operation.host, operation.serial)
    vacating = tx.row("vacating", device=device["id"])
    named = operation.attempt_id
    if named is not None:
        _note_named(tx, operation, named)
    if vacating is None or (named is not None and vacating["attempt"] != named):
        return Replayed()
    occupancy = Occupancy(text(vacating, "state"))
    if occupancy is Occupancy.STOP_UNCONFIRMED:
        event = DeviceEvent.STOPPED_AND_CLEAN if operation.clean else DeviceEvent.STOPPED
    elif operation.clean:
        event = DeviceEvent.CLEANED
    else:
        return Replayed()
    tx.write("note_stop", attempt=vacating["attempt"])
    if DEVICE_MOVES[occupancy, event] is Occupancy.IDLE:
        tx.write("delete_vacating", device=device["id"])
        tx.write("insert_idle", device=device["id"])
    else:
        tx.write("start_cleaning", device=device["id"])
    return Applied()


def _note_named(tx: Transaction, operation: ConfirmStopped, attempt_id: str) -> None:
    """Note the stop of an ended attempt of this host and device, also where an operator freed the device before."""
    attempt = tx.row("attempt", attempt=attempt_id)
    if attempt is None or attempt["host"] != operation.host or attempt["serial"] != operation.serial:
        raise Refusal("not_found", f"{attempt_id} was no attempt on {operation.serial}")
    if attempt["ended_at"] is not None:
        tx.write("note_stop", attempt=attempt_id)


def set_service(tx: Transaction, operation: SetService) -> Outcome:
    """Take a device out of service or back, with the reason on record."""
    device = _device(tx, operation.device.host, operation.device.serial)
    tx.write("set_service", device=device["id"], service=operation.service, reason=operation.reason)
    tx.write("audit", what=f"service {operation.service}", device=device["id"], attempt=None)
    return Applied()


def force_release(tx: Transaction, operation: ForceRelease) -> Outcome:
    """Free a device whatever holds it. The attempt that held it is over, and its later reports are refused."""
    device = _device(tx, operation.device.host, operation.device.serial)
    held = tx.row("lease_of_device", device=device["id"])
    lease = None if held is None else tx.row("lock_lease", lease=held["id"])
    if lease is not None:
        expire(tx, lease, Sweep(operation.retry_first, operation.retry_longest))
    vacating = tx.row("vacating", device=device["id"])
    if vacating is not None:
        tx.write("delete_vacating", device=device["id"])
        tx.write("insert_idle", device=device["id"])
    if operation.stopped:
        tx.write("note_stops", host=operation.device.host, serial=operation.device.serial)
    attempt = lease["attempt"] if lease is not None else vacating["attempt"] if vacating is not None else None
    what = "force release, stopped" if operation.stopped else "force release"
    tx.write("audit", what=what, device=device["id"], attempt=attempt)
    return Applied(number(device, "fence"))


def forget_device(tx: Transaction, operation: ForgetDevice) -> Outcome:
    """List a device no more. It stays in its place, so that where it comes back nothing of before is forgotten."""
    device = _device(tx, operation.device.host, operation.device.serial)
    if device["forgotten"]:
        return Replayed()
    if tx.row("lease_of_device", device=device["id"]) is not None:
        raise Refusal("device_held", "an attempt holds the device: release it first")
    known = tx.row("device_by_id", device=device["id"]) or {}
    beat = known.get("last_beat_at")
    if device["reported"] and isinstance(beat, int) and beat > tx.now() - tx.presence:
        raise Refusal("device_present", "its host still reports the device: it would be back with the next heartbeat")
    tx.write("forget_device", device=device["id"])
    tx.write("audit", what="forget", device=device["id"], attempt=None)
    return Applied()
