"""The commands that talk to a control plane, as a person or a script uses them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cli.conftest import Shell, finished, until_line
from interlock import Client
from interlock.actions import StopReason
from interlock.cli.showing import CAUSES, MEANINGS
from interlock.fleet.transitions import AttemptEnd
from interlock.guard.dispatcher import Cause
from interlock.guard.review import HISTORY_UNREADABLE, PLAN_CHANGED
from interlock.runners.goal import AGENT_FAILED, AGENT_REFUSED, AGENT_UNKNOWN, NOT_RESUMABLE
from interlock.runners.workflow import INVALID_WORKFLOW


def test_submit_and_wait_prints_the_whole_record(running: Shell) -> None:
    done = running.run("submit", "-w", "greet.yaml", "-i", "whom=42", "-i", "often=3", "--tag", "linux", "--wait")
    assert done.code == 0, done.err
    assert "stdout: hello 42 3" in done.out
    assert "tool:interlock.shell/run" in done.out
    assert "committed" in done.out
    assert "\x1b" not in done.out + done.err
    assert done.err.rstrip().endswith("done")


def test_submit_prints_the_id_alone_and_show_reads_it(running: Shell) -> None:
    task_id = running.run("submit", "--workflow", "greet.yaml").out.strip()
    assert task_id.startswith("task_")
    done = running.run("show", task_id)
    assert done.code == 0
    assert done.out.startswith(f"{task_id} workflow greet")


def test_a_goal_goes_to_its_agent(running: Shell) -> None:
    done = running.run("submit", "look at this", "--agent", "agents:look", "--driver", "shell", "--wait", "--json")
    assert done.code == 0, done.err
    assert (done.json["task"]["status"], done.json["task"]["result"]) == ("done", {"goal": "look at this"})


def test_a_task_that_fails_gives_exit_one(running: Shell) -> None:
    done = running.run("submit", "-w", "failing.yaml", "--wait")
    assert done.code == 1
    assert "failed (dispatch_failed)" in done.out
    assert "failed: dispatch_failed: a step failed for certain" in done.out
    assert "  fall: tool_failed: the tool says that it failed\n    status: 3\n" in done.out
    done = running.run("submit", "-w", "failing.yaml", "--wait", "--json")
    assert (done.code, done.json["task"]["status"]) == (1, "failed")


def test_a_goal_that_fails_says_why(running: Shell) -> None:
    done = running.run("submit", "look", "--agent", "agents:fall", "--wait")
    assert done.code == 1
    assert "failed: agent_failed: the agent raised an error" in done.out
    assert "  agent: ZeroDivisionError in agents.py, line 5" in done.out
    done = running.run("submit", "look", "--agent", "agents:nobody", "--wait")
    assert "failed: agent_unknown: the agent cannot be imported on the host" in done.out


def test_every_reason_and_every_cause_is_told_in_words() -> None:
    ends = set(AttemptEnd) - {AttemptEnd.DONE, AttemptEnd.FAILED, AttemptEnd.CANCELLED}
    stops = set(StopReason) - {StopReason.COMPLETED, StopReason.CANCELLED, StopReason.CHECKPOINT_FAILED}
    own = {
        AGENT_FAILED,
        AGENT_REFUSED,
        AGENT_UNKNOWN,
        NOT_RESUMABLE,
        INVALID_WORKFLOW,
        PLAN_CHANGED,
        HISTORY_UNREADABLE,
    }
    assert MEANINGS.keys() >= {str(each) for each in ends | stops} | own
    assert CAUSES.keys() == {each.value for each in Cause}


def test_json_of_a_waited_submission_is_that_of_show(running: Shell) -> None:
    done = running.run("submit", "-w", "greet.yaml", "--wait", "--json")
    assert running.run("show", done.json["task"]["task_id"], "--json").json == done.json


def test_tasks_lists_the_newest_first(running: Shell) -> None:
    first, second = running.submitted("-w", "greet.yaml"), running.submitted("-w", "greet.yaml")
    listed = [task["task_id"] for task in running.run("tasks", "--json", "--most", "2").json["tasks"]]
    assert listed == [second, first]
    lines = running.run("tasks").out.splitlines()
    assert lines[0].split()[:3] == ["TASK", "WHAT", "STATUS"]
    assert second in lines[1]


def test_why_names_what_keeps_each_device_away(running: Shell) -> None:
    task_id = running.submitted("-w", "greet.yaml", "--tag", "camera")
    done = running.run("why", task_id)
    assert done.code == 0
    assert "no device satisfies it" in done.out
    assert "camera" in next(line for line in done.out.splitlines() if line.startswith("local/shell-1"))
    assert running.run("why", task_id, "--json").json["status"] == "queued"
    assert running.run("cancel", task_id).out.strip() == f"{task_id} is cancelled"
    assert running.run("cancel", task_id, "--json").json == {"task_id": task_id, "outcome": "cancelled"}


def test_the_same_key_gives_the_same_task_and_another_body_is_refused(running: Shell) -> None:
    arguments = ("-w", "greet.yaml", "--key", "once")
    assert running.submitted(*arguments) == running.submitted(*arguments)
    done = running.run("submit", *arguments, "--priority", "5", "--json")
    assert (done.code, done.json["error"]["code"]) == (4, "conflict")


def test_a_task_that_is_not_there_gives_exit_three(running: Shell) -> None:
    for command in ("show", "why", "cancel"):
        done = running.run(command, "task_none")
        assert (done.code, done.out) == (3, "")
        assert "there is no task task_none" in done.err
        assert len(done.err.splitlines()) == 1
        error = running.run(command, "task_none", "--json").json["error"]
        assert (error["code"], "message" in error) == ("not_found", True)


def test_a_faulty_workflow_gives_every_fault_with_its_line(running: Shell) -> None:
    (running.home / "bad.yaml").write_text("name: bad\nzap: 1\nsteps:\n  a: {tool: 'tool:no.such/tool', needs: [b]}\n")
    done = running.run("submit", "-w", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert all(line.startswith("line ") for line in done.err.splitlines())
    assert len(done.err.splitlines()) >= 3
    error = running.run("submit", "-w", "bad.yaml", "--json").json["error"]
    assert error["code"] == "invalid_workflow"
    assert error["faults"] == done.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a goal or --workflow"),
        (["a goal"], "--agent"),
        (["a goal", "-w", "greet.yaml"], "one of them"),
        (["a goal", "--agent", "a:b", "-i", "x=1"], "--input goes with --workflow"),
        (["-w", "greet.yaml", "--agent", "a:b"], "--agent goes with a goal"),
        (["-w", "missing.yaml"], "cannot be read"),
        (["-w", "greet.yaml", "-i", "whom"], "NAME=VALUE"),
        (["-w", "greet.yaml", "-i", "whom=a", "-i", "whom=b"], "given twice"),
        (["-w", "greet.yaml", "-i", "often=many"], "'often' must be of type integer"),
        (["-w", "greet.yaml", "-i", "zap=1"], "zap"),
        (["-w", "greet.yaml", "--tag", "Linux"], "is not a tag"),
        (["-w", "greet.yaml", "--device", "shell-1"], "HOST/SERIAL"),
        (["a goal", "--agent", "nothing"], "MODULE:FUNCTION"),
        (["-w", "greet.yaml", "--zap"], "--zap"),
    ],
)
def test_bad_input_gives_exit_two_and_says_what_to_change(running: Shell, arguments: list[str], said: str) -> None:
    done = running.run("submit", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("interlock: ")
    assert said in done.err


def test_devices_are_listed_and_taken_out_of_service_and_back(running: Shell) -> None:
    assert running.run("drain", "local/shell-2", "--reason", "new cable").out.strip() == "local/shell-2 is draining"
    listed = {each["name"]: each for each in running.run("devices", "--json").json["devices"]}
    assert (listed["local/shell-2"]["state"], listed["local/shell-2"]["service_reason"]) == ("draining", "new cable")
    assert "new cable" in running.run("devices").out
    done = running.run("quarantine", "local/shell-2", "--json")
    assert done.json == {"device": "local/shell-2", "outcome": "quarantined"}
    assert running.run("return", "local/shell-2").code == 0
    assert running.run("release", "local/shell-2").code == 0
    assert running.run("drain", "local/none").code == 3
    assert running.run("drain", "none").code == 2


def test_an_interrupted_wait_leaves_the_task_running_and_says_so(running: Shell) -> None:
    waiting = running.start("submit", "-w", "waiting.yaml", "--wait")
    task_id = until_line(waiting, "dispatched").split()[0]
    waiting.send_signal(signal.SIGINT)
    done = finished(waiting)
    assert done.code == 130
    assert f"{task_id} goes on" in done.err
    with Client.local(running.data) as client:
        assert client.get(task_id).task.status == "dispatched"
    shown = running.run("show", task_id)
    assert "under way" in shown.out
    assert running.run("cancel", task_id).out.strip() == f"{task_id} is running: its host was asked to stop it"
    with Client.local(running.data) as client:
        assert client.wait(task_id, 30.0).ended_at is not None
    shown = running.run("show", task_id)
    assert "in doubt: block" in shown.out
    assert running.run("submit", "-w", "greet.yaml", "--wait").code == 0


def test_the_doctor_finds_nothing_wrong_with_a_sound_fleet(running: Shell) -> None:
    done = running.run("doctor")
    assert (done.code, done.out.startswith("nothing found")) == (0, True), done.out
    assert running.run("doctor", "--json").json == {"violations": []}


def test_a_reader_that_leaves_early_is_no_error(running: Shell) -> None:
    process = running.start("tasks")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) in {0, 1}


def test_only_its_owner_reads_the_token(running: Shell) -> None:
    token: Path = running.data / "control" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert (running.data / "control").stat().st_mode & 0o777 == 0o700


def test_a_task_waits_no_longer_and_starts_no_sooner_than_it_was_told(running: Shell) -> None:
    impossible = running.run(
        "submit", "-w", "greet.yaml", "--tag", "no-such", "--queue-timeout", "0.2", "--wait", "--json"
    )
    assert (impossible.code, impossible.json["task"]["reason"]) == (1, "queue_timeout")
    held = running.run("submit", "-w", "greet.yaml", "--not-before", "2100-01-01T08:00:00Z").out.strip()
    assert "it is held until 2100-01-01 08:00:00 UTC: not_before" in running.run("why", held).out
    wrong = running.run("submit", "-w", "greet.yaml", "--not-before", "tomorrow")
    assert wrong.code == 2
    assert "%Y-%m-%dT%H:%M:%S%z" in wrong.err
