"""The worker's socket: one that floods it has a bounded room."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping

import pytest

from interlock.runners.channel import MAX_CALLS, Channel


@pytest.mark.contract("S-14")
async def test_a_flood_of_calls_is_answered_a_bounded_number_at_a_time() -> None:
    ours, theirs = socket.socketpair()
    channel = await Channel.over(ours)
    begun, go = 0, asyncio.Event()

    async def answer(call: str, arguments: Mapping[str, object]) -> object:
        nonlocal begun
        del call, arguments
        begun += 1
        await go.wait()
        return None

    serving = asyncio.create_task(channel.serve(answer, lambda *_: None))
    lines = b"".join(json.dumps({"id": number, "call": "output"}).encode() + b"\n" for number in range(1, 501))
    await asyncio.to_thread(theirs.sendall, lines)
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert begun == MAX_CALLS
    go.set()
    with theirs.makefile("rb") as answers:
        for _ in range(500):
            assert await asyncio.to_thread(answers.readline)
    theirs.close()
    await serving
    await channel.close()
    assert begun == 500
