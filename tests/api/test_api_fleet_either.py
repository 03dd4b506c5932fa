"""One suite for a fleet in this process and for the same fleet over HTTP, and the same for a host's session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from api.conftest import DONE, Served, goal, shell, wanting
from interlock.api.client import RemoteFleet
from interlock.errors import (
    Conflict,
    InvalidInput,
    InvalidWorkflow,
    LeaseSuperseded,
    NotFound,
    QueueFull,
    ReportConflict,
)
from interlock.fleet.model import DeviceRef, Ending, EndKind, HandOver, HostId, LeaseId, RunSave, Settlement
from interlock.fleet.operations import Fleet
from interlock.fleet.service import GoalRequest, HostService, SubmitRequest, WorkflowRequest

WORKFLOW = """\
name: two
inputs:
  where: {type: string, default: "."}
steps:
  look: {tool: "tool:interlock.shell/list", with: {path: "${inputs.where}"}}
  do: {tool: "tool:interlock.shell/run", with: {command: "true"}, needs: [look]}
"""
LOST = LeaseId("lease_lost")
CHECKPOINT = {
    "run_id": "run_" + "0" * 32,
    "plan_digest": "sha256:" + "0" * 64,
    "states": [["do", "running"], ["look", "running"]],
    "admitted_actions": 2,
    "reserved_units": 2,
    "elapsed_ns": 5,
    "stop_reason": None,
}
RUN = str(CHECKPOINT["run_id"])
SAVE = RunSave(RUN, None, 1, json.dumps(CHECKPOINT, separators=(",", ":")))


@pytest.fixture(params=["in process", "over HTTP"])
async def fleet(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Fleet | RemoteFleet]:
    if request.param == "in process":
        yield served.fleet
    else:
        async with served.remote() as remote:
            yield remote


@pytest.fixture(params=["in process", "over HTTP"])
async def host(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[HostService]:
    async with served.host("h1", shell("d1", "linux")) as remote:
        yield remote if request.param == "over HTTP" else await served.fleet.host("credential-of-h1")


async def test_a_submitted_goal_is_listed_and_read_back(fleet: Fleet | RemoteFleet) -> None:
    task_id = await fleet.submit(goal(constraints=wanting("linux", "camera"), priority=3))
    (task,) = await fleet.tasks()
    detail = await fleet.get(task_id)
    assert task.task_id == task_id
    assert (task.kind, task.status, task.tags) == ("goal", "queued", ("camera", "linux"))
    assert detail.task.submitted_at is not None
    assert detail.task.submitted_at.utcoffset() is not None
    assert (detail.attempts, detail.runs, detail.effects, detail.outputs) == ((), (), (), {})


async def test_a_workflow_is_taken_by_its_text_and_then_by_its_digest(
    fleet: Fleet | RemoteFleet, served: Served
) -> None:
    first = await fleet.submit(SubmitRequest(WorkflowRequest(text=WORKFLOW, inputs={"where": "/"})))
    digest = (await served.fleet.store.rows("task", task=first))[0]["workflow"]
    second = await fleet.submit(SubmitRequest(WorkflowRequest(digest=str(digest))))
    assert [(task.task_id, task.label) for task in await fleet.tasks()] == [(second, "two"), (first, "two")]


async def test_a_faulty_workflow_is_refused_with_every_fault(fleet: Fleet | RemoteFleet) -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        await fleet.submit(SubmitRequest(WorkflowRequest(text="name: x\nsteps:\n  a: {tool: 1}\nzap: 1\n")))
    assert len(refused.value.faults) >= 2
    assert all(fault.startswith("line ") for fault in refused.value.faults)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (SubmitRequest(GoalRequest("", "a:b")), InvalidInput),
        (SubmitRequest(GoalRequest("g", "no agent")), InvalidInput),
        (SubmitRequest(GoalRequest("g", "a:b"), max_attempts=0), InvalidInput),
        (SubmitRequest(GoalRequest("g", "a:b"), priority=10**30), InvalidInput),
        (SubmitRequest(GoalRequest("g", "a:b"), queue_timeout_seconds=-1.0), InvalidInput),
        (SubmitRequest(GoalRequest("g", "a:b"), idempotency_key="k" * 257), InvalidInput),
        (SubmitRequest(GoalRequest("g", "a:b"), idempotency_key=""), InvalidInput),
        (SubmitRequest(WorkflowRequest(digest="sha256:none")), NotFound),
        (SubmitRequest(WorkflowRequest(text=WORKFLOW, inputs={"zap": 1})), InvalidInput),
    ],
)
async def test_what_cannot_be_taken_is_the_same_error(
    fleet: Fleet | RemoteFleet, request_: SubmitRequest, error: Any
) -> None:
    with pytest.raises(error) as refused:
        await fleet.submit(request_)
    assert type(refused.value) is error


async def test_the_same_key_gives_the_same_task_and_another_body_a_conflict(fleet: Fleet | RemoteFleet) -> None:
    first = await fleet.submit(goal("one", idempotency_key="k"))
    assert await fleet.submit(goal("one", idempotency_key="k")) == first
    with pytest.raises(Conflict):
        await fleet.submit(goal("two", idempotency_key="k"))


async def test_two_submissions_without_a_key_are_two_tasks(fleet: Fleet | RemoteFleet) -> None:
    assert await fleet.submit(goal()) != await fleet.submit(goal())


async def test_a_task_is_held_until_the_time_that_was_asked_for(fleet: Fleet | RemoteFleet) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    task = (await fleet.get(await fleet.submit(replace(goal(), not_before=later)))).task
    assert (task.status, task.held_until, task.held_for) == ("queued", later, "not_before")


async def test_a_full_queue_refuses(fleet: Fleet | RemoteFleet) -> None:
    for _ in range(5):
        await fleet.submit(goal())
    with pytest.raises(QueueFull) as caught:
        await fleet.submit(goal())
    assert caught.value.facts == {"eligible_devices": 0, "retry_after_seconds": None}


@pytest.mark.parametrize("ask", ["get", "cancel", "why"])
async def test_an_unknown_task_is_not_found(fleet: Fleet | RemoteFleet, ask: str) -> None:
    with pytest.raises(NotFound):
        await getattr(fleet, ask)("task_none/../x?y#z")


async def test_a_cancel_says_what_it_came_to(fleet: Fleet | RemoteFleet) -> None:
    task_id = await fleet.submit(goal())
    assert (await fleet.cancel(task_id)).outcome == "cancelled"
    assert (await fleet.cancel(task_id)).outcome == "cancelled"
    assert (await fleet.get(task_id)).task.status == "cancelled"


async def test_why_names_each_device_and_its_obstacle(fleet: Fleet | RemoteFleet, served: Served) -> None:
    async with served.host("h1", shell("d1")):
        waiting = await fleet.why(await fleet.submit(goal(constraints=wanting("camera"))))
    assert waiting.ahead == 0
    assert [obstacle.device for obstacle in waiting.obstacles] == ["h1/d1"]
    assert "camera" in waiting.obstacles[0].reason


async def test_a_device_is_drained_and_returned(fleet: Fleet | RemoteFleet, served: Served) -> None:
    device = DeviceRef(HostId("h1"), "d1")
    async with served.host("h1", shell("d1", "b", "a")):
        await fleet.set_service(device, "draining", "new cable")
        (drained,) = await fleet.devices()
        await fleet.set_service(device, "in_service", None)
        (back,) = await fleet.devices()
    assert (drained.state, drained.service_reason, drained.tags) == ("draining", "new cable", ("a", "b"))
    assert (back.state, back.present) == ("idle", True)


async def test_a_device_whose_serial_has_a_slash_is_operated_as_any_other(
    fleet: Fleet | RemoteFleet, served: Served
) -> None:
    for serial in ("/dev/ttyUSB0", "usb/1/service", "a//b/", "..x"):
        device = DeviceRef(HostId("h1"), serial)
        async with served.host("h1", shell(serial)) as session:
            await fleet.set_service(device, "draining", None)
            (drained,) = [each for each in await fleet.devices() if each.name == f"h1/{serial}"]
            assert drained.service == "draining"
            await fleet.set_service(device, "in_service", None)
            task_id = await fleet.submit(goal())
            assignment = await served.running(session, f"claim of {serial}")
            assert assignment.device == device
            await fleet.force_release(device)
            assert (await fleet.cancel(task_id)).outcome == "cancelled"
            await session.beat("boot-1", "gen-1", [])
        await fleet.forget_device(device)
        assert await fleet.devices() == []


async def test_a_device_is_released_by_force(fleet: Fleet | RemoteFleet, served: Served) -> None:
    async with served.host("h1", shell("d1")) as session:
        task_id = await fleet.submit(goal())
        assignment = await served.running(session)
        await fleet.force_release(assignment.device)
        with pytest.raises(LeaseSuperseded):
            await session.renew(assignment.lease_id)
    assert (await fleet.get(task_id)).attempts[0].ended_at is not None


async def test_a_host_is_registered_and_acts_under_its_credential(fleet: Fleet | RemoteFleet, served: Served) -> None:
    await fleet.register_host("bench", "the bench host's own credential")
    session = await served.fleet.host("the bench host's own credential")
    assert session.host == "bench"
    with pytest.raises(InvalidInput):
        await fleet.register_host("no/name", "x")


async def test_an_unknown_device_is_not_found(fleet: Fleet | RemoteFleet) -> None:
    device = DeviceRef(HostId("h9"), "d9")
    with pytest.raises(NotFound):
        await fleet.set_service(device, "draining", None)
    with pytest.raises(NotFound):
        await fleet.force_release(device)
    with pytest.raises(NotFound):
        await fleet.forget_device(device)


async def test_a_wait_ends_with_the_task_and_not_before(fleet: Fleet | RemoteFleet, served: Served) -> None:
    task_id = await fleet.submit(goal())
    assert (await fleet.wait(task_id, 0.0)).status == "queued"
    waiting = asyncio.create_task(fleet.wait(task_id, 60.0))
    async with served.host("h1", shell()) as session:
        assignment = await served.running(session)
        await session.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    async with asyncio.timeout(10):
        task = await waiting
    assert (task.status, task.result) == ("done", {"answer": 42})


async def test_a_short_wait_gives_the_task_as_it_is(fleet: Fleet | RemoteFleet) -> None:
    task_id = await fleet.submit(goal())
    assert (await fleet.wait(task_id, 0.05)).status == "queued"


async def test_a_sound_fleet_has_no_violations(fleet: Fleet | RemoteFleet) -> None:
    await fleet.submit(goal())
    assert await fleet.violations() == []


async def test_a_whole_attempt_goes_through_the_host_service(host: HostService, served: Served) -> None:
    task_id = await served.fleet.submit(SubmitRequest(WorkflowRequest(text=WORKFLOW)))
    answer = await host.beat("boot-1", "gen-1", [shell("d1", "linux")])
    assert answer.lease_seconds == served.fleet.settings.lease_ttl_seconds
    await served.scheduler.assign()
    (assignment,) = await host.claim("claim-1", 4, 5.0)
    assert (assignment.task_id, str(assignment.device), assignment.number) == (task_id, "h1/d1", 1)
    lease = assignment.lease_id
    assert (await host.renew(lease)).cancel_requested is False
    await host.save(lease, SAVE)
    await host.hand_over(lease, HandOver(RUN, "do", "tool:interlock.shell/run", "sha256:" + "1" * 64))
    read = Settlement(RUN, "look", "committed", effect=False, output='["a"]')
    await host.settle(lease, read)
    await host.settle(lease, Settlement(RUN, "do", "committed", effect=True, output="{}", evidence="mark"))
    assert await host.output(lease, "look") == ["a"]
    saved = {key: value for key, value in CHECKPOINT.items() if key not in {"run_id", "states"}}
    changed = json.dumps({**saved, "changed": [["do", "committed"], ["look", "committed"]]})
    await host.save(lease, RunSave(RUN, None, 2, changed))
    with pytest.raises(Conflict):
        await host.settle(lease, read)
    await host.finish(lease, DONE, stopped=True, clean=True)
    detail = await served.fleet.get(task_id)
    assert (detail.task.status, detail.outputs) == ("done", {"look": ["a"], "do": {}})
    assert [(effect.action_id, effect.standing) for effect in detail.effects] == [("do", "committed")]


async def test_a_withdrawn_effect_is_on_record(host: HostService, served: Served) -> None:
    task_id = await served.fleet.submit(SubmitRequest(WorkflowRequest(text=WORKFLOW)))
    await served.scheduler.assign()
    (assignment,) = await host.claim("claim-1", 1, 0.0)
    await host.save(assignment.lease_id, SAVE)
    await host.hand_over(assignment.lease_id, HandOver(RUN, "do", "tool:interlock.shell/run", "sha256:1"))
    await host.withdraw(assignment.lease_id, RUN, "do")
    assert [effect.standing for effect in (await served.fleet.get(task_id)).effects] == ["withdrawn"]
    with pytest.raises(Conflict):
        await host.hand_over(assignment.lease_id, HandOver(RUN, "do", "tool:interlock.shell/run", "sha256:1"))


async def test_the_history_of_an_attempt_reaches_the_next_one(host: HostService, served: Served) -> None:
    await served.fleet.submit(SubmitRequest(WorkflowRequest(text=WORKFLOW)))
    await served.scheduler.assign()
    (first,) = await host.claim("claim-1", 1, 0.0)
    await host.save(first.lease_id, SAVE)
    await host.hand_over(first.lease_id, HandOver(RUN, "do", "tool:interlock.shell/run", "sha256:1"))
    await host.finish(first.lease_id, Ending(EndKind.RELEASED, "worker_lost"), stopped=True, clean=True)
    await served.scheduler.expire()
    await served.scheduler.assign()
    (second,) = await host.claim("claim-2", 1, 5.0)
    assert second.number == 2
    assert second.history.runs == (SAVE,)
    (entry,) = second.history.journal
    assert (entry.action_id, entry.attempt_id, str(entry.device)) == ("do", first.attempt_id, "h1/d1")


async def test_a_lost_lease_is_superseded_everywhere(host: HostService) -> None:
    for attempt in (
        host.renew(LOST),
        host.save(LOST, SAVE),
        host.hand_over(LOST, HandOver(RUN, "do", "tool:x.y/z", "sha256:1")),
        host.withdraw(LOST, RUN, "do"),
        host.settle(LOST, Settlement(RUN, "do", "committed", effect=True)),
        host.output(LOST, "do"),
    ):
        with pytest.raises(LeaseSuperseded):
            await attempt


async def test_another_outcome_under_the_same_lease_is_a_report_conflict(host: HostService, served: Served) -> None:
    await served.fleet.submit(goal())
    await served.scheduler.assign()
    (assignment,) = await host.claim("claim-1", 1, 0.0)
    await host.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    await host.finish(assignment.lease_id, DONE, stopped=True, clean=True)
    failed = Ending(EndKind.FAILED, "dispatch_failed")
    with pytest.raises(ReportConflict):
        await host.finish(assignment.lease_id, failed, stopped=True, clean=True)


async def test_the_same_claim_again_gives_the_same_attempt(host: HostService, served: Served) -> None:
    await served.fleet.submit(goal())
    await served.scheduler.assign()
    (first,) = await host.claim("claim-1", 1, 0.0)
    (again,) = await host.claim("claim-1", 1, 0.0)
    assert again.lease_id == first.lease_id


async def test_a_claim_waits_for_an_assignment(host: HostService, served: Served) -> None:
    waiting = asyncio.create_task(host.claim("claim-1", 1, 30.0))
    await served.fleet.submit(goal())
    await served.scheduler.assign()
    async with asyncio.timeout(10):
        assert len(await waiting) == 1


async def test_a_claim_that_finds_nothing_ends_in_time(host: HostService) -> None:
    assert await host.claim("claim-1", 1, 0.05) == []


async def test_a_stop_is_confirmed_by_its_host(host: HostService, served: Served) -> None:
    await served.fleet.submit(goal())
    await served.scheduler.assign()
    (assignment,) = await host.claim("claim-1", 1, 0.0)
    await host.finish(assignment.lease_id, DONE, stopped=False, clean=False)
    (before,) = await served.fleet.devices()
    await host.confirm_stopped("d1", clean=True)
    (after,) = await served.fleet.devices()
    assert (before.occupancy, after.occupancy) == ("stop_unconfirmed", "idle")


async def test_a_host_that_leaves_is_no_longer_present(host: HostService, served: Served) -> None:
    await host.goodbye("gen-1")
    assert [device.state for device in await served.fleet.devices()] == ["absent"]
