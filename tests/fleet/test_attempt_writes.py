"""How long an agent asks a write of its worker's again: while the lease is surely good, and somebody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from interlock.errors import Unavailable
from interlock.fleet.attempt import AttemptKeeper
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    Ending,
    GoalWork,
    History,
    LeaseId,
    RunSave,
    TaskId,
)
from interlock.fleet.views import Renewal
from interlock.testing.clock import ManualClock
from interlock.testing.ledger import DEVICE

SAVE = RunSave("run_" + "1" * 32, None, 1, "{}")
WORK = GoalWork("look", "agents:look")
LEASE_SECONDS = 60.0
STEP = 0.5


class Session:
    """A control plane that renews every lease, and takes a save only when it is told to."""

    def __init__(self) -> None:
        self.takes_saves = False
        self.saves = 0
        self.reports: list[Ending] = []

    async def save(self, lease_id: LeaseId, save: RunSave) -> None:
        del lease_id, save
        self.saves += 1
        if not self.takes_saves:
            message = "the database did not take it"
            raise Unavailable(message)

    async def renew(self, lease_id: LeaseId) -> Renewal:
        del lease_id
        return Renewal(LEASE_SECONDS, cancel_requested=False)

    async def finish(self, lease_id: LeaseId, ending: Ending, *, stopped: bool, clean: bool) -> None:
        del lease_id, stopped, clean
        self.reports.append(ending)


class SavingWorker:
    """A worker that makes one save, and is not gone before that has an answer."""

    def __init__(self, ledger: AttemptLedger) -> None:
        self.saving = asyncio.create_task(self._save(ledger))

    @staticmethod
    async def _save(ledger: AttemptLedger) -> str:
        try:
            await ledger.save(SAVE)
        except Unavailable:
            return "not saved"
        return "saved"

    async def ended(self) -> Ending | None:
        await asyncio.wait({self.saving})
        return None

    async def stop(self, seconds: float) -> bool:
        del seconds
        await asyncio.wait({self.saving})
        return True

    def tell_deadline(self, deadline: float) -> None:
        del deadline

    def tell_lost(self) -> None:
        """It is ended anyway."""


class Workers:
    def __init__(self) -> None:
        self.worker: SavingWorker | None = None

    async def start(self, assignment: Assignment, ledger: AttemptLedger, deadline: float) -> SavingWorker:
        del assignment, deadline
        self.worker = SavingWorker(ledger)
        return self.worker


class Scene:
    """One attempt under way, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock, self.session, self.workers = ManualClock(), Session(), Workers()
        assignment = Assignment(
            TaskId("task_1"), AttemptId("att_1"), LeaseId("lease_1"), 1, DEVICE, "shell", 1, WORK, History(),
            LEASE_SECONDS, 15.0,
        )  # fmt: skip
        now = self.clock.elapsed()
        self.keeper = AttemptKeeper(assignment, now, self.session, self.workers, self.clock, 5.0)  # type: ignore[arg-type]
        self.running = asyncio.create_task(self.keeper.run())

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            await self.settle()
            self.clock.advance(STEP)
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def outcome(self) -> str | None:
        worker = self.workers.worker
        return worker.saving.result() if worker is not None and worker.saving.done() else None

    async def end(self) -> None:
        self.session.takes_saves = True
        await self.pass_time(2)
        await self.running


@pytest.mark.contract("S-12")
async def test_a_write_is_asked_again_until_it_is_taken() -> None:
    scene = Scene()
    await scene.pass_time(20)
    assert (scene.outcome, scene.session.saves > 10) == (None, True)
    await scene.end()
    assert scene.outcome == "saved"


@pytest.mark.contract("S-12")
async def test_what_the_store_will_not_take_is_given_up_when_the_lease_of_then_is_over() -> None:
    scene = Scene()
    await scene.pass_time(50)
    assert scene.outcome is None
    await scene.pass_time(5)
    assert scene.outcome == "not saved"
    await scene.end()


@pytest.mark.contract("S-12")
async def test_nothing_is_asked_again_for_a_worker_that_was_ended() -> None:
    scene = Scene()
    await scene.pass_time(2)
    scene.keeper.kill()
    await scene.pass_time(1)
    assert scene.outcome == "not saved"
    assert [ending.reason for ending in scene.session.reports] == ["worker_lost"]
    await scene.end()
