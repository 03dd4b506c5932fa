"""The demo ends as it must, and its verdict comes from the database."""

from __future__ import annotations

import json
import subprocess

import pytest

from integration.system import command
from interlock.cli.demo import work


@pytest.mark.contract("S-09")
def test_the_demo_ends_with_a_verdict_on_every_task() -> None:
    done = subprocess.run(command("demo", "--json"), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert [(task["title"], task["fault"]) for task in report["tasks"]] == [(each.title, None) for each in work.plan()]
    ends = {task["title"]: task["detail"] for task in report["tasks"]}
    assert [attempt["end"] for attempt in ends["read cut off, sensor"]["attempts"]] == ["worker_lost", "done"]
    assert ends["effect cut off, oven"]["task"]["in_doubt"] == ["burn"]
    assert ends["trail, camera"]["task"]["result"]["way"][0] == "a.txt"
    assert len(ends["trail, camera"]["runs"]) >= 4
