"""Random histories on both databases: after each step every invariant holds and no terminal state has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from databases import DatabaseClock, PostgresDatabases, PostgresServer
from fleet.pools import DONE, FAILED, Pool, ref, released, shell
from interlock.clock import MICROSECONDS
from interlock.errors import InterlockError, LeaseSuperseded, QueueFull
from interlock.fleet.model import Assignment, Ending
from interlock.fleet.session import HostSession
from interlock.fleet.settings import FleetSettings
from interlock.guard.vault import Vault, new_key
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.testing.clock import ManualClock

Answer = TypeVar("Answer")
HOSTS = ("h1", "h2")
TAGS = ("a", "b")
ENDINGS = (DONE, FAILED, released("worker_lost"), released("interrupted"), released("not_started"))


class FleetHistory(RuleBasedStateMachine):
    clock: ManualClock

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ended: dict[str, str] = {}
        self.held: list[tuple[HostSession, Assignment]] = []
        self.fences: dict[str, int] = {}
        self.tasks = 0
        self.claims = 0

    def open_store(self) -> SqliteStore | PostgresStore:
        self.clock = ManualClock()
        return SqliteStore.open(None, clock=self.clock)

    def do(self, act: Awaitable[Answer]) -> Answer:
        async def wait() -> Answer:
            return await act

        return self.runner.run(wait())

    @initialize()
    def open(self) -> None:
        async def make() -> Pool:
            settings = FleetSettings(max_queue_depth=5, max_attempts=2, retry_first_seconds=2.0)
            pool = Pool(self.open_store(), self.clock, settings, Vault([new_key()]))
            await pool.host("h1", shell("d1", "a"), shell("d2", "a", "b"))
            await pool.host("h2", shell("d1", "b", exclusive=("b",)))
            return pool

        self.pool = self.do(make())

    @rule(
        tags=st.frozensets(st.sampled_from(TAGS)),
        pin=st.sampled_from([None, ref("h1", "d1"), ref("h2", "d1")]),
        key=st.sampled_from([None, None, "k1", "k2"]),
    )
    def submit(self, tags: frozenset[str], pin: object, key: str | None) -> None:
        depth = int(str(self.do(self.pool.store.rows("depth"))[0]["queued"]))
        try:
            self.do(self.pool.goal(f"goal {key}", key=key, tags=tags, device=pin))
        except QueueFull:
            assert depth >= 5  # what came back after an attempt passed the limit
        except InterlockError as error:
            assert error.code == "conflict"

    @rule()
    def assign(self) -> None:
        self.do(self.pool.scheduler.assign())

    @rule(host=st.sampled_from(HOSTS), limit=st.integers(1, 3))
    def claim(self, host: str, limit: int) -> None:
        self.claims += 1
        session = self.pool.sessions[host]
        self.held += [(session, each) for each in self.do(session.claim(f"claim {self.claims}", limit, 0.0))]

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self.under_a_lease(data, lambda session, assignment: session.renew(assignment.lease_id))

    @rule(data=st.data(), ending=st.sampled_from(ENDINGS), stopped=st.booleans(), clean=st.booleans())
    def finish(self, data: st.DataObject, ending: Ending, *, stopped: bool, clean: bool) -> None:
        self.under_a_lease(
            data,
            lambda session, assignment: session.finish(assignment.lease_id, ending, stopped=stopped, clean=clean),
        )

    def under_a_lease(self, data: st.DataObject, act: object) -> None:
        """A write under any lease that was ever given: it passes exactly where the lease is live or was reported."""
        if not self.held or not callable(act):
            return
        session, assignment = data.draw(st.sampled_from(self.held))
        live = self.live(assignment)
        (attempt,) = self.do(self.pool.store.rows("attempt_by_lease", lease=assignment.lease_id))
        try:
            self.do(act(session, assignment))
        except LeaseSuperseded:
            assert not live
        except InterlockError as error:
            assert error.code == "report_conflict"
            assert attempt["report"] is not None
        else:
            assert live or attempt["report"] is not None

    def live(self, assignment: Assignment) -> bool:
        """Whether a lease is good. After an outage each that was not swept is, once until it is renewed."""
        rows = self.do(self.pool.store.rows("lease", lease=assignment.lease_id))
        (upkeep,) = self.do(self.pool.store.rows("upkeep"))
        outage = self.clock.now() - int(str(upkeep["swept_at"])) > StoreTimes().outage * MICROSECONDS
        return bool(rows) and ((outage and not rows[0]["graced"]) or int(str(rows[0]["expires_at"])) > self.clock.now())

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        tasks = self.do(self.pool.fleet.tasks())
        if tasks:
            self.do(self.pool.fleet.cancel(data.draw(st.sampled_from(tasks)).task_id))

    @rule(seconds=st.sampled_from([0.5, 3.0, 14.0]))
    def pass_time(self, seconds: float) -> None:
        self.do(self.pool.pass_time(seconds))

    @rule(seconds=st.sampled_from([20.0, 3600.0]))
    def outage(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(host=st.sampled_from(HOSTS), boot=st.sampled_from(["boot-1", "boot-2"]))
    def beat(self, host: str, boot: str) -> None:
        self.do(self.pool.beat(host, boot=boot))

    @rule(host=st.sampled_from(HOSTS))
    def goodbye(self, host: str) -> None:
        self.do(self.pool.sessions[host].goodbye("gen-1"))

    @rule(device=st.sampled_from([("h1", "d1"), ("h1", "d2"), ("h2", "d1")]), clean=st.booleans())
    def confirm_stopped(self, device: tuple[str, str], *, clean: bool) -> None:
        self.do(self.pool.sessions[device[0]].confirm_stopped(device[1], clean=clean))

    @rule(device=st.sampled_from([("h1", "d1"), ("h2", "d1")]), service=st.sampled_from(["in_service", "draining"]))
    def set_service(self, device: tuple[str, str], service: str) -> None:
        self.do(self.pool.fleet.set_service(ref(*device), service, None))

    @rule(device=st.sampled_from([("h1", "d1"), ("h2", "d1")]))
    def force_release(self, device: tuple[str, str]) -> None:
        self.do(self.pool.fleet.force_release(ref(*device)))

    @invariant()
    def every_invariant_holds(self) -> None:
        assert self.do(self.pool.fleet.violations()) == []

    @invariant()
    def no_task_is_lost_and_no_terminal_state_changes(self) -> None:
        tasks = {task.task_id: task for task in self.do(self.pool.fleet.tasks(most=1_000))}
        assert len(tasks) >= self.tasks
        self.tasks = len(tasks)
        for task_id, status in self.ended.items():
            assert tasks[task_id].status == status
        self.ended.update((task.task_id, task.status) for task in tasks.values() if task.ended_at is not None)

    @invariant()
    def fences_only_grow(self) -> None:
        fences = {device.name: device.fence for device in self.do(self.pool.fleet.devices())}
        assert all(fences[name] >= fence for name, fence in self.fences.items())
        self.fences = fences

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.do(self.pool.close())
        self.runner.close()
        if isinstance(self.clock, DatabaseClock):
            self.clock.close()


# Each step asks some thirty questions, and here each one is a way to a server and back.
ON_POSTGRES = settings(stateful_step_count=40, max_examples=(settings.default or settings()).max_examples // 3)
FleetHistory.TestCase.settings = settings(stateful_step_count=40)


@pytest.mark.contract("F-95")
class TestFleetHistory(FleetHistory.TestCase):  # type: ignore[misc,valid-type]
    """F5: a checker after every random operation."""


@pytest.mark.contract("F-95")
@pytest.mark.hypothesis
def test_random_histories_on_postgres(postgres: PostgresServer) -> None:
    class OnPostgres(FleetHistory):
        def open_store(self) -> SqliteStore | PostgresStore:
            self.clock = DatabaseClock()
            return PostgresDatabases(postgres, self.clock).open()

    run_state_machine_as_test(OnPostgres, settings=ON_POSTGRES)
