"""The PostgreSQL store itself: several of them on one database, lost connections, one clock, one migration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest

from databases import DatabaseClock, PostgresDatabases, PostgresServer
from fleet.pools import DONE, Pool, shell
from interlock.errors import InterlockError, InvalidInput, LeaseSuperseded, StoreHeld, Unavailable
from interlock.fleet.model import Constraints, HostId, TaskId
from interlock.fleet.settings import FleetSettings
from interlock.fleet.store import Applied, Cancel, Define, Outcome, RegisterHost, Replayed, Submit, Sweep
from interlock.fleet.strategies import strategy_named
from interlock.guard.vault import Vault, new_key
from interlock.stores.postgres import PostgresStore, _as_unavailable
from interlock.stores.postgres_transaction import PostgresTransaction
from interlock.stores.times import StoreTimes


@pytest.fixture
def database(postgres: PostgresServer, clock: DatabaseClock) -> PostgresDatabases:
    return PostgresDatabases(postgres, clock)


def define(number: int) -> Define:
    return Define(f"sha256:{number}", f"name {number}", "sealed")


def submit(number: int, *, most: int = 10_000, tags: frozenset[str] = frozenset()) -> Submit:
    constraints, ranker = Constraints(tags=tags), strategy_named("fifo_match")
    task = TaskId(f"task_{number}")
    return Submit(task, "goal", "l", "s", "sha256:b", None, constraints, ranker, max_queue_depth=most)


async def on_both(stores: list[PostgresStore], operations: list[Submit]) -> list[Outcome]:
    calls = [stores[place % len(stores)].commit([each]) for place, each in enumerate(operations)]
    return [outcome for (outcome,) in await asyncio.gather(*calls)]


def end_connections(database: PostgresDatabases) -> None:
    """Kill every backend of the database but the one that asks."""
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


@pytest.mark.contract("F-03", "F-98")
async def test_several_servers_together_never_queue_more_than_they_may(database: PostgresDatabases) -> None:
    stores = [database.open() for _ in range(3)]
    outcomes = await on_both(stores, [submit(number, most=40) for number in range(120)])
    assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 40
    assert await stores[0].rows("depth") == [{"queued": 40}]
    assert await stores[0].rows("broken_depth") == []
    for store in stores:
        await store.close()


@pytest.mark.contract("F-98")
async def test_several_servers_make_the_same_shapes_without_waiting_for_each_other(database: PostgresDatabases) -> None:
    stores = [database.open() for _ in range(2)]
    wanted = [frozenset({f"t{number % 10}"}) for number in range(100)]
    outcomes = await on_both(stores, [submit(number, tags=tags) for number, tags in enumerate(wanted)])
    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    assert len(await stores[0].rows("shapes")) == 10
    for store in stores:
        await store.close()


def fleet_on(store: PostgresStore, clock: DatabaseClock, vault: Vault) -> Pool:
    return Pool(store, clock, FleetSettings(retry_first_seconds=0.0, max_queue_depth=1_000), vault)


@pytest.mark.contract("F-98")
async def test_schedulers_of_several_servers_give_each_device_and_task_once(
    database: PostgresDatabases, clock: DatabaseClock
) -> None:
    vault = Vault([new_key()])
    pools = [fleet_on(database.open(), clock, vault) for _ in range(3)]
    sessions = [await pools[0].host(f"h{number}", *(shell(f"d{each}") for each in range(4))) for number in range(3)]
    tasks = [await pools[number % 3].goal() for number in range(40)]
    done = 0
    for turn in range(30):
        await asyncio.gather(*(pool.scheduler.assign() for pool in pools))
        claims = [session.claim(f"claim {turn} {session.host}", 4, 0.0) for session in sessions]
        for session, assignments in zip(sessions, await asyncio.gather(*claims), strict=True):
            ends = [session.finish(each.lease_id, DONE, stopped=True, clean=True) for each in assignments]
            done += len(await asyncio.gather(*ends))
        assert await pools[0].fleet.violations() == []
        if done == len(tasks):
            break
    assert done == len(tasks)
    assert {await pools[1].status(task) for task in tasks} == {"done"}
    for pool in pools:
        await pool.close()


@pytest.mark.contract("F-98", "F-35")
async def test_cancels_that_race_grants_and_reports_always_have_an_answer(
    database: PostgresDatabases, clock: DatabaseClock
) -> None:
    vault = Vault([new_key()])
    here, there = (fleet_on(database.open(), clock, vault) for _ in range(2))
    session = await here.host("h1", *(shell(f"d{each}") for each in range(4)))
    for turn in range(12):
        tasks = [await here.goal() for _ in range(4)]
        cancels = [there.store.commit([Cancel(task)]) for task in tasks]
        await asyncio.gather(here.scheduler.assign(), *cancels[:2])
        claimed = asyncio.create_task(session.claim(f"claim {turn}", 4, 0.0))
        answers = await asyncio.gather(*cancels[2:])
        assert all(isinstance(outcome, Applied) for (outcome,) in answers)
        for each in await claimed:
            await session.finish(each.lease_id, DONE, stopped=True, clean=True)
        assert await here.fleet.violations() == []
    for pool in (here, there):
        await pool.close()


@pytest.mark.contract("F-96")
async def test_killed_connections_are_seen_by_no_caller(database: PostgresDatabases) -> None:
    store = database.open()
    outcomes = []
    for number in range(0, 60, 10):
        calls = [store.commit([define(each)]) for each in range(number, number + 10)]
        end_connections(database)
        outcomes += await asyncio.gather(*calls)
        end_connections(database)
        assert len(await store.rows("workflow", digest=f"sha256:{number}")) == 1
    assert all(isinstance(outcome, Applied) for (outcome,) in outcomes)
    await store.close()


@pytest.mark.contract("F-97")
@pytest.mark.parametrize("before", [True, False])
async def test_a_commit_whose_answer_was_lost_is_asked_after(
    database: PostgresDatabases, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    """The connection is killed on one side of the commit: what is answered is what became of it, done once."""
    store = database.open()
    await store.commit([define(0)])
    commit: Callable[[PostgresTransaction], None] = PostgresTransaction.commit
    left = [1]

    def lost(tx: PostgresTransaction) -> None:
        if not left:
            commit(tx)
            return
        left.pop()
        if not before:
            commit(tx)
        end_connections(database)
        tx._connection.execute("SELECT 1")

    monkeypatch.setattr(PostgresTransaction, "commit", lost)
    assert await store.commit([define(1)]) == [Applied()]
    assert await store.commit([define(1)]) == [Replayed()]
    await store.close()


@pytest.mark.contract("F-99")
def test_programs_that_start_together_migrate_once(postgres: PostgresServer) -> None:
    url = postgres.empty()
    faults: list[BaseException] = []

    def start() -> None:
        try:
            asyncio.run(PostgresStore.open(url).close())
        except InterlockError as error:
            faults.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    with psycopg.connect(url) as connection:
        versions = connection.execute("SELECT version FROM interlock_schema").fetchall()
    assert len(versions) == len(set(versions))


@pytest.mark.contract("F-99")
async def test_a_migration_that_another_program_holds_up_is_told(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.empty()
    short = "BEGIN; SET LOCAL lock_timeout = '50ms';"
    monkeypatch.setattr("interlock.stores.postgres_schema._MIGRATE", short)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(7304, 0)")
        with pytest.raises(StoreHeld, match="migrating"):
            PostgresStore.open(url)
    await PostgresStore.open(url).close()


@pytest.mark.parametrize("url", ["postgresql://[", "host=nowhere port", "postgres://x?sslmode"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="no address of a database"):
        PostgresStore.open(url)


def test_a_server_that_is_not_there_is_told_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.stores.postgres.OPEN_SECONDS", 0.3)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/fleet cannot be reached") as told:
        PostgresStore.open("postgresql://me:secret@127.0.0.1:1/fleet")
    assert "secret" not in str(told.value)


@pytest.mark.contract("F-38")
async def test_a_clock_that_is_put_back_goes_on_from_where_it_was(
    database: PostgresDatabases, clock: DatabaseClock
) -> None:
    store = database.open()
    await store.commit([define(1)])
    told = clock.now()
    clock.step_to(told - 3600 * 1_000_000)
    await store.commit([define(2)])
    clock.advance(10)
    await store.commit([Sweep()])
    (now,) = await store.rows("clock")
    assert told + 9 * 1_000_000 <= int(str(now["now"])) <= told + 10 * 1_000_000
    await store.close()


@pytest.mark.contract("F-39")
async def test_after_an_outage_the_first_server_gives_every_lease_its_grace_before_anything_else(
    database: PostgresDatabases, clock: DatabaseClock
) -> None:
    vault = Vault([new_key()])
    pool = Pool(database.open(StoreTimes(grace=20.0)), clock, FleetSettings(), vault)
    session = await pool.host("h1", shell("d1"))
    await pool.goal()
    lease = (await pool.running(session)).lease_id
    clock.advance(3600)
    await session.renew(lease)
    await pool.pass_time(61)
    with pytest.raises(LeaseSuperseded):
        await session.renew(lease)
    await pool.close()


async def test_a_statement_that_waits_for_a_lock_too_long_is_given_up_and_told(
    database: PostgresDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.postgres._WAITS", (0.0, 0.0))
    monkeypatch.setattr("interlock.stores.postgres_transaction._BEGIN", "BEGIN; SET LOCAL lock_timeout = '20ms';")
    store = database.open()
    await store.commit([RegisterHost(HostId("h1"), "hash")])
    with psycopg.connect(database.where()) as connection:
        connection.execute("SELECT * FROM host FOR UPDATE")
        with pytest.raises(Unavailable, match="LockNotAvailable"):
            await store.commit([RegisterHost(HostId("h1"), "other")])
    assert await store.commit([RegisterHost(HostId("h1"), "other")]) == [Applied()]
    await store.close()


@pytest.mark.contract("F-114")
def test_a_full_disk_is_told_as_what_it_is() -> None:
    assert "is full" in str(_as_unavailable(psycopg.errors.DiskFull()))
