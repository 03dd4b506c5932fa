"""What a killed worker leaves, what a task can find, and as whom."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.conftest import MakeSystem
from integration.system import System, alive, kill, until
from interlock.runners.isolation import find_isolation

Write = Callable[[str], str]

# The child leaves its parent, its session and its environment, and says which process it is to the machine.
FORKING = """
name: forking
steps:
  fork:
    tool: tool:interlock.shell/run
    with:
      command: >-
        setsid env -i sh -c 'exec 3>&- 4>&-; (exec sleep 1000) & echo started > child' &
        while [ ! -s child ]; do sleep 0.02; done; sleep 1000
"""
SEARCH = """
name: search
steps:
  look:
    tool: tool:interlock.shell/run
    with:
      command: >-
        (umount "$PWD/../../control"; ls -a ../../control; cat ../../control/*;
        unshare -rm sh -c 'umount ../../control; cat ../../control/*'; env; cat /proc/*/environ;
        find / -xdev '(' -name token -o -name vault.key -o -name 'interlock.db*' ')' -path '*control*')
        2>/dev/null | tr '\\0' '\\n' > found.txt; true
"""


def submitted(system: System, path: str) -> str:
    return str(system.json("submit", "--workflow", path)["task_id"])


def descendants(pid: int) -> list[int]:
    """The living processes below one, as the machine numbers them."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def running_fork(system: System, write: Write) -> tuple[str, list[int]]:
    task = submitted(system, write(FORKING))
    until((system.directory() / "child").exists, "the child runs")
    everything = descendants(system.worker())
    assert len(everything) >= 4
    return task, everything


@pytest.mark.contract("S-07")
@pytest.mark.skipif(not find_isolation().separated, reason="this machine grants no namespaces")
def test_a_killed_worker_takes_its_double_forked_child_with_it(system: System, write: Write) -> None:
    task, everything = running_fork(system, write)
    kill(system.worker())
    with system.client() as client:
        until(lambda: client.get(task).attempts[0].end, "the attempt ends")
        assert not [pid for pid in everything if alive(pid)]
        assert client.wait(task, 50).reason == "review_required"
        (device,) = client.devices()
        assert device.occupancy == "idle"


@pytest.mark.contract("S-07")
@pytest.mark.skipif(not find_isolation().separated, reason="this machine grants no namespaces")
def test_a_killed_up_leaves_nothing_when_its_device_is_offered_again(system: System, write: Write) -> None:
    task, everything = running_fork(system, write)
    system.signal(signal.SIGKILL)
    system.ended()
    system.up()
    with system.client() as client:
        assert client.wait(task, 50).reason == "review_required"
        assert not [pid for pid in everything if alive(pid)]


@pytest.mark.contract("S-07")
@pytest.mark.skipif(not find_isolation().separated, reason="this machine grants no namespaces")
def test_a_frozen_worker_of_a_killed_up_is_ended_before_its_device_is_offered(system: System, write: Write) -> None:
    task, everything = running_fork(system, write)
    os.kill(system.worker(), signal.SIGSTOP)
    system.signal(signal.SIGKILL)
    system.ended()
    assert alive(everything[0])
    system.up()
    with system.client() as client:
        assert client.wait(task, 50).reason == "review_required"
        assert not [pid for pid in everything if alive(pid)]


def check_nothing_is_found(system: System, write: Write) -> None:
    control = system.data / "control"
    secrets = [(control / name).read_text("utf-8").strip() for name in ("token", "vault.key")]
    done = system.json("submit", "--workflow", write(SEARCH), "--wait")
    assert done["task"]["status"] == "done"
    found = (system.directory() / "found.txt").read_text("utf-8", "replace")
    assert "INTERLOCK_CALL" in found
    assert not [secret for secret in secrets if secret in found]
    assert "SQLite format" not in found
    assert f"{control}/" not in found


@pytest.mark.contract("S-08")
@pytest.mark.skipif(not find_isolation().separated, reason="this machine grants no namespaces")
def test_a_task_finds_neither_token_nor_key_nor_database(
    make_system: MakeSystem, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_SECRET", "canary")
    system = make_system()
    assert system.up()["isolation"].startswith("separated")
    check_nothing_is_found(system, write)


# In a mount namespace of its own, the home that holds the interpreter is opened to everybody.
OPEN_HOME = """set -e
mkdir "$3/kept" && mount --rbind "$2" "$3/kept" && mount -t tmpfs -o mode=755 opened "$1" && mkdir -p "$2"
mount --rbind "$3/kept" "$2" && shift 3 && exec "$@"
"""


def as_nobody(place: Path) -> tuple[str, ...]:
    """What makes a command run as an ordinary user who can read the interpreter."""
    nobody = pwd.getpwnam("nobody")
    become = ("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--")
    base = Path(sys.base_prefix).resolve()
    closed = [each for each in reversed(base.parents) if not each.stat().st_mode & 0o001]
    if not closed:
        return become
    return ("unshare", "--mount", "--", "sh", "-c", OPEN_HOME, "open", str(closed[0]), str(base), str(place), *become)


@pytest.mark.contract("S-08")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has run the test before this one")
def test_a_task_of_an_ordinary_user_finds_nothing_either(make_system: MakeSystem, write: Write) -> None:
    place = Path(tempfile.mkdtemp(prefix="interlock-test-"))
    nobody = pwd.getpwnam("nobody")
    place.chmod(0o755)
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    system = make_system(prefix=as_nobody(place))
    system.data = place / "data"
    try:
        assert system.up()["isolation"].startswith("separated: each worker has its own user")
        assert (system.data / "control" / "token").stat().st_uid == nobody.pw_uid
        check_nothing_is_found(system, write)
    finally:
        if system.process is not None:
            system.stop()
        shutil.rmtree(place)


def test_without_namespaces_up_says_so_loudly(
    make_system: MakeSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "unshare").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    (tmp_path / "bin" / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    system = make_system()
    assert system.up()["isolation"].startswith("not separated")
    assert system.stop() == 0


@pytest.mark.contract("S-07")
def test_without_namespaces_the_device_of_a_killed_worker_stays_out(
    make_system: MakeSystem, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_without_namespaces_up_says_so_loudly(make_system, tmp_path, monkeypatch)
    system = make_system(name="other")
    system.up()
    task, everything = running_fork(system, write)
    kill(system.worker())
    try:
        with system.client() as client:
            until(lambda: client.get(task).attempts[0].end, "the attempt ends")
            (device,) = client.devices()
            assert device.occupancy == "stop_unconfirmed"
            assert system.call("release", "local/d1").returncode == 0
            assert client.wait(task, 50).reason == "review_required"
    finally:
        for pid in everything:
            if alive(pid):
                kill(pid)
