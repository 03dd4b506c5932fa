"""Processes that run a graph on a durable store and die by SIGKILL where they are told to.

One line of JSON comes in, with a graph and cases; each case is a folder and the places at which one process after
another dies there. Every process is forked from here and leaves a `story` in the folder, line by line and with no
buffer in between: what it found in the store, what was saved, what was dispatched, and how the run ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NoReturn

from interlock.actions import (
    ActionNode,
    ActionScheduler,
    CancellationSignal,
    DispatchOutcome,
    FileCheckpoints,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerLimits,
    SqliteCheckpoints,
)

_SECONDS = 60
_RUN = RunId.parse("run_" + "5" * 32)


def store_of(kind: str, path: Path) -> SqliteCheckpoints | FileCheckpoints:
    return SqliteCheckpoints(path / "checkpoints.db") if kind == "sqlite" else FileCheckpoints(path / "checkpoints")


class Life:
    """One process: it goes on from what it finds, and dies at the place that it is given, if it gets there."""

    def __init__(self, folder: Path, place: tuple[str, int] | None, turns: dict[str, int]) -> None:
        self._place = place
        self._turns = turns
        self._seen = {"save": 0, "dispatch": 0}
        self._story = os.open(folder / "story", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, what: str, value: str) -> None:
        os.write(self._story, f"{what} {value}\n".encode())

    def _come_to(self, where: str, what: str) -> None:
        if self._place == (f"{where} {what}", self._seen[what]):
            os.kill(os.getpid(), signal.SIGKILL)

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        del run_id, cancellation
        self._seen["dispatch"] += 1
        self._come_to("before", "dispatch")
        self.tell("dispatch", node.action_id)
        self._come_to("in", "dispatch")
        for _ in range(self._turns[node.action_id]):
            await asyncio.sleep(0)
        self._come_to("after", "dispatch")
        return DispatchOutcome.COMMITTED

    def run(self, store: SqliteCheckpoints | FileCheckpoints, plan: dict[str, Any]) -> None:
        self._die_before_a_sync()
        actions = [
            ScheduledAction(ActionNode(key, "tool:example.agent/act", tuple(needs)), is_read, units)
            for key, needs, is_read, units in plan["actions"]
        ]
        with store.claim(_RUN) as saves:
            found = saves.checkpoint
            self.tell("found", "null" if found is None else found.to_json())

            async def awaited(checkpoint: SchedulerCheckpoint) -> None:
                await saves.awaited(checkpoint)
                self._saved(checkpoint)

            def save(checkpoint: SchedulerCheckpoint) -> Awaitable[None] | None:
                self._seen["save"] += 1
                self._come_to("before", "save")
                if plan["awaited"]:
                    return awaited(checkpoint)
                saves(checkpoint)
                self._saved(checkpoint)
                return None

            limits = SchedulerLimits(*plan["limits"])
            run = ActionScheduler(actions, limits, self, save).run(_RUN, checkpoint=found)
            self.tell("ended", asyncio.run(run).to_json())

    def _die_before_a_sync(self) -> None:
        """Be able to die between a write and its sync: of the file alone, the database is written below Python."""
        sync: Any = os.fdatasync

        def dying_sync(descriptor: int) -> None:
            self._come_to("in", "save")
            sync(descriptor)

        module: Any = os
        module.fdatasync = dying_sync

    def _saved(self, checkpoint: SchedulerCheckpoint) -> None:
        self.tell("saved", checkpoint.to_json())
        self._come_to("after", "save")


def live(folder: Path, place: tuple[str, int] | None, plan: dict[str, Any]) -> NoReturn:
    """Be one process of a case, to its end."""
    try:
        signal.alarm(_SECONDS)
        Life(folder, place, plan["turns"]).run(store_of(plan["kind"], folder), plan)
    except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's work
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(plan: dict[str, Any]) -> None:
    """Let each case live through its deaths, and once more to the end."""
    for name, places in plan["cases"]:
        folder = Path(name)
        folder.mkdir()
        for place in [*places, None]:
            process = os.fork()
            if process == 0:
                live(folder, place and tuple(place), plan)
            ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if ended not in {0, -signal.SIGKILL}:
                sys.exit(f"a process of {name} that was to die at {place} ended with {ended}")


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
