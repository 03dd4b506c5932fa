"""The JSON of requests and answers. The fleet's own frozen values go over the wire: nothing here copies them.

Keys are snake_case, times RFC 3339 in UTC, sets sorted lists. A request with a key that is not known is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from interlock.errors import InterlockError, InvalidInput, Unavailable
from interlock.fleet.model import (
    Assignment,
    Ending,
    HandOver,
    LeaseId,
    ReviewAnswer,
    RunSave,
    Service,
    Settlement,
    TaskId,
)
from interlock.fleet.store import DeviceReport
from interlock.fleet.views import DeviceView, Doubt, Renewal, ScheduledTask, Violation

Value = TypeVar("Value")
MOST_FAULTS = 20
MOST_LEASES_A_CALL = 100
_readers: dict[type, TypeAdapter[Any]] = {}
_strict_readers: dict[type, TypeAdapter[Any]] = {}


@dataclass(frozen=True)
class Submitted:
    """The answer to a submission."""

    task_id: TaskId


@dataclass(frozen=True)
class TaskList:
    """Tasks, newest first."""

    tasks: tuple[ScheduledTask, ...]


@dataclass(frozen=True)
class DoubtList:
    """Effects in doubt, oldest first."""

    reviews: tuple[Doubt, ...]


@dataclass(frozen=True)
class Answers:
    """An answer for each effect in doubt of a task, by action id."""

    answers: Mapping[str, ReviewAnswer]


@dataclass(frozen=True)
class DeviceList:
    """Every device."""

    devices: tuple[DeviceView, ...]


@dataclass(frozen=True)
class ViolationList:
    """Every invariant that does not hold."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True)
class ServiceChange:
    """Take a device out of service or back, with the reason that is shown."""

    service: Service
    reason: str | None = None


@dataclass(frozen=True)
class HostRegistration:
    """A host, and the credential that it will act under."""

    name: str
    credential: str


@dataclass(frozen=True)
class Health:
    """How many tasks stand where, the store's time, and whether this server assigns."""

    tasks: Mapping[str, int]
    time: datetime
    assigns: bool
    version: str


@dataclass(frozen=True)
class FleetState:
    """What an event stream begins with."""

    tasks: tuple[ScheduledTask, ...]
    devices: tuple[DeviceView, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class BeatRequest:
    """A host is alive, with these devices."""

    boot_id: str
    generation: str
    devices: tuple[DeviceReport, ...]


@dataclass(frozen=True)
class GoodbyeRequest:
    """A host leaves."""

    generation: str


@dataclass(frozen=True)
class ClaimRequest:
    """Take up to `limit` assigned attempts, waiting so long for one."""

    claim_id: str
    limit: int
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class AssignmentList:
    """What a claim took."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class RenewRequest:
    """Extend several leases in one call."""

    lease_ids: tuple[LeaseId, ...]


@dataclass(frozen=True)
class LeaseRenewal:
    """What came of one of them: a renewal, or the code of the error that it met."""

    lease_id: LeaseId
    renewal: Renewal | None = None
    code: str | None = None


@dataclass(frozen=True)
class RenewalList:
    """What came of each lease, in the order asked."""

    renewals: tuple[LeaseRenewal, ...]


@dataclass(frozen=True)
class SaveRequest:
    """Store a checkpoint under a lease."""

    lease_id: LeaseId
    save: RunSave


@dataclass(frozen=True)
class HandOverRequest:
    """Record under a lease that an effect is about to begin."""

    lease_id: LeaseId
    entry: HandOver


@dataclass(frozen=True)
class WithdrawRequest:
    """Record under a lease that it was not begun."""

    lease_id: LeaseId
    run_id: str
    action_id: str


@dataclass(frozen=True)
class SettleRequest:
    """Record what came of a call."""

    lease_id: LeaseId
    settlement: Settlement


@dataclass(frozen=True)
class OutputRequest:
    """Ask for the output that a committed action left."""

    lease_id: LeaseId
    action_id: str


@dataclass(frozen=True)
class Output:
    """It, decoded."""

    output: object


@dataclass(frozen=True)
class FinishRequest:
    """How an attempt ended, and what is known of its processes and its device."""

    lease_id: LeaseId
    ending: Ending
    stopped: bool
    clean: bool


@dataclass(frozen=True)
class ConfirmStoppedRequest:
    """Nothing of the ended attempt is left on a device."""

    serial: str
    clean: bool
    attempt_id: str | None = None


def encoded(value: object) -> bytes:
    """A frozen value as JSON."""
    return to_json(_ordered(reader(type(value)).dump_python(value)))


def request_of(kind: type[Value], body: bytes) -> Value:
    """The request in a body, taken strictly. Raises `InvalidInput`, which names each fault and shows no value."""
    try:
        # Pydantic reads NaN and Infinity, which are no JSON and cannot be stored.
        from_json(body, allow_inf_nan=False)
    except ValueError:
        message = "the body is not JSON"
        raise InvalidInput(message) from None
    try:
        value: Value | None = _strict(kind).validate_json(body)
    except ValidationError as error:
        raise InvalidInput("; ".join(faults(error.errors()))) from None
    if value is None:
        message = "the body is null: send an object"
        raise InvalidInput(message)
    return value


def answer_of(kind: type[Value], body: bytes) -> Value:
    """The value in an answer. Keys that a newer server added are passed over."""
    try:
        value: Value = reader(kind).validate_json(body)
    except ValidationError:
        message = "the answer is not one of this version of the control plane: use the same version on both sides"
        raise Unavailable(message) from None
    return value


def faults(details: Sequence[ErrorDetails]) -> list[str]:
    """Each fault as `place: what is wrong`. Of a choice of forms, only the one that fits best is spoken of."""
    said = [f"{_place(detail)}: {_wrong(detail)}" for detail in _best_fit(details)]
    return said[:MOST_FAULTS]


def _best_fit(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    forms: defaultdict[tuple[int | str, ...], defaultdict[int | str, list[ErrorDetails]]]
    forms = defaultdict(lambda: defaultdict(list))
    kept = []
    for detail in details:
        index = next((i for i, part in enumerate(detail["loc"]) if _is_form(part)), None)
        if index is None:
            kept.append(detail)
        else:
            forms[detail["loc"][:index]][detail["loc"][index]].append(detail)
    for choice in forms.values():
        best: list[ErrorDetails] = min(choice.values(), key=len)
        kept += best
    return kept


def _is_form(part: int | str) -> bool:
    """Whether a part of a place is the name of one form of a union, and no key."""
    return isinstance(part, str) and part[:1].isupper()


def _place(detail: ErrorDetails) -> str:
    return ".".join(str(part)[:64] for part in detail["loc"] if not _is_form(part)) or "the body"


def _wrong(detail: ErrorDetails) -> str:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InterlockError):
        return str(cause)
    known = {"unexpected_keyword_argument": "there is no such key", "missing": "it is missing"}
    return known.get(detail["type"], "" if detail["type"] == "value_error" else detail["msg"]) or "it cannot be taken"


def reader(kind: type) -> TypeAdapter[Any]:
    """The adapter of one type, made once."""
    if kind not in _readers:
        _readers[kind] = TypeAdapter(kind)
    return _readers[kind]


def _strict(kind: type) -> TypeAdapter[Any]:
    """An adapter that takes no unknown key and converts nothing. A bare dataclass takes no settings, a choice does."""
    if kind not in _strict_readers:
        choice: Any = kind | None
        _strict_readers[kind] = TypeAdapter(choice, config=ConfigDict(extra="forbid", strict=True))
    return _strict_readers[kind]


def _ordered(value: object) -> object:
    """The same with sets as sorted lists."""
    if isinstance(value, Mapping):
        return {key: _ordered(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_ordered(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value
