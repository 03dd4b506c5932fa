"""Sending a call: with asyncio or without, both by the same rules on what is sent again and what an answer means."""

from __future__ import annotations

import threading
from ipaddress import ip_address
from typing import Any, TypeVar

import httpx

from interlock.api.calls import Call
from interlock.api.problems import raised
from interlock.clock import Clock, jitter
from interlock.errors import InvalidInput, Unavailable

Answer = TypeVar("Answer")
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
# One pause before each further try.
PAUSES_SECONDS = (0.1, 0.4)
_FIRST_ERROR_STATUS = 400
_MOST_CONNECTIONS = 100


class AsyncSender:
    """Sends calls with asyncio."""

    def __init__(self, url: str, credential: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._http = httpx.AsyncClient(**_settings(url, credential))

    async def send(self, call: Call[Answer]) -> Answer:
        """The call's answer, or the error that it stands for. Raises `Unavailable` after a bounded number of tries."""
        for pause in _pauses(call):
            try:
                return _read(call, await self._http.send(_request(self._http, call)))
            except (httpx.TransportError, Unavailable) as error:
                if pause is None:
                    raise _unavailable(self._url, error) from None
            await self._clock.sleep(jitter(pause))
        raise AssertionError  # the last pause is None

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()


class Sender:
    """Sends calls without asyncio, from any thread."""

    def __init__(self, url: str, credential: str) -> None:
        self._url = url
        self._http = httpx.Client(**_settings(url, credential))
        self._never = threading.Event()

    def send(self, call: Call[Answer]) -> Answer:
        """See `AsyncSender.send`."""
        for pause in _pauses(call):
            try:
                return _read(call, self._http.send(_request(self._http, call)))
            except (httpx.TransportError, Unavailable) as error:
                if pause is None:
                    raise _unavailable(self._url, error) from None
            self._never.wait(jitter(pause))
        raise AssertionError  # the last pause is None

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()


def _pauses(call: Call[Any]) -> tuple[float | None, ...]:
    """What follows each try: a pause and another try, or None."""
    return (*PAUSES_SECONDS, None) if call.repeatable else (None,)


def _settings(url: str, credential: str) -> dict[str, Any]:
    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        address = httpx.URL()
    if address.scheme not in {"http", "https"} or not address.host:
        message = "the address of a control plane is a URL such as http://127.0.0.1:7410"
        raise InvalidInput(message)
    if not credential.isascii() or not credential.isprintable():
        message = "a credential is printable ASCII"
        raise InvalidInput(message)
    return {
        "base_url": address,
        "headers": {"Authorization": f"Bearer {credential}", "Accept": "application/json"},
        "limits": httpx.Limits(max_connections=_MOST_CONNECTIONS),
        # A proxy that the environment names stands between machines, never before this one.
        "trust_env": not _is_loopback(address.host),
    }


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    headers = {} if call.body is None else {"Content-Type": "application/json"}
    timeout = httpx.Timeout(call.wait_seconds + ANSWER_SECONDS, connect=CONNECT_SECONDS)
    return http.build_request(
        call.method, call.path, params=dict(call.parameters), content=call.body, headers=headers, timeout=timeout
    )


def _read(call: Call[Answer], response: httpx.Response) -> Answer:
    if response.status_code >= _FIRST_ERROR_STATUS:
        raise raised(response.status_code, response.content)
    return call.read(response.content)


def _unavailable(url: str, error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable(f"no control plane answers at {url}: start one with `interlock up`, or check the address")
