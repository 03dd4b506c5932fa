"""What the run level costs, in microseconds an action, beside bare asyncio over the same graph in the same process.

The floor is a TaskGroup, a semaphore and graphlib: no budgets, no order, no snapshots, no cancellation, no resume.
With stores, the floor is two bare commits (or two bare lines with `fdatasync`) an action. Each figure is the best of
several rounds. `--quick` leaves out the largest graphs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from graphlib import TopologicalSorter
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
    StopReason,
)

TOOL = "tool:example.agent/act"
ROUNDS = 3
Graph = list[ScheduledAction]
Run = Callable[[], Awaitable[object]]


class NoOp:
    """Gives the loop one turn and commits."""

    async def dispatch(self, run_id: object, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        """Commit."""
        del run_id, node, cancellation
        await asyncio.sleep(0)
        return DispatchOutcome.COMMITTED


def independent_reads(count: int) -> Graph:
    return [ScheduledAction(ActionNode(f"n{number:05}", TOOL), read_only=True) for number in range(count)]


def chain_of_effects(count: int) -> Graph:
    needs = [(), *((f"n{number:05}",) for number in range(count - 1))]
    return [ScheduledAction(ActionNode(f"n{number:05}", TOOL, need)) for number, need in enumerate(needs)]


def random_reads(count: int) -> Graph:
    chance = random.Random(count)  # noqa: S311 - a graph that is the same each time
    graph = []
    for number in range(count):
        parents = {f"n{chance.randrange(number):05}" for _ in range(3)} if number else set()
        graph.append(ScheduledAction(ActionNode(f"n{number:05}", TOOL, tuple(parents)), read_only=True))
    return graph


def best_of(run: Run, count: int) -> float:
    """Microseconds an action, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        started = time.perf_counter()
        asyncio.run(run())  # type: ignore[arg-type]  # every run here is a coroutine function
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


async def bare(graph: Graph, concurrency: int) -> None:
    sorter = TopologicalSorter({action.node.action_id: action.node.depends_on for action in graph})
    nodes = {action.node.action_id: action.node for action in graph}
    gate, tool, signal = asyncio.Semaphore(concurrency), NoOp(), CancellationSignal()
    sorter.prepare()

    async def one(key: str) -> None:
        async with gate:
            await tool.dispatch(None, nodes[key], signal)
        sorter.done(key)
        for each in sorter.get_ready():
            group.create_task(one(each))

    async with asyncio.TaskGroup() as group:
        for each in sorter.get_ready():
            group.create_task(one(each))


def bounds(count: int, concurrency: int) -> SchedulerLimits:
    return SchedulerLimits(concurrency, count, concurrency, count, 10**15, parallel_reads=True)


def in_memory(graph: Graph, concurrency: int) -> Run:
    scheduler = ActionScheduler(graph, bounds(len(graph), concurrency), NoOp(), lambda _: None)

    async def run() -> None:
        last = await scheduler.run(RunId.generate())
        assert last.stop_reason is StopReason.COMPLETED

    return run


def stored(graph: Graph, store: SqliteCheckpoints | FileCheckpoints, *, awaited: bool) -> Run:
    async def run() -> None:
        run_id = RunId.generate()
        with store.claim(run_id) as saves:
            save: Callable[[SchedulerCheckpoint], Awaitable[None] | None] = saves.awaited if awaited else saves
            last = await ActionScheduler(graph, bounds(len(graph), 1), NoOp(), save).run(run_id)
        assert last.stop_reason is StopReason.COMPLETED

    return run


def two_commits(path: Path, count: int) -> Run:
    async def run() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS floor (number INTEGER PRIMARY KEY, body TEXT)")
        for _ in range(2 * count):
            connection.execute("INSERT INTO floor (body) VALUES (?)", ("x" * 200,))
        connection.close()

    return run


def two_lines(path: Path, count: int) -> Run:
    async def run() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(2 * count):
            os.write(descriptor, b"x" * 200 + b"\n")
            os.fdatasync(descriptor)
        os.close(descriptor)

    return run


def snapshots(count: int) -> float:
    """Microseconds a snapshot, by what a run with saves of nothing spends on it."""
    from interlock.actions import ActionState, Outline, Plan  # noqa: PLC0415 - only this figure looks inside

    plan = Plan(Outline.of(independent_reads(count), bounds(count, 1)), RunId.generate())
    best = float("inf")
    for _ in range(min(count, 500)):
        rank = plan.admit()
        assert rank is not None
        started = time.perf_counter()
        plan.snapshot(0)
        best = min(best, time.perf_counter() - started)
        plan.settle(rank, ActionState.COMMITTED)
        plan.snapshot(0)
    return best * 1e6


def print_row(*cells: object) -> None:
    print("  ".join(f"{cell:>10.2f}" if isinstance(cell, float) else f"{cell!s:>18}" for cell in cells))


def memory_table(sizes: list[int]) -> None:
    print_row("graph", "actions", "concurrency", "run level", "floor", "ratio")
    shapes: dict[str, tuple[Callable[[int], Graph], tuple[int, ...]]] = {
        "independent reads": (independent_reads, (1, 16, 64)),
        "chain of effects": (chain_of_effects, (1,)),
        "three parents": (random_reads, (1, 16, 64)),
    }
    for name, (shape, concurrencies) in shapes.items():
        for size in sizes:
            graph = shape(size)
            for concurrency in concurrencies:
                ours = best_of(in_memory(graph, concurrency), size)
                floor = best_of(lambda graph=graph, each=concurrency: bare(graph, each), size)  # type: ignore[misc]
                print_row(name, size, concurrency, ours, floor, ours / floor)


def store_table(size: int, directory: Path) -> None:
    graph = chain_of_effects(size)
    commits = best_of(two_commits(directory / "floor.db", size), size)
    lines = best_of(two_lines(directory / "floor.lines", size), size)
    database, files = SqliteCheckpoints(directory / "runs.db"), FileCheckpoints(directory / "runs")
    print_row("store", "actions", "call", "run level", "floor", "ratio")
    for awaited, word in ((False, "sync"), (True, "awaited")):
        ours = best_of(stored(graph, database, awaited=awaited), size)
        print_row("SQLite FULL", size, word, ours, commits, ours / commits)
    for awaited, word in ((False, "sync"), (True, "awaited")):
        ours = best_of(stored(graph, files, awaited=awaited), size)
        print_row("file", size, word, ours, lines, ours / lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no graphs of 10,000")
    parser.add_argument("--directory", type=Path, help="where the stores write; a temporary directory by default")
    arguments = parser.parse_args()
    sizes = [100, 1_000] if arguments.quick else [100, 1_000, 10_000]
    print(f"microseconds an action, Python {sys.version.split()[0]}, best of {ROUNDS}")
    memory_table(sizes)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        store_table(200, Path(directory))
    print(f"microseconds a snapshot at 10,000 actions: {snapshots(10_000):.2f}")


if __name__ == "__main__":
    main()
