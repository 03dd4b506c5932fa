"""Durable checkpoints for whoever uses the run level alone. Each save appends what changed, chained by digests."""

from __future__ import annotations

from interlock.actions.stores.file import FileCheckpoints
from interlock.actions.stores.saves import RunSaves
from interlock.actions.stores.sqlite import SqliteCheckpoints

__all__ = ["FileCheckpoints", "RunSaves", "SqliteCheckpoints"]
