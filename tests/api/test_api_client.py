"""What the clients do by themselves: threads, tries, keys, addresses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock
from api.conftest import EVERYTHING, Served, goal, serving, shell
from interlock import Client
from interlock.api.client import RemoteFleet, RemoteHostSession
from interlock.errors import Conflict, InvalidInput, NotFound, NotPermitted, Unavailable
from interlock.fleet.model import DeviceRef, HandOver, HostId, LeaseId

Handler = Callable[[dict[str, Any], int], tuple[int, object]]


class Flaky:
    """A real server that answers as it is told, and counts."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers = answers
        self.bodies: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, document = self.answers[min(len(self.bodies), len(self.answers) - 1)]
        self.bodies.append(json.loads(body) if body else None)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})


BUSY = (503, {"code": "unavailable", "detail": "not now", "facts": {}})


async def test_the_client_without_asyncio_does_the_same_from_a_thread(served: Served) -> None:
    def whole_life() -> list[str]:
        with Client(served.url, EVERYTHING) as client:
            task_id = client.submit(goal())
            device = DeviceRef(HostId("h1"), "d1")
            client.set_service(device, "quarantined", "dust")
            said = [client.get(task_id).task.status, client.tasks()[0].status, client.devices()[0].state]
            client.set_service(device, "in_service", None)
            client.force_release(device)
            with pytest.raises(Conflict):
                client.forget_device(device)
            said += [client.why(task_id).status, client.wait(task_id, 0.05).status, client.cancel(task_id).outcome]
            with pytest.raises(NotFound):
                client.get("task_none")
            return [*said, str(client.health().tasks), str(client.violations())]

    async with served.host("h1", shell()):
        said = await asyncio.to_thread(whole_life)
    assert said == ["queued", "queued", "quarantined", "queued", "queued", "cancelled", "{'cancelled': 1}", "[]"]


async def test_a_submission_is_sent_again_under_the_same_key() -> None:
    server = Flaky(BUSY, BUSY, (201, {"task_id": "task_1"}))
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        assert await fleet.submit(goal()) == "task_1"
        assert await fleet.submit(goal()) == "task_1"
    keys = [body["idempotency_key"] for body in server.bodies]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


async def test_the_callers_key_is_kept() -> None:
    server = Flaky((201, {"task_id": "task_1"}))
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        await fleet.submit(goal(idempotency_key="mine"))
    assert server.bodies[0]["idempotency_key"] == "mine"


async def test_tries_are_bounded() -> None:
    server = Flaky(BUSY)
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        with pytest.raises(Unavailable, match="not now"):
            await fleet.tasks()
    assert len(server.bodies) == 3


async def test_the_client_without_asyncio_tries_as_often() -> None:
    server = Flaky(BUSY)
    async with serving(server) as url:
        with Client(url, "t") as client, pytest.raises(Unavailable, match="not now"):
            await asyncio.to_thread(client.tasks)
    assert len(server.bodies) == 3


async def test_what_must_not_be_done_twice_is_sent_once() -> None:
    server = Flaky(BUSY)
    async with serving(server) as url:
        async with RemoteFleet(url, "t") as fleet:
            with pytest.raises(Unavailable):
                await fleet.force_release(DeviceRef(HostId("h"), "d"))
        session = RemoteHostSession(url, "t")
        with pytest.raises(Unavailable):
            await session.hand_over(LeaseId("l"), HandOver("r", "a", "t", "d"))
        await session.close()
    assert len(server.bodies) == 2


async def test_an_error_that_stands_is_not_tried_again() -> None:
    server = Flaky((401, {"code": "not_permitted", "detail": "no", "facts": {}}))
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        with pytest.raises(NotPermitted):
            await fleet.tasks()
    assert len(server.bodies) == 1


async def test_an_answer_of_another_version_says_so() -> None:
    server = Flaky((200, {"zap": 1}))
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        with pytest.raises(Unavailable, match="same version"):
            await fleet.tasks()


async def test_keys_that_a_newer_server_added_are_passed_over() -> None:
    server = Flaky((200, {"tasks": [], "more": 1}))
    async with serving(server) as url, RemoteFleet(url, "t") as fleet:
        assert await fleet.tasks() == []


@pytest.mark.parametrize("url", ["", "127.0.0.1:7410", "ftp://x", "http://", "http://[::"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="address"):
        Client(url, "t")


async def test_the_local_client_reads_what_up_wrote(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "data" / "control"
    control.mkdir(parents=True)
    monkeypatch.setenv("INTERLOCK_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(Unavailable, match="interlock up"):
        Client.local()
    (control / "address").write_text(served.url + "\n")
    (control / "token").write_text(EVERYTHING + "\n")
    with Client.local() as client, Client.local(tmp_path / "data") as same:
        assert await asyncio.to_thread(client.tasks) == await asyncio.to_thread(same.tasks) == []


def test_every_public_name_is_there() -> None:
    assert {name for name in interlock.__all__ if getattr(interlock, name, None) is None} == set()
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = interlock.nothing_like_it


def test_the_run_level_imports_the_standard_library_alone() -> None:
    heavy = "{'fastapi', 'pydantic', 'httpx', 'yaml', 'cryptography', 'interlock.fleet'}"
    script = f"import sys, interlock, interlock.actions; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
