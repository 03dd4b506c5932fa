"""Processes that ask a database for one operation and die by SIGKILL at a statement of it that is told to them.

Each line of JSON that comes in names a database, the time there, a case of `every_operation` and how many statements
the process runs before it dies, or null for one that lives. Each is forked from here, and one line goes out: null
where it died, else the outcomes, the statements, and what broke an invariant before and after.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from interlock.fleet.reading import violations
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.testing.clock import ManualClock
from stores.every_operation import CASES, devices_of

_SECONDS = 30
MOST_STATEMENTS = 1_000


class Countdown:
    """Ends the process by SIGKILL once so many statements were run since it was set: at none, before the first."""

    left: int | None = None

    def __init__(self) -> None:
        self.statements: list[str] = []

    def wrapped(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if self.left is None:
                return execute(*arguments, **named)
            self.die_at_none()
            answer = execute(*arguments, **named)
            self.statements.append(str(arguments[1]).split(maxsplit=1)[0].rstrip(";"))
            self.left -= 1
            self.die_at_none()
            return answer

        return run

    def die_at_none(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


COUNTDOWN = Countdown()


class CountedConnection(sqlite3.Connection):
    execute = COUNTDOWN.wrapped(sqlite3.Connection.execute)


async def ask(where: str, now: int, case: str, statements: int | None) -> dict[str, Sequence[str]]:
    if "://" in where:
        store: PostgresStore | SqliteStore = PostgresStore.open(where)
    else:
        store = SqliteStore.open(Path(where), clock=ManualClock(now))
    before = await violations(store)
    operations = CASES[case](await devices_of(store))
    COUNTDOWN.left = MOST_STATEMENTS if statements is None else statements
    outcomes = await store.commit(operations)
    COUNTDOWN.left = None
    after = await violations(store)
    return {
        "outcomes": [type(outcome).__name__ for outcome in outcomes],
        "statements": COUNTDOWN.statements,
        "broken": [f"{each.invariant} {each.what}" for each in (*before, *after)],
    }


def live(where: str, now: int, case: str, statements: int | None) -> int:
    """One process, from here on; it says on the way out what it saw."""
    signal.alarm(_SECONDS)
    try:
        os.write(1, json.dumps(asyncio.run(ask(where, now, case, statements))).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - it ends here, and what it says is on stderr
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    sqlite3.connect = functools.partial(sqlite3.connect, factory=CountedConnection)  # type: ignore[assignment]
    psycopg.Connection.execute = COUNTDOWN.wrapped(psycopg.Connection.execute)  # type: ignore[method-assign]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(live(*json.loads(line)))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            os.write(1, b"null\n")
        elif status:
            os.write(1, json.dumps(f"ended with {os.waitstatus_to_exitcode(status)}").encode() + b"\n")


if __name__ == "__main__":
    main()
