"""Work that must reach its end although its caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def to_the_end(work: Coroutine[Any, Any, _Result]) -> tuple[_Result, bool]:
    """What the work returned, and whether a cancellation came meanwhile: the caller must then stop.

    For work that is bounded by itself alone: a write to the ledger, a process tree being ended.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    return task.result(), cancelled
