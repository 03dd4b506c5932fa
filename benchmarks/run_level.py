"""What the run level costs, in microseconds an action, beside bare asyncio over the same graph in the same process.

The floor is a TaskGroup, a semaphore and graphlib: no budgets, no order, no snapshots, no cancellation, no resume.
With stores, the floor is two bare commits (or two bare lines with `fdatasync`) an action. A figure and its floor take
turns, and each is the best of several rounds. Then the peak of memory an action, a snapshot's cost, and what a thousand
waiting runs take of a core. `--quick` leaves out the largest graphs; only `--long` has them with the
stores, for half an hour more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import random
import sqlite3
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
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
Shape = Callable[[int], Graph]
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


SHAPES: dict[str, tuple[Shape, tuple[int, ...]]] = {
    "independent reads": (independent_reads, (1, 16, 64)),
    "chain of effects": (chain_of_effects, (1,)),
    "three parents": (random_reads, (1, 16, 64)),
}


def seconds(run: Run) -> float:
    gc.collect()
    started = time.perf_counter()
    asyncio.run(run())  # type: ignore[arg-type]  # every run here is a coroutine function
    return time.perf_counter() - started


def best_of(count: int, *runs: Run) -> list[float]:
    """Microseconds an action of each, in its best round. The rounds take turns: all meet the same machine."""
    rounds = [[seconds(run) for run in runs] for _ in range(ROUNDS)]
    return [min(each) / count * 1e6 for each in zip(*rounds, strict=True)]


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


def stored(graph: Graph, concurrency: int, store: SqliteCheckpoints | FileCheckpoints, *, awaited: bool) -> Run:
    async def run() -> None:
        run_id = RunId.generate()
        with store.claim(run_id) as saves:
            save: Callable[[SchedulerCheckpoint], Awaitable[None] | None] = saves.awaited if awaited else saves
            last = await ActionScheduler(graph, bounds(len(graph), concurrency), NoOp(), save).run(run_id)
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


def peak_bytes(shape: Shape, count: int, concurrency: int) -> float:
    """The most memory that an action takes: graph, scheduler and run together, with snapshots that nobody keeps."""
    gc.collect()
    tracemalloc.start()
    asyncio.run(in_memory(shape(count), concurrency)())  # type: ignore[arg-type]  # a coroutine function
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / count


async def idle_share(runs: int, waiting: float) -> float:
    """What so many runs, each with one action in flight that does not end, take of one core."""
    gate = asyncio.Event()

    class Waits:
        async def dispatch(self, run_id: object, node: object, cancellation: object) -> DispatchOutcome:
            del run_id, node, cancellation
            await gate.wait()
            return DispatchOutcome.COMMITTED

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            scheduler = ActionScheduler(independent_reads(1), bounds(1, 1), Waits(), lambda _: None)
            group.create_task(scheduler.run(RunId.generate()))
        await asyncio.sleep(1)
        spent, started = time.process_time(), time.perf_counter()
        await asyncio.sleep(waiting)
        share = (time.process_time() - spent) / (time.perf_counter() - started)
        gate.set()
    return share


def print_row(*cells: object) -> None:
    print("  ".join(f"{cell:>10.2f}" if isinstance(cell, float) else f"{cell!s:>18}" for cell in cells), flush=True)


def memory_table(sizes: list[int]) -> None:
    print_row("graph", "actions", "concurrency", "run level", "floor", "ratio")
    for name, (shape, concurrencies) in SHAPES.items():
        for size, concurrency in itertools.product(sizes, concurrencies):
            graph = shape(size)
            ours, floor = best_of(size, in_memory(graph, concurrency), partial(bare, graph, concurrency))
            print_row(name, size, concurrency, ours, floor, ours / floor)


def store_table(sizes: list[int], directory: Path) -> None:
    database, files = SqliteCheckpoints(directory / "runs.db"), FileCheckpoints(directory / "runs")
    print_row("store and save", "graph", "actions", "concurrency", "run level", "floor", "ratio")
    for name, (shape, concurrencies) in SHAPES.items():
        for size, concurrency in itertools.product(sizes, concurrencies):
            graph = shape(size)
            for word, store, floor_of in (
                ("SQLite FULL", database, two_commits(directory / "floor.db", size)),
                ("file", files, two_lines(directory / "floor.lines", size)),
            ):
                save, awaited = (stored(graph, concurrency, store, awaited=each) for each in (False, True))
                floor, ours, in_thread = best_of(size, floor_of, save, awaited)
                print_row(f"{word}, sync", name, size, concurrency, ours, floor, ours / floor)
                print_row(f"{word}, awaited", name, size, concurrency, in_thread, floor, in_thread / floor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no graphs of 10,000")
    parser.add_argument("--long", action="store_true", help="graphs of 10,000 with the stores too")
    parser.add_argument("--directory", type=Path, help="where the stores write; a temporary directory by default")
    arguments = parser.parse_args()
    sizes = [100, 1_000] if arguments.quick else [100, 1_000, 10_000]
    print(f"microseconds an action, Python {sys.version.split()[0]}, best of {ROUNDS}")
    memory_table(sizes)
    print("SQLite: WAL, synchronous = FULL, one commit a save. File: one line and one fdatasync a save.")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        store_table(sizes if arguments.long else [100, 1_000], Path(directory))
    print(f"microseconds a snapshot at 10,000 actions: {snapshots(10_000):.2f}")
    for name, (shape, concurrencies) in SHAPES.items():
        peak = peak_bytes(shape, 10_000, concurrencies[-1])
        print(f"peak memory in bytes an action, 10,000 actions, {name}: {peak:.0f}")
    print(f"1,000 waiting runs take {asyncio.run(idle_share(1_000, 5.0)):.3%} of a core")


if __name__ == "__main__":
    main()
