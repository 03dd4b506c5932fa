"""The API of a control plane on a socket, with its address and its token where the commands find them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from interlock.api.auth import Grant, TokenTable
from interlock.api.server import create_api
from interlock.app.settings import ControlSettings
from interlock.clock import new_secret
from interlock.errors import InvalidInput, Unavailable
from interlock.fleet.operations import SHORTEST_CREDENTIAL, Fleet, token_hash
from interlock.fleet.scheduler import TaskScheduler
from interlock.stores.lockfile import LockFile


@dataclass(frozen=True)
class Address:
    """Where it listens, and the token that is good for everything."""

    url: str
    token: str = field(repr=False)


@contextlib.asynccontextmanager
async def served(
    fleet: Fleet,
    scheduler: TaskScheduler,
    settings: ControlSettings,
    on_end: Callable[[asyncio.Task[None]], None],
) -> AsyncIterator[Address]:
    """Serve the API, with its address and its token in the control folder, which no other process serves from.

    Raises:
        StoreHeld: another process does.
        InvalidInput: the address cannot be listened on.
    """
    token = settings.token or new_secret()
    tokens: TokenTable = {
        token_hash(token): Grant("local", frozenset({"submit", "read", "approve", "operate", "admin"}))
    }
    with contextlib.ExitStack() as held, _bound(settings.listen, settings.port) as listener:
        held.callback(LockFile(settings.control / "address.lock").release)
        address = Address(_url(settings.listen, listener.getsockname()[1]), token)
        config = uvicorn.Config(
            create_api(fleet, scheduler, tokens), log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="server")
        try:
            await _started(server, serving)
            _publish(settings.control / "token", token)
            _publish(settings.control / "address", address.url)
            serving.add_done_callback(on_end)
            yield address
        finally:
            (settings.control / "address").unlink(missing_ok=True)
            # Long polls would hold up the end.
            fleet.wakeups.end()
            server.should_exit = True
            await asyncio.wait({serving})


def check_token(token: str | None) -> None:
    """Refuse a token that could be guessed, or that no header can carry."""
    if token is None:
        return
    if len(token) < SHORTEST_CREDENTIAL or not (token.isascii() and token.isprintable()) or " " in token:
        message = f"a token is at least {SHORTEST_CREDENTIAL} characters of chance, printable ASCII without spaces"
        raise InvalidInput(message)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Capture none."""
        yield


async def _started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            message = "the API could not be started"
            raise Unavailable(message)
        await asyncio.sleep(0.01)


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _bound(address: str, port: int) -> socket.socket:
    try:
        (family, kind, _, _, place), *_ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError:
        message = f"{address} is no address of this machine: choose another with --listen"
        raise InvalidInput(message) from None
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
    except OSError as error:
        listener.close()
        message = f"{address}:{port} cannot be listened on ({error.strerror}): choose another with --port"
        raise InvalidInput(message) from None
    return listener


def _publish(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    fresh.replace(path)
