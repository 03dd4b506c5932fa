"""How long it takes until a device comes free: estimates for people, from how long devices were held the last time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from interlock.clock import MICROSECONDS
from interlock.fleet.matching import PooledDevice, mismatch
from interlock.fleet.model import Constraints, Service


def eligible(constraints: Constraints, devices: Sequence[PooledDevice]) -> list[PooledDevice]:
    """The devices in service that satisfy a task, taken ones among them."""
    here = (device for device in devices if device.present and device.service is Service.IN_SERVICE)
    return [device for device in here if mismatch(constraints, device) is None]


def seconds_until_free(devices: Sequence[PooledDevice], turns: int) -> float | None:
    """How long it takes until these devices have come free so often, all together; None where nothing is known."""
    known = [device.took for device in devices if device.took is not None]
    if not known:
        return None
    return fmean(known) * turns / len(devices) / MICROSECONDS
