"""One predicate says whether a device may run a task: assignment and its explanation both ask here."""

from __future__ import annotations

from dataclasses import dataclass

from interlock.fleet.model import Constraints, DeviceRef, Occupancy, Service


@dataclass(frozen=True)
class PooledDevice:
    """A device as the scheduler sees it. `present` is whether its host was heard of lately.

    `took` is for how many microseconds it was held the last time but one, if it was.
    """

    device_id: str
    ref: DeviceRef
    driver_type: str
    tags: frozenset[str]
    exclusive_tags: frozenset[str] = frozenset()
    occupancy: Occupancy = Occupancy.IDLE
    service: Service = Service.IN_SERVICE
    present: bool = True
    idle_since: int = 0
    took: int | None = None


def mismatch(constraints: Constraints, device: PooledDevice) -> str | None:
    """Why this device can never run a task with these constraints, or None where it can."""
    if constraints.device is not None and constraints.device != device.ref:
        return f"the task is pinned to {constraints.device}"
    if constraints.driver_type is not None and constraints.driver_type != device.driver_type:
        return f"its driver is {device.driver_type}, not {constraints.driver_type}"
    missing = constraints.tags - device.tags
    if missing:
        return f"it lacks {', '.join(sorted(missing))}"
    # A device that is rare on purpose is kept for those who ask for what makes it rare.
    if device.exclusive_tags and not device.exclusive_tags & constraints.tags:
        return f"it is only for tasks that ask for {' or '.join(sorted(device.exclusive_tags))}"
    return None


def unavailable(device: PooledDevice) -> str | None:
    """Why this device takes no work now, whatever is asked of it, or None where it does."""
    if not device.present:
        return "its host has not been heard of"
    if device.service is not Service.IN_SERVICE:
        return f"it is {device.service.value}"
    if device.occupancy is not Occupancy.IDLE:
        return f"it is {device.occupancy.value}"
    return None


def obstacle(constraints: Constraints, device: PooledDevice) -> str | None:
    """Why this device cannot take a task with these constraints now, or None where it can."""
    return mismatch(constraints, device) or unavailable(device)
