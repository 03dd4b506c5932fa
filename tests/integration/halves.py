"""A real `interlock serve` and real hosts beside it, each a process with a data directory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.system import TIMEOUT, command
from interlock.api.client import Client


@dataclass
class Half:
    """One half: what starts it, and the process that runs now."""

    data: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    greeting: dict[str, Any] = field(default_factory=dict)

    def start(self, *more: str) -> dict[str, Any]:
        assert self.process is None
        self.process = subprocess.Popen(
            command(*self.arguments, *more, "--data", str(self.data), "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.data.parent,
            env={**os.environ, **self.environment},
        )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.process.kill()
            raise AssertionError(self.process.communicate())
        self.greeting = json.loads(line)
        return self.greeting

    def end(self, by: signal.Signals) -> tuple[int, str]:
        """Send a signal, and give the exit code and what it said."""
        assert self.process is not None
        self.process.send_signal(by)
        _, said = self.process.communicate(timeout=TIMEOUT)
        code, self.process = self.process.returncode, None
        return int(code), said

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT)
            self.process = None

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the data directory of this half."""
        return subprocess.run(
            command(*arguments, "--data", str(self.data)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, **self.environment, **environment},
        )

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with Client.local(self.data) as client:
            yield client


@dataclass
class Halves:
    """What a test has started, in one temporary directory."""

    folder: Path
    started: list[Half] = field(default_factory=list)

    def server(self, database: str | None = None, *, name: str = "server", **environment: str) -> Half:
        options = () if database is None else ("--database", database)
        return self._begun(Half(self.folder / name, ("serve", *options), environment), "--port", "0")

    def host(self, server: Half, *, name: str = "bench", devices: tuple[str, ...] = ("d1:shell:linux",)) -> Half:
        made = server.call("host-token", name, "--json")
        assert made.returncode == 0, made.stderr
        options = [option for device in devices for option in ("--device", device)]
        arguments = ("host", "--server", server.greeting["url"], *options)
        environment = {"INTERLOCK_HOST_TOKEN": json.loads(made.stdout)["token"]}
        return self._begun(Half(self.folder / name, arguments, environment))

    def _begun(self, half: Half, *more: str) -> Half:
        self.started.append(half)
        half.start(*more)
        return half

    def close(self) -> None:
        for half in reversed(self.started):
            half.close()
