"""What a person says about the devices and the policy of the local host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from interlock.api.wire import request_of
from interlock.app.settings import DeviceSettings
from interlock.cli.options import read_yaml
from interlock.errors import InvalidInput
from interlock.fleet.model import DeviceRef, HostId, checked_tags
from interlock.guard.policy import Policy

DEFAULT_DEVICES = tuple(DeviceSettings(serial, "shell", frozenset({"linux"})) for serial in ("shell-1", "shell-2"))
# The machine is the user's own, and so are the agents that it finds.
DEFAULT_POLICY = {"tools": {"tool:interlock.shell/*": "allow"}, "agents": ["*:*"]}


def chosen_devices(given: Sequence[str], path: Path | None) -> tuple[DeviceSettings, ...]:
    """The devices as options name them, or as a file does, or two shells."""
    if given and path is not None:
        message = "give --device or --devices, not both"
        raise InvalidInput(message)
    if path is not None:
        return _from_file(path)
    return tuple(_from_option(each) for each in given) or DEFAULT_DEVICES


def _from_option(text: str) -> DeviceSettings:
    """Read `SERIAL[:DRIVER][:TAG,TAG]`."""
    serial, _, more = text.partition(":")
    driver, _, tags = more.partition(":")
    named = DeviceRef(HostId("local"), serial)
    return DeviceSettings(named.serial, driver or "shell", checked_tags([tag for tag in tags.split(",") if tag]))


def _from_file(path: Path) -> tuple[DeviceSettings, ...]:
    document = read_yaml(path)
    if not isinstance(document, list) or not document:
        message = f"{path} is no list of devices: write - serial: NAME"
        raise InvalidInput(message)
    found = []
    for number, each in enumerate(document, 1):
        try:
            found.append(_whole(request_of(DeviceSettings, json.dumps(each).encode())))
        except (InvalidInput, TypeError) as error:
            said = error if isinstance(error, InvalidInput) else "it holds a value that JSON has not"
            message = f"{path}: device {number}: {said}"
            raise InvalidInput(message) from None
    return tuple(found)


def _whole(device: DeviceSettings) -> DeviceSettings:
    """The device, checked, with its exclusive tags among its tags: it has what it is kept for."""
    named = DeviceRef(HostId("local"), device.serial)
    exclusive = checked_tags(device.exclusive_tags)
    return replace(device, serial=named.serial, tags=checked_tags(device.tags) | exclusive, exclusive_tags=exclusive)


def chosen_policy(path: Path | None) -> Policy:
    """The policy in a file, or the one of a machine that is the user's own."""
    return Policy.parse(DEFAULT_POLICY if path is None else read_yaml(path))
