"""The commands about devices: devices, drain, quarantine, return, release, forget."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from interlock.api import wire
from interlock.api.client import Client
from interlock.cli.options import AsJson, Data
from interlock.cli.output import clean, print_json, table, to_person, word
from interlock.fleet.model import DeviceRef, Service

Named = Annotated[str, typer.Argument(metavar="HOST/SERIAL", help="The device.")]
Reason = Annotated[Optional[str], typer.Option("--reason", help="Why; shown beside the device.")]  # noqa: UP045


def devices(*, data: Data = None, as_json: AsJson = False) -> None:
    """List the devices and what each is doing."""
    with Client.local(data) as client:
        found = client.devices()
    if as_json:
        print_json(wire.DeviceList(tuple(found)))
        return
    shown = table("DEVICE", "DRIVER", "STATE", "SERVICE", "TASK", "TAGS", "REASON")
    for each in found:
        tags = " ".join(f"{tag}!" if tag in each.exclusive_tags else tag for tag in each.tags)
        service, reason = word(each.service), clean(each.service_reason or "")
        shown.add_row(each.name, each.driver_type, word(each.state), service, each.task_id or "", tags, reason)
    to_person().print(shown if found else "there is no device yet: start a host that has one with `interlock up`")


def drain(device: Named, *, reason: Reason = None, data: Data = None, as_json: AsJson = False) -> None:
    """Let a device take nothing more."""
    _set_service(device, Service.DRAINING, reason, data, as_json=as_json)


def quarantine(device: Named, *, reason: Reason = None, data: Data = None, as_json: AsJson = False) -> None:
    """Take a device out of service until it is returned."""
    _set_service(device, Service.QUARANTINED, reason, data, as_json=as_json)


def give_back(device: Named, *, data: Data = None, as_json: AsJson = False) -> None:
    """Return a device to service."""
    _set_service(device, Service.IN_SERVICE, None, data, as_json=as_json)


def release(
    device: Named,
    *,
    stopped: Annotated[bool, typer.Option("--stopped", help="You saw that nothing of it still runs.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Free a device whatever holds it.

    The attempt that held it is over: see first that nothing of it still runs on the device. With --stopped that is on
    record, and `interlock resolve` takes *did not happen* where the host of the device is never heard of again.
    """
    ref = DeviceRef.parse(device)
    with Client.local(data) as client:
        client.force_release(ref, stopped=stopped)
    _said(ref, "released", as_json=as_json)


def forget(device: Named, *, data: Data = None, as_json: AsJson = False) -> None:
    """Forget a device that is gone for good. Where a host reports it again, it is back."""
    ref = DeviceRef.parse(device)
    with Client.local(data) as client:
        client.forget_device(ref)
    _said(ref, "forgotten", as_json=as_json)


def _set_service(device: str, service: Service, reason: str | None, data: Data, *, as_json: bool) -> None:
    ref = DeviceRef.parse(device)
    with Client.local(data) as client:
        client.set_service(ref, service.value, reason)
    _said(ref, service.value, as_json=as_json)


def _said(ref: DeviceRef, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"device": str(ref), "outcome": what})
    else:
        to_person().print(f"{ref} is {what.replace('_', ' ')}")
