"""Nothing is answered before it is on the disk: the order of system calls, as the kernel saw them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CALLS = "openat,mkdir,rename,renameat,renameat2,unlink,write,writev,pwrite64,pwritev,ftruncate,fsync,fdatasync"
ANSWER = "answered"
# What is gone or made anew after a crash, and so need not be on the disk.
PASSING = ("-shm", ".lock", "-journal")

# The save of an admission is answered by its dispatch, and every other one by the next save or by the end of the run.
RUN_LEVEL = """
import asyncio, os, pathlib, sys
from actions.killed_run import store_of
from actions.stage import COMMITTED, RUN, effect, limits, read
from interlock.actions import ActionScheduler

kind, folder, how = sys.argv[1:]

class Answering:
    async def dispatch(self, run_id, node, cancellation):
        os.write(1, b"answered")
        return COMMITTED

with store_of(kind, pathlib.Path(folder) / "new" / "deep").claim(RUN) as saves:
    def save(checkpoint):
        saves(checkpoint)
        os.write(1, b"answered")

    async def awaited(checkpoint):
        await saves.awaited(checkpoint)
        os.write(1, b"answered")

    graph = [effect("a"), read("b", "a"), read("c", "a"), effect("d", "b", "c")]
    asyncio.run(ActionScheduler(graph, limits(), Answering(), awaited if how == "awaited" else save).run(RUN))
"""
FLEET = """
import asyncio, os, pathlib, sys
from interlock.app import _prepare
from interlock.app.settings import AppSettings
from interlock.fleet.store import Define
from interlock.stores.sqlite import SqliteStore

async def commit(store, number):
    await store.commit([Define(f"sha256:{number}", "name", "sealed")])
    os.write(1, b"answered")

async def main():
    settings = AppSettings(data=pathlib.Path(sys.argv[1]) / "new", devices=(), policy=None, agent_path=pathlib.Path())
    _prepare(settings)
    store = SqliteStore.open(settings.control / "deep" / "fleet.db")
    for number in range(10):
        await commit(store, number)
    await asyncio.gather(*(commit(store, number) for number in range(100, 130)))
    await store.close()

asyncio.run(main())
"""


def traced(folder: Path, program: str, *arguments: str) -> list[str]:
    """The system calls of a program, each twice where it did not return at once: when it began, and when it ended."""
    strace = shutil.which("strace")
    if (
        strace is None
        or subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no strace here that may trace a process")
    log = folder.with_suffix(".strace")
    command = [strace, "-f", "-y", "-qq", "-s", "32", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log)]
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*command, sys.executable, "-c", program, *arguments],
        env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return log.read_text("utf-8", "replace").splitlines()


_BEGUN = re.compile(r"(?P<process>\d+) +(?P<name>\w+)\((?P<arguments>.*)")
_ENDED = re.compile(r"(?P<process>\d+) +<\.\.\. (?P<name>\w+) resumed>")
_OPENED = re.compile(r"\d+<(?P<path>[^>]+)>")
_NAMED = re.compile(r'"(?P<path>[^"]+)"')


@dataclass
class Disk:
    """What would be lost if the power went: what was written and not synced, and names of directories not synced."""

    folder: str
    known: set[str] = field(default_factory=set)
    unsynced: set[str] = field(default_factory=set)
    unsynced_names: set[str] = field(default_factory=set)
    answers: int = 0
    written: int = 0

    def see(self, lines: list[str]) -> None:
        """Go through the calls. A write counts from when it begins, a sync from when it has ended."""
        pending: dict[str, str] = {}
        for line in lines:
            if begun := _BEGUN.match(line):
                arguments = begun["arguments"]
                self._begun(begun["name"], arguments)
                if arguments.endswith("<unfinished ...>"):
                    pending[begun["process"]] = arguments
                elif " = -1 " not in arguments:
                    self._ended(begun["name"], arguments)
            elif (ended := _ENDED.match(line)) and " = -1 " not in line:
                self._ended(ended["name"], pending.pop(ended["process"]))

    def _begun(self, name: str, arguments: str) -> None:
        opened = _OPENED.match(arguments)
        if name in {"write", "writev", "pwrite64", "pwritev", "ftruncate"} and opened:
            if f'"{ANSWER}"' in arguments:
                self.answers += 1
                assert (self.unsynced, self.unsynced_names) == (set(), set()), f"answer {self.answers}"
            elif self._counts(opened["path"]):
                self.unsynced.add(opened["path"])
                self.written += 1

    def _ended(self, name: str, arguments: str) -> None:
        opened, paths = _OPENED.match(arguments), [found["path"] for found in _NAMED.finditer(arguments)]
        if name in {"fsync", "fdatasync"} and opened:
            self.unsynced.discard(opened["path"])
            self.unsynced_names = {path for path in self.unsynced_names if str(Path(path).parent) != opened["path"]}
        elif name == "unlink":
            self.unsynced -= set(paths)
            self.unsynced_names -= set(paths)
        elif name.startswith(("mkdir", "rename")) or (name == "openat" and "O_CREAT" in arguments):
            new = {path for path in paths if self._counts(path)} - self.known
            self.known |= new
            self.unsynced_names |= new

    def _counts(self, path: str) -> bool:
        return path.startswith(self.folder + os.sep) and not path.endswith(PASSING)


def seen(folder: Path, lines: list[str]) -> Disk:
    disk = Disk(str(folder))
    disk.see(lines)
    return disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty directory. What names it is the test's own, and nobody's to sync."""
    path = tmp_path.resolve() / "disk"
    path.mkdir()
    return path


@pytest.mark.contract("A-90", "A-70", "A-96")
@pytest.mark.parametrize("how", ["sync", "awaited"])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_r47_no_save_is_answered_and_no_action_dispatched_before_the_sync(folder: Path, kind: str, how: str) -> None:
    disk = seen(folder, traced(folder, RUN_LEVEL, kind, str(folder), how))
    assert disk.answers == 9 + 4
    assert disk.written >= 9


@pytest.mark.contract("F-94")
def test_r47_no_commit_of_the_fleet_is_answered_before_its_sync(folder: Path) -> None:
    disk = seen(folder, traced(folder, FLEET, str(folder)))
    assert disk.answers == 40
    assert disk.written > 40


def test_an_answer_before_its_sync_is_seen() -> None:
    made = ['1 mkdir("/d/new", 0777) = 0', '1 openat(AT_FDCWD</>, "/d/new/log", O_RDWR|O_CREAT, 0600) = 3</d/new/log>']
    written = ['1 write(3</d/new/log>, "line", 4) = 4']
    synced = ["2 fdatasync(3</d/new/log> <unfinished ...>", "2 <... fdatasync resumed>) = 0"]
    names = ["1 fsync(4</d/new>) = 0", "1 fsync(4</d>) = 0"]
    answer = ['1 write(1<pipe:[1]>, "answered", 8) = 8']
    assert seen(Path("/d"), [*made, *written, *synced, *names, *answer]).answers == 1
    for wrong in (
        [*made, *written, *names, *answer],
        [*made, *written, *synced, *answer],
        [*made, *written, *synced, *names[1:], *answer],
        [*made, *names, *synced, *written, *answer],
        [*made, *names, *written, synced[0], *answer, synced[1]],
        [*made, *names, *written, "1 fdatasync(3</d/new/log>) = -1 EIO (Input/output error)", *answer],
    ):
        with pytest.raises(AssertionError):
            seen(Path("/d"), wrong)
