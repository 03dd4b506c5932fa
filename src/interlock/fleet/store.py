"""The store's whole interface: `commit` writes, in operations; `snapshot` and the reads look.

An operation is a small frozen value that carries the ids it will make, so that one whose answer was lost is asked again
without being done twice. Every time and duration is in microseconds by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from interlock.fleet.model import (
    AttemptId,
    Constraints,
    DeviceId,
    DeviceRef,
    HandOver,
    HostId,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
)
from interlock.fleet.strategies import Snapshot, Submission, View
from interlock.fleet.transitions import AttemptEnd

Row = Mapping[str, object]


@dataclass(frozen=True)
class Applied:
    """The operation was done, and is durable. `value` is what it made, by operation."""

    value: object = None


@dataclass(frozen=True)
class Refused:
    """The operation was not done and wrote nothing. `code` is of a closed set, `detail` says more."""

    code: str
    detail: str = ""


@dataclass(frozen=True)
class Replayed:
    """The operation had been done before. `value` is as `Applied` gave it, but durations are those left now."""

    value: object = None


Outcome = Applied | Refused | Replayed


class Ranker(Protocol):
    """Gives a submission its rank, once its time is known."""

    def rank(self, submission: Submission) -> int:
        """See `AssignmentStrategy.rank`."""
        ...


@dataclass(frozen=True)
class Define:
    """Keep a workflow definition under its digest."""

    digest: str
    name: str
    sealed: str


@dataclass(frozen=True)
class Submit:
    """Queue a task, and keep its definition first where it brings one.

    It is held until `not_before`, and ends when it has waited for `queue_timeout` without a device.

    Refused: `queue_full`, `idempotency_conflict`, `too_many_shapes`, `invalid_rank`, `not_found` (workflow).
    """

    task_id: TaskId
    kind: str
    label: str
    sealed: str
    body_digest: str
    workflow: str | None
    constraints: Constraints
    ranker: Ranker
    submitter: str = ""
    priority: int = 0
    idempotency_key: str | None = None
    max_attempts: int = 3
    max_queue_depth: int = 10_000
    definition: Define | None = None
    not_before: int | None = None
    queue_timeout: int | None = None


@dataclass(frozen=True)
class AdoptStrategy:
    """Another strategy than before ranks the queue: re-rank what is in it. Replayed where it did so before."""

    name: str
    ranker: Ranker


@dataclass(frozen=True)
class Grant:
    """Bind a queued task to an idle device by a new attempt with its lease: the pair as a strategy chose it.

    With `notes_rank`, the task's rank is the one that the queue has come to.
    """

    attempt_id: AttemptId
    lease_id: LeaseId
    task_id: TaskId
    device_id: DeviceId
    claim_ttl: int
    notes_rank: bool = False


@dataclass(frozen=True)
class Claim:
    """Take up to `limit` assigned attempts of a host. The same `claim_id` again gives the same ones.

    What waits in the name of a `generation` that has been followed by another takes nothing: nobody would run it.
    """

    host: HostId
    claim_id: str
    limit: int
    lease_ttl: int
    generation: str


@dataclass(frozen=True)
class Renew:
    """Extend a claimed lease. Applied with whether a cancel was asked for."""

    host: HostId
    lease_id: LeaseId
    lease_ttl: int


@dataclass(frozen=True)
class SaveRun:
    """Store a checkpoint under a lease. Refused: `lease_superseded`, `stale_save`."""

    host: HostId
    lease_id: LeaseId
    save: RunSave


@dataclass(frozen=True)
class HandOverEffect:
    """Write *handed over* under a lease. Refused: `lease_superseded`, `handed_over_before`, `cancel_requested`."""

    host: HostId
    lease_id: LeaseId
    entry: HandOver


@dataclass(frozen=True)
class WithdrawEffect:
    """Write *withdrawn* under a lease. Refused: `lease_superseded`, `not_handed_over`."""

    host: HostId
    lease_id: LeaseId
    run_id: str
    action_id: str


@dataclass(frozen=True)
class SettleCall:
    """Write outcome, evidence and sealed output under a lease. Refused: `lease_superseded`, `not_handed_over`."""

    host: HostId
    lease_id: LeaseId
    settlement: Settlement


@dataclass(frozen=True)
class EndAttempt:
    """Close an attempt as its host reports it: a finish or a release.

    `result` is sealed; `report` says what was reported in a way that the same report again is the same text.

    Applied with `Closed`, as a repeat is `Replayed`; or with `lease_superseded`, where it is kept as evidence on the
    old attempt. Refused: `lease_superseded`, `report_conflict`.
    """

    host: HostId
    lease_id: LeaseId
    end: AttemptEnd
    reason: str
    report: str | None = None
    result: str | None = None
    stopped: bool = False
    clean: bool = False
    retry_first: int = 1_000_000
    retry_longest: int = 60_000_000


@dataclass(frozen=True)
class Cancel:
    """Cancel a task: Applied with `cancelled`, `cancel_requested` or, for a terminal one, its status."""

    task_id: TaskId


@dataclass(frozen=True)
class Resolve:
    """Answer every effect in doubt of an ended task, and queue the task that continues it.

    Applied with the successor's id, or None where the task was cancelled. `answers` maps (run id, action id) to a word
    of `ReviewAnswer`; `settles` gives the settling time of each tool. Refused: `not_found`, `not_ended`,
    `nothing_in_doubt`, `answers_missing`, `stop_unconfirmed`, `not_settled`.
    """

    task_id: TaskId
    successor_id: TaskId
    answers: Mapping[tuple[str, str], str]
    answered_by: str
    settles: Mapping[str, int]


@dataclass(frozen=True)
class DeviceReport:
    """A device as its host reports it: already checked, or with the `fault` that keeps it out of the pool."""

    serial: str
    driver_type: str
    tags: frozenset[str] = frozenset()
    exclusive_tags: frozenset[str] = frozenset()
    fault: str | None = None


@dataclass(frozen=True)
class Beat:
    """A host is alive, with these devices: registers what is new and never touches a reservation.

    Applied with the ids of the leases of this host that are live, those with a cancel request among them, and the
    devices whose stop the store waits for.
    """

    host: HostId
    boot_id: str
    generation: str
    devices: tuple[DeviceReport, ...]


@dataclass(frozen=True)
class Goodbye:
    """A host leaves: it is no longer present, and attempts that it has not claimed go back at once."""

    host: HostId
    generation: str


@dataclass(frozen=True)
class ConfirmStopped:
    """A host says that nothing of an ended attempt is left on its device, and perhaps that it is clean.

    With an `attempt_id`, it is of that attempt alone: said late, it frees nothing that another one has held since.
    """

    host: HostId
    serial: str
    clean: bool
    attempt_id: AttemptId | None = None


@dataclass(frozen=True)
class SetService:
    """An operator takes a device out of service or back: `in_service`, `draining` or `quarantined`, with a reason."""

    device: DeviceRef
    service: str
    reason: str | None


@dataclass(frozen=True)
class ForceRelease:
    """An operator frees a device whatever holds it; a live attempt of it ends as expired. Always audited.

    With `stopped`, the operator has seen that nothing of any ended attempt on it still runs: what each left in doubt
    can no longer come about.
    """

    device: DeviceRef
    stopped: bool = False
    retry_first: int = 1_000_000
    retry_longest: int = 60_000_000


@dataclass(frozen=True)
class ForgetDevice:
    """An operator says that a device is gone for good. Refused: `device_held`, `device_present`. Always audited."""

    device: DeviceRef


@dataclass(frozen=True)
class Sweep:
    """End every attempt whose deadline has passed, and what has waited for too long; offer what was held until now.

    With `keep_history`, some of the tasks that ended longer ago than that are forgotten. Applied with `Swept`.
    """

    retry_first: int = 1_000_000
    retry_longest: int = 60_000_000
    keep_history: int | None = None


class Swept(NamedTuple):
    """How many attempts have expired, and how many tasks are offered now, have waited for too long, are forgotten."""

    expired: int = 0
    offered: int = 0
    timed_out: int = 0
    forgotten: int = 0


class Closed(NamedTuple):
    """Whose end a report was."""

    task: str
    attempt: str


@dataclass(frozen=True)
class RegisterHost:
    """Make a host known under the hash of its credential, or give it a new credential."""

    host: HostId
    token_hash: str


Operation = (
    Define
    | Submit
    | AdoptStrategy
    | Grant
    | Claim
    | Renew
    | SaveRun
    | HandOverEffect
    | WithdrawEffect
    | SettleCall
    | EndAttempt
    | Cancel
    | Resolve
    | Beat
    | Goodbye
    | ConfirmStopped
    | SetService
    | ForceRelease
    | ForgetDevice
    | Sweep
    | RegisterHost
)


class Store(Protocol):
    """A durable home for the fleet. Reads see only what is durable."""

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do each operation or refuse it alone, all in order; return once what was done is durable."""
        ...

    async def snapshot(self, *, most: int, view: View = View.BY_SERIAL) -> Snapshot:
        """What one pass of a strategy decides on: at most so many tasks of each shape, but with `View.FULL` all."""
        ...

    async def rows(self, query: str, **parameters: object) -> list[Row]:
        """The rows of a named read."""
        ...

    async def close(self) -> None:
        """Finish what was asked for, and let go of the database."""
        ...
