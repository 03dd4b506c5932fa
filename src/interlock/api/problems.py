"""Errors as RFC 9457 problem documents, and back: a client raises what the server met."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from interlock.errors import InterlockError, InvalidWorkflow, QueueFull, Unavailable

CONTENT_TYPE = "application/problem+json"
_SERVER_FAULT = 500


def problem(status: int, code: str, detail: str, facts: Mapping[str, object]) -> bytes:
    """The document. `code` is for programs, `detail` for people, `facts` what a program needs beside the code."""
    document = {
        "type": f"urn:interlock:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "facts": dict(facts),
    }
    return json.dumps(document).encode()


def raised(status: int, body: bytes) -> InterlockError:
    """The error that an answer stands for: the same as in process, by its code."""
    try:
        document = json.loads(body)
        code, detail, facts = str(document["code"]), str(document["detail"]), dict(document.get("facts") or {})
    except (ValueError, TypeError, KeyError):
        return Unavailable(f"the control plane answered {status} in a way that is not its own: is the address right?")
    if code == InvalidWorkflow.code:
        return InvalidWorkflow(tuple(str(fault) for fault in facts.get("faults", ())))
    if code == QueueFull.code:
        return QueueFull(
            detail,
            eligible_devices=facts.get("eligible_devices"),
            retry_after_seconds=facts.get("retry_after_seconds"),
        )
    kind = _KINDS.get(code)
    if kind is not None:
        return kind(detail)
    if status >= _SERVER_FAULT:
        return Unavailable(detail)
    error = InterlockError(detail)
    error.code = code
    return error


def _family(kind: type[InterlockError]) -> Iterator[type[InterlockError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _family(child)


# Those with a constructor of their own do not take a message alone.
_KINDS = {
    kind.code: kind
    for kind in _family(InterlockError)
    if kind.__module__ == InterlockError.__module__ and "__init__" not in vars(kind)
}
