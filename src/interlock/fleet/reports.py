"""What a host reports of its devices, held to the rules. Pure: one at fault is quarantined, and its peers are not."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from interlock.errors import InvalidInput
from interlock.fleet.model import Constraints, DeviceRef, HostId
from interlock.fleet.store import DeviceReport

UNKNOWN_DRIVER = "unknown"
_BEGINNING, _END = 60, 120


def checked_reports(host: HostId, reports: Sequence[DeviceReport]) -> tuple[DeviceReport, ...]:
    """One report for each serial, with the fault of each that cannot be taken as it is.

    A serial that is none cannot name a device: such a one is shown under a name that is made from it.
    """
    times = Counter(report.serial for report in reports)
    apart = {report.serial: report for report in reports}
    return tuple(_checked(host, report, times[serial]) for serial, report in apart.items())


def _checked(host: HostId, report: DeviceReport, times: int) -> DeviceReport:
    repeated = f"{times} devices are reported under this serial: give each its own" if times > 1 else None
    serial, unnamed = _name(host, report.serial)
    incapable = _incapable(report)
    faults = [_shortened(fault) for fault in (report.fault, repeated, unnamed, incapable) if fault]
    if incapable:
        return DeviceReport(serial, UNKNOWN_DRIVER, fault="; ".join(faults))
    return replace(report, serial=serial, fault="; ".join(faults) or None)


def _shortened(fault: str) -> str:
    """The fault without the middle of what a host may have made as long as it likes."""
    return fault if len(fault) <= _BEGINNING + _END else f"{fault[:_BEGINNING]} ... {fault[-_END:]}"


def _name(host: HostId, serial: str) -> tuple[str, str | None]:
    """The serial, or what stands for one that is none, and why it is none."""
    try:
        return DeviceRef(host, serial).serial, None
    except InvalidInput as error:
        made = hashlib.sha256(serial.encode("utf-8", "replace")).hexdigest()[:12]
        return f"unnamed-{made}", str(error)


def _incapable(report: DeviceReport) -> str | None:
    """Why the driver or the tags of a report are none, or None where they can be taken."""
    try:
        Constraints(report.driver_type, report.tags | report.exclusive_tags)
    except InvalidInput as error:
        return str(error)
    return None
