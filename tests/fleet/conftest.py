"""Fixtures: pools of devices on databases of the test's own, of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from databases import Databases
from fleet.pools import Pool
from interlock.fleet.settings import FleetSettings
from interlock.guard.vault import Vault, new_key
from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.testing.clock import ManualClock

MakePool = Callable[..., Pool]


@pytest.fixture
async def make_pool(databases: Databases, clock: ManualClock) -> AsyncIterator[MakePool]:
    """Make pools on databases of the test; the same name opens the same database."""
    opened: list[Pool] = []
    stores: list[SqliteStore | PostgresStore] = []
    sealer = Vault([new_key()])

    def make(name: str = "fleet.db", times: StoreTimes | None = None, **settings: object) -> Pool:
        wanted = FleetSettings(**{"retry_first_seconds": 0.0, **settings})  # type: ignore[arg-type]
        store = databases.open(times, name)
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
