"""What both stores do alike, whatever fleet stands on them: what was answered is there, and each fails alone."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys

import pytest

from databases import Databases
from interlock.errors import InterlockError, StoreHeld, Unavailable
from interlock.fleet.model import Constraints, HostId, LeaseId, TaskId
from interlock.fleet.store import Applied, Define, Outcome, Refused, RegisterHost, Renew, Replayed, Store, Submit
from interlock.fleet.strategies import strategy_named

RENEW_NOTHING = Renew(HostId("h"), LeaseId("none"), 1)


def define(number: int) -> Define:
    return Define(f"sha256:{number}", f"name {number}", "sealed")


def submit(number: int, *, most: int = 10_000, key: str | None = None, tag: str | None = None) -> Submit:
    return Submit(
        TaskId(f"task_{number}"),
        "goal",
        "label",
        "sealed",
        "sha256:body",
        None,
        Constraints(tags=frozenset() if tag is None else frozenset({tag})),
        strategy_named("fifo_match"),
        idempotency_key=key,
        max_queue_depth=most,
    )


async def all_at_once(store: Store, operations: list[Submit]) -> list[Outcome]:
    return [outcome for (outcome,) in await asyncio.gather(*(store.commit([each]) for each in operations))]


@pytest.mark.contract("F-91")
async def test_q69_a_newer_schema_is_refused_and_left_alone(databases: Databases) -> None:
    await databases.open().close()
    databases.execute(databases.set_schema.format(999))
    before = databases.execute("SELECT * FROM upkeep")
    with pytest.raises(StoreHeld, match="schema 999"):
        databases.open()
    assert databases.execute("SELECT * FROM upkeep") == before
    assert databases.schema() == 999


def _use_in_child(store: Store, said: multiprocessing.Queue[str]) -> None:
    for act in (store.commit([define(2)]), store.rows("shapes")):
        try:
            asyncio.run(act)
        except InterlockError as error:
            said.put(str(error))


@pytest.mark.contract("F-92")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_q59_a_store_used_after_a_fork_says_so(databases: Databases) -> None:
    store = databases.open()
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
async def test_operations_that_share_a_commit_fail_alone(databases: Databases) -> None:
    store = databases.open()
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


@pytest.mark.contract("F-93")
async def test_one_that_breaks_undoes_nothing_of_those_that_share_its_commit(databases: Databases) -> None:
    store = databases.open()
    broken = Define("sha256:broken", None, "sealed")  # type: ignore[arg-type]
    calls = [store.commit([broken if number == 7 else define(number)]) for number in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, Unavailable)] == [7]
    assert sum(isinstance(answer, list) for answer in answers) == 19
    await store.close()


PROGRAM = """
import asyncio, pathlib, sys
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.fleet.store import Define
async def main():
    where = sys.argv[1]
    store = PostgresStore.open(where) if "://" in where else SqliteStore.open(pathlib.Path(where))
    for number in range(10_000):
        await store.commit([Define(f"sha256:{number}", "n", "s")])
        print(number, flush=True)
asyncio.run(main())
"""


@pytest.mark.contract("F-94")
@pytest.mark.parametrize("answers", [1, 7, 40])
async def test_what_was_answered_is_there_after_a_kill(databases: Databases, answers: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, databases.where()], stdout=subprocess.PIPE)
    assert child.stdout is not None
    last = [int(child.stdout.readline()) for _ in range(answers)][-1]
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    child.stdout.close()
    store = databases.open()
    for number in range(last + 1):
        assert await store.rows("workflow", digest=f"sha256:{number}")
    await store.close()


def test_a_program_that_forgets_to_close_its_store_ends_all_the_same(databases: Databases) -> None:
    program = PROGRAM.replace("10_000", "3")
    done = subprocess.run(
        [sys.executable, "-c", program, databases.where()], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


async def test_a_closed_store_says_so(databases: Databases) -> None:
    store = databases.open()
    await store.close()
    await store.close()
    for act in (store.commit([]), store.rows("shapes")):
        with pytest.raises(Unavailable):
            await act


@pytest.mark.contract("F-03")
async def test_the_queue_never_holds_more_than_it_may_however_many_submit_at_once(databases: Databases) -> None:
    store = databases.open()
    outcomes = await all_at_once(store, [submit(number, most=7) for number in range(30)])
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 7
    assert {outcome.code for outcome in outcomes if isinstance(outcome, Refused)} == {"queue_full"}
    assert await store.rows("broken_depth") == []
    await store.close()


@pytest.mark.contract("F-05")
async def test_one_key_submitted_by_many_at_once_makes_one_task(databases: Databases) -> None:
    store = databases.open()
    outcomes = await all_at_once(store, [submit(number, key="once") for number in range(20)])
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 1
    assert len({outcome.value for outcome in outcomes if isinstance(outcome, (Applied, Replayed))}) == 1
    assert await store.rows("depth") == [{"queued": 1}]
    await store.close()


@pytest.mark.contract("F-07")
async def test_empty_shapes_make_room_for_others(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.stores.queue.MAX_LIVE_SHAPES", 2)
    store = databases.open()
    outcomes = [(await store.commit([submit(number, tag=f"t{number}")]))[0] for number in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Applied, Applied, Refused]
    databases.execute("DELETE FROM ready WHERE task = 'task_0'")
    ((after,),) = [await store.commit([submit(3, tag="t3")])]
    assert isinstance(after, Applied)
    assert [row["wanted"] for row in await store.rows("shapes")] == ['[null,["t1"]]', '[null,["t3"]]']
    await store.close()
