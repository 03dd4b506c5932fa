"""`Fleet`: what people and programs ask for. It validates, seals, and turns each request into operations."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from interlock.clock import Clock, SystemClock, new_id
from interlock.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    NotPermitted,
    QueueFull,
)
from interlock.fleet import reading
from interlock.fleet.estimates import eligible, seconds_until_free
from interlock.fleet.matching import PooledDevice, obstacle
from interlock.fleet.model import Constraints, DeviceRef, HostId, ReviewAnswer, TaskId
from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest
from interlock.fleet.session import HostSession
from interlock.fleet.settings import FleetSettings, microseconds
from interlock.fleet.store import (
    Cancel,
    Define,
    ForceRelease,
    ForgetDevice,
    Operation,
    Outcome,
    Refused,
    RegisterHost,
    Resolve,
    SetService,
    Store,
    Submit,
)
from interlock.fleet.strategies import strategy_named
from interlock.fleet.submission import body_digest, bounded_wait, check_rank_and_key, goal_body, instant
from interlock.fleet.views import (
    CancelAnswer,
    DeviceView,
    Doubt,
    Obstacle,
    Resolution,
    ScheduledTask,
    TaskDetail,
    Violation,
    Waiting,
)
from interlock.fleet.wakeups import ASSIGNABLE, Wakeups, host_topic, task_topic, wait_at_most
from interlock.telemetry import Event, emit

_SEEN_SECONDS = 1.0
BACKSTOP_SECONDS = 1.0
SHORTEST_CREDENTIAL = 16


class Sealer(Protocol):
    """Protects what is stored of inputs and outputs."""

    def seal(self, plain: bytes) -> bytes:
        """Encrypt."""
        ...

    def open(self, sealed: bytes) -> bytes:
        """Decrypt."""
        ...


@dataclass(frozen=True)
class CheckedDefinition:
    """A workflow that may be stored: its name, its canonical text and that text's digest."""

    name: str
    document: str
    digest: str


class Definitions(Protocol):
    """Checks workflows for the fleet, which knows nothing of their format."""

    def check(self, text: str) -> CheckedDefinition:
        """The definition in a file's text, or `InvalidWorkflow` with every fault."""
        ...

    def settle_seconds(self, tool_id: str) -> float:
        """How long a request to this tool can outlive the one who made it; 0 for an unknown one."""
        ...

    def check_inputs(self, document: str, inputs: Mapping[str, object]) -> dict[str, object]:
        """The inputs of one task with defaults filled in, or `InvalidInput`."""
        ...


def token_hash(credential: str) -> str:
    """How a credential is stored. It is 256 bits of chance, so one round is enough."""
    return hashlib.sha256(credential.encode()).hexdigest()


class Fleet:
    """The fleet over a store. See `interlock.fleet.service.FleetService`."""

    def __init__(
        self,
        store: Store,
        *,
        settings: FleetSettings,
        sealer: Sealer,
        definitions: Definitions,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.strategy = strategy_named(settings.strategy)
        self.wakeups = Wakeups()
        self._sealer = sealer
        self._definitions = definitions
        self._clock = clock or SystemClock()
        self._seen: tuple[float, list[PooledDevice]] | None = None

    async def register_host(self, name: str, credential: str) -> None:
        """Make a host known under a credential, or give it a new one. Raises `InvalidInput`."""
        if len(credential) < SHORTEST_CREDENTIAL:
            message = f"a host's credential is at least {SHORTEST_CREDENTIAL} characters of chance"
            raise InvalidInput(message)
        host = DeviceRef.parse(f"{name}/0").host
        if host != name:
            message = f"{name!r} is not a host's name: it has no slash"
            raise InvalidInput(message)
        await self._commit(RegisterHost(host, token_hash(credential)))

    async def host(self, credential: str) -> HostSession:
        """The session of the host that this credential belongs to. Raises `NotPermitted`."""
        rows = await self.store.rows("host_by_token", token_hash=token_hash(credential))
        if not rows:
            message = "the host's token is not known: use its present one, or make one with `interlock host-token NAME`"
            raise NotPermitted(message)
        return HostSession(
            HostId(str(rows[0]["id"])),
            str(rows[0]["generation"] or ""),
            store=self.store,
            settings=self.settings,
            wakeups=self.wakeups,
            sealer=self._sealer,
            clock=self._clock,
        )

    async def submit(self, request: SubmitRequest) -> TaskId:
        """See `FleetService.submit`.

        Raises:
            QueueFull: nothing was written.
            InvalidInput, InvalidWorkflow, NotFound: the work cannot be taken, and why.
            Conflict: the idempotency key came with another body before.
        """
        operation = await self._submission(request)
        (outcome,) = await self.store.commit([operation])
        if isinstance(outcome, Refused):
            raise await self._refused_submission(outcome, request.constraints)
        emit(Event.TASK_SUBMITTED, task=str(outcome.value))
        self.wakeups.notify(ASSIGNABLE)
        return TaskId(str(outcome.value))

    async def _refused_submission(self, outcome: Refused, wanted: Constraints) -> Exception:
        if outcome.code == "queue_full":
            return await self._queue_full(wanted)
        if outcome.code == "idempotency_conflict":
            return Conflict(f"the idempotency key was used for {outcome.detail} with another body: use another key")
        if outcome.code == "not_found":
            return NotFound(outcome.detail)
        return InvalidInput(outcome.detail or outcome.code)

    async def _queue_full(self, wanted: Constraints) -> QueueFull:
        """The refusal with what helps the caller to choose: how many devices there are, and when to come back."""
        pooled = await self._pooled()
        here = eligible(Constraints(), pooled)
        message = f"{self.settings.max_queue_depth} tasks are queued already, which is the limit: submit again "
        soonest = seconds_until_free(here, 1)
        message += "when some have run" if soonest is None else f"in about {max(1, math.ceil(soonest))} s"
        return QueueFull(message, eligible_devices=len(eligible(wanted, pooled)), retry_after_seconds=soonest)

    async def _pooled(self) -> list[PooledDevice]:
        """Every device, looked at once a second at most: a full queue must not cost more than one with room."""
        now = self._clock.elapsed()
        if self._seen is None or now - self._seen[0] >= _SEEN_SECONDS:
            self._seen = now, await reading.pooled_devices(self.store)
        return self._seen[1]

    async def _submission(self, request: SubmitRequest) -> Submit:
        work = request.work
        if isinstance(work, GoalRequest):
            body, label, definition = goal_body(work), f"goal {work.agent}", None
            digest = None
        else:
            checked, definition = await self._definition(work)
            inputs = self._definitions.check_inputs(checked.document, work.inputs or {})
            body, label, digest = {"inputs": inputs, "digest": checked.digest}, checked.name, checked.digest
        attempts = self.settings.max_attempts if request.max_attempts is None else request.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 100:  # noqa: PLR2004
            message = "max_attempts is a whole number from 1 to 100"
            raise InvalidInput(message)
        check_rank_and_key(request)
        timeout = request.queue_timeout_seconds
        if timeout is None:
            timeout = self.settings.queue_timeout_seconds
        return Submit(
            task_id=TaskId(new_id("task")),
            kind="goal" if digest is None else "workflow",
            label=label,
            sealed=self._seal(body),
            body_digest=body_digest(request, body),
            workflow=digest,
            constraints=request.constraints,
            ranker=self.strategy,
            submitter=request.submitter,
            priority=request.priority,
            idempotency_key=request.idempotency_key,
            max_attempts=attempts,
            max_queue_depth=self.settings.max_queue_depth,
            definition=definition,
            not_before=instant(request.not_before),
            queue_timeout=bounded_wait(timeout),
        )

    async def _definition(self, work: WorkflowRequest) -> tuple[CheckedDefinition, Define | None]:
        if work.text is not None:
            checked = await asyncio.to_thread(self._definitions.check, work.text)
            return checked, Define(checked.digest, checked.name, self._seal(checked.document))
        rows = await self.store.rows("workflow", digest=work.digest)
        if not rows:
            message = f"there is no workflow {work.digest}: submit its text, or a digest that was stored"
            raise NotFound(message)
        document = self._open(str(rows[0]["sealed"]))
        return CheckedDefinition(str(rows[0]["name"]), str(document), str(rows[0]["digest"])), None

    async def get(self, task_id: str) -> TaskDetail:
        """See `FleetService.get`. Raises `NotFound`."""
        return await reading.task_detail(self.store, task_id, self._open)

    async def wait(self, task_id: str, seconds: float) -> ScheduledTask:
        """See `FleetService.wait`. Raises `NotFound`."""
        deadline = self._clock.elapsed() + seconds
        while True:
            with self.wakeups.registered(task_topic(task_id)) as changed:
                task = await reading.scheduled_task(self.store, task_id, self._open)
                left = deadline - self._clock.elapsed()
                if task.ended_at is not None or left <= 0 or self.wakeups.ended:
                    return task
                await wait_at_most(changed, min(left, BACKSTOP_SECONDS))

    async def tasks(self, *, most: int = 100) -> list[ScheduledTask]:
        """See `FleetService.tasks`."""
        return await reading.newest_tasks(self.store, most)

    async def cancel(self, task_id: str) -> CancelAnswer:
        """See `FleetService.cancel`. Raises `NotFound`."""
        outcome = await self._commit(Cancel(TaskId(task_id)))
        hosts = {str(row["host"]) for row in await self.store.rows("lease_of_task", task=task_id)}
        self.wakeups.notify(ASSIGNABLE, task_topic(task_id), *(host_topic(host) for host in hosts))
        return CancelAnswer(task_id, str(getattr(outcome, "value", "")))

    async def why(self, task_id: str) -> Waiting:
        """See `FleetService.why`. Raises `NotFound`."""
        task = await reading.scheduled_task(self.store, task_id, self._open)
        place = await self.store.rows("ready_place", task=task_id)
        pin = None if task.device is None else DeviceRef.parse(task.device)
        wanted = Constraints(task.driver_type, frozenset(task.tags), pin)
        pooled = await reading.pooled_devices(self.store)
        obstacles = [(str(device.ref), obstacle(wanted, device)) for device in pooled]
        ahead = int(str(place[0]["ahead"])) if place and task.status == "queued" and not task.held_for else None
        return Waiting(
            task_id=task_id,
            status=task.status,
            summary=reading.summary(task, [reason for _, reason in obstacles]),
            ahead=ahead,
            about_seconds=None if ahead is None else seconds_until_free(eligible(wanted, pooled), ahead + 1),
            obstacles=tuple(Obstacle(name, reason or "it could take the task now") for name, reason in obstacles),
        )

    async def reviews(self, *, most: int = 100) -> list[Doubt]:
        """See `FleetService.reviews`."""
        return await reading.doubts(self.store, most)

    async def resolve(self, task_id: str, answers: Mapping[str, str], answered_by: str) -> Resolution:
        """See `FleetService.resolve`.

        Raises:
            InvalidInput: an answer is none, or is missing, or is of an effect that is not in doubt.
            NotFound: there is no such task.
            Conflict: the task has not ended, was resolved before, or it is too early to say *did not happen*.
        """
        found = await self.store.rows("doubts_of_task", task=task_id)
        if wrong := sorted(set(answers.values()) - {answer.value for answer in ReviewAnswer}):
            message = f"{wrong[0]!r} is no answer: say happened, did_not_happen or drop"
            raise InvalidInput(message)
        runs = {str(row["action_id"]): str(row["run_id"]) for row in found}
        tools = {str(row["tool_id"]) for row in found}
        operation = Resolve(
            task_id=TaskId(task_id),
            successor_id=TaskId(new_id("task")),
            answers={(runs.get(action, ""), action): answer for action, answer in answers.items()},
            answered_by=answered_by,
            settles={tool: microseconds(self._definitions.settle_seconds(tool)) for tool in tools},
        )
        (outcome,) = await self.store.commit([operation])
        if isinstance(outcome, Refused):
            raise _refused_resolution(outcome)
        self.wakeups.notify(ASSIGNABLE, task_topic(task_id))
        return Resolution(task_id, None if outcome.value is None else str(outcome.value))

    async def devices(self) -> list[DeviceView]:
        """See `FleetService.devices`."""
        return await reading.device_views(self.store)

    async def set_service(self, device: DeviceRef, service: str, reason: str | None) -> None:
        """Take a device out of service (`draining`, `quarantined`) or back (`in_service`). Raises `NotFound`."""
        await self._commit(SetService(device, service, reason))
        self.wakeups.notify(ASSIGNABLE)

    async def force_release(self, device: DeviceRef, *, stopped: bool = False) -> None:
        """Free a device whatever holds it; the attempt that held it is over. Raises `NotFound`.

        Say `stopped` only where you have seen that nothing of any ended attempt on it still runs.
        """
        retry = (self.settings.retry_first_seconds, self.settings.retry_longest_seconds)
        await self._commit(ForceRelease(device, stopped, *(microseconds(seconds) for seconds in retry)))
        self.wakeups.notify(ASSIGNABLE)

    async def forget_device(self, device: DeviceRef) -> None:
        """List a device no more, which is gone for good. Its record stays; a host that reports it brings it back.

        Raises:
            NotFound: there is no such device.
            Conflict: it holds a lease, or its host still reports it.
        """
        await self._commit(ForgetDevice(device))
        self.wakeups.notify(ASSIGNABLE)

    async def violations(self) -> list[Violation]:
        """See `FleetService.violations`."""
        return await reading.violations(self.store)

    async def _commit(self, operation: Operation) -> Outcome:
        (outcome,) = await self.store.commit([operation])
        if isinstance(outcome, Refused):
            raise NotFound(outcome.detail) if outcome.code == "not_found" else Conflict(outcome.detail or outcome.code)
        return outcome

    def _seal(self, value: object) -> str:
        return self._sealer.seal(json.dumps(value, separators=(",", ":")).encode()).decode("ascii")

    def _open(self, sealed: str) -> object:
        return json.loads(self._sealer.open(sealed.encode("ascii")))


def _refused_resolution(outcome: Refused) -> Exception:
    if outcome.code == "not_found":
        return NotFound(outcome.detail)
    if outcome.code in {"answers_missing", "not_in_doubt"}:
        said = "an answer is missing for" if outcome.code == "answers_missing" else "nothing is in doubt about"
        return InvalidInput(f"{said} {outcome.detail}: answer each effect that `interlock reviews` lists")
    early = {
        "stop_unconfirmed": "may still happen: its host has not confirmed that its processes are gone. Where that host "
        "is gone for good, see to it yourself and say so with `interlock release HOST/SERIAL --stopped`",
        "not_settled": "may still happen: a request to its tool can outlive the one who made it; wait a little",
    }
    if outcome.code in early:
        return Conflict(f"{outcome.detail} {early[outcome.code]}")
    if outcome.code == "resolved_before":
        return Conflict(f"the task was resolved before: {outcome.detail} continues it")
    return Conflict(outcome.detail or outcome.code)


def with_submitter(request: SubmitRequest, submitter: str) -> SubmitRequest:
    """The same request in the name of whoever's credential it came with."""
    return replace(request, submitter=submitter)
