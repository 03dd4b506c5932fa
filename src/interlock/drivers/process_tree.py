"""Finding and ending all that a command started: by session, by a mark in the environment, and by descent.

Linux only: it reads /proc and signals through process descriptors, so that a number given anew is never hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "INTERLOCK_CALL"
_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 50
_ROUND_SECONDS = 0.2


@dataclass(frozen=True)
class Process:
    """One line of /proc: `start` is in clock ticks since boot and, with the number, names a process for good."""

    pid: int
    parent: int
    session: int
    start: int
    zombie: bool


@dataclass(frozen=True)
class Roots:
    """What a tree is recognised by: sessions that are known to be its own, and the beginning of its mark."""

    sessions: frozenset[int]
    mark: str


def adopt_orphans() -> None:
    """Have orphaned descendants become children of this process, where the kernel can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes() -> dict[int, Process]:
    """Every process there is, by number."""
    return {found.pid: found for entry in Path("/proc").iterdir() if (found := _read(entry)) is not None}


def _read(entry: Path) -> Process | None:
    if not entry.name.isdigit():
        return None
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, _, session = fields[:4]
    return Process(int(entry.name), int(parent), int(session), int(fields[19]), zombie=state in {b"Z", b"X"})


def members(roots: Roots, known: Mapping[int, Process]) -> set[int]:
    """The processes of a tree, zombies among them, and never this one."""
    found = {pid for pid, each in known.items() if each.session in roots.sessions or _marked(pid, roots.mark)}
    children: dict[int, list[int]] = {}
    for each in known.values():
        children.setdefault(each.parent, []).append(each.pid)
    found.discard(os.getpid())
    waiting = list(found)
    while waiting:
        fresh = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _marked(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"\0{MARK}={mark}".encode() in b"\0" + environment


async def end_tree(roots: Roots, *, grace_seconds: float) -> bool:
    """Terminate a tree, and after the grace kill it. Says whether it is gone.

    What became a child of this process is reaped, but for the leaders of the sessions: those are the caller's.
    """
    living = _living(roots)
    seen = set(living)
    await _signal(living, signal.SIGTERM, grace_seconds)
    for _ in range(_KILL_ROUNDS):
        living = _living(roots)
        reap({each.pid for each in seen} - roots.sessions)
        if not living:
            reap_followers(roots.sessions)
            return True
        seen.update(living)
        await _signal(living, signal.SIGKILL, _ROUND_SECONDS)
    return False


def reap(pids: Iterable[int]) -> None:
    """Collect the dead among some children of this process. What is no child, or not dead, is left alone."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def reap_followers(sessions: Iterable[int]) -> None:
    """Collect the dead of some sessions that have become children of this process, all but the leaders."""
    wanted = set(sessions)
    reap({each.pid for each in processes().values() if each.zombie and each.session in wanted} - wanted)


def _living(roots: Roots) -> list[Process]:
    known = processes()
    return [known[pid] for pid in members(roots, known) if not known[pid].zombie]


async def _signal(targets: Iterable[Process], number: signal.Signals, wait_seconds: float) -> None:
    """Signal each target and wait until all have ended, but no longer than `wait_seconds`."""
    with contextlib.ExitStack() as stack:
        descriptors = [stack.enter_context(held) for target in targets if (held := _held(target)) is not None]
        for descriptor in descriptors:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        if descriptors:
            ends = [asyncio.ensure_future(ended(descriptor)) for descriptor in descriptors]
            _, late = await asyncio.wait(ends, timeout=wait_seconds)
            for end in late:
                end.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _held(target: Process) -> contextlib.AbstractContextManager[int] | None:
    """A descriptor of exactly this process, or None where it is gone."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return None
    now = _read(Path(f"/proc/{target.pid}"))
    if now is None or now.start != target.start:
        os.close(descriptor)
        return None
    return _closing(descriptor)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def ended(descriptor: int) -> None:
    """Wait until the process of a descriptor has ended. It may still have to be reaped."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, end.cancel)
    try:
        await asyncio.wait({end})
    finally:
        loop.remove_reader(descriptor)
