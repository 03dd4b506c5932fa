"""A fleet in which every operation of the store has something to do, and each of them, with ids of its own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping

from interlock.fleet import store
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
from interlock.fleet.store import Applied, DeviceReport, Operation, Store
from interlock.fleet.strategies import strategy_named
from interlock.fleet.transitions import AttemptEnd
from interlock.testing.clock import START, ManualClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND
# When the state is ready: two seconds after its short leases were given, so that they are over.
READY_AT = START + 2 * SECOND
HERE, THERE, AWAY = HostId("here"), HostId("there"), HostId("away")
FIFO = strategy_named("fifo_match")
SERIALS = ("free", "spare", "running", "ending", "second", "expired", "unclaimed", "doubt", "lost", "next", "old")
REPORTS = tuple(DeviceReport(serial, "shell", frozenset({serial})) for serial in SERIALS)
Devices = Mapping[str, DeviceId]


def ref(serial: str, host: HostId = HERE) -> DeviceRef:
    return DeviceRef(host, serial)


def lease(task: str) -> LeaseId:
    return LeaseId(f"lease_{task}")


def run_of(task: str) -> str:
    return f"run_{task}"


def submit(name: str, *, tag: str | None = None, **more: object) -> store.Submit:
    tags = frozenset() if tag is None else frozenset({tag})
    said = ("goal", "look around", "sealed", f"sha256:{name}", None, Constraints(tags=tags), FIFO)
    return store.Submit(TaskId(name), *said, **more)  # type: ignore[arg-type]


def grant(devices: Devices, name: str, serial: str, ttl: int = HOUR) -> store.Grant:
    return store.Grant(AttemptId(f"att_{name}"), lease(name), TaskId(name), devices[serial], ttl, notes_rank=True)


def saved(sequence: int, task: str, *, running: int = 3, **states: str) -> RunSave:
    pairs = [[action, state] for action, state in sorted(states.items())]
    charges = dict.fromkeys(("admitted_actions", "reserved_units", "elapsed_ns"), running)
    said = {"states" if sequence == 1 else "changed": pairs, "plan_digest": "p", "stop_reason": None, **charges}
    return RunSave(run_of(task), None, sequence, json.dumps(said))


def handed_over(task: str, action: str) -> HandOver:
    return HandOver(run_of(task), action, "tool:a.b/c", "sha256:1", nonce=f"nonce {action}")


def ended(task: str, end: AttemptEnd, *, stopped: bool = False, clean: bool = False) -> store.EndAttempt:
    return store.EndAttempt(HERE, lease(task), end, end.value, f"report {end}", "sealed", stopped=stopped, clean=clean)


class Making:
    """Does what must come about, and notices when it does not."""

    def __init__(self, made: Store) -> None:
        self._store = made

    async def do(self, *operations: Operation) -> None:
        outcomes = await self._store.commit(operations)
        assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes

    async def running(self, name: str, serial: str, ttl: int = HOUR) -> None:
        await self.do(grant(await devices_of(self._store), name, serial))
        await self.do(store.Claim(HERE, f"claim_{name}", 1, ttl, "gen-1"))


async def devices_of(made: Store) -> dict[str, DeviceId]:
    return {str(row["serial"]): DeviceId(str(row["id"])) for row in await made.rows("devices")}


async def make(made: Store, clock: ManualClock) -> None:
    """Bring a new database to where each operation below has something to do. Its clock then says `READY_AT`."""
    making = Making(made)
    for host in (HERE, THERE, AWAY):
        await making.do(store.RegisterHost(host, f"hash of {host}"))
    await making.do(store.Beat(HERE, "boot-1", "gen-1", REPORTS))
    await making.do(store.Beat(THERE, "boot-1", "gen-1", (DeviceReport("assigned", "shell"),)))
    await making.do(store.Beat(AWAY, "boot-1", "gen-1", (DeviceReport("gone", "shell"),)))
    await making.do(store.Goodbye(AWAY, "gen-1"))
    await making.do(store.Define("sha256:known", "known", "sealed"))
    running = ("running", "ending", "second", "expired", "doubt", "lost", "next", "old")
    for name in ("queued", "other", "leaving", "assigned", "unclaimed", *running):
        await making.do(submit(name, tag=name if name in SERIALS else None))
    await making.do(submit("overdue", tag="rare", queue_timeout=SECOND))
    await making.do(submit("due", not_before=START + SECOND), submit("held", not_before=START + HOUR))
    for name in running:
        await making.running(name, name, SECOND if name == "expired" else HOUR)
    await making.do(
        store.SaveRun(HERE, lease("running"), saved(1, "running", a="running", b="running", c="running", d="pending")),
        store.HandOverEffect(HERE, lease("running"), handed_over("running", "a")),
        store.SaveRun(HERE, lease("doubt"), saved(1, "doubt", a="running")),
        store.HandOverEffect(HERE, lease("doubt"), handed_over("doubt", "a")),
        ended("doubt", AttemptEnd.FAILED, stopped=True),
        ended("lost", AttemptEnd.WORKER_LOST),
        ended("old", AttemptEnd.DONE, stopped=True, clean=True),
    )
    devices = await devices_of(made)
    await making.do(grant(devices, "assigned", "assigned"), grant(devices, "unclaimed", "unclaimed", SECOND))
    clock.advance(2)


def _beat(*, boot: str, devices: tuple[DeviceReport, ...]) -> Callable[[Devices], Operation]:
    return lambda _: store.Beat(HERE, boot, "gen-2", devices)


# Of the devices that were there the last is gone now, one has changed, one has a fault, and one is new.
_OTHERS = (
    DeviceReport("running", "shell", frozenset({"more"})),
    DeviceReport("spare", "shell", fault="two devices have this serial"),
    DeviceReport("new", "shell"),
    *(report for report in REPORTS if report.serial not in {"running", "spare", "old"}),
)
_UNDER = (HERE, lease("running"))
_ANSWERS = {(run_of("doubt"), "a"): "did_not_happen"}
# By name, the operations that one caller asks for together.
CASES: dict[str, Callable[[Devices], tuple[Operation, ...]]] = {
    "define": lambda _: (store.Define("sha256:new", "new", "sealed"),),
    "submit": lambda _: (submit("new", tag="new", idempotency_key="key"),),
    "submit near the limit": lambda _: (submit("new", tag="new", max_queue_depth=50),),
    "submit with its definition": lambda _: (submit("new", definition=store.Define("sha256:new", "new", "sealed")),),
    "submit for later": lambda _: (submit("new", not_before=READY_AT + HOUR),),
    "submit several": lambda _: (submit("one", tag="new"), submit("two", tag="newer")),
    "adopt a strategy": lambda _: (store.AdoptStrategy("fair_share", strategy_named("fair_share")),),
    "grant": lambda devices: (grant(devices, "queued", "free"),),
    "grant several": lambda devices: (grant(devices, "queued", "free"), grant(devices, "other", "spare")),
    "claim": lambda _: (store.Claim(THERE, "claim_new", 5, HOUR, "gen-1"),),
    "renew": lambda _: (store.Renew(*_UNDER, 2 * HOUR),),
    "save a run first": lambda _: (store.SaveRun(HERE, lease("next"), saved(1, "next", a="running", b="pending")),),
    "save a run on": lambda _: (store.SaveRun(*_UNDER, saved(2, "running", running=4, d="running")),),
    "hand over": lambda _: (store.HandOverEffect(*_UNDER, handed_over("running", "b")),),
    "withdraw": lambda _: (store.WithdrawEffect(*_UNDER, run_of("running"), "a"),),
    "settle an effect": lambda _: (
        store.SettleCall(*_UNDER, Settlement(run_of("running"), "a", "committed", True, "sealed", "digest")),  # noqa: FBT003
    ),
    "settle a read": lambda _: (
        store.SettleCall(*_UNDER, Settlement(run_of("running"), "c", "committed", False, "sealed")),  # noqa: FBT003
    ),
    "finish": lambda _: (ended("ending", AttemptEnd.DONE, stopped=True),),
    "finish clean": lambda _: (ended("ending", AttemptEnd.FAILED, stopped=True, clean=True),),
    "release": lambda _: (ended("ending", AttemptEnd.WORKER_LOST),),
    "release at once": lambda _: (ended("ending", AttemptEnd.NOT_STARTED, stopped=True),),
    "finish too late": lambda _: (ended("expired", AttemptEnd.DONE),),
    "finish several": lambda _: (ended("ending", AttemptEnd.DONE), ended("second", AttemptEnd.FAILED)),
    "cancel what is queued": lambda _: (store.Cancel(TaskId("leaving")),),
    "cancel what is held": lambda _: (store.Cancel(TaskId("held")),),
    "cancel what is assigned": lambda _: (store.Cancel(TaskId("assigned")),),
    "cancel what runs": lambda _: (store.Cancel(TaskId("running")),),
    "resolve": lambda _: (store.Resolve(TaskId("doubt"), TaskId("successor"), _ANSWERS, "somebody", {}),),
    "beat": lambda _: (store.Beat(HERE, "boot-1", "gen-1", REPORTS),),
    "beat with other devices": lambda _: (store.Beat(HERE, "boot-1", "gen-2", _OTHERS),),
    "beat after a boot": lambda _: (store.Beat(HERE, "boot-2", "gen-2", REPORTS),),
    "goodbye": lambda _: (store.Goodbye(THERE, "gen-1"),),
    "confirm a stop": lambda _: (store.ConfirmStopped(HERE, "lost", clean=False, attempt_id=AttemptId("att_lost")),),
    "confirm that it is clean": lambda _: (store.ConfirmStopped(HERE, "doubt", clean=True),),
    "take out of service": lambda _: (store.SetService(ref("free"), "draining", "repair"),),
    "force a lease": lambda _: (store.ForceRelease(ref("running")),),
    "force a stop": lambda _: (store.ForceRelease(ref("lost")),),
    "forget a device": lambda _: (store.ForgetDevice(ref("gone", AWAY)),),
    "sweep": lambda _: (store.Sweep(),),
    "sweep and forget": lambda _: (store.Sweep(keep_history=SECOND),),
    "register a host": lambda _: (store.RegisterHost(HostId("new"), "hash of new"),),
}
# What the cases can be listed with where there is no database.
NO_DEVICES: Devices = defaultdict(lambda: DeviceId("none"))
