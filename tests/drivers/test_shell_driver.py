"""The shell driver on a real shell and real files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.actions import CancellationSignal, DispatchOutcome
from interlock.drivers.driver import driver_names, load_driver
from interlock.drivers.process_tree import processes
from interlock.drivers.shell import ShellDevice, ShellDriver
from interlock.drivers.shell_command import status_of
from interlock.drivers.shell_files import Refused, Workdir, write
from interlock.errors import InvalidInput
from interlock.fleet.model import DeviceRef, HostId
from interlock.guard.tools import Answer, CallContext, ProbedTool, ToolResult

CALL = CallContext("run_1", "step", DeviceRef(HostId("host"), "shell-1"), 1, CancellationSignal())
DRIVER = ShellDriver(grace_seconds=0.2)


async def call(device: ShellDevice, name: str, **arguments: Any) -> ToolResult:
    return await device.tools()[f"tool:interlock.shell/{name}"].invoke(arguments, CALL)


def error_of(result: ToolResult) -> str:
    assert result.outcome is DispatchOutcome.FAILED
    assert isinstance(result.output, dict)
    return str(result.output["error"])


def out(result: ToolResult) -> dict[str, Any]:
    assert isinstance(result.output, dict)
    return result.output


@pytest.fixture
async def device(tmp_path: Path) -> AsyncIterator[ShellDevice]:
    async with DRIVER.open({"directory": tmp_path}) as opened:
        yield opened


async def lines_from(path: Path) -> list[str]:
    """What is written to a FIFO, read away from the loop: the wait is for the writer and no longer."""
    return (await asyncio.to_thread(path.read_text)).split()


def names_in(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def is_alive(pid: int) -> bool:
    found = processes().get(pid)
    return found is not None and not found.zombie


def test_the_shell_driver_is_found_by_its_entry_point() -> None:
    assert "shell" in driver_names()
    assert set(load_driver("shell").contracts) == set(ShellDriver.contracts)
    with pytest.raises(InvalidInput, match="known: shell"):
        load_driver("shel")


async def test_a_device_needs_one_setting_an_existing_directory(tmp_path: Path) -> None:
    for settings in ({}, {"directory": 1}, {"directory": tmp_path / "none"}, {"directory": tmp_path, "more": 1}):
        with pytest.raises(InvalidInput):
            async with DRIVER.open(settings):
                pass


@pytest.mark.contract("G-37")
async def test_a_command_that_ends_well_has_the_marker_of_the_shell_as_evidence(device: ShellDevice) -> None:
    result = await call(device, "run", command="echo out; echo err >&2")
    assert result.outcome is DispatchOutcome.COMMITTED
    assert result.output == {"status": 0, "stdout": "out\n", "stderr": "err\n", "truncated": False}
    assert result.evidence is not None
    assert result.evidence.startswith("end marker ")
    assert result.evidence.endswith(" status 0")
    again = await call(device, "run", command="true")
    assert again.evidence != result.evidence


@pytest.mark.contract("G-37")
async def test_a_status_other_than_0_is_a_definite_failure(device: ShellDevice) -> None:
    result = await call(device, "run", command="echo partly; exit 7")
    assert result.outcome is DispatchOutcome.FAILED
    assert out(result)["status"] == 7
    assert out(result)["stdout"] == "partly\n"


@pytest.mark.contract("G-37")
async def test_a_shell_that_dies_without_a_word_leaves_doubt(device: ShellDevice, tmp_path: Path) -> None:
    result = await call(device, "run", command="echo done > effect; kill -9 $PPID")
    assert result.outcome is DispatchOutcome.REVIEW_REQUIRED
    assert result.evidence is None
    assert (tmp_path / "effect").read_text() == "done\n"


@pytest.mark.contract("G-37")
async def test_a_command_cannot_write_the_marker_itself(device: ShellDevice) -> None:
    forged = "printf '%s 0\\n' 0123456789abcdef0123456789abcdef >&3; kill -9 $PPID"
    result = await call(device, "run", command=forged)
    assert result.outcome is DispatchOutcome.REVIEW_REQUIRED


@pytest.mark.contract("G-37")
@pytest.mark.parametrize(
    "marker", [b"", b"nonce 0", b"other 0\n", b"nonce\n", b"nonce x\n", b"nonce 0 0\n", b"nonce -1\n"]
)
def test_a_marker_counts_only_in_full_and_with_its_nonce(marker: bytes) -> None:
    assert status_of(marker, "nonce") is None
    assert status_of(b"nonce 7\n", "nonce") == 7


@pytest.mark.contract("G-37", "G-40")
async def test_a_command_does_not_hold_the_pipes_of_its_marker(device: ShellDevice) -> None:
    result = await call(device, "run", command="ls /proc/$$/fd")
    assert out(result)["stdout"].split() == ["0", "1", "2"]


@pytest.mark.contract("G-37")
async def test_what_cannot_be_started_has_failed_before_anything_happened(device: ShellDevice) -> None:
    assert error_of(await call(device, "run", command="a\0b")) == "not_started"
    assert error_of(await call(device, "run", command="x" * 200_000)) == "not_started"
    assert error_of(await call(device, "run", command="true", timeout_seconds=0)) == "bad_timeout"


@pytest.mark.contract("G-38")
async def test_a_command_that_prints_without_end_fills_no_memory(device: ShellDevice) -> None:
    command = "head -c 200000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2"
    result = await call(device, "run", command=command)
    assert result.outcome is DispatchOutcome.COMMITTED
    assert out(result)["truncated"] is True
    assert 30_000 < len(out(result)["stdout"]) <= 40_000
    assert 1_000 < len(out(result)["stderr"]) <= 20_000


@pytest.mark.contract("G-39")
async def test_a_time_out_ends_the_whole_tree_and_leaves_doubt(device: ShellDevice, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    command = (
        "(setsid sh -c 'trap \"\" TERM; echo $$ >> all; sleep 1000; sleep 1000' &) ; "
        "sh -c 'echo $$ >> all; sleep 1000' & "
        "while [ $(wc -l < all 2>/dev/null || echo 0) -lt 2 ]; do :; done; cat all > pids; exec sleep 1000"
    )
    reading = asyncio.create_task(lines_from(tmp_path / "pids"))
    result = await call(device, "run", command=command, timeout_seconds=1)
    assert result.outcome is DispatchOutcome.REVIEW_REQUIRED
    pids = [int(pid) for pid in await reading]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


@pytest.mark.contract("G-39")
async def test_a_cancelled_command_is_gone_before_the_cancellation_goes_on(device: ShellDevice, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    running = asyncio.create_task(call(device, "run", command="setsid sh -c 'echo $$ > pids; sleep 1000'"))
    (pid,) = await lines_from(tmp_path / "pids")
    assert is_alive(int(pid))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(int(pid))


@pytest.mark.contract("G-39")
async def test_a_second_cancellation_does_not_cut_the_ending_short(device: ShellDevice, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    command = "setsid sh -c 'trap \"\" TERM; echo $$ > pids; while :; do sleep 1000; done'"
    running = asyncio.create_task(call(device, "run", command=command))
    (pid,) = await lines_from(tmp_path / "pids")
    running.cancel()
    while not running.done():
        running.cancel()
        await asyncio.wait({running}, timeout=0.01)
    assert running.cancelled()
    assert not is_alive(int(pid))


@pytest.mark.contract("G-39")
async def test_what_a_command_left_running_ends_with_the_device(tmp_path: Path) -> None:
    async with DRIVER.open({"directory": tmp_path}) as device:
        result = await call(device, "run", command="sleep 1000 & echo $!; (setsid sleep 1000 & echo $!)")
        assert result.outcome is DispatchOutcome.COMMITTED
        pids = [int(pid) for pid in out(result)["stdout"].split()]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))


@pytest.mark.contract("G-39")
async def test_a_process_without_the_mark_is_found_by_its_session(tmp_path: Path) -> None:
    async with DRIVER.open({"directory": tmp_path}) as device:
        result = await call(device, "run", command="env -i sleep 1000 & echo $!")
        (pid,) = out(result)["stdout"].split()
        assert is_alive(int(pid))
    assert not is_alive(int(pid))


@pytest.mark.contract("G-39")
async def test_no_zombie_is_left_by_commands(device: ShellDevice) -> None:
    await call(device, "run", command="kill -9 $PPID")
    await call(device, "run", command="sleep 1000 & (setsid sleep 1000 &); sleep 1000", timeout_seconds=0.2)
    await call(device, "run", command="true")
    ours = [each for each in processes().values() if each.parent == os.getpid() and each.zombie]
    assert ours == []


@pytest.mark.contract("G-39")
async def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    async with DRIVER.open({"directory": tmp_path}) as device:
        await call(device, "run", command="sleep 1000", timeout_seconds=0.1)
    assert is_alive(other.pid)
    other.send_signal(signal.SIGKILL)
    await other.wait()


@pytest.mark.contract("G-40")
async def test_r58_a_command_sees_no_secret_of_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_VAULT_KEY", "canary")
    source, sink = os.pipe()
    os.set_inheritable(source, True)  # noqa: FBT003 - it takes no keyword
    async with DRIVER.open({"directory": tmp_path}) as device:
        result = await call(device, "run", command="env; cat")
        names = {line.partition("=")[0] for line in out(result)["stdout"].split("\n") if line}
        assert names == {"PATH", "HOME", "LANG", "TMPDIR", "TERM", "INTERLOCK_CALL", "PWD"}
        assert f"HOME={tmp_path}\n" in out(result)["stdout"]
        listed = await call(device, "run", command="for fd in /proc/self/fd/*; do echo ${fd##*/}; done")
        assert str(source) not in out(listed)["stdout"].split()
    os.close(source)
    os.close(sink)


@pytest.mark.contract("G-41")
async def test_a_written_file_is_proved_by_the_digest_read_back(device: ShellDevice, tmp_path: Path) -> None:
    result = await call(device, "write", path="a.txt", content="häuser\n")
    assert result.outcome is DispatchOutcome.COMMITTED
    assert (tmp_path / "a.txt").read_text() == "häuser\n"
    assert result.evidence == out(result)["sha256"]
    assert out(result)["bytes"] == 8


@pytest.mark.contract("G-41")
async def test_a_file_is_replaced_with_its_permissions_and_nothing_is_left_beside_it(
    device: ShellDevice, tmp_path: Path
) -> None:
    (tmp_path / "a.sh").write_text("old")
    (tmp_path / "a.sh").chmod(0o755)
    inode = (tmp_path / "a.sh").stat().st_ino
    await call(device, "write", path="a.sh", content="new")
    assert (tmp_path / "a.sh").read_text() == "new"
    assert (tmp_path / "a.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a.sh").stat().st_ino != inode
    assert names_in(tmp_path) == [".tmp", "a.sh"]


@pytest.mark.contract("G-42")
async def test_the_probe_of_a_write_tells_what_it_can_and_no_more(device: ShellDevice, tmp_path: Path) -> None:
    tool = device.tools()["tool:interlock.shell/write"]
    assert isinstance(tool, ProbedTool)
    arguments = {"path": "a.txt", "content": "text"}
    assert (await tool.probe(arguments, CALL)).answer is Answer.CANNOT_TELL
    written = await tool.invoke(arguments, CALL)
    report = await tool.probe(arguments, CALL)
    assert (report.answer, report.evidence, report.output) == (Answer.HAPPENED, written.evidence, written.output)
    (tmp_path / "a.txt").write_text("of somebody else")
    assert (await tool.probe(arguments, CALL)).answer is Answer.CANNOT_TELL


@pytest.mark.contract("G-42")
async def test_an_unfinished_file_shows_that_the_write_did_not_happen(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from interlock.drivers import shell_files\n"
        "os.rename = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        "shell_files.write(shell_files.Workdir(pathlib.Path(sys.argv[1])), {'path': 'a.txt', 'content': 'text'})\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path))
    assert await killed.wait() == -signal.SIGKILL
    async with DRIVER.open({"directory": tmp_path}) as device:
        tool = device.tools()["tool:interlock.shell/write"]
        assert isinstance(tool, ProbedTool)
        arguments = {"path": "a.txt", "content": "text"}
        assert (await tool.probe(arguments, CALL)).answer is Answer.DID_NOT_HAPPEN
        assert (await tool.probe({**arguments, "content": "other"}, CALL)).answer is Answer.CANNOT_TELL
        await call(device, "write", **arguments)
    assert names_in(tmp_path) == [".tmp", "a.txt"]


@pytest.mark.contract("G-43")
async def test_no_path_leaves_the_directory(device: ShellDevice, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    (tmp_path / "out").symlink_to(outside)
    (tmp_path / "secret").symlink_to(outside / "secret")
    (tmp_path / "fresh").symlink_to(outside / "fresh")
    for path in ("../x", "/etc/passwd", "out/secret", "secret", str(outside / "secret"), "a/../../x"):
        assert error_of(await call(device, "read", path=path)) == "outside_directory"
        assert error_of(await call(device, "stat", path=path)) == "outside_directory"
        assert error_of(await call(device, "write", path=path, content="x")) == "outside_directory"
    assert error_of(await call(device, "write", path="fresh", content="x")) == "outside_directory"
    assert error_of(await call(device, "list", path="out")) == "outside_directory"
    assert names_in(outside) == ["secret"]
    assert (outside / "secret").read_text() == "canary"


@pytest.mark.contract("G-43")
def test_a_link_put_in_after_the_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("canary")
    workdir = Workdir(tmp_path / "in")
    target = workdir.resolve("d/a")
    (tmp_path / "in" / "d").rename(tmp_path / "in" / "e")
    (tmp_path / "in" / "d").symlink_to(tmp_path / "out")
    with pytest.raises(Refused, match="outside_directory"), workdir.opened(target, os.O_RDONLY):
        pass
    with pytest.raises(Refused), workdir.opened(target.parent, os.O_RDONLY):
        pass


@pytest.mark.contract("G-41")
def test_a_file_that_reads_back_otherwise_is_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")

    class LyingDisk(Workdir):
        @contextmanager
        def opened(self, target: Path, flags: int) -> Iterator[int]:
            with super().opened(self.root / "other" if target.name == "a" else target, flags) as descriptor:
                yield descriptor

    result = write(LyingDisk(tmp_path), {"path": "a", "content": "text"})
    assert (result.outcome, result.evidence) == (DispatchOutcome.REVIEW_REQUIRED, None)


@pytest.mark.contract("G-43")
async def test_links_that_stay_inside_are_followed(device: ShellDevice, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    await call(device, "write", path="link/a.txt", content="x")
    assert (tmp_path / "real" / "a.txt").read_text() == "x"
    assert out(await call(device, "read", path=str(tmp_path / "link" / "a.txt")))["content"] == "x"


@pytest.mark.contract("G-43")
async def test_a_write_that_is_refused_changes_nothing(device: ShellDevice, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert error_of(await call(device, "write", path="none/a", content="x")) == "not_found"
    assert error_of(await call(device, "write", path="d", content="x")) == "not_a_file"
    assert error_of(await call(device, "write", path=".", content="x")) == "not_a_file"
    assert error_of(await call(device, "write", path="a", content="\ud800")) == "bad_content"
    assert error_of(await call(device, "write", path="a\0b", content="x")) == "bad_path"
    assert error_of(await call(device, "write", path="n" * 300, content="x")) == "bad_path"
    assert names_in(tmp_path) == [".tmp", "d"]


@pytest.mark.contract("G-44")
async def test_reading_is_bounded(device: ShellDevice, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"\xff" * 100_000)
    found = out(await call(device, "read", path="large"))
    assert found["truncated"] is True
    assert found["bytes"] == 100_000
    assert len(found["content"].encode()) <= 60_000
    small = out(await call(device, "read", path="large", max_bytes=3))
    assert small["content"] == "\ufffd" * 3
    assert out(await call(device, "read", path="large", max_bytes=-1))["content"] == ""


@pytest.mark.contract("G-44")
async def test_a_listing_names_the_first_500_in_order(device: ShellDevice, tmp_path: Path) -> None:
    for number in range(510):
        (tmp_path / f"f{number:03d}").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("f000")
    found = out(await call(device, "list", path="."))
    assert found["truncated"] is True
    assert len(found["entries"]) == 500
    assert [(each["name"], each["type"]) for each in found["entries"][1:4]] == [
        ("a", "directory"),
        ("b", "link"),
        ("f000", "file"),
    ]


@pytest.mark.contract("G-44")
async def test_what_is_not_there_or_no_file_is_a_failure(device: ShellDevice, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert error_of(await call(device, "read", path="none")) == "not_found"
    assert error_of(await call(device, "read", path=".")) == "not_a_file"
    assert error_of(await call(device, "read", path="fifo")) == "not_a_file"
    assert error_of(await call(device, "stat", path="none")) == "not_found"
    assert error_of(await call(device, "list", path="none")) == "not_found"
    (tmp_path / "file").write_text("12345")
    assert error_of(await call(device, "list", path="file")) == "not_a_directory"
    found = out(await call(device, "stat", path="file"))
    assert (found["type"], found["bytes"], found["mode"]) == ("file", 5, "0644")


async def test_r75_an_effect_on_one_device_is_seen_there_and_on_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with DRIVER.open({"directory": tmp_path / "a"}) as a, DRIVER.open({"directory": tmp_path / "b"}) as b:
        await call(b, "write", path="nonce", content="4711")
        await call(b, "run", command="echo 4712 > other")
        assert out(await call(b, "read", path="nonce"))["content"] == "4711"
        assert out(await call(b, "read", path="other"))["content"] == "4712\n"
        assert error_of(await call(a, "read", path="nonce")) == "not_found"
        assert error_of(await call(a, "read", path="other")) == "not_found"


async def test_what_changes_anything_on_a_shell_is_an_effect() -> None:
    effects = {tool_id for tool_id, contract in ShellDriver.contracts.items() if not contract.is_read}
    assert effects == {"tool:interlock.shell/run", "tool:interlock.shell/write"}
