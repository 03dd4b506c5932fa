"""The two halves as processes of their own, on either database: each may be killed and come back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from databases import PostgresServer
from integration.halves import Half, Halves
from integration.system import until
from interlock.fleet.service import SubmitRequest, WorkflowRequest
from interlock.fleet.views import TaskDetail
from interlock.guard.vault import new_key

STEPS = """
name: steps
steps:
  one: {tool: "tool:interlock.shell/run", with: {command: "echo one >> ledger.txt"}}
  two:
    tool: tool:interlock.shell/run
    with: {command: "echo two >> ledger.txt; while [ ! -e go ]; do sleep 0.02; done"}
    needs: [one]
  three: {tool: "tool:interlock.shell/run", with: {command: "echo three >> ledger.txt"}, needs: [two]}
"""
READS = """
name: reads
steps:
  one: {tool: "tool:interlock.shell/run", with: {command: "echo one >> ledger.txt"}}
  two: {tool: "tool:interlock.shell/wait", with: {path: go, timeout_seconds: 300}, needs: [one]}
  three: {tool: "tool:interlock.shell/run", with: {command: "echo three >> ledger.txt"}, needs: [two]}
"""
KEY = "INTERLOCK_VAULT_KEY"


@pytest.fixture
def halves(tmp_path: Path) -> Iterator[Halves]:
    made = Halves(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh()


def submitted(server: Half, text: str) -> str:
    with server.client() as client:
        return client.submit(SubmitRequest(WorkflowRequest(text=text)))


def ended(server: Half, task: str) -> TaskDetail:
    with server.client() as client:
        client.wait(task, 50)
        return client.get(task)


def ends(detail: TaskDetail) -> list[str | None]:
    return [attempt.end for attempt in detail.attempts]


def ledger(host: Half, name: str = "ledger.txt") -> list[str]:
    path = directory(host) / name
    return path.read_text("utf-8").split() if path.exists() else []


def directory(host: Half) -> Path:
    return host.data / "devices" / "d1"


def check_sound(server: Half) -> None:
    with server.client() as client:
        assert client.violations() == []


@pytest.mark.contract("S-16")
def test_a_host_registers_by_its_token_and_runs_what_is_submitted(halves: Halves, database: str | None) -> None:
    server = halves.server(database)
    assert urlsplit(server.greeting["url"]).hostname == "127.0.0.1"
    host = halves.host(server)
    with server.client() as client:
        assert [(each.name, each.tags) for each in client.devices()] == [("bench/d1", ("linux",))]
    (directory(host) / "go").touch()
    done = ended(server, submitted(server, STEPS))
    assert (done.task.status, ends(done), ledger(host)) == ("done", ["done"], ["one", "two", "three"])
    assert (server.data / "control" / "interlock.db").exists() == (database is None)
    assert not (host.data / "control" / "token").exists()
    check_sound(server)
    for half in (host, server):
        code, said = half.end(signal.SIGTERM)
        assert (code, "Traceback" in said) == (0, False)


@pytest.mark.contract("S-17")
def test_a_server_that_is_killed_and_comes_back_finds_the_attempt_at_work(halves: Halves, database: str | None) -> None:
    server = halves.server(database)
    host = halves.host(server)
    task = submitted(server, STEPS)
    queued = submitted(server, STEPS.replace("ledger", "later"))
    until(lambda: "two" in ledger(host), "the second effect begins")
    server.end(signal.SIGKILL)
    (directory(host) / "go").touch()
    server.start("--port", str(urlsplit(server.greeting["url"]).port))
    done = ended(server, task)
    assert (done.task.status, ends(done), ledger(host)) == ("done", ["done"], ["one", "two", "three"])
    after = ended(server, queued)
    assert (after.task.status, ledger(host, "later.txt")) == ("done", ["one", "two", "three"])
    with server.client() as client:
        assert [each.present for each in client.devices()] == [True]
    check_sound(server)


@pytest.mark.contract("S-18")
@pytest.mark.parametrize("workflow", [READS, STEPS], ids=["in a read", "in an effect"])
def test_a_host_that_is_killed_and_comes_back_gives_back_what_it_held(
    halves: Halves, database: str | None, workflow: str
) -> None:
    server = halves.server(database)
    host = halves.host(server)
    task = submitted(server, workflow)
    with server.client() as client:
        until(lambda: client.get(task).runs and client.get(task).runs[-1].states["two"] == "running", "two begins")
    in_doubt = workflow is STEPS
    if in_doubt:
        until(lambda: "two" in ledger(host), "the second effect begins")
    host.end(signal.SIGKILL)
    (directory(host) / "go").touch()
    host.start()
    done = ended(server, task)
    if in_doubt:
        assert (done.task.status, done.task.reason, done.task.in_doubt) == ("failed", "review_required", ("two",))
        assert ledger(host) == ["one", "two"]
    else:
        assert (done.task.status, ends(done)) == ("done", ["worker_lost", "done"])
        assert ledger(host) == ["one", "three"]
    check_sound(server)


@pytest.mark.contract("S-19")
def test_two_servers_on_one_database_are_one_control_plane(halves: Halves, postgres: PostgresServer) -> None:
    database, key = postgres.fresh(), new_key()
    first = halves.server(database, name="first", **{KEY: key})
    second = halves.server(database, name="second", **{KEY: key})
    host = halves.host(second)
    (directory(host) / "go").touch()
    task = submitted(first, STEPS)
    done = ended(first, task)
    assert (done.task.status, ledger(host)) == ("done", ["one", "two", "three"])
    assert done.outputs == ended(second, task).outputs
    first.end(signal.SIGKILL)
    assert ended(second, submitted(second, STEPS)).task.status == "done"
    check_sound(second)
    other = first.call("serve", "--port", "0", "--database", database, **{KEY: new_key()})
    assert (other.returncode, f"{KEY}: " in other.stderr, "another key" in other.stderr) == (5, True, True)


def test_a_data_directory_has_one_server_and_one_host(halves: Halves, postgres: PostgresServer) -> None:
    server = halves.server(postgres.fresh())
    host = halves.host(server)
    again = server.call("serve", "--port", "0", "--database", server.arguments[-1])
    assert server.process is not None
    assert (again.returncode, f"process {server.process.pid}" in again.stderr) == (5, True)
    twice = host.call(*host.arguments)
    assert host.process is not None
    assert (twice.returncode, f"process {host.process.pid}" in twice.stderr) == (5, True)
    with server.client() as client:
        assert [each.present for each in client.devices()] == [True]
