"""The routes of hosts: `HostService` over HTTP. Each call carries the host's own credential."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from interlock.api import wire
from interlock.api.openapi import described
from interlock.api.requests import Host, answered, body_of, done
from interlock.errors import InterlockError, InvalidInput
from interlock.fleet.model import LeaseId
from interlock.fleet.session import HostSession
from interlock.fleet.views import BeatAnswer

MOST_ASSIGNMENTS = 1_000
MOST_DEVICES = 10_000
router = APIRouter(prefix="/v1/host", tags=["hosts"])


@router.post("/beat", openapi_extra=described(BeatAnswer, body=wire.BeatRequest))
async def beat(host: Host, asked: Annotated[wire.BeatRequest, Depends(body_of(wire.BeatRequest))]) -> Response:
    """Say that the host is alive and what devices it has."""
    if len(asked.devices) > MOST_DEVICES:
        message = f"a host has at most {MOST_DEVICES} devices"
        raise InvalidInput(message)
    return answered(await host.beat(asked.boot_id, asked.generation, asked.devices))


@router.post("/goodbye", status_code=204, openapi_extra=described(body=wire.GoodbyeRequest, status=204))
async def goodbye(host: Host, asked: Annotated[wire.GoodbyeRequest, Depends(body_of(wire.GoodbyeRequest))]) -> Response:
    """Say that the host leaves."""
    await host.goodbye(asked.generation)
    return done()


@router.post("/claim", openapi_extra=described(wire.AssignmentList, body=wire.ClaimRequest))
async def claim(host: Host, asked: Annotated[wire.ClaimRequest, Depends(body_of(wire.ClaimRequest))]) -> Response:
    """Take assigned attempts, waiting for one as long as is asked and the server allows."""
    if not 1 <= asked.limit <= MOST_ASSIGNMENTS or not asked.wait_seconds >= 0:
        message = f"limit is from 1 to {MOST_ASSIGNMENTS}, wait_seconds not below 0"
        raise InvalidInput(message)
    taken = await host.claim(asked.claim_id, asked.limit, asked.wait_seconds)
    return answered(wire.AssignmentList(tuple(taken)))


@router.post("/renew", openapi_extra=described(wire.RenewalList, body=wire.RenewRequest))
async def renew(host: Host, asked: Annotated[wire.RenewRequest, Depends(body_of(wire.RenewRequest))]) -> Response:
    """Extend several leases. One that is lost costs the others nothing."""
    if not 1 <= len(asked.lease_ids) <= wire.MOST_LEASES_A_CALL:
        message = f"renew from 1 to {wire.MOST_LEASES_A_CALL} leases in a call"
        raise InvalidInput(message)
    return answered(wire.RenewalList(tuple([await _renewed(host, lease) for lease in asked.lease_ids])))


async def _renewed(host: HostSession, lease: LeaseId) -> wire.LeaseRenewal:
    try:
        return wire.LeaseRenewal(lease, await host.renew(lease))
    except InterlockError as error:
        return wire.LeaseRenewal(lease, code=error.code)


@router.post("/save", status_code=204, openapi_extra=described(body=wire.SaveRequest, status=204))
async def save(host: Host, asked: Annotated[wire.SaveRequest, Depends(body_of(wire.SaveRequest))]) -> Response:
    """Store a checkpoint under a lease."""
    _checked_json("save.checkpoint", asked.save.checkpoint)
    await host.save(asked.lease_id, asked.save)
    return done()


@router.post("/hand-over", status_code=204, openapi_extra=described(body=wire.HandOverRequest, status=204))
async def hand_over(
    host: Host, asked: Annotated[wire.HandOverRequest, Depends(body_of(wire.HandOverRequest))]
) -> Response:
    """Record that an effect is about to begin."""
    await host.hand_over(asked.lease_id, asked.entry)
    return done()


@router.post("/withdraw", status_code=204, openapi_extra=described(body=wire.WithdrawRequest, status=204))
async def withdraw(
    host: Host, asked: Annotated[wire.WithdrawRequest, Depends(body_of(wire.WithdrawRequest))]
) -> Response:
    """Record that it was not begun."""
    await host.withdraw(asked.lease_id, asked.run_id, asked.action_id)
    return done()


@router.post("/settle", status_code=204, openapi_extra=described(body=wire.SettleRequest, status=204))
async def settle(host: Host, asked: Annotated[wire.SettleRequest, Depends(body_of(wire.SettleRequest))]) -> Response:
    """Record outcome, evidence and output of a call."""
    _checked_json("settlement.output", asked.settlement.output)
    await host.settle(asked.lease_id, asked.settlement)
    return done()


@router.post("/output", openapi_extra=described(wire.Output, body=wire.OutputRequest))
async def output(host: Host, asked: Annotated[wire.OutputRequest, Depends(body_of(wire.OutputRequest))]) -> Response:
    """Give the output that a committed action of the task left."""
    return answered(wire.Output(await host.output(asked.lease_id, asked.action_id)))


@router.post("/finish", status_code=204, openapi_extra=described(body=wire.FinishRequest, status=204))
async def finish(host: Host, asked: Annotated[wire.FinishRequest, Depends(body_of(wire.FinishRequest))]) -> Response:
    """Report how an attempt ended, and what is known of its processes and its device."""
    _checked_json("ending.output", asked.ending.output)
    await host.finish(asked.lease_id, asked.ending, stopped=asked.stopped, clean=asked.clean)
    return done()


@router.post("/confirm-stopped", status_code=204, openapi_extra=described(body=wire.ConfirmStoppedRequest, status=204))
async def confirm_stopped(
    host: Host, asked: Annotated[wire.ConfirmStoppedRequest, Depends(body_of(wire.ConfirmStoppedRequest))]
) -> Response:
    """Say that nothing of the ended attempt is left on a device."""
    await host.confirm_stopped(asked.serial, clean=asked.clean, attempt_id=asked.attempt_id)
    return done()


def _checked_json(place: str, text: str | None) -> None:
    """Refuse here what every reader of the task would stumble over later."""
    try:
        json.loads("null" if text is None else text)
    except (ValueError, RecursionError):
        message = f"{place} is a text that holds JSON"
        raise InvalidInput(message) from None
