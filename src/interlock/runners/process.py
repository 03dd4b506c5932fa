"""Workers as processes: started apart, spoken to over a socket, ended as a whole, and found again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from interlock.drivers.process_tree import ended, processes
from interlock.errors import InterlockError, LeaseSuperseded, Unavailable
from interlock.fleet.checkpoints import difference, whole
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, DeviceRef, Ending, HandOver, RunSave
from interlock.runners.channel import Arguments, Channel
from interlock.runners.isolation import Isolation
from interlock.runners.messages import (
    Start,
    ending_from_json,
    hand_over_from_json,
    save_from_json,
    settlement_from_json,
    start_to_json,
)
from interlock.telemetry import Event, emit

HELLO_SECONDS = 30.0
KILL_SECONDS = 10.0


@dataclass(frozen=True)
class ProcessName:
    """One process for good: its number and its start in clock ticks, in one boot of the kernel."""

    pid: int
    start: int
    boot_id: str

    def alive(self, boot_id: str) -> bool:
        """Whether it still runs."""
        found = processes().get(self.pid) if self.boot_id == boot_id else None
        return found is not None and found.start == self.start and not found.zombie


@dataclass(frozen=True)
class WorkerPlace:
    """What the workers of one host share. `hidden` are the directories that no task may see.

    `state` is to be in one of them: who can write its records can have any process of this user ended.
    """

    state: Path
    hidden: tuple[Path, ...]
    agent_path: Path
    isolation: Isolation
    boot_id: str
    policy: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class WorkerProcess:
    """See `interlock.fleet.attempt.Worker`."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, ledger: AttemptLedger) -> None:
        self._process = process
        self._channel = channel
        self._ledger = ledger
        # Effects that were handed over, until a save says how they ended or they were withdrawn.
        self._in_flight: set[tuple[str, str]] = set()
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[None] = loop.create_future()
        self._report: asyncio.Future[Ending | None] = loop.create_future()
        self._holding = False
        self._gone = asyncio.Event()
        self._serving = asyncio.create_task(self._serve())
        self.first: ProcessName | None = None
        self.certain = False
        self._over = False

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    @property
    def over(self) -> bool:
        """Whether it is certainly gone, with all that it started."""
        return self._over

    def tell_deadline(self, deadline: float) -> None:
        """See `Worker.tell_deadline`."""
        self._channel.note("deadline", deadline=deadline)

    def tell_cancel(self) -> None:
        """See `Worker.tell_cancel`."""
        self._channel.note("cancel")

    def tell_lost(self) -> None:
        """See `Worker.tell_lost`."""
        self._channel.note("lost")

    def hold(self) -> None:
        """See `Worker.hold`. With no effect in flight the run can stand still where it is: reads may be made again."""
        self._holding = True
        self._stand_still()

    def _stand_still(self) -> None:
        if self._holding and not self._in_flight and not self._report.done():
            self._report.set_result(None)

    async def _wait_while_still(self) -> None:
        """Withhold the answer for ever where the run stands still: what is durable is the clean state before."""
        if self._holding and not self._in_flight:
            await self._gone.wait()
            message = "the attempt was held"
            raise LeaseSuperseded(message)

    def begin(self, start: Start) -> None:
        """Give the worker its one assignment."""
        self._channel.note("start", **start_to_json(start))

    async def ended(self) -> Ending | None:
        """See `Worker.ended`."""
        return await asyncio.shield(self._report)

    async def stop(self, seconds: float) -> bool:
        """See `Worker.stop`."""
        if seconds > 0:
            if not self._report.done() or self._report.result() is None:
                self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._exited()
        clean = self._process.poll() == 0
        self._signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._exited()
        except TimeoutError:
            return False
        # Apart, the kernel has ended whatever was left. Otherwise only the worker's own orderly end says so.
        self._over = self.certain or clean
        self._gone.set()
        await self._channel.close()
        await asyncio.wait({self._serving})
        return self._over

    def _signal(self, number: signal.Signals) -> None:
        if self.first is not None and self.first.alive(self.first.boot_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first.pid, number)
        if number is signal.SIGKILL and self._process.poll() is None:
            self._process.kill()

    async def _exited(self) -> None:
        """Wait for the first process of the tree, which goes last, and for the one that we started."""
        for pid in filter(None, (self.first.pid if self.first else None, self._process.pid)):
            if pid != self._process.pid and not (self.first and self.first.alive(self.first.boot_id)):
                continue
            if self._process.poll() is not None and pid == self._process.pid:
                continue
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                await ended(descriptor)
            finally:
                os.close(descriptor)
        self._process.poll()

    async def _serve(self) -> None:
        try:
            await self._channel.serve(self._answer, self._hear)
        finally:
            if not self.hello.done():
                self.hello.set_exception(Unavailable("the worker ended before it said a word"))
            if not self._report.done():
                self._report.set_result(None)

    def _hear(self, note: str, arguments: Arguments) -> None:
        del arguments
        if note == "hello" and not self.hello.done():
            self.hello.set_result(None)

    async def _answer(self, call: str, arguments: Arguments) -> object:
        if self._report.done() and self._report.result() is not None and call != "finish":
            message = "the attempt has reported its end"
            raise LeaseSuperseded(message)
        if call == "save":
            await self._save(save_from_json(arguments))
        elif call == "hand_over":
            await self._hand_over(hand_over_from_json(arguments))
        elif call == "withdraw":
            await self._withdraw(str(arguments.get("run_id")), str(arguments.get("action_id")))
        elif call == "settle":
            await self._ledger.settle(settlement_from_json(arguments))
        elif call == "output":
            return await self._ledger.output(str(arguments.get("action_id")))
        elif call == "finish":
            ending = ending_from_json(arguments)
            if not self._report.done():
                self._report.set_result(ending)
        else:
            message = f"a worker may not call {call}"
            raise InterlockError(message)
        return None

    async def _hand_over(self, entry: HandOver) -> None:
        await self._wait_while_still()
        effect = (entry.run_id, entry.action_id)
        self._in_flight.add(effect)
        try:
            await self._ledger.hand_over(entry)
        except InterlockError:
            self._in_flight.discard(effect)
            raise

    async def _withdraw(self, run_id: str, action_id: str) -> None:
        await self._ledger.withdraw(run_id, action_id)
        self._in_flight.discard((run_id, action_id))
        self._stand_still()

    async def _save(self, save: RunSave) -> None:
        await self._wait_while_still()
        await self._ledger.save(save)
        if not self._in_flight:
            return
        over = _not_running(save)
        self._in_flight = {each for each in self._in_flight if each[0] != save.run_id or each[1] not in over}
        self._stand_still()


def _not_running(save: RunSave) -> set[str]:
    """The actions that a save has somewhere else than in flight. Raises `InterlockError` where it cannot be read."""
    said = whole(save.checkpoint) if save.sequence == 1 else difference(save.checkpoint)
    if said is None:
        message = "the checkpoint cannot be read"
        raise InterlockError(message)
    return {action for action, state in said.states.items() if state != "running"}


class ProcessWorkers:
    """See `interlock.fleet.attempt.Workers`."""

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place
        self._last: dict[str, WorkerProcess] = {}
        self._records = place.state / "workers"
        self._records.mkdir(parents=True, exist_ok=True)

    async def start(self, assignment: Assignment, ledger: AttemptLedger, deadline: float) -> WorkerProcess:
        """See `Workers.start`."""
        serial = assignment.device.serial
        worker = await self._spawn(serial, ledger)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await asyncio.shield(worker.hello)
            self._record(assignment.device, worker)
        except (InterlockError, TimeoutError, OSError):
            await worker.stop(0.0)
            message = f"no worker could be started for {serial}"
            raise Unavailable(message) from None
        worker.begin(Start(assignment, self._place.options.get(serial, {}), self._place.policy, deadline))
        emit(Event.WORKER_STARTED, attempt=assignment.attempt_id, serial=serial, pid=worker.pid)
        return worker

    async def _spawn(self, serial: str, ledger: AttemptLedger) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [sys.executable, "-m", "interlock.runners.worker", str(theirs.fileno())]
            process = subprocess.Popen(  # noqa: ASYNC220 - it only forks; nothing here waits for the child
                self._place.isolation.command(arguments, self._place.hidden),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._environment(),
            )
        worker = WorkerProcess(process, await Channel.over(ours), ledger)
        self._last[serial] = worker
        return worker

    def _environment(self) -> dict[str, str]:
        """What a worker needs to find its modules, and nothing that is a secret."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "VIRTUAL_ENV") if name in os.environ}
        return {**kept, "PYTHONPATH": str(self._place.agent_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def _record(self, device: DeviceRef, worker: WorkerProcess) -> None:
        """Note which process a successor of this agent must see gone, before any user code runs in it."""
        known = processes()
        pid = worker.pid
        if self._place.isolation.separated:
            pid = next(each.pid for each in known.values() if each.parent == pid)
        worker.first = ProcessName(pid, known[pid].start, self._place.boot_id)
        worker.certain = self._place.isolation.separated
        record = {"pid": pid, "start": known[pid].start, "boot_id": self._place.boot_id, "certain": worker.certain}
        fresh = self._records / f".{device.file_name}.new"
        fresh.write_text(json.dumps(record), "utf-8")
        fresh.replace(self._records / f"{device.file_name}.json")

    def stopped(self, serial: str) -> bool:
        """See `Workers.stopped`."""
        worker = self._last.get(serial)
        return worker is None or worker.over

    async def clear_predecessors(self) -> Mapping[str, bool]:
        """See `Workers.clear_predecessors`."""
        found = await asyncio.to_thread(self._found)
        return {unquote(path.stem): await self._clear(path) for path in found}

    def _found(self) -> list[Path]:
        return sorted(self._records.glob("[!.]*.json"))

    async def _clear(self, path: Path) -> bool:
        """End what one record names. Whether all that it started is certainly gone with it."""
        recorded = await asyncio.to_thread(_recorded, path)
        if recorded is None:
            return False
        first, certain = recorded
        if first.boot_id != self._place.boot_id:
            return True
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(first.pid)
            try:
                # Only once it is held can its number no longer be given to another process.
                if first.alive(self._place.boot_id):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    async with asyncio.timeout(KILL_SECONDS):
                        await ended(descriptor)
            except TimeoutError:
                return False
            finally:
                os.close(descriptor)
        return certain


def _recorded(path: Path) -> tuple[ProcessName, bool] | None:
    """The process that a record names, and whether seeing it gone is enough; None where it cannot be read."""
    try:
        record = json.loads(path.read_text("utf-8"))
        first = ProcessName(int(record["pid"]), int(record["start"]), str(record["boot_id"]))
        return first, bool(record["certain"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
