"""Reads: rows of named queries become the values that readers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from interlock.errors import NotFound
from interlock.fleet.checkpoints import StoredSave, replayed
from interlock.fleet.matching import PooledDevice, unavailable
from interlock.fleet.model import (
    AttemptId,
    DeviceRef,
    EntryState,
    GoalWork,
    History,
    HostId,
    JournalEntry,
    Occupancy,
    RunSave,
    Service,
    Work,
    WorkflowWork,
)
from interlock.fleet.store import Row, Store
from interlock.fleet.views import (
    AttemptView,
    DeviceView,
    Doubt,
    EffectView,
    RunView,
    ScheduledTask,
    TaskDetail,
    Violation,
    moment,
)

Open = Callable[[str], object]
_NEWEST = 2**62
UNREADABLE = ""
INVARIANTS = (
    "broken_one_place",
    "broken_device_place",
    "broken_live_attempt",
    "broken_claim",
    "broken_fence",
    "broken_order",
    "broken_overlap",
    "broken_depth",
    "broken_journal",
)


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int:
    return int(str(value))


async def _task_row(store: Store, task_id: str) -> Row:
    rows = await store.rows("task", task=task_id)
    if not rows:
        message = f"there is no task {task_id}: list them with `interlock tasks`"
        raise NotFound(message)
    return rows[0]


async def scheduled_task(store: Store, task_id: str, open_sealed: Open) -> ScheduledTask:
    """One task as it stands, with its result."""
    row = await _task_row(store, task_id)
    held = await store.rows("held", task=task_id)
    lease = await store.rows("lease_of_task", task=task_id)
    journal = await store.rows("journal_of_task", task=task_id)
    attempts = await store.rows("attempts_of_task", task=task_id)
    return _scheduled(
        row,
        held=held[0] if held else None,
        running_on=f"{attempts[-1]['host']}/{attempts[-1]['serial']}" if lease else None,
        in_doubt=tuple(str(entry["action_id"]) for entry in journal if row["end_status"] and _in_doubt(entry)),
        result=None if row["result"] is None else open_sealed(str(row["result"])),
    )


def _scheduled(
    row: Row,
    *,
    held: Row | None = None,
    running_on: str | None = None,
    in_doubt: tuple[str, ...] = (),
    result: object = None,
) -> ScheduledTask:
    return ScheduledTask(
        task_id=str(row["id"]),
        kind=str(row["kind"]),
        label=str(row["label"]),
        status=str(row["status"]),
        reason=_optional(row["end_reason"]),
        driver_type=_optional(row["driver_type"]),
        tags=tuple(json.loads(str(row["tags"]))),
        device=_optional(row["pin"]),
        max_attempts=_whole(row["max_attempts"]),
        attempts_used=_whole(row["counted"]),
        submitted_at=moment(row["submitted_at"]),
        ended_at=moment(row["ended_at"]),
        cancel_requested=row["cancel_requested_at"] is not None,
        continues=_optional(row["predecessor"]),
        continued_by=_optional(row["successor"]),
        held_until=moment(held["until"]) if held else None,
        held_for=str(held["reason"]) if held else None,
        running_on=running_on,
        in_doubt=in_doubt,
        result=result,
    )


async def newest_tasks(store: Store, most: int) -> list[ScheduledTask]:
    """The newest tasks, without their results."""
    rows = await store.rows("tasks", before=_NEWEST, most=most)
    return [_scheduled(row, running_on=f"{row['host']}/{row['serial']}" if row["host"] else None) for row in rows]


async def task_detail(store: Store, task_id: str, open_sealed: Open) -> TaskDetail:
    """Everything on record about a task."""
    task = await scheduled_task(store, task_id, open_sealed)
    attempts = await store.rows("attempts_of_task", task=task_id)
    runs = await store.rows("runs_of_task", task=task_id)
    states: dict[object, dict[str, str]] = {row["run_id"]: {} for row in runs}
    for row in await store.rows("states_of_task", task=task_id):
        states.setdefault(row["run_id"], {})[str(row["action_id"])] = str(row["state"])
    journal = await store.rows("journal_of_task", task=task_id)
    outputs: dict[str, object] = {}
    for row in await store.rows("task_outputs", task=task_id):
        (kept,) = await store.rows("output", task=task_id, action_id=row["action_id"])
        outputs[str(row["action_id"])] = open_sealed(str(kept["sealed"]))
    return TaskDetail(
        task=task,
        attempts=tuple(_attempt(row) for row in attempts),
        runs=tuple(_run(row, states[row["run_id"]]) for row in runs),
        effects=tuple(_effect(row) for row in journal),
        outputs=outputs,
    )


def _attempt(row: Row) -> AttemptView:
    return AttemptView(
        attempt_id=str(row["id"]),
        number=_whole(row["number"]),
        host=str(row["host"]),
        device=f"{row['host']}/{row['serial']}",
        fence=_whole(row["fence"]),
        assigned_at=moment(row["assigned_at"]),
        claimed_at=moment(row["claimed_at"]),
        ended_at=moment(row["ended_at"]),
        end=_optional(row["end_kind"]),
        reason=_optional(row["end_reason"]),
        late_report=_optional(row["late_report"]),
    )


def _run(row: Row, states: dict[str, str]) -> RunView:
    return RunView(
        run_id=str(row["run_id"]),
        parent_run_id=_optional(row["parent"]),
        saves=_whole(row["sequence"]),
        states=states,
        admitted_actions=_whole(row["admitted_actions"] or 0),
        reserved_units=_whole(row["reserved_units"] or 0),
        elapsed_seconds=_whole(row["elapsed_ns"] or 0) / 1_000_000_000,
        stop_reason=_optional(row["stop_reason"]),
    )


def _in_doubt(entry: Row) -> bool:
    return entry["answer"] is None and _unsettled(entry)


def _unsettled(entry: Row) -> bool:
    return entry["state"] == "handed_over" or entry["outcome"] == "review_required"


def _effect(row: Row) -> EffectView:
    lost = _unsettled(row) and row["attempt_ended_at"] is not None
    standing = str(row["answer"] or ("in_doubt" if lost else row["outcome"] or row["state"]))
    return EffectView(
        run_id=str(row["run_id"]),
        action_id=str(row["action_id"]),
        tool_id=str(row["tool_id"]),
        attempt_id=str(row["attempt"]),
        device=f"{row['host']}/{row['serial']}",
        standing=standing,
        handed_over_at=moment(row["handed_over_at"]),
        settled_at=moment(row["settled_at"]),
        evidence=_optional(row["evidence"]),
    )


async def work(store: Store, task: Row, open_sealed: Open) -> Work:
    """What a task's row asks for."""
    body = open_sealed(str(task["sealed"]))
    if not isinstance(body, dict):
        message = "the task's body is no mapping: the database is damaged"
        raise TypeError(message)
    if task["kind"] == "goal":
        return GoalWork(**body)
    (definition,) = await store.rows("workflow", digest=task["workflow"])
    document = str(open_sealed(str(definition["sealed"])))
    return WorkflowWork(str(task["workflow"]), document, body["inputs"])


async def history(store: Store, task_id: str) -> History:
    """What earlier attempts of a task have left, after what the tasks left that it continues."""
    chain = await _chain(store, task_id)
    runs: list[RunSave] = []
    journal: list[JournalEntry] = []
    reviewed = None
    for each in chain:
        reviewed = runs[-1].run_id if runs else None
        runs += [await _last_save(store, row) for row in await store.rows("runs_of_task", task=each)]
        journal += [_entry(row) for row in await store.rows("journal_of_task", task=each)]
    return History(tuple(runs), tuple(journal), reviewed)


async def _chain(store: Store, task_id: str) -> list[str]:
    """The task and those that it continues, oldest first."""
    chain = [task_id]
    while (earlier := (await _task_row(store, chain[0]))["predecessor"]) is not None:
        chain.insert(0, str(earlier))
    return chain


async def _last_save(store: Store, run: Row) -> RunSave:
    """A run's last durable checkpoint, whole. Where its saves are not what was written, a text that nobody can read."""
    rows = await store.rows("saves_of_run", run_id=run["run_id"])
    saves = [StoredSave(_whole(row["sequence"]), str(row["digest"]), str(row["body"])) for row in rows]
    tip = (_whole(run["sequence"]), str(run["digest"]))
    found = await asyncio.to_thread(replayed, str(run["base"]), saves, tip)
    return RunSave(str(run["run_id"]), _optional(run["parent"]), tip[0], found or UNREADABLE)


def _entry(row: Row) -> JournalEntry:
    return JournalEntry(
        run_id=str(row["run_id"]),
        action_id=str(row["action_id"]),
        tool_id=str(row["tool_id"]),
        arguments_digest=str(row["arguments_digest"]),
        attempt_id=AttemptId(str(row["attempt"])),
        device=DeviceRef(HostId(str(row["host"])), str(row["serial"])),
        state=EntryState(str(row["state"])),
        handed_over_at=_whole(row["handed_over_at"]),
        outcome=_optional(row["outcome"]),
        evidence=_optional(row["evidence"]),
        settled_at=None if row["settled_at"] is None else _whole(row["settled_at"]),
        answer=_optional(row["answer"]),
        stop_confirmed=row["stopped_at"] is not None,
    )


async def doubts(store: Store, most: int) -> list[Doubt]:
    """Every effect in doubt of a task that has ended, oldest first."""
    return [
        Doubt(
            task_id=str(row["task"]),
            label=str(row["label"]),
            status=str(row["end_status"]),
            reason=_optional(row["end_reason"]),
            run_id=str(row["run_id"]),
            action_id=str(row["action_id"]),
            tool_id=str(row["tool_id"]),
            device=f"{row['host']}/{row['serial']}",
            handed_over_at=moment(row["handed_over_at"]),
            stop_confirmed_at=moment(row["stopped_at"]),
            said=_optional(row["evidence"]),
        )
        for row in await store.rows("doubts", most=most)
    ]


async def pooled_devices(store: Store) -> list[PooledDevice]:
    """Every device as the scheduler sees it."""
    return [_pooled(row) for row in await store.rows("devices")]


def _pooled(row: Row) -> PooledDevice:
    return PooledDevice(
        device_id=str(row["id"]),
        ref=DeviceRef(HostId(str(row["host"])), str(row["serial"])),
        driver_type=str(row["driver_type"]),
        tags=frozenset(json.loads(str(row["tags"]))),
        exclusive_tags=frozenset(json.loads(str(row["exclusive_tags"]))),
        occupancy=Occupancy(str(row["occupancy"])),
        service=Service(str(row["service"])),
        present=bool(row["present"]),
        took=None if row["took"] is None else _whole(row["took"]),
    )


async def device_views(store: Store) -> list[DeviceView]:
    """Every device with its three facts."""
    return [_device(row) for row in await store.rows("devices")]


def _device(row: Row) -> DeviceView:
    pooled = _pooled(row)
    state = "absent" if not pooled.present else pooled.occupancy.value
    if pooled.present and pooled.service is not Service.IN_SERVICE and pooled.occupancy is Occupancy.IDLE:
        state = pooled.service.value
    return DeviceView(
        device_id=pooled.device_id,
        name=str(pooled.ref),
        driver_type=pooled.driver_type,
        tags=tuple(sorted(pooled.tags)),
        exclusive_tags=tuple(sorted(pooled.exclusive_tags)),
        state=state,
        occupancy=pooled.occupancy.value,
        service=pooled.service.value,
        service_reason=_optional(row["service_reason"]),
        present=pooled.present,
        fence=_whole(row["fence"]),
        task_id=_optional(row["task"]),
    )


def summary(task: ScheduledTask, obstacles: Sequence[str | None]) -> str:
    """One sentence on why a task is where it is."""
    if task.ended_at is not None:
        return f"it has ended: {task.status}" + (f" ({task.reason})" if task.reason not in {None, task.status} else "")
    if task.status != "queued":
        return f"it is {task.status} on {task.running_on}"
    if task.held_for is not None:
        return f"it is held until {task.held_until:%Y-%m-%d %H:%M:%S} UTC: {task.held_for}"
    return _queued_summary(obstacles)


def _queued_summary(obstacles: Sequence[str | None]) -> str:
    if not obstacles:
        return "there is no device yet: start a host that has one"
    if None in obstacles:
        return "a device could take it now: it is next in turn, or others are ahead of it"
    if any(reason in _PASSING for reason in obstacles):
        return "every device that satisfies it is taken"
    if any(reason in _OUT_OF_SERVICE for reason in obstacles):
        return "every device that satisfies it is out of service: `interlock return HOST/SERIAL` gives one back"
    if any(reason == _ABSENT for reason in obstacles):
        return "the host of every device that satisfies it is not heard of: start it"
    return "no device satisfies it: change its constraints, or add such a device"


def _reason(*, service: Service = Service.IN_SERVICE, present: bool = True) -> str | None:
    nobody = DeviceRef(HostId("h"), "s")
    return unavailable(PooledDevice("", nobody, "", frozenset(), service=service, present=present))


_ABSENT = _reason(present=False)
_OUT_OF_SERVICE = frozenset({_reason(service=Service.DRAINING), _reason(service=Service.QUARANTINED)})
_PASSING = frozenset(
    {
        unavailable(PooledDevice("", DeviceRef(HostId("h"), "s"), "", frozenset(), occupancy=occupancy))
        for occupancy in Occupancy
    }
    - {None}
)


async def violations(store: Store) -> list[Violation]:
    """What breaks each invariant."""
    found = []
    for invariant in INVARIANTS:
        found += [Violation(invariant, str(row["what"])) for row in await store.rows(invariant)]
    for row in await store.rows("counts"):
        if row["status"] not in {"queued", "assigned", "dispatched", "done", "failed", "cancelled"}:
            found.append(Violation("known_status", str(row["status"])))
    return found
