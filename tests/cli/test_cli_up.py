"""The commands that run something themselves: up, run, doctor; and what all share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

from cli.conftest import Shell, finished, stopped, until_line
from databases import PostgresServer
from interlock.cli import EXITS, app
from interlock.cli.output import Exit
from interlock.drivers.shell import ShellDriver

EXAMPLE = Path(__file__).parents[2] / "examples" / "inventory.yaml"


def test_without_a_control_plane_every_command_says_how_to_start_one(shell: Shell) -> None:
    for arguments in (["tasks"], ["devices"], ["show", "task_x"], ["submit", "g", "--agent", "a:b"]):
        done = shell.run(*arguments)
        assert (done.code, done.out) == (5, "")
        assert "interlock up" in done.err
        assert shell.run(*arguments, "--json").json["error"]["code"] == "unavailable"


def test_up_announces_itself_and_stops_when_asked(shell: Shell) -> None:
    process = shell.start("up", "--port", "0", "--device", "d1::camera,linux", "--device", "d2")
    assert re.search(r"http://127\.0\.0\.1:[0-9]+", until_line(process, "listens on"))
    assert until_line(process, "local/d1").split() == ["local/d1", "shell", "camera", "linux"]
    until_line(process, "stop with Ctrl-C")
    listed = shell.run("devices", "--json").json["devices"]
    assert [(each["name"], each["tags"]) for each in listed] == [
        ("local/d1", ["camera", "linux"]),
        ("local/d2", []),
    ]
    done = stopped(process, signal.SIGTERM)
    assert done.code == 0
    assert "finishing what is in flight" in done.err
    assert shell.run("tasks").code == 5


def test_a_stop_during_startup_ends_it(shell: Shell) -> None:
    process = shell.start("up", "--port", "0")
    lock = shell.data / "control" / "interlock.db.lock"
    while not lock.exists():
        assert process.poll() is None
    done = stopped(process)
    assert done.code in {0, 130}
    assert "Traceback" not in done.err
    shell.up()


def test_a_second_signal_ends_what_is_in_flight(shell: Shell) -> None:
    process = shell.up("--device", "d1")
    waiting = shell.start("submit", "-w", "waiting.yaml", "--wait", "--json")
    until_line(waiting, "0 of 1 steps")
    process.send_signal(signal.SIGINT)
    until_line(process, "finishing what is in flight")
    done = stopped(process)
    assert done.code == 130
    assert "in doubt" in done.err
    shell.up("--device", "d1")
    ended = finished(waiting)
    assert ended.code == 1
    assert "waiting for it" in ended.err
    assert (ended.json["task"]["reason"], ended.json["task"]["in_doubt"]) == ("review_required", ["block"])


def test_a_second_up_is_told_who_holds_the_database(shell: Shell) -> None:
    process = shell.up()
    done = shell.run("up", "--port", "0")
    assert done.code == 5
    assert f"process {process.pid}" in done.err
    assert shell.run("up", "--port", "0", "--json").json["error"]["code"] == "store_held"


def test_a_port_that_is_taken_is_said(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = shell.run("up", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "--port" in done.err


def test_devices_and_policy_come_from_files(shell: Shell) -> None:
    (shell.home / "devices.yaml").write_text(
        "- {serial: bench, driver: shell, tags: [linux], exclusive_tags: [gpu], options: {directory: bench}}\n"
    )
    (shell.home / "bench").mkdir()
    (shell.home / "policy.yaml").write_text("tools: {'tool:interlock.shell/read': allow}\n")
    shell.up("--devices", "devices.yaml", "--policy", "policy.yaml")
    assert "gpu! linux" in shell.run("devices").out
    (device,) = shell.run("devices", "--json").json["devices"]
    assert (device["name"], device["tags"], device["exclusive_tags"]) == ("local/bench", ["gpu", "linux"], ["gpu"])
    done = shell.run("submit", "-w", "greet.yaml", "--tag", "gpu", "--wait", "--json")
    assert (done.code, done.json["task"]["status"]) == (1, "failed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "d 1"], "not a serial"),
        (["--device", "d1:shell:Linux"], "not a tag"),
        (["--device", "d1:nodriver"], "nodriver"),
        (["--device", "d1", "--device", "d1"], "d1"),
        (["--device", "d1", "--devices", "d.yaml"], "not both"),
        (["--devices", "missing.yaml"], "cannot be read"),
        (["--devices", "list.yaml"], "device 2: zap: there is no such key"),
        (["--devices", "map.yaml"], "no list of devices"),
        (["--devices", "bad.yaml"], "not YAML at line 2"),
        (["--policy", "map.yaml"], "'serial' is not a key of a policy"),
        (["--port", "70000"], "65535"),
    ],
)
def test_what_up_cannot_take_is_said_before_it_starts(shell: Shell, arguments: list[str], said: str) -> None:
    (shell.home / "list.yaml").write_text("- {serial: a}\n- {serial: b, zap: 1}\n")
    (shell.home / "map.yaml").write_text("serial: a\n")
    (shell.home / "bad.yaml").write_text("a: [\n")
    done = shell.run("up", "--port", "0", *arguments)
    assert done.code == 2, done.err
    assert said in done.err


def test_run_shows_each_step_and_leaves_its_directory(shell: Shell) -> None:
    done = shell.run("run", str(EXAMPLE), "--input", "title=Mine")
    assert done.code == 0, done.err
    assert sum(line.endswith("  committed") for line in done.err.splitlines()) == 11
    directory = Path(re.search(r"working directory (\S+)", done.err).group(1))  # type: ignore[union-attr]
    assert (directory / "stock" / "inventory.txt").read_text().startswith("Mine\n")
    assert list((shell.home / "state" / "interlock").iterdir()) == []


def test_run_works_in_the_directory_that_is_given(shell: Shell) -> None:
    (shell.home / "here").mkdir()
    done = shell.run("run", "greet.yaml", "--workdir", "here", "--tag", "linux", "--json")
    assert done.code == 0, done.err
    assert done.json["task"]["tags"] == ["linux"]
    assert done.json["workdir"] == str((shell.home / "here").resolve())
    assert done.json["outputs"]["greet"]["stdout"].strip() == "hello you 1"


def test_run_of_a_workflow_that_fails_gives_exit_one(shell: Shell) -> None:
    done = shell.run("run", "failing.yaml")
    assert done.code == 1
    assert "fall  failed" in done.err
    assert "failed (dispatch_failed)" in done.out


BAD = """\
name: bad
zap: 1
steps:
  a: {tool: "tool:interlock.shell/read", with: {path: x}, needs: [b]}
  b: {tool: "tool:interlock.shell/read", with: {path: x}, needs: [a]}
  c: {tool: "tool:interlock.shell/read", with: {path: x}, needs: [nowhere]}
  d: {tool: "tool:no.such/tool"}
  e: {tool: "tool:interlock.shell/read", with: {path: 7}}
  f: {tool: "tool:interlock.shell/run", with: {command: "true"}, read: true}
"""


def test_run_of_a_bad_file_gives_every_fault_with_its_line(shell: Shell) -> None:
    (shell.home / "bad.yaml").write_text(BAD)
    done = shell.run("run", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert {line.partition(":")[0] for line in done.err.splitlines()} >= {f"line {n}" for n in (2, 6, 7, 8, 9)}
    assert any("wait for each other" in line for line in done.err.splitlines())
    assert not (shell.home / "state").exists()
    assert shell.run("run", "bad.yaml", "--json").json["error"]["faults"] == done.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.yaml"], "cannot be read"),
        (["greet.yaml", "--workdir", "missing"], "no directory"),
        (["greet.yaml", "-i", "often=x"], "'often' must be of type integer"),
        (["greet.yaml", "--tag", "Big"], "not a tag"),
    ],
)
def test_what_run_cannot_take_is_said_before_it_starts(shell: Shell, arguments: list[str], said: str) -> None:
    done = shell.run("run", *arguments)
    assert done.code == 2
    assert said in done.err


def test_an_interrupted_run_ends_its_task(shell: Shell) -> None:
    process = shell.start("run", "waiting.yaml")
    until_line(process, "block  running")
    done = stopped(process)
    assert done.code == 130
    assert "in doubt: block" in done.out
    assert "interlock resolve" not in done.out  # nothing of it is kept


def test_the_doctor_reads_the_database_that_nobody_holds(shell: Shell) -> None:
    assert shell.run("doctor").code == 2
    stopped(shell.up())
    done = shell.run("doctor", "--json")
    assert (done.code, done.json) == (0, {"violations": []})


def test_the_doctor_finds_a_broken_invariant(shell: Shell) -> None:
    process = shell.up()
    shell.submitted("-w", "greet.yaml", "--tag", "camera")
    stopped(process)
    with sqlite3.connect(shell.data / "control" / "interlock.db") as connection:
        connection.execute("DELETE FROM ready")
    done = shell.run("doctor")
    assert done.code == 1
    assert "broken_one_place" in done.out
    assert shell.run("doctor", "--json").json["violations"]


@pytest.mark.contract("S-15")
def test_up_and_the_doctor_take_a_database_by_its_address(shell: Shell, postgres: PostgresServer) -> None:
    shell.environment["INTERLOCK_DATABASE_URL"] = postgres.fresh()
    process = shell.up()
    done = shell.run("submit", "-w", "greet.yaml", "--wait", "--json")
    assert done.code == 0
    assert shell.run("submit", "-w", "greet.yaml", "--tag", "camera").code == 0
    assert stopped(process).code == 0
    assert not (shell.data / "control" / "interlock.db").exists()
    assert shell.run("doctor", "--json").json == {"violations": []}
    (shell.data / "control" / "vault.key").unlink()
    lost = shell.run("up", "--port", "0")
    assert (lost.code, "the database was sealed with it" in lost.err) == (5, True)


@pytest.mark.contract("S-15")
def test_a_database_that_cannot_be_reached_is_told_without_its_password(shell: Shell) -> None:
    done = shell.run("up", "--port", "0", "--database", "postgresql://me:secret@127.0.0.1:1/fleet")
    assert done.code == 5
    assert "the database at 127.0.0.1:1/fleet cannot be reached" in done.err
    assert "secret" not in done.err
    assert shell.run("doctor", "--database", "postgresql://[").code == 2


def test_every_command_and_every_exit_code_is_documented() -> None:
    said = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    for command in app.registered_commands:
        assert f"**`interlock {command.name}" in said, command.name
    for code in Exit:
        assert f"| {code.value} |" in said
        assert re.search(rf"[:;] {code.value} ", EXITS), code


def test_usage_and_help(shell: Shell) -> None:
    assert shell.run().code == 2
    done = shell.run("--help")
    assert done.code == 0
    assert "Exit codes" in done.out
    assert shell.run("submit", "--help").code == 0
    assert shell.run("--version").out.startswith("interlock ")
    done = shell.run("zap", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "usage")
    assert json.dumps(done.json).count("zap") == 1


def test_up_takes_a_strategy_by_its_name_and_a_depth(shell: Shell) -> None:
    wrong = shell.run("up", "--port", "0", "--strategy", "random")
    assert wrong.code == 2
    assert "configure one of best_fit, fair_share, fifo_match, least_recently_used, priority" in wrong.err
    process = shell.up("--strategy", "priority", "--max-queue-depth", "1", "--queue-timeout", "60")
    assert shell.run("submit", "-w", "greet.yaml", "--tag", "no-such").code == 0
    refused = shell.run("submit", "-w", "greet.yaml", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (4, "queue_full")
    assert stopped(process).code == 0


def test_a_device_whose_serial_has_a_slash_runs_a_task_and_is_released_and_forgotten(shell: Shell) -> None:
    up = shell.up("--device", "/dev/tty/1", "--device", "other")
    done = shell.run("submit", "-w", "greet.yaml", "--device", "local//dev/tty/1", "--wait", "--json")
    assert (done.code, done.json["attempts"][0]["device"]) == (0, "local//dev/tty/1")
    assert shell.run("release", "local//dev/tty/1").code == 0
    refused = shell.run("forget", "local//dev/tty/1")
    assert (refused.code, "still reports" in refused.err) == (4, True)
    assert stopped(up).code == 0
    again = shell.up("--device", "other")
    assert shell.run("forget", "local//dev/tty/1").out == "local//dev/tty/1 is forgotten\n"
    assert [each["name"] for each in shell.run("devices", "--json").json["devices"]] == ["local/other"]
    assert stopped(again).code == 0


def test_tools_lists_each_tool_with_its_arguments(shell: Shell) -> None:
    listed = {each["id"]: each for each in shell.run("tools", "--json").json["tools"]}
    assert listed.keys() == set(ShellDriver.contracts)
    assert (listed["tool:interlock.shell/run"]["driver"], listed["tool:interlock.shell/run"]["access"]) == (
        "shell",
        "effect",
    )
    text = shell.run("tools").out
    for tool_id, contract in ShellDriver.contracts.items():
        assert [each["name"] for each in listed[tool_id]["arguments"]] == [each.name for each in contract.parameters]
        assert tool_id in text
        assert all(each.summary in text for each in contract.parameters)


@pytest.mark.parametrize("arguments", [("tools",), ("tools", "--json"), ("--version",)])
def test_a_full_disk_is_told_as_what_it_is_and_not_as_a_fault(shell: Shell, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = finished(shell.start(*arguments, out=full))
    assert (done.code, done.err) == (
        5,
        "interlock: the machine says: No space left on device: make room, then try again\n",
    )


@pytest.mark.parametrize("command", ["up", "submit", "run"])
def test_many_interrupts_in_a_row_end_a_command_without_a_word_of_its_insides(shell: Shell, command: str) -> None:
    process = shell.up() if command != "run" else shell.start("run", "waiting.yaml")
    if command == "run":
        until_line(process, "block  running")
    else:
        waiting = shell.start("submit", "-w", "waiting.yaml", "--wait")
        until_line(waiting, "of 1 steps")
        process = waiting if command == "submit" else process
    with contextlib.suppress(ProcessLookupError):
        while process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
    done = finished(process)
    assert done.code == 130
    assert "Traceback" not in done.err
    assert "Exception" not in done.err
