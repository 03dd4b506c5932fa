"""A process that runs a graph on a durable store and dies by SIGKILL at one of its saves.

Arguments: the store's kind, its path, the run id, the save to die at, whether before or after it is written, and
`sync` or `awaited`. Each dispatch leaves a line in `dispatched` beside the store, with no buffer in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path

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

TOOL = "tool:example.agent/act"
GRAPH = [
    ScheduledAction(ActionNode("a", TOOL)),
    ScheduledAction(ActionNode("b", TOOL, ("a",)), read_only=True),
    ScheduledAction(ActionNode("c", TOOL, ("a",)), read_only=True),
    ScheduledAction(ActionNode("d", TOOL, ("b", "c"))),
]
LIMITS = SchedulerLimits(2, 8, 8, 8, 10**12, parallel_reads=True)


def store_of(kind: str, path: Path) -> SqliteCheckpoints | FileCheckpoints:
    return SqliteCheckpoints(path / "checkpoints.db") if kind == "sqlite" else FileCheckpoints(path / "checkpoints")


class Noted:
    """Commits everything, after a line about it."""

    def __init__(self, path: Path) -> None:
        self._path = path / "dispatched"

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        del run_id, cancellation
        with self._path.open("a") as notes:
            notes.write(node.action_id + "\n")
        await asyncio.sleep(0)
        return DispatchOutcome.COMMITTED


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(kind: str, path: Path, run: str, at: int, when: str, how: str) -> None:
    run_id = RunId.parse(run)
    with store_of(kind, path).claim(run_id) as saves:
        count = 0

        async def awaited(checkpoint: SchedulerCheckpoint) -> None:
            await saves.awaited(checkpoint)
            if count == at:
                die()

        def save(checkpoint: SchedulerCheckpoint) -> Awaitable[None] | None:
            nonlocal count
            count += 1
            if count == at and when == "before":
                die()
            if how == "awaited":
                return awaited(checkpoint)
            saves(checkpoint)
            if count == at:
                die()
            return None

        asyncio.run(ActionScheduler(GRAPH, LIMITS, Noted(path), save).run(run_id))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:7])
