"""`serve`, `host` and `host-token`: what each refuses before it does anything, and what it says."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import psycopg
import pytest

from cli.conftest import Shell, stopped, until_line
from databases import PostgresServer

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of a server that ends with its test


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, str]]:
    """Commands beside one `serve` that they find by its address and its token."""
    made = Shell(tmp_path_factory.mktemp("served"), environment={"INTERLOCK_TOKEN": TOKEN})
    process = made.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    yield made, url
    made.close()


@pytest.mark.contract("S-16")
def test_serve_says_where_it_listens_and_stops_at_once_beside_a_waiting_host(shell: Shell) -> None:
    server = shell.start("serve", "--port", "0")
    url = re.search(r"http://127\.0\.0\.1:[0-9]+", until_line(server, "listens on"))
    assert url is not None
    until_line(server, "interlock host-token NAME")
    (shell.home / "token").write_text(shell.run("host-token", "bench").out)
    host = shell.start("host", "--server", url[0], "--token-file", "token", "--data", "bench", "--device", "d1::linux")
    until_line(host, "has heard of this host")
    assert until_line(host, "d1").split() == ["d1", "shell", "linux"]
    until_line(host, "stop with Ctrl-C")
    done = stopped(server, signal.SIGTERM)
    assert (done.code, done.err) == (0, "finishing what is in flight, press again to stop at once\n")
    assert stopped(host).code == 0


@pytest.mark.contract("S-16")
def test_commands_on_another_machine_find_the_server_by_the_environment(served: tuple[Shell, str]) -> None:
    shell, url = served
    home = shell.home / "elsewhere"
    home.mkdir()
    elsewhere = Shell(home, environment={"INTERLOCK_DATA_DIR": "", "XDG_DATA_HOME": str(home)})
    assert elsewhere.run("tasks").code == 5
    elsewhere.environment["INTERLOCK_SERVER"] = url
    without = elsewhere.run("tasks")
    assert (without.code, "set INTERLOCK_TOKEN" in without.err) == (2, True)
    elsewhere.environment["INTERLOCK_TOKEN"] = TOKEN
    task = elsewhere.submitted("-w", "greet.yaml")
    assert task in elsewhere.run("tasks").out
    assert elsewhere.run("tasks", "--data", str(elsewhere.data)).code == 5
    elsewhere.environment["INTERLOCK_TOKEN"] = TOKEN[::-1]
    wrong = elsewhere.run("tasks", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (4, "not_permitted")
    elsewhere.close()


@pytest.mark.contract("S-20")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--server", "http://127.0.0.1:1", "--token", TOKEN], 5, "no control plane answers at http://127.0.0.1:1"),
        (["--server", "{url}", "--token", "not-the-token-of-a-host"], 4, "interlock host-token NAME"),
        (["--server", "{url}", "--token", TOKEN], 4, "interlock host-token NAME"),
        (["--server", "elsewhere", "--token", TOKEN], 2, "is a URL such as"),
        (["--server", "{url}"], 2, "--token-file or INTERLOCK_HOST_TOKEN"),
        (["--server", "{url}", "--token-file", "missing"], 2, "missing cannot be read"),
        (["--token", TOKEN], 2, "INTERLOCK_SERVER"),
        (["--server", "{url}", "--token", TOKEN, "--device", "d1:nodriver"], 2, "nodriver"),
    ],
)
def test_what_a_host_cannot_start_with_is_said(
    served: tuple[Shell, str], arguments: list[str], code: int, said: str
) -> None:
    shell, url = served
    done = shell.run("host", "--data", "host", *(each.format(url=url) for each in arguments))
    assert done.code == code, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert TOKEN not in done.err


@pytest.mark.contract("S-20")
def test_a_token_of_a_host_is_its_own_and_a_new_one_ends_the_old(served: tuple[Shell, str]) -> None:
    shell, url = served
    first = shell.run("host-token", "rack", "--json").json
    second = shell.run("host-token", "rack", "--json").json
    assert (first["host"], first["token"] != second["token"]) == ("rack", True)
    old = shell.run("host", "--server", url, "--token", first["token"], "--data", "rack")
    assert (old.code, "not known" in old.err) == (4, True)
    host = shell.start("host", "--server", url, "--token", second["token"], "--data", "rack", "--device", "d7")
    until_line(host, "has heard of this host")
    assert "rack/d7" in shell.run("devices").out
    assert stopped(host).code == 0
    own = shell.run("host-token", "local")
    assert (own.code, "interlock up" in own.err) == (4, True)
    assert shell.run("host-token", "no/name").code == 2


@pytest.mark.contract("S-20")
def test_a_schema_that_is_newer_is_told_and_left_alone(shell: Shell, postgres: PostgresServer) -> None:
    url = postgres.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE interlock_schema SET version = 9999")
    done = shell.run("serve", "--port", "0", "--database", url)
    assert (done.code, "use the newer program" in done.err) == (5, True)


@pytest.mark.contract("S-20")
@pytest.mark.parametrize(
    ("arguments", "token", "said"),
    [
        (["--database", "postgresql://["], "", "no address of a database"),
        (["--listen", "nowhere.invalid"], "", "--listen"),
        (["--listen", "192.0.2.1"], "", "cannot be listened on"),
        ([], "short", "at least 16 characters"),
    ],
)
def test_what_serve_cannot_take_is_said(shell: Shell, arguments: list[str], token: str, said: str) -> None:
    shell.environment["INTERLOCK_TOKEN"] = token
    done = shell.run("serve", "--port", "0", *arguments)
    assert done.code == 2, done.err
    assert said in done.err
    assert "Traceback" not in done.err


def test_serve_warns_where_others_can_reach_it(shell: Shell) -> None:
    server = shell.start("serve", "--port", "0", "--listen", "0.0.0.0")  # noqa: S104 - that is what is warned of
    until_line(server, "WARNING  others can reach it")
    assert shell.run("tasks").code == 0
    assert stopped(server).code == 0
