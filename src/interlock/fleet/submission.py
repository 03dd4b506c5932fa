"""What is said in a submission: each part within its bounds, and the digest that tells two submissions apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime

from interlock.clock import MICROSECONDS
from interlock.errors import InvalidInput
from interlock.fleet.service import GoalRequest, SubmitRequest
from interlock.fleet.settings import LONGEST_WAIT_SECONDS, microseconds

MAX_GOAL_CHARACTERS = 100_000
MAX_PRIORITY = 1_000_000
MAX_KEY_CHARACTERS = 256


def goal_body(work: GoalRequest) -> dict[str, object]:
    """What is kept of a goal. Raises `InvalidInput`."""
    if not isinstance(work.goal, str) or not work.goal.strip() or len(work.goal) > MAX_GOAL_CHARACTERS:
        message = f"a goal is 1 to {MAX_GOAL_CHARACTERS} characters"
        raise InvalidInput(message)
    module, colon, function = str(work.agent).partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
        message = f"{work.agent!r} is not an agent: write MODULE:FUNCTION"
        raise InvalidInput(message)
    if not 1 <= work.max_calls <= 10_000 or not 0 < work.max_elapsed_seconds <= 10**7:  # noqa: PLR2004
        message = "max_calls is from 1 to 10000, max_elapsed_seconds more than 0 and at most 10000000"
        raise InvalidInput(message)
    return {
        "goal": work.goal,
        "agent": work.agent,
        "max_calls": work.max_calls,
        "max_elapsed_seconds": work.max_elapsed_seconds,
    }


def check_rank_and_key(request: SubmitRequest) -> None:
    """Hold what a strategy counts with and what an index holds to their bounds. Raises `InvalidInput`."""
    priority, key = request.priority, request.idempotency_key
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        message = f"priority is a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        raise InvalidInput(message)
    if key is not None and (not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARACTERS):
        message = f"an idempotency key is a text of 1 to {MAX_KEY_CHARACTERS} characters"
        raise InvalidInput(message)


def instant(time: datetime | None) -> int | None:
    """A time in microseconds since 1970. Raises `InvalidInput` for one without an offset."""
    if time is None:
        return None
    if not isinstance(time, datetime) or time.tzinfo is None:
        message = "not_before is a time with its offset from UTC, such as 2030-01-31T08:00:00Z"
        raise InvalidInput(message)
    return int(time.timestamp() * MICROSECONDS)


def bounded_wait(seconds: float | None) -> int | None:
    """A time-out in microseconds. Raises `InvalidInput`."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_WAIT_SECONDS:
        message = f"queue_timeout_seconds is more than 0 and at most {LONGEST_WAIT_SECONDS}"
        raise InvalidInput(message)
    return microseconds(seconds)


def body_digest(request: SubmitRequest, body: Mapping[str, object]) -> str:
    """The digest of everything that makes two submissions the same."""
    constraints = request.constraints
    said: list[object] = [
        body,
        constraints.driver_type,
        sorted(constraints.tags),
        str(constraints.device),
        request.priority,
        request.max_attempts,
    ]
    # What was said before these could be said keeps its digest.
    waiting = [str(request.not_before), request.queue_timeout_seconds]
    if waiting != ["None", None]:
        said += waiting
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
