"""The shell driver: a working directory, commands in it, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.actions import DispatchOutcome
from interlock.clock import Clock, SystemClock
from interlock.drivers import shell_files
from interlock.drivers.process_tree import adopt_orphans
from interlock.drivers.shell_command import NotStarted, Shell
from interlock.drivers.shell_files import Refused, Why, Workdir
from interlock.errors import InvalidInput, Unavailable
from interlock.guard.shielding import to_the_end
from interlock.guard.tools import (
    Access,
    Answer,
    CallContext,
    Parameter,
    ProbeReport,
    Tool,
    ToolContract,
    ToolRegistry,
    ToolResult,
    ValueType,
)

DEFAULT_TIMEOUT_SECONDS = 600.0
GRACE_SECONDS = 2.0
LOOK_EVERY_SECONDS = 0.05
PROBE_SECONDS = 60.0
_PROBED: Mapping[int | None, Answer] = {0: Answer.HAPPENED, 1: Answer.DID_NOT_HAPPEN}
_PATH = Parameter("path", summary="inside the working directory")

RUN = ToolContract(
    "tool:interlock.shell/run",
    parameters=(
        Parameter("command", summary="for sh -c, with an empty standard input"),
        Parameter("timeout_seconds", ValueType.NUMBER, required=False, summary="600 where it is not given"),
        Parameter(
            "probe",
            required=False,
            summary="a command that changes nothing and tells by status 0 or 1 whether this one happened or not",
        ),
    ),
    summary="Run a command. A status other than 0 is a failure; no word from the shell is doubt.",
)
WRITE = ToolContract(
    "tool:interlock.shell/write",
    parameters=(_PATH, Parameter("content", summary="the whole new text of the file")),
    summary="Replace a file in one step. Its directory must exist.",
)
READ = ToolContract(
    "tool:interlock.shell/read",
    Access.READ,
    (_PATH, Parameter("max_bytes", ValueType.INTEGER, required=False, summary="at most, and by default, 32768")),
    summary="Read the beginning of a file as text.",
)
LIST = ToolContract("tool:interlock.shell/list", Access.READ, (_PATH,), summary="Name what is in a directory.")
STAT = ToolContract("tool:interlock.shell/stat", Access.READ, (_PATH,), summary="Say what a path is.")
WAIT = ToolContract(
    "tool:interlock.shell/wait",
    Access.READ,
    (_PATH, Parameter("timeout_seconds", ValueType.NUMBER, required=False, summary="600 where it is not given")),
    summary="Wait until a path exists, then say what it is. It is a failure when it does not come in time.",
)
CONTRACTS = (RUN, WRITE, READ, LIST, STAT, WAIT)

FileWork = Callable[[Workdir, Mapping[str, Any]], ToolResult]


@dataclass(frozen=True)
class RunTool:
    """Runs commands. The evidence is the shell's own end marker with the status it saw."""

    shell: Shell
    contract: ToolContract = RUN

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """See `RUN`. A time-out, a cancellation or a killed shell is doubt, and the command's tree is ended."""
        del call
        timeout_seconds = arguments.get("timeout_seconds", DEFAULT_TIMEOUT_SECONDS)
        if timeout_seconds <= 0:
            return Refused(Why.BAD_TIMEOUT).result
        try:
            ran = await self.shell.run(arguments["command"], timeout_seconds)
        except NotStarted:
            return Refused(Why.NOT_STARTED).result
        if ran.status is None or ran.timed_out:
            return ToolResult(DispatchOutcome.REVIEW_REQUIRED, ran.output)
        outcome = DispatchOutcome.COMMITTED if ran.status == 0 else DispatchOutcome.FAILED
        return ToolResult(outcome, ran.output, f"end marker {ran.nonce} status {ran.status}")

    async def probe(self, arguments: Mapping[str, Any], call: CallContext) -> ProbeReport:
        """Run the step's own probe. Any other status, or none, tells nothing; neither does a step without a probe."""
        del call
        if "probe" not in arguments:
            return ProbeReport(Answer.CANNOT_TELL)
        try:
            ran = await self.shell.run(arguments["probe"], PROBE_SECONDS)
        except NotStarted:
            return ProbeReport(Answer.CANNOT_TELL)
        if ran.timed_out or ran.status not in _PROBED:
            return ProbeReport(Answer.CANNOT_TELL)
        evidence = f"probe end marker {ran.nonce} status {ran.status}"
        return ProbeReport(_PROBED[ran.status], {"status": 0, "probe": ran.output}, evidence)


@dataclass(frozen=True)
class ReadTool:
    """Looks at files, away from the event loop."""

    workdir: Workdir
    contract: ToolContract
    work: FileWork

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """See the contract. What cannot be read is a definite failure."""
        del call
        return await asyncio.to_thread(self._look, arguments)

    def _look(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return self.work(self.workdir, arguments)
        except Refused as refused:
            return refused.result


@dataclass(frozen=True)
class WaitTool:
    """Waits for files that something else makes."""

    workdir: Workdir
    clock: Clock
    contract: ToolContract = WAIT

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """See `WAIT`. It ends early where the call is cancelled."""
        del call
        deadline = self.clock.elapsed() + arguments.get("timeout_seconds", DEFAULT_TIMEOUT_SECONDS)
        while True:
            try:
                return await asyncio.to_thread(shell_files.status, self.workdir, arguments)
            except Refused as refused:
                if refused.why is not Why.NOT_FOUND or self.clock.elapsed() >= deadline:
                    return refused.result
            await self.clock.sleep(LOOK_EVERY_SECONDS)


@dataclass(frozen=True)
class WriteTool:
    """Writes files, away from the event loop, and can say later whether it did."""

    workdir: Workdir
    contract: ToolContract = WRITE

    async def invoke(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        """See `WRITE`. Once begun it goes to its end although it is cancelled, so that its result is known."""
        del call
        result, _ = await to_the_end(asyncio.to_thread(self._write, arguments))
        return result

    async def probe(self, arguments: Mapping[str, Any], call: CallContext) -> ProbeReport:
        """See `shell_files.probe`."""
        del call
        return await asyncio.to_thread(shell_files.probe, self.workdir, arguments)

    def _write(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return shell_files.write(self.workdir, arguments)
        except Refused as refused:
            return refused.result


class ShellDevice:
    """An open working directory."""

    def __init__(self, shell: Shell, workdir: Workdir) -> None:
        self._tools = ToolRegistry(
            (
                RunTool(shell),
                WriteTool(workdir),
                ReadTool(workdir, READ, shell_files.read),
                ReadTool(workdir, LIST, shell_files.listing),
                ReadTool(workdir, STAT, shell_files.status),
                WaitTool(workdir, SystemClock()),
            )
        )

    def tools(self) -> Mapping[str, Tool]:
        """See `Device.tools`."""
        return self._tools


class ShellDriver:
    """Opens working directories. Settings: `directory`, an existing one."""

    name = "shell"
    contracts: Mapping[str, ToolContract] = {each.id: each for each in CONTRACTS}

    def __init__(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds

    @contextlib.asynccontextmanager
    async def open(self, settings: Mapping[str, object]) -> AsyncIterator[ShellDevice]:
        """See `Driver.open`. Raises `Unavailable` on leaving where a process would not end."""
        workdir = _workdir(settings)
        adopt_orphans()
        shell = Shell(workdir.root, _environment(workdir.root, os.environ), self._grace_seconds)
        try:
            yield ShellDevice(shell, workdir)
        finally:
            gone, _ = await to_the_end(shell.close())
            if not gone:
                message = "a process that a command started would not end: the device is not clean"
                raise Unavailable(message)


def _workdir(settings: Mapping[str, object]) -> Workdir:
    directory = settings.get("directory")
    if set(settings) != {"directory"} or not isinstance(directory, (str, os.PathLike)):
        message = "a shell device has one setting, directory: the working directory"
        raise InvalidInput(message)
    if not Path(directory).is_dir():
        message = "the working directory of a shell device does not exist: make it first"
        raise InvalidInput(message)
    return Workdir(Path(directory))


def _environment(root: Path, ours: Mapping[str, str]) -> dict[str, str]:
    """What a command sees: five names, and no secret of the process that runs it."""
    temporary = root / ".tmp"
    temporary.mkdir(mode=0o700, exist_ok=True)
    return {
        "PATH": ours.get("PATH", os.defpath),
        "HOME": str(root),
        "LANG": ours.get("LANG", "C.UTF-8"),
        "TMPDIR": str(temporary),
        "TERM": "dumb",
    }
