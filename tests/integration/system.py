"""A real `interlock up`, as a user starts it: its own process, its own data directory, real workers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlock.api.client import Client
from interlock.clock import SystemClock

TIMEOUT = 60.0
CLOCK = SystemClock()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "interlock", *arguments]


@dataclass
class System:
    """One data directory, and the `up` that runs on it now."""

    data: Path
    devices: Sequence[str] = ("d1:shell:linux",)
    prefix: Sequence[str] = ()
    options: Sequence[str] = ()
    process: subprocess.Popen[str] | None = None
    greeting: dict[str, Any] = field(default_factory=dict)

    def up(self) -> dict[str, Any]:
        assert self.process is None
        options = [option for device in self.devices for option in ("--device", device)]
        arguments = command("up", "--data", str(self.data), "--port", "0", "--json", *self.options, *options)
        self.process = subprocess.Popen(
            [*self.prefix, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.process.kill()
            raise AssertionError(self.process.communicate())
        self.greeting = json.loads(line)
        return self.greeting

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for `up` to end and give its exit code."""
        assert self.process is not None
        self.process.communicate(timeout=TIMEOUT)
        code, self.process = self.process.returncode, None
        return int(code)

    def stop(self) -> int:
        self.signal(signal.SIGINT)
        return self.ended()

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as another terminal would."""
        return subprocess.run(
            command(*arguments, "--data", str(self.data)), capture_output=True, text=True, timeout=TIMEOUT, check=False
        )

    def json(self, *arguments: str) -> Any:
        done = self.call(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with Client.local(self.data) as client:
            yield client

    def worker(self, serial: str = "d1") -> int:
        """The first process of the worker that runs on a device now."""
        return int(json.loads((self.data / "control" / "workers" / f"{serial}.json").read_text("utf-8"))["pid"])

    def directory(self, serial: str = "d1") -> Path:
        return self.data / "devices" / serial

    def ledger(self, serial: str = "d1", name: str = "ledger.txt") -> list[str]:
        path = self.directory(serial) / name
        return path.read_text("utf-8").split() if path.exists() else []


def until(ready: Callable[[], Any], what: str) -> Any:
    """Look until it is so, for a bounded time."""
    deadline = CLOCK.elapsed() + TIMEOUT
    while CLOCK.elapsed() < deadline:
        found = ready()
        if found:
            return found
        select.select([], [], [], 0.02)
    message = f"{what}: not within {TIMEOUT} s"
    raise AssertionError(message)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
