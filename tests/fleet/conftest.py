"""Fixtures: pools of devices on databases of the test's own, of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from databases import DatabaseClock, PostgresServer
from fleet.pools import Pool
from interlock.fleet.settings import FleetSettings
from interlock.guard.vault import Vault, new_key
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.testing.clock import ManualClock

MakePool = Callable[..., Pool]
OpenStore = Callable[[str, StoreTimes | None], SqliteStore | PostgresStore]


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = DatabaseClock()
    yield clock
    clock.close()


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: DatabaseClock) -> OpenStore:
    """Open stores of either kind that go by the test's clock; the same name opens the same database."""
    if request.param == "sqlite":
        return lambda name, times: SqliteStore.open(tmp_path / name, clock=clock, times=times)
    server: PostgresServer = request.getfixturevalue("postgres")
    urls: dict[str, str] = {}

    def open_postgres(name: str, times: StoreTimes | None) -> PostgresStore:
        if name not in urls:
            urls[name] = server.clocked()
        clock.lead(urls[name])
        return PostgresStore.open(urls[name], times=times)

    return open_postgres


@pytest.fixture
async def make_pool(open_store: OpenStore, clock: ManualClock) -> AsyncIterator[MakePool]:
    """Make pools on databases of the test; the same name opens the same database."""
    opened: list[Pool] = []
    stores: list[SqliteStore | PostgresStore] = []
    sealer = Vault([new_key()])

    def make(name: str = "fleet.db", times: StoreTimes | None = None, **settings: object) -> Pool:
        wanted = FleetSettings(**{"retry_first_seconds": 0.0, **settings})  # type: ignore[arg-type]
        store = open_store(name, times)
        stores.append(store)
        opened.append(Pool(store, clock, wanted, sealer))
        return opened[-1]

    yield make
    for pool in opened:
        if not pool.store.closed:
            assert await pool.fleet.violations() == []
        await pool.close()
    for store in stores:
        await store.close()


@pytest.fixture
async def pool(make_pool: MakePool) -> Pool:
    return make_pool()
