"""The commands as real processes, and one real `up` for those that talk to one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

SECONDS = 60
AGENT = """\
async def look(goal, tools, context):
    return {"goal": goal}

async def fall(goal, tools, context):
    return 1 / 0
"""
WORKFLOW = """\
name: greet
inputs:
  whom: {type: string, default: you}
  often: {type: integer, default: 1}
steps:
  greet:
    tool: tool:interlock.shell/run
    with: {command: "echo hello ${inputs.whom} ${inputs.often}"}
"""
FAILING = """\
name: failing
steps:
  fall: {tool: "tool:interlock.shell/run", with: {command: "exit 3"}}
"""
WAITING = """\
name: waiting
steps:
  block: {tool: "tool:interlock.shell/run", with: {command: "mkfifo gate && cat gate"}}
"""


@dataclass
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Shell:
    """Runs commands in a directory of its own, against a data directory of its own."""

    home: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data = self.home / "data"
        (self.home / "agents.py").write_text(AGENT)
        for name, text in (("greet", WORKFLOW), ("failing", FAILING), ("waiting", WAITING)):
            (self.home / f"{name}.yaml").write_text(text)

    def start(self, *arguments: str, out: TextIO | int = subprocess.PIPE) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "INTERLOCK_DATA_DIR": str(self.data),
            "XDG_STATE_HOME": str(self.home / "state"),
            "NO_COLOR": "1",
            **self.environment,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "interlock", *arguments],
            cwd=self.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> Done:
        return finished(self.start(*arguments))

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a control plane and return once it says where it listens."""
        process = self.start("up", "--port", "0", "--json", *arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith('{"url"'):
            pytest.fail(f"it did not come up: {line} {finished(process)}")
        return process

    def submitted(self, *arguments: str) -> str:
        return str(self.run("submit", "--json", *arguments).json["task_id"])

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=SECONDS)


def finished(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=SECONDS)
    return Done(process.returncode, out, err)


def stopped(process: subprocess.Popen[str], by: signal.Signals = signal.SIGINT) -> Done:
    process.send_signal(by)
    return finished(process)


def until_line(process: subprocess.Popen[str], part: str) -> str:
    """Read standard error until a line holds this."""
    assert process.stderr is not None
    for line in process.stderr:
        if part in line:
            return line
    return pytest.fail(f"it ended without saying {part!r}")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Commands with no control plane."""
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Commands beside one `up`, which the tests of a module share."""
    made = Shell(tmp_path_factory.mktemp("running"))
    made.up()
    yield made
    made.close()
