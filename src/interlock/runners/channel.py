"""The local socket between a host agent and a worker: calls with answers, and notes, as lines of JSON.

The agent trusts nothing that a worker says: lines are bounded, calls are of a closed set, and their arguments are
checked when they become values.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Mapping

from interlock import errors
from interlock.errors import InterlockError, Unavailable

MAX_CALLS = 64
MAX_LINE_BYTES = 64 * 1024 * 1024
Arguments = Mapping[str, object]
Answerer = Callable[[str, Arguments], Awaitable[object]]
Hearer = Callable[[str, Arguments], None]

_ERRORS: dict[str, type[InterlockError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InterlockError) and kind is not errors.SchedulerError
}


class Channel:
    """One end of the socket. `serve` reads until the other end closes, and owns the answers it is working on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._closed = False
        self._room = asyncio.Semaphore(MAX_CALLS)

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """A channel over one end of a connected pair."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MAX_LINE_BYTES))

    async def call(self, name: str, **arguments: object) -> object:
        """Ask the other end and wait for its answer. Its errors come out as they went in.

        Raises:
            Unavailable: the other end has closed, so that what became of the call is not known.
        """
        if self._closed:
            raise _gone()
        number = next(self._numbers)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            await self._send({"id": number, "call": name, "arguments": arguments})
            return await answer
        finally:
            self._asked.pop(number, None)

    def note(self, name: str, **arguments: object) -> None:
        """Tell the other end something, without an answer."""
        if not self._closed:
            self._writer.write(_line({"note": name, "arguments": arguments}))

    async def serve(self, answer: Answerer, hear: Hearer) -> None:
        """Answer the other end's calls and hear its notes until it closes."""
        try:
            async with asyncio.TaskGroup() as group:
                while message := await self._next():
                    # A worker that floods its socket gets its turn among the others, and a bounded room.
                    await asyncio.sleep(0)
                    if "call" in message:
                        await self._room.acquire()
                        group.create_task(self._answer(message, answer))
                    elif "note" in message:
                        hear(str(message["note"]), _arguments(message))
                    else:
                        self._settle(message)
                self._end()
        finally:
            self._end()

    async def close(self) -> None:
        """Close this end."""
        self._end()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _next(self) -> dict[str, object] | None:
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    async def _answer(self, message: Mapping[str, object], answer: Answerer) -> None:
        number = message.get("id")
        try:
            value = await answer(str(message["call"]), _arguments(message))
        except InterlockError as error:
            await self._try_to_send({"id": number, "error": error.code, "message": str(error)})
        except Exception as error:  # noqa: BLE001 - whatever the other end sends must not end this one; no text is kept
            said = f"the call could not be answered: {type(error).__name__}"
            await self._try_to_send({"id": number, "error": InterlockError.code, "message": said})
        else:
            await self._try_to_send({"id": number, "value": value})
        finally:
            self._room.release()

    def _settle(self, message: Mapping[str, object]) -> None:
        number = message.get("id")
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if "error" in message:
            kind = _ERRORS.get(str(message["error"]), InterlockError)
            answer.set_exception(InterlockError.__new__(kind, str(message.get("message"))))
        else:
            answer.set_result(message.get("value"))

    async def _try_to_send(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(Unavailable):
            await self._send(message)

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._closed:
            raise _gone()
        try:
            self._writer.write(_line(message))
            await self._writer.drain()
        except OSError:
            raise _gone() from None

    def _end(self) -> None:
        self._closed = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_gone())


def _arguments(message: Mapping[str, object]) -> Arguments:
    arguments = message.get("arguments")
    return arguments if isinstance(arguments, dict) else {}


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _gone() -> Unavailable:
    return Unavailable("the other end of the worker's socket has closed")
