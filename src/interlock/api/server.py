"""The API: its routes joined, and the one place where an error gets its HTTP status."""

from __future__ import annotations

import logging
import math
import traceback

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from interlock import __version__
from interlock.api import host_routes, openapi, routes
from interlock.api.auth import ScopeMissing, TokenTable
from interlock.api.problems import CONTENT_TYPE, problem
from interlock.api.requests import BodyTooLarge, fleet_here
from interlock.api.wire import faults
from interlock.errors import (
    Conflict,
    InterlockError,
    InvalidInput,
    LeaseSuperseded,
    NotFound,
    NotPermitted,
    QueueFull,
    StoreHeld,
    Unavailable,
    VaultLocked,
)
from interlock.fleet.operations import Fleet
from interlock.fleet.scheduler import TaskScheduler

# The first kind that an error is of decides.
STATUS: tuple[tuple[type[InterlockError], int], ...] = (
    (BodyTooLarge, 413),
    (InvalidInput, 422),
    (ScopeMissing, 403),
    (NotPermitted, 401),
    (NotFound, 404),
    (Conflict, 409),
    (LeaseSuperseded, 410),
    (QueueFull, 429),
    (StoreHeld, 503),
    (VaultLocked, 503),
    (Unavailable, 503),
    (InterlockError, 500),
)
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
_FAILED = problem(500, "internal_error", "the control plane failed at this: its log says where", {})
_LOG = logging.getLogger("interlock.api")


def create_api(fleet: Fleet, scheduler: TaskScheduler | None, tokens: TokenTable) -> FastAPI:
    """The API of a fleet. Who runs the scheduler's loop passes it, so that `/v1/health` can say that tasks move."""
    app = FastAPI(
        title="Interlock",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.fleet, app.state.tokens, app.state.assigns = fleet, tokens, scheduler is not None
    app.include_router(routes.router)
    app.include_router(host_routes.router)
    app.add_api_route("/healthz", _alive, include_in_schema=False)
    app.add_api_route("/readyz", _ready, include_in_schema=False)
    app.add_exception_handler(InterlockError, _on_refusal)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_middleware(_LastResort)
    openapi.install(app)
    return app


async def _alive() -> dict[str, str]:
    return {"status": "ok"}


async def _ready(request: Request) -> dict[str, str]:
    """Ready is who can read its store."""
    await fleet_here(request).store.rows("clock")
    return {"status": "ok"}


def _answer(status: int, document: bytes) -> Response:
    return Response(document, status, headers=_HEADERS.get(status), media_type=CONTENT_TYPE)


def status_of(error: InterlockError) -> int:
    """The HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


async def _on_refusal(request: Request, error: Exception) -> Response:
    del request
    if not isinstance(error, InterlockError):
        raise error
    status = status_of(error)
    answer = _answer(status, problem(status, error.code, str(error), error.facts))
    if isinstance(error, QueueFull) and error.retry_after_seconds is not None:
        answer.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    return answer


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = error.status_code
    codes = {404: "not_found", 405: "method_not_allowed"}
    detail = f"there is no {request.method} of this path: see /v1/openapi.json"
    if status not in codes:
        detail = "the request cannot be taken"
    answer = _answer(status, problem(status, codes.get(status, "invalid_request"), detail, {}))
    answer.headers.update(error.headers or {})
    return answer


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    del request
    if not isinstance(error, RequestValidationError):
        raise error
    found: list[ErrorDetails] = list(error.errors())
    return _answer(422, problem(422, InvalidInput.code, "; ".join(faults(found)), {}))


class _LastResort:
    """Answers what nobody has caught. The log gets the kind of the error and its place: never its text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            # Nobody is left to answer.
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must not leave this process
            frame = traceback.extract_tb(error.__traceback__)[-1]
            _LOG.error("unexpected %s at %s:%s", type(error).__name__, frame.name, frame.lineno)
            if not started:
                await _answer(500, _FAILED)(scope, receive, send)
