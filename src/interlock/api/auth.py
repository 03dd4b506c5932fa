"""Who may ask for what: bearer tokens with scopes for people and programs, a credential of its own for each host."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from interlock.errors import NotPermitted
from interlock.fleet.operations import token_hash

SCOPES = frozenset({"submit", "read", "operate", "approve", "admin"})


@dataclass(frozen=True)
class Grant:
    """Whom a token stands for, and what it is good for. No scope contains another."""

    name: str
    scopes: frozenset[str]

    def __post_init__(self) -> None:
        if unknown := self.scopes - SCOPES:
            message = f"{', '.join(sorted(unknown))}: no such scope: use some of {', '.join(sorted(SCOPES))}"
            raise ValueError(message)


TokenTable = Mapping[str, Grant]
"""The hash of each token (`interlock.fleet.operations.token_hash`), and what it grants."""


class ScopeMissing(NotPermitted):
    """The token is known, and not good for this."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"this token has no scope {scope!r}: use one that has it")
        self.scope = scope

    @property
    def facts(self) -> Mapping[str, object]:
        """The scope that it takes."""
        return {"scope": self.scope}


def bearer(authorization: str | None) -> str:
    """The credential in an `Authorization` header. Raises `NotPermitted`."""
    scheme, _, credential = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        message = "this takes a credential: send it as Authorization: Bearer TOKEN"
        raise NotPermitted(message)
    return credential.strip()


def granted(tokens: TokenTable, credential: str, scope: str) -> Grant:
    """What a token grants, where that has the scope. Raises `NotPermitted`, `ScopeMissing`."""
    grant = _lookup(tokens, credential)
    if grant is None:
        message = "the token is not known: use the one that `interlock up` wrote, or ask who runs this control plane"
        raise NotPermitted(message)
    if scope not in grant.scopes:
        raise ScopeMissing(scope)
    return grant


def _lookup(tokens: TokenTable, credential: str) -> Grant | None:
    """Compare with every hash, and with each to its end, so that the time taken says nothing."""
    wanted = token_hash(credential).encode()
    found = None
    for known, grant in tokens.items():
        if hmac.compare_digest(known.encode(), wanted):
            found = grant
    return found
