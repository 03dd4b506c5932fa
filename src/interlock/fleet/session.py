"""`HostSession`: everything that only a host may do, after its credential was checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from interlock.clock import MICROSECONDS, Clock
from interlock.errors import (
    CancelRequested,
    Conflict,
    InterlockError,
    InvalidInput,
    LeaseSuperseded,
    NotFound,
    ReportConflict,
)
from interlock.fleet import reading
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    DeviceRef,
    Ending,
    EndKind,
    HandOver,
    History,
    HostId,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
    is_reason,
)
from interlock.fleet.reports import checked_reports
from interlock.fleet.settings import FleetSettings, microseconds
from interlock.fleet.store import (
    Applied,
    Beat,
    Claim,
    Closed,
    ConfirmStopped,
    DeviceReport,
    EndAttempt,
    Goodbye,
    HandOverEffect,
    Operation,
    Refused,
    Renew,
    Replayed,
    Row,
    SaveRun,
    SettleCall,
    Store,
    WithdrawEffect,
)
from interlock.fleet.transitions import RELEASES, AttemptEnd
from interlock.fleet.views import BeatAnswer, LeaseNotice, Renewal, VacatingNotice
from interlock.fleet.wakeups import ASSIGNABLE, Wakeups, host_topic, task_topic, wait_at_most
from interlock.telemetry import Event, emit

if TYPE_CHECKING:
    from interlock.fleet.operations import Sealer

BACKSTOP_SECONDS = 1.0


class HostSession:
    """One host's way into the fleet. See `interlock.fleet.service.HostService`."""

    def __init__(
        self,
        host: HostId,
        generation: str,
        *,
        store: Store,
        settings: FleetSettings,
        wakeups: Wakeups,
        sealer: Sealer,
        clock: Clock,
    ) -> None:
        self.host = host
        self._generation = generation
        self._store = store
        self._settings = settings
        self._wakeups = wakeups
        self._sealer = sealer
        self._clock = clock

    async def beat(self, boot_id: str, generation: str, devices: Sequence[DeviceReport]) -> BeatAnswer:
        """See `HostService.beat`."""
        checked = checked_reports(self.host, devices)
        outcome = await self._commit(Beat(self.host, boot_id, generation, checked))
        self._generation = generation
        leases, vacating = outcome.value if isinstance(outcome.value, tuple) else ((), ())
        emit(Event.HOST_SEEN, host=self.host, devices=len(devices))
        self._wakeups.notify(ASSIGNABLE)
        return BeatAnswer(
            leases=tuple(_lease_notice(row) for row in leases),
            vacating=tuple(
                VacatingNotice(str(row["serial"]), str(row["state"]), str(row["attempt"])) for row in vacating
            ),
            beat_every_seconds=self._settings.beat_every_seconds,
            renew_every_seconds=self._settings.renew_every_seconds,
            lease_seconds=self._settings.lease_ttl_seconds,
        )

    async def goodbye(self, generation: str) -> None:
        """See `HostService.goodbye`."""
        await self._store.commit([Goodbye(self.host, generation)])
        self._wakeups.notify(ASSIGNABLE)

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> list[Assignment]:
        """See `HostService.claim`.

        The durations of what it gives count from when the claim was sent: the time that it waited here is added.
        """
        began = self._clock.elapsed()
        deadline = began + min(wait_seconds, self._settings.long_poll_seconds)
        while True:
            with self._wakeups.registered(host_topic(self.host)) as changed:
                waited = self._clock.elapsed() - began
                taken = await self._take(claim_id, limit)
                if taken:
                    rows = {str(row["lease"]): row for row in await self._store.rows("assignments", claim_id=claim_id)}
                    found = [await self._readable(rows[lease], left / MICROSECONDS + waited) for lease, left in taken]
                    return [assignment for assignment in found if assignment is not None]
                left = deadline - self._clock.elapsed()
                if left <= 0 or self._wakeups.ended:
                    return []
                await wait_at_most(changed, min(left, BACKSTOP_SECONDS))

    async def _readable(self, row: Row, lease_seconds: float) -> Assignment | None:
        """The assignment of a row, or None where its task cannot be read: it fails alone, not with its peers."""
        try:
            return await self._assignment(row, lease_seconds)
        except (InterlockError, ValueError, TypeError):
            unreadable = Ending(EndKind.FAILED, "task_unreadable")
            await self.finish(LeaseId(str(row["lease"])), unreadable, stopped=True, clean=True)
            return None

    async def _take(self, claim_id: str, limit: int) -> Sequence[tuple[str, int]]:
        """What a claim takes or took before; it writes nothing where there is neither."""
        if not await self._store.rows("leases_to_claim", host=self.host, most=1) and not await self._store.rows(
            "attempts_by_claim", claim_id=claim_id
        ):
            return ()
        ttl = microseconds(self._settings.lease_ttl_seconds)
        outcome = await self._commit(Claim(self.host, claim_id, limit, ttl, self._generation))
        return outcome.value if isinstance(outcome.value, tuple) else ()

    async def _assignment(self, row: Row, lease_seconds: float) -> Assignment:
        task_id, attempt_id, number = str(row["task"]), str(row["attempt"]), int(str(row["number"]))
        emit(Event.TASK_DISPATCHED, task=task_id, attempt=attempt_id)
        self._wakeups.notify(task_topic(task_id))
        begins = number == 1 and row["predecessor"] is None
        return Assignment(
            task_id=TaskId(task_id),
            attempt_id=AttemptId(attempt_id),
            lease_id=LeaseId(str(row["lease"])),
            number=number,
            device=DeviceRef(self.host, str(row["serial"])),
            driver_type=str(row["driver_type"]),
            fence=int(str(row["fence"])),
            work=await reading.work(self._store, row, self._open),
            history=History() if begins else await reading.history(self._store, task_id),
            lease_seconds=lease_seconds,
            renew_seconds=self._settings.renew_every_seconds,
            cancel_requested=row["cancel_requested_at"] is not None,
        )

    async def renew(self, lease_id: LeaseId) -> Renewal:
        """See `HostService.renew`."""
        ttl = self._settings.lease_ttl_seconds
        outcome = await self._commit(Renew(self.host, lease_id, microseconds(ttl)))
        return Renewal(lease_seconds=ttl, cancel_requested=bool(outcome.value))

    async def save(self, lease_id: LeaseId, save: RunSave) -> None:
        """See `HostService.save`."""
        await self._commit(SaveRun(self.host, lease_id, save))

    async def hand_over(self, lease_id: LeaseId, entry: HandOver) -> None:
        """See `HostService.hand_over`."""
        await self._commit(HandOverEffect(self.host, lease_id, entry))

    async def withdraw(self, lease_id: LeaseId, run_id: str, action_id: str) -> None:
        """See `HostService.withdraw`."""
        await self._commit(WithdrawEffect(self.host, lease_id, run_id, action_id))

    async def settle(self, lease_id: LeaseId, settlement: Settlement) -> None:
        """See `HostService.settle`."""
        sealed = None if settlement.output is None else self._seal(settlement.output)
        await self._commit(SettleCall(self.host, lease_id, replace(settlement, output=sealed)))

    async def output(self, lease_id: LeaseId, action_id: str) -> object:
        """See `HostService.output`. Raises `NotFound`."""
        attempts = await self._store.rows("attempt_by_lease", lease=lease_id)
        if not attempts or attempts[0]["host"] != self.host or attempts[0]["ended_at"] is not None:
            raise _superseded()
        rows = await self._store.rows("output", task=attempts[0]["task"], action_id=action_id)
        if not rows:
            message = f"the action {action_id} has left no output"
            raise NotFound(message)
        return json.loads(self._open_text(str(rows[0]["sealed"])))

    async def finish(self, lease_id: LeaseId, ending: Ending, *, stopped: bool, clean: bool) -> None:
        """See `HostService.finish`. Raises `ReportConflict`, `LeaseSuperseded`."""
        end = _attempt_end(ending)
        said = hashlib.sha256((ending.output or "").encode("utf-8", "replace")).hexdigest()[:16]
        outcome = await self._commit(
            EndAttempt(
                host=self.host,
                lease_id=lease_id,
                end=end,
                reason=ending.reason,
                report=f"{end.value} {ending.reason} {said}",
                result=None if ending.output is None else self._seal(ending.output),
                stopped=stopped,
                clean=clean,
                retry_first=microseconds(self._settings.retry_first_seconds),
                retry_longest=microseconds(self._settings.retry_longest_seconds),
            )
        )
        if outcome.value == "lease_superseded":
            raise _superseded()
        if isinstance(outcome.value, Closed):
            task, attempt = outcome.value
            event = Event.TASK_REQUEUED if ending.kind is EndKind.RELEASED else Event.TASK_ENDED
            emit(event, task=task, attempt=attempt, reason=ending.reason)
            self._wakeups.notify(ASSIGNABLE, task_topic(task))

    async def confirm_stopped(self, serial: str, *, clean: bool, attempt_id: str | None = None) -> None:
        """See `HostService.confirm_stopped`. Raises `NotFound`."""
        named = None if attempt_id is None else AttemptId(attempt_id)
        await self._commit(ConfirmStopped(self.host, serial, clean, named))
        emit(Event.DEVICE_CHANGED, host=self.host, serial=serial)
        self._wakeups.notify(ASSIGNABLE)

    def attempt(self, lease_id: LeaseId) -> LeasedAttempt:
        """The ledger of one attempt."""
        return LeasedAttempt(self, lease_id)

    async def _commit(self, operation: Operation) -> Applied | Replayed:
        (outcome,) = await self._store.commit([operation])
        if isinstance(outcome, Refused):
            raise _error(outcome)
        return outcome

    def _seal(self, text: str) -> str:
        return self._sealer.seal(text.encode("utf-8", "replace")).decode("ascii")

    def _open_text(self, sealed: str) -> str:
        return self._sealer.open(sealed.encode("ascii")).decode()

    def _open(self, sealed: str) -> object:
        return json.loads(self._open_text(sealed))


@dataclass(frozen=True)
class LeasedAttempt:
    """An `AttemptLedger` over a host's session. `finish` says nothing of processes: the agent does, who knows."""

    session: HostSession
    lease_id: LeaseId

    async def save(self, save: RunSave) -> None:
        """See `AttemptLedger.save`."""
        await self.session.save(self.lease_id, save)

    async def hand_over(self, entry: HandOver) -> None:
        """See `AttemptLedger.hand_over`."""
        await self.session.hand_over(self.lease_id, entry)

    async def withdraw(self, run_id: str, action_id: str) -> None:
        """See `AttemptLedger.withdraw`."""
        await self.session.withdraw(self.lease_id, run_id, action_id)

    async def settle(self, settlement: Settlement) -> None:
        """See `AttemptLedger.settle`."""
        await self.session.settle(self.lease_id, settlement)

    async def output(self, action_id: str) -> object:
        """See `AttemptLedger.output`."""
        return await self.session.output(self.lease_id, action_id)

    async def finish(self, ending: Ending) -> None:
        """See `AttemptLedger.finish`."""
        await self.session.finish(self.lease_id, ending, stopped=False, clean=False)


def _lease_notice(row: Row) -> LeaseNotice:
    return LeaseNotice(str(row["id"]), str(row["serial"]), str(row["state"]), row["cancel_requested_at"] is not None)


def _attempt_end(ending: Ending) -> AttemptEnd:
    """Which end of an attempt a host's word means. Raises `InvalidInput`."""
    if not is_reason(ending.reason):
        message = "the reason of an end is a word: 1 to 64 of a-z 0-9 _, beginning with a letter"
        raise InvalidInput(message)
    if ending.kind is not EndKind.RELEASED:
        return AttemptEnd(ending.kind.value)
    try:
        end = AttemptEnd(ending.reason)
    except ValueError:
        end = AttemptEnd.DONE
    if end not in RELEASES:
        known = ", ".join(sorted(each.value for each in RELEASES))
        message = f"an attempt is released for one of {known}"
        raise InvalidInput(message)
    return end


def _superseded() -> LeaseSuperseded:
    return LeaseSuperseded("the lease is lost and will not come back: stop the work done under it")


def _error(refused: Refused) -> Exception:
    if refused.code == "lease_superseded":
        return _superseded()
    if refused.code == "cancel_requested":
        return CancelRequested("somebody has asked for the task to be cancelled: no further effect of it may begin")
    if refused.code == "report_conflict":
        return ReportConflict("another outcome was reported under this lease: the first one stands")
    if refused.code == "not_found":
        return NotFound(refused.detail)
    return Conflict(f"{refused.code}: {refused.detail}" if refused.detail else refused.code)
