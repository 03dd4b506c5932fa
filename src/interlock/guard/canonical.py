"""JSON in one canonical spelling, its digest, and the bound on what is kept of it."""

from __future__ import annotations

import hashlib
import json

OUTPUT_BYTES = 65_536


def canonical(value: object) -> str:
    """The value as JSON: sorted keys, no spaces. Raises `ValueError` or `TypeError` for what JSON cannot say."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> str:
    """`sha256:` and 64 hex digits."""
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def bounded(value: object, limit: int = OUTPUT_BYTES) -> str:
    """The value as JSON in UTF-8, or where it is over `limit` bytes, a mark in its place that says how many it had."""
    # Half a surrogate pair, as in a file name that is not UTF-8, cannot be stored: it is shown as what it is not.
    text = canonical(value).encode("utf-8", "replace").decode()
    size = len(text.encode())
    return text if size <= limit else canonical({"truncated": True, "bytes": size})


def fitted(text: str, limit: int) -> str:
    """As much of the beginning of a text as is within `limit` bytes once it is JSON."""
    while (size := len(canonical(text).encode("utf-8", "surrogatepass"))) > limit:
        text = text[: len(text) * limit // size]
    return text
