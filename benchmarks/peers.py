"""What comparable queues cost on this machine, in the same run as Interlock, each in its own best mode.

    python -m venv PEERS && PEERS/bin/pip install pgqueuer==1.6.0 asyncpg procrastinate==3.10.0 dbos==3.4.0 \
        absurd-sdk==0.5.1 absurdctl==0.5.0 huey==3.5.4
    .venv/bin/python benchmarks/peers.py --python PEERS/bin/python

A life is a task that is submitted, taken, run (it does nothing) and ended. `start` is the time from the call that
submits to the first line of the task, with a worker that waits and nothing else to do. PostgreSQL runs with `fsync` and
`synchronous_commit` on, SQLite with `synchronous = FULL`. What each makes durable is printed beside it; the words are
ours, so look at its own documents before you rely on them. A peer that cannot be run is listed with its error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

CALLERS = 8
SECONDS = 240
PAUSE = 0.02
Started = Callable[[], None]


@dataclass(frozen=True)
class Peer:
    """One peer: how it is measured, on which database, in which mode, and what it makes durable."""

    measure: Callable[[str, int, int], Coroutine[Any, Any, tuple[float, list[float]]]]
    database: str
    mode: str
    durable: str


class Starts:
    """The times from a submission to the first line of its task, one after another."""

    def __init__(self, samples: int) -> None:
        self.times: list[float] = []
        self._samples = samples
        self._begun = 0.0
        self._seen = threading.Event()

    def note(self) -> None:
        """Called by the task in its first line."""
        self.times.append(time.perf_counter() - self._begun)
        self._seen.set()

    async def measure(self, submit: Callable[[], Awaitable[object]]) -> list[float]:
        """Submit one task after another, each to a worker that waits."""
        for _ in range(self._samples):
            await asyncio.sleep(PAUSE)
            self._seen.clear()
            self._begun = time.perf_counter()
            await submit()
            if not await asyncio.to_thread(self._seen.wait, 20):
                message = "a task was not begun within 20 seconds"
                raise TimeoutError(message)
        return self.times


class Countdown:
    """Waits for so many calls, from any thread."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._turn = threading.Lock()
        self._over = threading.Event()

    def note(self) -> None:
        """One call less to wait for."""
        with self._turn:
            self._left -= 1
            if self._left == 0:
                self._over.set()

    async def over(self) -> None:
        """Wait for the last one."""
        if not await asyncio.to_thread(self._over.wait, SECONDS):
            message = f"it did not come to its end within {SECONDS} seconds"
            raise TimeoutError(message)


async def pgqueuer(url: str, lives: int, samples: int) -> tuple[float, list[float]]:
    kit, asyncpg, types = (importlib.import_module(name) for name in ("pgqueuer", "asyncpg", "pgqueuer.types"))
    where = _libpq(url)
    seen: list[Started] = [lambda: None]
    async with asyncpg.create_pool(min_size=CALLERS, max_size=CALLERS, **where) as pool:
        queries = kit.Queries(kit.AsyncpgPoolDriver(pool))
        await queries.install()

        def queue() -> Any:
            made = kit.PgQueuer(kit.AsyncpgPoolDriver(pool))

            async def nothing(_: object) -> None:
                seen[0]()

            made.entrypoint("nothing")(nothing)
            return made

        async def submit() -> None:
            await queries.enqueue(["nothing"] * 100, [None] * 100, [0] * 100)

        begun = time.perf_counter()
        await _eight(submit, lives // 100)
        drain = types.QueueExecutionMode.drain
        await queue().run(batch_size=100, mode=drain, dequeue_timeout=timedelta(seconds=1))
        spent = time.perf_counter() - begun
        starts = Starts(samples)
        seen[0] = starts.note
        worker = queue()
        running = asyncio.create_task(worker.run(batch_size=1))
        await asyncio.sleep(1)
        times = await starts.measure(lambda: queries.enqueue("nothing", None))
        worker.shutdown.set()
        await asyncio.wait({running}, timeout=40)
    return lives / spent, times


async def procrastinate(url: str, lives: int, samples: int) -> tuple[float, list[float]]:
    kit = importlib.import_module("procrastinate")
    app = kit.App(connector=kit.PsycopgConnector(conninfo=url, max_size=2 * CALLERS))
    seen: list[Started] = [lambda: None]

    async def do_nothing() -> None:
        seen[0]()

    nothing = app.task(name="nothing")(do_nothing)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        begun = time.perf_counter()
        await _eight(lambda: nothing.batch_defer_async(*({} for _ in range(100))), lives // 100)
        await app.run_worker_async(wait=False, concurrency=CALLERS, install_signal_handlers=False)
        spent = time.perf_counter() - begun
        starts = Starts(samples)
        seen[0] = starts.note
        running = asyncio.create_task(app.run_worker_async(concurrency=1, install_signal_handlers=False))
        await asyncio.sleep(1)
        times = await starts.measure(nothing.defer_async)
        running.cancel()
        await asyncio.wait({running}, timeout=40)
    return lives / spent, times


async def dbos(url: str, lives: int, samples: int) -> tuple[float, list[float]]:
    kit = importlib.import_module("dbos")
    seen: list[Started] = [lambda: None]
    kit.DBOS(config={"name": "peer", "system_database_url": url, "log_level": "ERROR"})

    def do_nothing() -> None:
        seen[0]()

    nothing = kit.DBOS.workflow()(do_nothing)
    kit.DBOS.launch()
    kit.DBOS.register_queue("peer", polling_interval_sec=PAUSE)
    queue = kit.DBOS.retrieve_queue("peer")
    try:
        begun = time.perf_counter()
        with ThreadPoolExecutor(CALLERS) as threads:
            handles = list(threads.map(lambda _: queue.enqueue(nothing), range(lives)))
            list(threads.map(lambda handle: handle.get_result(), handles))
        spent = time.perf_counter() - begun
        starts = Starts(samples)
        seen[0] = starts.note
        times = await starts.measure(lambda: asyncio.to_thread(queue.enqueue, nothing))
    finally:
        kit.DBOS.destroy()
    return lives / spent, times


async def absurd(url: str, lives: int, samples: int) -> tuple[float, list[float]]:
    kit = importlib.import_module("absurd_sdk")
    script = Path(sys.executable).with_name("absurdctl")
    initialised = await asyncio.create_subprocess_exec(script, "init", "--database", url, stdout=subprocess.DEVNULL)
    if await initialised.wait():
        message = "absurdctl init has failed"
        raise RuntimeError(message)
    clients = [kit.AsyncAbsurd(url) for _ in range(CALLERS)]
    worker = kit.AsyncAbsurd(url)
    seen: list[Started] = [lambda: None]

    async def do_nothing(_: object, __: object) -> None:
        seen[0]()

    worker.register_task("nothing")(do_nothing)
    await worker.create_queue()
    left = iter(range(lives))
    counted = Countdown(lives)
    seen[0] = counted.note

    async def submit(client: Any) -> None:
        for _ in left:
            await client.spawn("nothing", None, queue="default")

    begun = time.perf_counter()
    await asyncio.gather(*(submit(client) for client in clients))
    running = asyncio.create_task(worker.start_worker(concurrency=CALLERS, batch_size=100, poll_interval=PAUSE))
    await counted.over()
    spent = time.perf_counter() - begun
    starts = Starts(samples)
    seen[0] = starts.note
    times = await starts.measure(lambda: clients[0].spawn("nothing", None, queue="default"))
    running.cancel()
    await asyncio.wait({running}, timeout=10)
    return lives / spent, times


async def huey(folder: str, lives: int, samples: int) -> tuple[float, list[float]]:
    kit = importlib.import_module("huey")
    queue = kit.SqliteHuey(filename=str(Path(folder) / "huey.db"), fsync=True, journal_mode="wal", timeout=30)
    seen: list[Started] = [lambda: None]

    def do_nothing() -> None:
        seen[0]()

    nothing = queue.task()(do_nothing)
    counted = Countdown(lives)
    seen[0] = counted.note
    consumer = queue.create_consumer(workers=CALLERS, worker_type="thread", initial_delay=0.01, max_delay=0.02)
    begun = time.perf_counter()
    await asyncio.to_thread(lambda: [nothing() for _ in range(lives)])
    consumer.start()
    await counted.over()
    spent = time.perf_counter() - begun
    starts = Starts(samples)
    seen[0] = starts.note
    times = await starts.measure(lambda: asyncio.to_thread(nothing))
    consumer.stop()
    return lives / spent, times


PEERS = {
    "pgqueuer": Peer(
        pgqueuer,
        "PostgreSQL",
        "asyncpg, 100 jobs an insert and a fetch",
        "a job; its end goes to a log in batches, after the fact",
    ),
    "procrastinate": Peer(
        procrastinate, "PostgreSQL", "psycopg, 100 jobs an insert, 8 side by side", "a job, and its end"
    ),
    "DBOS": Peer(dbos, "PostgreSQL", "one queue, 8 threads, looked at every 20 ms", "a workflow, and its result"),
    "absurd": Peer(
        absurd, "PostgreSQL", "8 clients, claims of 100, looked at every 20 ms", "a task, its steps and its result"
    ),
    "huey": Peer(
        huey,
        "SQLite",
        "fsync, 8 threads, looked at every 20 ms",
        "a task until it is taken; its result if there is one",
    ),
}


async def _eight(act: Callable[[], Awaitable[object]], times: int) -> None:
    """Call it so many times from eight callers."""
    left = iter(range(times))

    async def caller() -> None:
        for _ in left:
            await act()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _libpq(url: str) -> dict[str, str]:
    """The parts of an address, for a client that does not take a socket's directory in it."""
    name, _, directory = url.partition("?host=")
    return {"user": "postgres", "database": name.rpartition("/")[2], "host": directory}


def in_peers_interpreter(name: str, where: str, lives: int, samples: int) -> None:
    """Measure one peer in this process, and print the figures as JSON."""
    logging.disable(logging.CRITICAL)
    rate, times = asyncio.run(PEERS[name].measure(where, lives, samples))
    print(json.dumps([rate, _percentile(times, 0.5), _percentile(times, 0.99)]), flush=True)
    os._exit(0)  # whatever a peer's threads are still waiting for


def _percentile(times: list[float], share: float) -> float:
    return statistics.quantiles(times, n=100)[round(share * 100) - 1] * 1e3


def measured(python: Path, name: str, where: str, lives: int, samples: int) -> list[float] | str:
    """The figures of a peer, or why there are none."""
    command = [str(python), __file__, "--peer", name, "--where", where]
    command += ["--lives", str(lives), "--samples", str(samples)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS + 60)
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS + 60} seconds"
    with contextlib.suppress(ValueError, IndexError):
        figures: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
        return figures
    return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]


def row(name: str, database: str, figures: list[float] | str, mode: str, durable: str) -> None:
    said = figures if isinstance(figures, str) else "".join(f"{figure:>12.2f}" for figure in figures)
    print(f"{name:>14}  {database:>10}  {said}  {mode}; durable: {durable}", flush=True)


def compare(python: Path, lives: int, samples: int) -> None:
    """Interlock and every peer, one after the other, on one server and in one folder."""
    # The peers' interpreter has neither of these, nor Interlock.
    databases, fleet_level = (importlib.import_module(name) for name in ("databases", "fleet_level"))
    programs = databases.binaries()
    assert programs is not None, "there is no PostgreSQL: install the dev requirements"
    databases.SETTINGS.update({"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})
    server = databases.PostgresServer(programs)
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{'':>14}  {'':>10}{'lives/s':>14}{'start p50':>12}{'p99, ms':>12}")
            for database in (fleet_level.Postgres(server), fleet_level.Sqlite(Path(folder))):
                rate = asyncio.run(fleet_level.lives_a_second(database, CALLERS, lives))[0]
                times = asyncio.run(fleet_level.starts(database, samples))
                figures = [rate, _percentile(times, 0.5), _percentile(times, 0.99)]
                kept = "submission, grant, claim and end, each before it is answered"
                row("Interlock", database.name.partition(",")[0], figures, "8 callers, one task a call", kept)
            for name, peer in PEERS.items():
                where = server.empty() if peer.database == "PostgreSQL" else folder
                row(name, peer.database, measured(python, name, where, lives, samples), peer.mode, peer.durable)
    finally:
        server.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the interpreter of an environment that has the peers")
    parser.add_argument("--lives", type=int, default=2_000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--where", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer:
        in_peers_interpreter(asked.peer, asked.where, asked.lives, asked.samples)
    elif asked.python is None:
        print(__doc__)
    else:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        compare(asked.python, asked.lives, asked.samples)


if __name__ == "__main__":
    main()
