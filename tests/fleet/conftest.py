"""Fixtures: pools of devices on files of the test's own directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fleet.pools import Pool
from interlock.fleet.settings import FleetSettings
from interlock.guard.vault import Vault, new_key
from interlock.stores.sqlite import SqliteStore, StoreTimes
from interlock.testing.clock import ManualClock

MakePool = Callable[..., Pool]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_pool(tmp_path: Path, clock: ManualClock) -> AsyncIterator[MakePool]:
    """Make pools on files of the test's directory; the same name opens the same database."""
    opened: list[Pool] = []
    stores: list[SqliteStore] = []
    sealer = Vault([new_key()])

    def make(name: str = "fleet.db", times: StoreTimes | None = None, **settings: object) -> Pool:
        wanted = FleetSettings(**{"retry_first_seconds": 0.0, **settings})  # type: ignore[arg-type]
        store = SqliteStore.open(tmp_path / name, clock=clock, times=times)
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
