"""Every request that a client sends, and how its answer is read. Sending is all that the clients do themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from urllib.parse import quote

from interlock.api import wire
from interlock.clock import new_id
from interlock.errors import InterlockError, InvalidInput, LeaseSuperseded, Unavailable
from interlock.fleet.model import (
    Assignment,
    DeviceRef,
    Ending,
    HandOver,
    LeaseId,
    ReviewAnswer,
    RunSave,
    Service,
    Settlement,
    TaskId,
)
from interlock.fleet.service import SubmitRequest
from interlock.fleet.store import DeviceReport
from interlock.fleet.views import (
    BeatAnswer,
    CancelAnswer,
    DeviceView,
    Doubt,
    Renewal,
    Resolution,
    ScheduledTask,
    TaskDetail,
    Violation,
    Waiting,
)

Answer = TypeVar("Answer")
Envelope = TypeVar("Envelope")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request. `repeatable` says that sending it twice does no more than once.

    `wait_seconds` is how long the server may take on purpose.
    """

    method: str
    path: str
    read: Callable[[bytes], Answer]
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    repeatable: bool = True
    wait_seconds: float = 0.0


def submit(request: SubmitRequest) -> Call[TaskId]:
    """Without a key of the caller's, the call has one of its own, so that it may be sent again."""
    keyed = request if request.idempotency_key is not None else replace(request, idempotency_key=new_id("key"))
    read = _field(wire.Submitted, lambda answer: answer.task_id)
    return Call("POST", "/v1/tasks", read, body=wire.encoded(keyed))


def tasks(most: int) -> Call[list[ScheduledTask]]:
    """See `FleetService.tasks`."""
    read = _field(wire.TaskList, lambda answer: list(answer.tasks))
    return Call("GET", "/v1/tasks", read, {"most": str(most)})


def get(task_id: str) -> Call[TaskDetail]:
    """See `FleetService.get`."""
    return Call("GET", _task(task_id), _whole(TaskDetail))


def wait(task_id: str, seconds: float) -> Call[ScheduledTask]:
    """One look of `FleetService.wait`: the server may answer sooner than asked."""
    parameters = {"seconds": str(max(0.0, seconds))}
    return Call("GET", f"{_task(task_id)}/wait", _whole(ScheduledTask), parameters, wait_seconds=seconds)


def cancel(task_id: str) -> Call[CancelAnswer]:
    """See `FleetService.cancel`."""
    return Call("POST", f"{_task(task_id)}/cancel", _whole(CancelAnswer))


def why(task_id: str) -> Call[Waiting]:
    """See `FleetService.why`."""
    return Call("GET", f"{_task(task_id)}/why", _whole(Waiting))


def reviews(most: int) -> Call[list[Doubt]]:
    """See `FleetService.reviews`."""
    return Call("GET", "/v1/reviews", _field(wire.DoubtList, lambda answer: list(answer.reviews)), {"most": str(most)})


def resolve(task_id: str, answers: Mapping[str, str]) -> Call[Resolution]:
    """See `FleetService.resolve`. Sent once: whether it was heard, the task itself says."""
    try:
        said = wire.Answers({action: ReviewAnswer(answer) for action, answer in answers.items()})
    except ValueError:
        message = "an answer is happened, did_not_happen or drop"
        raise InvalidInput(message) from None
    return Call("POST", f"{_task(task_id)}/resolve", _whole(Resolution), body=wire.encoded(said), repeatable=False)


def devices() -> Call[list[DeviceView]]:
    """See `FleetService.devices`."""
    return Call("GET", "/v1/devices", _field(wire.DeviceList, lambda answer: list(answer.devices)))


def set_service(device: DeviceRef, service: str, reason: str | None) -> Call[None]:
    """See `Fleet.set_service`."""
    body = wire.encoded(wire.ServiceChange(Service(service), reason))
    return Call("POST", f"{_device(device)}/service", _nothing, body=body)


def force_release(device: DeviceRef, *, stopped: bool) -> Call[None]:
    """See `Fleet.force_release`. Sent once: a second one could free what has been assigned since."""
    said = {"stopped": str(stopped).lower()}
    return Call("POST", f"{_device(device)}/force-release", _nothing, said, repeatable=False)


def forget_device(device: DeviceRef) -> Call[None]:
    """See `Fleet.forget_device`."""
    return Call("DELETE", _device(device), _nothing)


def register_host(name: str, credential: str) -> Call[None]:
    """See `Fleet.register_host`."""
    return Call("POST", "/v1/hosts", _nothing, body=wire.encoded(wire.HostRegistration(name, credential)))


def violations() -> Call[list[Violation]]:
    """See `FleetService.violations`."""
    return Call("GET", "/v1/violations", _field(wire.ViolationList, lambda answer: list(answer.violations)))


def health() -> Call[wire.Health]:
    """How many tasks stand where, the store's time, and whether the server assigns."""
    return Call("GET", "/v1/health", _whole(wire.Health))


def beat(boot_id: str, generation: str, devices: Sequence[DeviceReport]) -> Call[BeatAnswer]:
    """See `HostService.beat`."""
    return _host("beat", wire.BeatRequest(boot_id, generation, tuple(devices)), _whole(BeatAnswer))


def goodbye(generation: str) -> Call[None]:
    """See `HostService.goodbye`."""
    return _host("goodbye", wire.GoodbyeRequest(generation), _nothing)


def claim(claim_id: str, limit: int, wait_seconds: float) -> Call[list[Assignment]]:
    """See `HostService.claim`."""
    read = _field(wire.AssignmentList, lambda answer: list(answer.assignments))
    call = _host("claim", wire.ClaimRequest(claim_id, limit, wait_seconds), read)
    return replace(call, wait_seconds=wait_seconds)


def renew(leases: Sequence[LeaseId]) -> Call[dict[LeaseId, Renewal | InterlockError]]:
    """See `HostService.renew`, for several leases."""
    read = _field(wire.RenewalList, lambda answer: {each.lease_id: _renewed(each) for each in answer.renewals})
    return _host("renew", wire.RenewRequest(tuple(leases)), read)


def save(lease_id: LeaseId, save: RunSave) -> Call[None]:
    """See `HostService.save`."""
    return _host("save", wire.SaveRequest(lease_id, save), _nothing)


def hand_over(lease_id: LeaseId, entry: HandOver) -> Call[None]:
    """See `HostService.hand_over`. Without a nonce it is sent once: a lost answer then means *do not call*."""
    return replace(_host("hand-over", wire.HandOverRequest(lease_id, entry), _nothing), repeatable=bool(entry.nonce))


def withdraw(lease_id: LeaseId, run_id: str, action_id: str) -> Call[None]:
    """See `HostService.withdraw`."""
    return _host("withdraw", wire.WithdrawRequest(lease_id, run_id, action_id), _nothing)


def settle(lease_id: LeaseId, settlement: Settlement) -> Call[None]:
    """See `HostService.settle`."""
    return _host("settle", wire.SettleRequest(lease_id, settlement), _nothing)


def output(lease_id: LeaseId, action_id: str) -> Call[object]:
    """See `HostService.output`."""
    read = _field(wire.Output, lambda answer: answer.output)
    return _host("output", wire.OutputRequest(lease_id, action_id), read)


def finish(lease_id: LeaseId, ending: Ending, *, stopped: bool, clean: bool) -> Call[None]:
    """See `HostService.finish`."""
    return _host("finish", wire.FinishRequest(lease_id, ending, stopped, clean), _nothing)


def confirm_stopped(serial: str, *, clean: bool, attempt_id: str | None) -> Call[None]:
    """See `HostService.confirm_stopped`."""
    return _host("confirm-stopped", wire.ConfirmStoppedRequest(serial, clean, attempt_id), _nothing)


def _host(verb: str, request: object, read: Callable[[bytes], Answer]) -> Call[Answer]:
    return Call("POST", f"/v1/host/{verb}", read, body=wire.encoded(request))


def _task(task_id: str) -> str:
    return f"/v1/tasks/{quote(task_id, safe='')}"


def _device(device: DeviceRef) -> str:
    return f"/v1/devices/{quote(device.host, safe='')}/{quote(device.serial, safe='')}"


def _whole(kind: type[Answer]) -> Callable[[bytes], Answer]:
    return lambda body: wire.answer_of(kind, body)


def _field(kind: type[Envelope], part: Callable[[Envelope], Answer]) -> Callable[[bytes], Answer]:
    return lambda body: part(wire.answer_of(kind, body))


def _nothing(body: bytes) -> None:
    del body


def _renewed(each: wire.LeaseRenewal) -> Renewal | InterlockError:
    if each.renewal is not None:
        return each.renewal
    if each.code == LeaseSuperseded.code:
        return LeaseSuperseded("the lease is lost and will not come back: stop the work done under it")
    return Unavailable("the lease could not be renewed now: try again")
