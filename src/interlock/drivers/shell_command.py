"""One shell command in a session of its own: bounded output, and an end that only the shell itself can vouch for.

The outer shell runs the command in an inner one, then reads a nonce that the command cannot reach and writes it with
the status to a pipe of its own. A process that has merely exited proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from interlock.clock import new_nonce
from interlock.drivers.process_tree import MARK, Roots, end_tree, ended, processes, reap, reap_followers
from interlock.guard.canonical import fitted
from interlock.guard.shielding import to_the_end

_SCRIPT = """cd -- "$2" && unset OLDPWD && sh -c "$1" 3>&- 4<&-
status=$?
read -r nonce <&4
printf '%s %s\\n' "$nonce" "$status" >&3
"""
_STDOUT_BYTES = 40_000
_STDERR_BYTES = 20_000
_MARKER_BYTES = 256
_CHUNK = 65_536
_FIRST_FREE = 10
_LAST_CHUNKS = 64


class NotStarted(Exception):
    """The command could not be started. Nothing has happened."""


@dataclass(frozen=True)
class Ran:
    """What a command left. `status` is None where the shell did not say how it ended; `nonce` is its marker."""

    status: int | None
    nonce: str
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool = False

    @property
    def output(self) -> dict[str, object]:
        """The output of the action."""
        return {"status": self.status, "stdout": self.stdout, "stderr": self.stderr, "truncated": self.truncated}


@dataclass
class Shell:
    """Where commands run, and which processes they have left behind."""

    directory: Path
    environment: Mapping[str, str]
    grace_seconds: float
    mark: str = field(default_factory=new_nonce)
    # A shell that left something running is not reaped before the device closes: its number names the session.
    _sessions: set[int] = field(default_factory=set)

    async def run(self, command: str, timeout_seconds: float) -> Ran:
        """Run a command to its end. When cancelled, its whole tree is ended first.

        Raises:
            NotStarted: It is too long, has a NUL in it, or the machine has no room for another process.
        """
        with Capture(_STDOUT_BYTES) as stdout, Capture(_STDERR_BYTES) as stderr, Capture(_MARKER_BYTES) as marker:
            nonce = new_nonce()
            mark = f"{self.mark}.{new_nonce(8)}"
            shell = self._spawn(command, mark, nonce, (stdout.sink, stderr.sink, marker.sink))
            for capture in (stdout, stderr, marker):
                capture.begin()
            timed_out = await self._wait(shell, mark, timeout_seconds)
            for capture in (marker, stdout, stderr):
                capture.finish()
        return Ran(status_of(marker.head, nonce), nonce, stdout.text, stderr.text, stdout.cut or stderr.cut, timed_out)

    async def close(self) -> bool:
        """End all that any command has left running. Says whether it is gone."""
        gone = await end_tree(Roots(frozenset(self._sessions), self.mark), grace_seconds=self.grace_seconds)
        reap(self._sessions)
        return gone

    def _spawn(self, command: str, mark: str, nonce: str, sinks: tuple[int, int, int]) -> int:
        stdout, stderr, marker = sinks
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(_opened(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)))
            source = stack.enter_context(_opened(_nonce_pipe(nonce)))
            wanted = {0: nothing, 1: stdout, 2: stderr, 3: marker, 4: source}
            # Out of the way of the numbers 0 to 4 first, or one would be overwritten before it is used.
            moved = {number: stack.enter_context(_opened(_above(held))) for number, held in wanted.items()}
            try:
                return os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-c", _SCRIPT, "interlock", command, str(self.directory)],
                    {**self.environment, MARK: mark},
                    file_actions=[
                        *((os.POSIX_SPAWN_DUP2, held, number) for number, held in moved.items()),
                        *((os.POSIX_SPAWN_CLOSE, held) for held in _inherited() if held not in moved),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD],
                )
            except (OSError, ValueError):
                raise NotStarted from None

    async def _wait(self, shell: int, mark: str, timeout_seconds: float) -> bool:
        """Wait for the end of a shell. True where the time ran out; then, and when cancelled, its tree is ended."""
        with _opened(os.pidfd_open(shell)) as descriptor:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await ended(descriptor)
            except (TimeoutError, asyncio.CancelledError) as why:
                tree = Roots(frozenset({shell}), mark)
                _, cancelled = await to_the_end(end_tree(tree, grace_seconds=self.grace_seconds))
                self._part(shell)
                if cancelled or isinstance(why, asyncio.CancelledError):
                    raise asyncio.CancelledError from None
                return True
        self._part(shell)
        return False

    def _part(self, shell: int) -> None:
        """Reap this shell, and those before it, as far as nothing of what they started lives in their sessions."""
        self._sessions.add(shell)
        empty = self._sessions - {each.session for each in processes().values() if not each.zombie}
        self._sessions -= empty
        reap_followers(empty)
        reap(empty)


class Capture:
    """A pipe of which the head is kept and the rest is counted and dropped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.head = b""
        self._source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._source, False)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._source)
        self._close_sink()
        os.close(self._source)

    def begin(self) -> None:
        """Read from now on; the writing end is somebody else's."""
        self._close_sink()
        self._loop.add_reader(self._source, self._read)

    def finish(self) -> None:
        """Take what is there already. What a background process might still write is not waited for."""
        for _ in range(_LAST_CHUNKS):
            if not self._read():
                return

    def _read(self) -> bool:
        try:
            chunk = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._source)
        self.size += len(chunk)
        self.head += chunk[: self.limit - len(self.head)]
        return bool(chunk)

    @property
    def text(self) -> str:
        """The head as text that fits its limit as JSON too; bytes that are not UTF-8 are replaced."""
        return fitted(self.head.decode("utf-8", "replace"), self.limit)

    @property
    def cut(self) -> bool:
        """Whether more was written than `text` shows."""
        return self.size > len(self.head) or self.text != self.head.decode("utf-8", "replace")

    def _close_sink(self) -> None:
        if self.sink >= 0:
            os.close(self.sink)
            self.sink = -1


def status_of(marker: bytes, nonce: str) -> int | None:
    """The status that a marker gives, or None where it is not whole or not this nonce's."""
    words = marker.decode("ascii", "replace").split()
    complete = marker.endswith(b"\n") and len(words) == len(("nonce", "status")) and words[0] == nonce
    return int(words[1]) if complete and words[1].isdigit() else None


def _nonce_pipe(nonce: str) -> int:
    source, sink = os.pipe2(os.O_CLOEXEC)
    with _opened(sink):
        os.write(sink, f"{nonce}\n".encode())
    return source


def _inherited() -> list[int]:
    """What a command would get of this process beside its own: a worker's way to its agent may be among it."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone
            found += [int(name)] if os.get_inheritable(int(name)) else []
    return found


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


@contextlib.contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
