"""What every route needs of a request: its body within bounds, who sent it, and the answer as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Response

from interlock.api import wire
from interlock.api.auth import Grant, TokenTable, bearer, granted
from interlock.errors import InvalidInput
from interlock.fleet.operations import Fleet
from interlock.fleet.session import HostSession

Value = TypeVar("Value")
MAX_BODY_BYTES = 8 * 1024 * 1024


class BodyTooLarge(InvalidInput):
    """The body is larger than any that is taken."""

    code = "body_too_large"


def fleet_here(request: Request) -> Fleet:
    """The fleet that this server serves."""
    fleet: Fleet = request.app.state.fleet
    return fleet


async def host_session(request: Request) -> HostSession:
    """The session of the host whose credential came with the request."""
    return await fleet_here(request).host(bearer(request.headers.get("authorization")))


def needs(scope: str) -> Callable[[Request], Grant]:
    """A dependency: the grant of the request's token, where that has the scope."""

    def grant(request: Request) -> Grant:
        tokens: TokenTable = request.app.state.tokens
        return granted(tokens, bearer(request.headers.get("authorization")), scope)

    return grant


def body_of(kind: type[Value]) -> Callable[[Request], Awaitable[Value]]:
    """A dependency: the request's body, read strictly and within bounds."""

    async def body(request: Request) -> Value:
        return wire.request_of(kind, await _bounded(request))

    return body


async def _bounded(request: Request) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > MAX_BODY_BYTES:
            message = f"the body is larger than {MAX_BODY_BYTES} bytes: send less"
            raise BodyTooLarge(message)
    return bytes(read)


def answered(value: object, status: int = 200) -> Response:
    """A value as a JSON answer."""
    return Response(wire.encoded(value), status, media_type="application/json")


def done() -> Response:
    """The answer where there is nothing to say."""
    return Response(status_code=204)


FleetHere = Annotated[Fleet, Depends(fleet_here)]
Host = Annotated[HostSession, Depends(host_session)]
Submitter = Annotated[Grant, Depends(needs("submit"))]
Approver = Annotated[Grant, Depends(needs("approve"))]
MaySubmit = Depends(needs("submit"))
MayRead = Depends(needs("read"))
MayOperate = Depends(needs("operate"))
MayAdminister = Depends(needs("admin"))
