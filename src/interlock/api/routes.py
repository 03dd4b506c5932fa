"""The routes of people and programs: `FleetService` and the operator's moves over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from interlock.api import wire
from interlock.api.events import counts, event_stream
from interlock.api.openapi import described
from interlock.api.requests import (
    Approver,
    FleetHere,
    MayAdminister,
    MayOperate,
    MayRead,
    MaySubmit,
    Submitter,
    answered,
    body_of,
    done,
    fleet_here,
)
from interlock.errors import Unavailable
from interlock.fleet.model import DeviceRef
from interlock.fleet.operations import with_submitter
from interlock.fleet.service import SubmitRequest
from interlock.fleet.views import CancelAnswer, Resolution, ScheduledTask, TaskDetail, Waiting, moment

MOST_TASKS = 1_000
router = APIRouter(prefix="/v1")


@router.post(
    "/tasks",
    tags=["tasks"],
    status_code=201,
    openapi_extra=described(wire.Submitted, body=SubmitRequest, status=201),
)
async def submit(
    grant: Submitter, fleet: FleetHere, asked: Annotated[SubmitRequest, Depends(body_of(SubmitRequest))]
) -> Response:
    """Queue a task. Its submitter is the token's name, whatever the body says."""
    if asked.constraints.device is not None:
        DeviceRef.parse(str(asked.constraints.device))
    return answered(wire.Submitted(await fleet.submit(with_submitter(asked, grant.name))), 201)


@router.get("/tasks", tags=["tasks"], dependencies=[MayRead], openapi_extra=described(wire.TaskList))
async def tasks(fleet: FleetHere, most: Annotated[int, Query(ge=1, le=MOST_TASKS)] = 100) -> Response:
    """List the newest tasks, newest first."""
    return answered(wire.TaskList(tuple(await fleet.tasks(most=most))))


@router.get("/tasks/{task_id}", tags=["tasks"], dependencies=[MayRead], openapi_extra=described(TaskDetail))
async def get(fleet: FleetHere, task_id: str) -> Response:
    """Give everything on record about a task."""
    return answered(await fleet.get(task_id))


@router.get("/tasks/{task_id}/wait", tags=["tasks"], dependencies=[MayRead], openapi_extra=described(ScheduledTask))
async def wait(
    fleet: FleetHere, task_id: str, seconds: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0
) -> Response:
    """Give the task once it has ended, or as it is after so many seconds, or as many as the server allows."""
    return answered(await fleet.wait(task_id, min(seconds, fleet.settings.long_poll_seconds)))


@router.post(
    "/tasks/{task_id}/cancel",
    tags=["tasks"],
    dependencies=[MaySubmit],
    openapi_extra=described(CancelAnswer),
)
async def cancel(fleet: FleetHere, task_id: str) -> Response:
    """Cancel a task, or ask its host to."""
    return answered(await fleet.cancel(task_id))


@router.get("/tasks/{task_id}/why", tags=["tasks"], dependencies=[MayRead], openapi_extra=described(Waiting))
async def why(fleet: FleetHere, task_id: str) -> Response:
    """Say why a task is not running."""
    return answered(await fleet.why(task_id))


@router.get("/reviews", tags=["reviews"], dependencies=[MayRead], openapi_extra=described(wire.DoubtList))
async def reviews(fleet: FleetHere, most: Annotated[int, Query(ge=1, le=MOST_TASKS)] = 100) -> Response:
    """List the effects in doubt of tasks that have ended, oldest first."""
    return answered(wire.DoubtList(tuple(await fleet.reviews(most=most))))


@router.post("/tasks/{task_id}/resolve", tags=["reviews"], openapi_extra=described(Resolution, body=wire.Answers))
async def resolve(
    grant: Approver, fleet: FleetHere, task_id: str, asked: Annotated[wire.Answers, Depends(body_of(wire.Answers))]
) -> Response:
    """Answer every effect in doubt of a task, in the name of the token, and submit the task that continues it."""
    answers = {action: answer.value for action, answer in asked.answers.items()}
    return answered(await fleet.resolve(task_id, answers, grant.name))


@router.get("/devices", tags=["devices"], dependencies=[MayRead], openapi_extra=described(wire.DeviceList))
async def devices(fleet: FleetHere) -> Response:
    """List every device."""
    return answered(wire.DeviceList(tuple(await fleet.devices())))


@router.post(
    "/devices/{host}/{serial:path}/service",
    tags=["devices"],
    status_code=204,
    dependencies=[MayOperate],
    openapi_extra=described(body=wire.ServiceChange, status=204),
)
async def set_service(
    fleet: FleetHere,
    host: str,
    serial: str,
    asked: Annotated[wire.ServiceChange, Depends(body_of(wire.ServiceChange))],
) -> Response:
    """Take a device out of service, or back."""
    await fleet.set_service(DeviceRef.parse(f"{host}/{serial}"), asked.service.value, asked.reason)
    return done()


@router.post(
    "/devices/{host}/{serial:path}/force-release",
    tags=["devices"],
    status_code=204,
    dependencies=[MayAdminister],
    openapi_extra=described(status=204),
)
async def force_release(
    fleet: FleetHere, host: str, serial: str, *, stopped: Annotated[bool, Query()] = False
) -> Response:
    """Free a device whatever holds it; `stopped` says that nothing of any ended attempt on it still runs."""
    await fleet.force_release(DeviceRef.parse(f"{host}/{serial}"), stopped=stopped)
    return done()


@router.delete(
    "/devices/{host}/{serial:path}",
    tags=["devices"],
    status_code=204,
    dependencies=[MayAdminister],
    openapi_extra=described(status=204),
)
async def forget_device(fleet: FleetHere, host: str, serial: str) -> Response:
    """Forget a device that is gone for good. Its record stays; where a host reports it again, it is back."""
    await fleet.forget_device(DeviceRef.parse(f"{host}/{serial}"))
    return done()


@router.post(
    "/hosts",
    tags=["hosts"],
    status_code=204,
    dependencies=[MayAdminister],
    openapi_extra=described(body=wire.HostRegistration, status=204),
)
async def register_host(
    fleet: FleetHere, asked: Annotated[wire.HostRegistration, Depends(body_of(wire.HostRegistration))]
) -> Response:
    """Make a host known under a credential, or give it a new one."""
    await fleet.register_host(asked.name, asked.credential)
    return done()


@router.get("/violations", tags=["health"], dependencies=[MayRead], openapi_extra=described(wire.ViolationList))
async def violations(fleet: FleetHere) -> Response:
    """List every invariant that does not hold."""
    return answered(wire.ViolationList(tuple(await fleet.violations())))


@router.get("/health", tags=["health"], dependencies=[MayRead], openapi_extra=described(wire.Health))
async def health(request: Request, fleet: FleetHere) -> Response:
    """Say how many tasks stand where, the store's time, and whether this server assigns."""
    (clock,) = await fleet.store.rows("clock")
    now = moment(clock["now"])
    if now is None:
        message = "the store has no clock"
        raise Unavailable(message)
    return answered(
        wire.Health(await counts(fleet), now, assigns=request.app.state.assigns, version=request.app.version)
    )


@router.get("/events", tags=["health"], dependencies=[MayRead])
async def events(request: Request) -> StreamingResponse:
    """Stream a snapshot, then what changes, as server-sent events."""
    return StreamingResponse(event_stream(fleet_here(request)), media_type="text/event-stream")
