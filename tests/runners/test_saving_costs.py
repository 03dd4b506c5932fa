"""What a save costs is what changed: in the worker, over HTTP and in the store, whatever the size of the run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from fleet.pools import Pool, shell
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    ActionState,
    CancellationSignal,
    DispatchOutcome,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
    StopReason,
)
from interlock.api import calls
from interlock.errors import Conflict, Unavailable
from interlock.fleet import reading
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, HandOver, RunSave
from interlock.fleet.session import HostSession
from interlock.fleet.settings import FleetSettings
from interlock.fleet.store import Applied, HandOverEffect, Row, SaveRun
from interlock.guard.lease import LeaseWatch
from interlock.guard.vault import Vault, new_key
from interlock.runners.saving import RunSaver, difference
from interlock.stores.runs import hand_over, save_run
from interlock.stores.sqlite import SqliteStore
from interlock.stores.transaction import Transaction
from interlock.testing.clock import ManualClock
from interlock.testing.ledger import MemoryRecord

KIBIBYTE = 1024


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    clock = ManualClock()
    pool = Pool(SqliteStore.open(tmp_path / "fleet.db", clock=clock), clock, FleetSettings(), Vault([new_key()]))
    yield pool
    assert await pool.fleet.violations() == []
    await pool.close()


async def claimed(pool: Pool) -> tuple[HostSession, Assignment]:
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    return session, await pool.running(session)


def chain(size: int) -> list[ScheduledAction]:
    """So many effects, one after another."""
    return [
        ScheduledAction(ActionNode(f"step-{n:06d}", "tool:a.b/c", (f"step-{n - 1:06d}",) if n else ()))
        for n in range(size)
    ]


async def commit(run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
    del run_id, node, cancellation
    return DispatchOutcome.COMMITTED


class Dispatcher:
    dispatch = staticmethod(commit)


@dataclass
class Weighed:
    """A ledger that weighs each save as it goes over the worker's socket and over HTTP."""

    session: HostSession
    assignment: Assignment
    sizes: list[int] = field(default_factory=list)

    async def save(self, save: RunSave) -> None:
        request = calls.save(self.assignment.lease_id, save).body or b""
        self.sizes.append(max(len(json.dumps(asdict(save))), len(request)))
        await self.session.save(self.assignment.lease_id, save)


async def run_through(ledger: Weighed, size: int) -> SchedulerCheckpoint:
    run_id = RunId.generate()
    saver = RunSaver(ledger, LeaseWatch(1e9), run_id.serialize(), None)  # type: ignore[arg-type]
    limits = SchedulerLimits(1, size, 1, size, 10**15)
    return await ActionScheduler(chain(size), limits, Dispatcher(), saver).run(run_id)


def stored_bytes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages) * int(size)


@pytest.mark.contract("F-77")
async def test_r52_a_run_of_a_thousand_actions_costs_less_than_a_kibibyte_a_transition(
    pool: Pool, tmp_path: Path
) -> None:
    session, assignment = await claimed(pool)
    sizes: dict[int, list[int]] = {}
    for size in (100, 1_000):
        ledger = Weighed(session, assignment)
        before = stored_bytes(tmp_path / "fleet.db")
        result = await run_through(ledger, size)
        grown = stored_bytes(tmp_path / "fleet.db") - before
        assert result.stop_reason is StopReason.COMPLETED
        assert len(ledger.sizes) == 2 * size + 1
        assert grown < KIBIBYTE * 2 * size
        sizes[size] = ledger.sizes[1:]
    assert max(sizes[1_000]) < KIBIBYTE
    # Only the numbers in it have more digits: the size of the run is nowhere in a save.
    assert max(sizes[1_000]) - max(sizes[100]) < 32
    runs = (await reading.history(pool.store, assignment.task_id)).runs
    assert runs[-1].checkpoint == result.to_json()


class Metered:
    """A transaction that counts the characters that go in and come out of it, as the store's code sees them."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.characters = 0

    def _count(self, value: object) -> None:
        self.characters += len(str(value))

    def rows(self, query: str, **parameters: object) -> list[Row]:
        found = self._inner.rows(query, **parameters)
        self._count((parameters, found))
        return found

    def row(self, query: str, **parameters: object) -> Row | None:
        found = self._inner.row(query, **parameters)
        self._count((parameters, found))
        return found

    def write(self, query: str, **parameters: object) -> int:
        self._count(parameters)
        return self._inner.write(query, **parameters)

    def lock(self, query: str, **parameters: object) -> None:
        self._count(parameters)
        self._inner.lock(query, **parameters)

    def enter(self, most: int) -> bool:
        return self._inner.enter(most)

    def count(self, queued: int) -> None:
        self._inner.count(queued)

    def aside(self) -> AbstractContextManager[Transaction]:
        return self._inner.aside()

    def now(self) -> int:
        return self._inner.now()

    def apart(self) -> AbstractContextManager[None]:
        return self._inner.apart()

    def new_device_id(self) -> str:
        return self._inner.new_device_id()

    @property
    def presence(self) -> int:
        return self._inner.presence


@pytest.mark.contract("F-77")
async def test_a_save_and_a_hand_over_cost_the_store_the_same_in_a_run_of_any_size(pool: Pool) -> None:
    session, assignment = await claimed(pool)
    assert isinstance(pool.store, SqliteStore)
    costs: set[int] = set()
    instructions: list[int] = []
    for size in (10, 1_000, 10_000):
        run = f"run_{size:032d}"
        pairs = [[f"step-{size}-{n:06d}".rjust(20, "s"), "running" if n < 2 else "pending"] for n in range(size)]
        charges = {"admitted_actions": 2, "reserved_units": 2, "elapsed_ns": 5}
        common = {"plan_digest": "sha256:0", **charges, "stop_reason": None}
        await session.save(assignment.lease_id, RunSave(run, None, 1, json.dumps({**common, "states": pairs})))
        changed = json.dumps({**common, "changed": [[pairs[1][0], "committed"]]})
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        with closing(pool.store._connect()) as connection:
            connection.set_progress_handler(step, 1)
            connection.execute("BEGIN IMMEDIATE")
            meter = Metered(pool.store._transaction(connection))
            save = SaveRun(session.host, assignment.lease_id, RunSave(run, None, 2, changed))
            entry = HandOverEffect(
                session.host, assignment.lease_id, HandOver(run, pairs[0][0], "tool:a.b/c", "sha256:1", "n")
            )
            assert isinstance(save_run(meter, save), Applied)
            assert isinstance(hand_over(meter, entry), Applied)
            connection.execute("COMMIT")
        costs.add(meter.characters)
        instructions.append(steps)
    assert len(costs) == 1
    # A scan of the run's states would be thousands of them; a keyed look-up is a few whatever the size.
    assert max(instructions) - min(instructions) < 100


@pytest.mark.contract("G-46")
async def test_a_save_that_failed_is_followed_by_none_as_nobody_knows_what_is_stored() -> None:
    class Away:
        saves = 0

        async def save(self, save: RunSave) -> None:
            del save
            self.saves += 1
            message = "away"
            raise Unavailable(message)

    ledger, watch = Away(), LeaseWatch(1e9)
    saver = RunSaver(ledger, watch, "run_" + "0" * 32, None)  # type: ignore[arg-type]
    snapshot = SchedulerCheckpoint(RunId.generate(), "sha256:" + "0" * 64, (("a", ActionState.RUNNING),), 1, 1, 5, None)
    with pytest.raises(Unavailable):
        await saver(snapshot)
    with pytest.raises(Conflict):
        await saver(snapshot)
    assert ledger.saves == 1


@pytest.mark.contract("G-46")
async def test_a_run_that_goes_on_under_its_id_saves_what_changed_since_its_last_checkpoint() -> None:
    record = MemoryRecord()
    run_id, actions, limits = RunId.generate(), chain(3), SchedulerLimits(1, 9, 1, 9, 10**15)
    kept: list[SchedulerCheckpoint] = []

    async def keep(checkpoint: SchedulerCheckpoint) -> None:
        kept.append(checkpoint)
        await first(checkpoint)
        if len(kept) == 2:
            raise OSError

    first = RunSaver(record.attempt(), LeaseWatch(1e9), run_id.serialize(), None)
    await ActionScheduler(actions, limits, Dispatcher(), keep).run(run_id)
    ledger: AttemptLedger = record.attempt()
    later = RunSaver(ledger, LeaseWatch(1e9), run_id.serialize(), None, sequence=2)
    result = await ActionScheduler(actions, limits, Dispatcher(), later).run(run_id, checkpoint=kept[1])
    saves = record.runs[run_id.serialize()]
    assert (len(saves), saves[-1].checkpoint) == (7, result.to_json())
    assert json.loads(difference(kept[0]))["changed"] == [["step-000000", "running"]]
