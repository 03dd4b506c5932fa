"""The SQLite store itself: one owner, one writer, and what was answered is there."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.errors import InterlockError, InvalidInput, StoreHeld, Unavailable
from interlock.fleet.model import HostId, LeaseId
from interlock.fleet.store import Applied, Define, Refused, RegisterHost, Renew
from interlock.stores.sqlfile import parse_queries, queries
from interlock.stores.sqlite import SqliteStore

# What PostgreSQL alone is asked, beside its locks.
ONLY_POSTGRES = {
    "schema_there",
    "make_schema",
    "schema",
    "keep_schema",
    "begin",
    "xact_status",
    "connections",
    "resume_clock",
}
RENEW_NOTHING = Renew(HostId("h"), LeaseId("none"), 1)


def define(number: int) -> Define:
    return Define(f"sha256:{number}", f"name {number}", "sealed")


@pytest.mark.contract("F-90")
async def test_a_second_process_is_told_who_holds_the_database(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    program = (
        "import sys, pathlib; from interlock.stores.sqlite import SqliteStore as S; S.open(pathlib.Path(sys.argv[1]))"
    )
    second = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "fleet.db")], capture_output=True, text=True, check=False
    )
    assert second.returncode != 0
    assert f"StoreHeld: {tmp_path / 'fleet.db'} is held by process {os.getpid()}" in second.stderr
    await store.close()
    following = SqliteStore.open(tmp_path / "fleet.db")
    with pytest.raises(StoreHeld):
        SqliteStore.open(tmp_path / "fleet.db")
    await following.close()


@pytest.mark.contract("F-91")
async def test_q69_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    await SqliteStore.open(tmp_path / "fleet.db").close()
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = (tmp_path / "fleet.db").read_bytes()
    with pytest.raises(StoreHeld, match="schema 999"):
        SqliteStore.open(tmp_path / "fleet.db")
    assert (tmp_path / "fleet.db").read_bytes() == before


def _use_in_child(store: SqliteStore, said: multiprocessing.Queue[str]) -> None:
    for act in (store.commit([define(2)]), store.rows("shapes")):
        try:
            asyncio.run(act)
        except InterlockError as error:
            said.put(str(error))


@pytest.mark.contract("F-92")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_q59_a_store_used_after_a_fork_says_so(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    await store.commit([define(1)])
    context = multiprocessing.get_context("fork")
    said: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_use_in_child, args=(store, said))
    child.start()
    texts = [await asyncio.to_thread(said.get, timeout=20) for _ in range(2)]
    await asyncio.to_thread(child.join, 20)
    assert all("open it in the process that uses it" in text for text in texts)
    assert isinstance((await store.commit([define(2)]))[0], Applied)
    await store.close()


@pytest.mark.contract("F-93")
async def test_operations_that_share_a_commit_fail_alone(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    calls = [store.commit([define(number), RENEW_NOTHING, define(number + 100)]) for number in range(50)]
    broken = store.commit([define(1000), RegisterHost(HostId("h"), None)])  # type: ignore[arg-type]
    *answers, fault = await asyncio.gather(*calls, broken, return_exceptions=True)
    assert isinstance(fault, Unavailable)
    for answer in answers:
        assert isinstance(answer, list)
        assert [type(outcome) for outcome in answer] == [Applied, Refused, Applied]
    assert len(await store.rows("workflow", digest="sha256:1000")) == 0
    assert len(await store.rows("workflow", digest="sha256:149")) == 1
    await store.close()


PROGRAM = """
import asyncio, pathlib, sys
from interlock.stores.sqlite import SqliteStore
from interlock.fleet.store import Define
async def main():
    store = SqliteStore.open(pathlib.Path(sys.argv[1]))
    for number in range(10_000):
        await store.commit([Define(f"sha256:{number}", "n", "s")])
        print(number, flush=True)
asyncio.run(main())
"""


@pytest.mark.contract("F-94")
@pytest.mark.parametrize("answers", [1, 7, 40])
async def test_what_was_answered_is_there_after_a_kill(tmp_path: Path, answers: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "fleet.db")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    last = [int(child.stdout.readline()) for _ in range(answers)][-1]
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    child.stdout.close()
    store = SqliteStore.open(tmp_path / "fleet.db")
    for number in range(last + 1):
        assert await store.rows("workflow", digest=f"sha256:{number}")
    await store.close()


def test_a_program_that_forgets_to_close_its_store_ends_all_the_same(tmp_path: Path) -> None:
    program = PROGRAM.replace("10_000", "3")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "fleet.db")], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    for path in (None, tmp_path / "fleet.db"):
        store = SqliteStore.open(path)
        await store.close()
        await store.close()
        for act in (store.commit([]), store.rows("shapes")):
            with pytest.raises(Unavailable):
                await act


def test_the_database_is_written_through_to_the_disk(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "fleet.db")
    connection = store._connect()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    asyncio.run(store.close())


def test_every_query_is_named_once_and_has_a_form_for_each_database() -> None:
    alone = queries("postgres").keys() - queries("sqlite").keys()
    assert queries("sqlite").keys() <= queries("postgres").keys()
    assert all(name.startswith("lock_") or name in ONLY_POSTGRES for name in alone)
    assert all(queries("sqlite").values())
    assert all(queries("postgres").values())
    text = "-- one: It is one.\nSELECT 1;\n-- one: It is one again.\nSELECT 2;\n"
    with pytest.raises(InvalidInput, match="line 3"):
        parse_queries(text, "sqlite")
