"""What the server answers to HTTP itself: scopes, problem documents, bounds, streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.conftest import DONE, TOKENS, Served, goal, serving, shell
from interlock import errors
from interlock.api.auth import Grant, granted
from interlock.api.client import RemoteHostSession
from interlock.api.problems import raised
from interlock.api.requests import MAX_BODY_BYTES
from interlock.api.server import create_api, status_of
from interlock.errors import InterlockError, LeaseSuperseded, NotPermitted, Unavailable
from interlock.fleet.model import LeaseId

GOAL: dict[str, Any] = {"work": {"goal": "look", "agent": "agents:look"}}
SCOPE_OF = [
    ("POST", "/v1/tasks", "submit"),
    ("GET", "/v1/tasks", "read"),
    ("GET", "/v1/tasks/task_x", "read"),
    ("GET", "/v1/tasks/task_x/wait", "read"),
    ("POST", "/v1/tasks/task_x/cancel", "submit"),
    ("GET", "/v1/tasks/task_x/why", "read"),
    ("GET", "/v1/reviews", "read"),
    ("POST", "/v1/tasks/task_x/resolve", "approve"),
    ("GET", "/v1/devices", "read"),
    ("POST", "/v1/devices/h/d/service", "operate"),
    ("POST", "/v1/devices/h/d/force-release", "admin"),
    ("DELETE", "/v1/devices/h/d", "admin"),
    ("POST", "/v1/hosts", "admin"),
    ("GET", "/v1/violations", "read"),
    ("GET", "/v1/health", "read"),
    ("GET", "/v1/events", "read"),
]
HOST_VERBS = [
    "beat",
    "goodbye",
    "claim",
    "renew",
    "save",
    "hand-over",
    "withdraw",
    "settle",
    "output",
    "finish",
    "confirm-stopped",
]


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with served.http() as client:
        yield client


def problem_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == f"urn:interlock:problem:{code}"
    return document


@pytest.mark.parametrize(("method", "path", "scope"), SCOPE_OF)
async def test_a_route_takes_its_own_scope_and_no_other(served: Served, method: str, path: str, scope: str) -> None:
    for held, token in TOKENS.items():
        if held == scope:
            continue
        async with served.http(token) as client:
            document = problem_of(await client.request(method, path), 403, "not_permitted")
            assert document["facts"] == {"scope": scope}
    if path != "/v1/events":
        async with served.http(TOKENS[scope]) as client:
            assert (await client.request(method, path)).status_code in {200, 204, 404, 422}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in SCOPE_OF])
async def test_no_credential_and_an_unknown_one_are_unauthorised(served: Served, method: str, path: str) -> None:
    async with served.host("h1"):
        for credential in (None, "wrong", "credential-of-h1"):
            async with served.http(credential) as client:
                response = await client.request(method, path)
                problem_of(response, 401, "not_permitted")
                assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("verb", HOST_VERBS)
async def test_a_host_route_takes_a_host_credential_alone(http: httpx.AsyncClient, verb: str) -> None:
    problem_of(await http.post(f"/v1/host/{verb}", json={}), 401, "not_permitted")


@pytest.mark.parametrize("verb", HOST_VERBS)
async def test_a_host_route_refuses_an_unknown_key(served: Served, verb: str) -> None:
    async with served.host("h1"), served.http("credential-of-h1") as client:
        document = problem_of(await client.post(f"/v1/host/{verb}", json={"zap": 1}), 422, "invalid_input")
    assert "zap: there is no such key" in document["detail"]


async def test_the_lease_of_one_host_is_nothing_to_another(served: Served) -> None:
    async with served.host("h1", shell()) as owner, served.host("h2", shell("d2")) as other:
        await served.fleet.submit(goal())
        assignment = await served.running(owner)
        for attempt in (other.renew(assignment.lease_id), other.output(assignment.lease_id, "a")):
            with pytest.raises(LeaseSuperseded):
                await attempt
        with pytest.raises(LeaseSuperseded):
            await other.finish(assignment.lease_id, DONE, stopped=True, clean=True)
        assert await other.claim("claim-of-other", 1, 0.0) == []
        await owner.finish(assignment.lease_id, DONE, stopped=True, clean=True)


async def test_a_credential_that_was_replaced_is_refused(served: Served) -> None:
    async with served.host("h1") as session:
        await served.fleet.register_host("h1", "another credential")
        with pytest.raises(NotPermitted):
            await session.goodbye("gen-1")


async def test_several_leases_are_renewed_in_one_call(served: Served) -> None:
    async with served.host("h1", shell("d1"), shell("d2")) as session:
        await served.fleet.submit(goal("one"))
        await served.fleet.submit(goal("two"))
        await served.scheduler.assign()
        first, second = await session.claim("claim-1", 2, 0.0)
        lost = LeaseId("lease_none")
        renewed = await session.renew_all([first.lease_id, lost, second.lease_id])
    assert not isinstance(renewed[first.lease_id], InterlockError)
    assert not isinstance(renewed[second.lease_id], InterlockError)
    assert isinstance(renewed[lost], LeaseSuperseded)


async def test_the_submitter_of_a_task_is_the_name_of_its_token(served: Served) -> None:
    async with served.http(TOKENS["submit"]) as client:
        answer = await client.post("/v1/tasks", json={**GOAL, "submitter": "somebody else"})
    (task,) = await served.fleet.store.rows("task", task=answer.json()["task_id"])
    assert (answer.status_code, task["submitter"]) == (201, "who may submit")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({**GOAL, "zap": 1}, "zap: there is no such key"),
        ({"work": {"goal": "look", "agnt": "a:b"}}, "work.agent: it is missing; work.agnt: there is no such key"),
        ({"work": {"txt": "x"}}, "work.txt: there is no such key"),
        ({}, "work: it is missing"),
        ({**GOAL, "priority": "1"}, "priority: Input should be a valid integer"),
        ({**GOAL, "constraints": {"tags": ["Linux"]}}, "constraints: 'Linux' is not a tag"),
        ({**GOAL, "constraints": {"device": {"host": "a/b", "serial": "c"}}}, "is not a host"),
        ({**GOAL, "constraints": {"device": {"host": "a", "serial": "b c"}}}, "is not a serial"),
        ([], "the body: Input should be an object"),
        (None, "the body is null"),
    ],
)
async def test_a_body_that_cannot_be_taken_says_what_to_change(
    http: httpx.AsyncClient, body: object, said: str
) -> None:
    response = await http.post("/v1/tasks", content=json.dumps(body))
    assert said in problem_of(response, 422, "invalid_input")["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"work": NaN}', b"[" * 100_000])
async def test_what_is_not_json_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    assert "not JSON" in problem_of(await http.post("/v1/tasks", content=body), 422, "invalid_input")["detail"]


async def test_a_refusal_never_shows_a_value(http: httpx.AsyncClient) -> None:
    secret = "hunter2" * 2
    for body in (
        {"work": {"goal": [secret], "agent": "a:b"}},
        {"work": {"text": "name: x", "inputs": secret}},
        {**GOAL, "priority": secret},
        {**GOAL, "max_attempts": secret},
        {"work": {"text": f"name: [{secret}", "inputs": {}}},
    ):
        assert secret not in (await http.post("/v1/tasks", json=body)).text
    assert secret not in (await http.get("/v1/tasks", params={"most": secret})).text
    assert secret not in (await http.get("/v1/tasks/t/wait", params={"seconds": secret})).text


async def test_a_query_that_cannot_be_taken_is_a_problem_document(http: httpx.AsyncClient) -> None:
    document = problem_of(await http.get("/v1/tasks", params={"most": "many"}), 422, "invalid_input")
    assert document["detail"].startswith("query.most: ")
    problem_of(await http.get("/v1/tasks/t/wait", params={"seconds": "nan"}), 422, "invalid_input")
    problem_of(await http.get("/v1/tasks", params={"most": 1001}), 422, "invalid_input")


async def test_a_body_past_the_bound_is_refused(http: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65_536 + 1):
            yield b" " * 65_536

    problem_of(await http.post("/v1/tasks", content=endless()), 413, "body_too_large")


async def test_a_path_that_is_not_there_and_a_method_that_is_not_taken(http: httpx.AsyncClient) -> None:
    problem_of(await http.get("/v1/zap"), 404, "not_found")
    response = await http.delete("/v1/tasks")
    problem_of(response, 405, "method_not_allowed")
    assert response.headers["allow"]


async def test_a_full_queue_says_when_to_come_back(http: httpx.AsyncClient) -> None:
    for _ in range(5):
        assert (await http.post("/v1/tasks", json=GOAL)).status_code == 201
    response = await http.post("/v1/tasks", json=GOAL)
    problem_of(response, 429, "queue_full")
    assert int(response.headers["retry-after"]) >= 1


async def test_the_faults_of_a_workflow_stand_in_the_facts(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/tasks", json={"work": {"text": "zap: 1\n"}})
    document = problem_of(response, 422, "invalid_workflow")
    assert any("zap" in fault for fault in document["facts"]["faults"])


async def test_statuses_of_conflict_lost_lease_and_missing_task(http: httpx.AsyncClient, served: Served) -> None:
    problem_of(await http.get("/v1/tasks/task_none"), 404, "not_found")
    await http.post("/v1/tasks", json={**GOAL, "idempotency_key": "k"})
    problem_of(await http.post("/v1/tasks", json={**GOAL, "idempotency_key": "k", "priority": 1}), 409, "conflict")
    body = {"lease_id": "lease_none", "action_id": "a"}
    async with served.host("h1"), served.http("credential-of-h1") as client:
        problem_of(await client.post("/v1/host/output", json=body), 410, "lease_superseded")


async def test_a_closed_store_is_unavailable_and_not_ready(served: Served, http: httpx.AsyncClient) -> None:
    assert (await http.get("/readyz")).status_code == 200
    await served.fleet.store.close()
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    response = await http.get("/readyz")
    problem_of(response, 503, "unavailable")
    assert response.headers["retry-after"] == "1"
    problem_of(await http.get("/v1/tasks"), 503, "unavailable")


async def test_an_unexpected_error_is_a_problem_without_its_text(
    served: Served, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    app = create_api(served.fleet, None, {})

    async def broken() -> None:
        message = "hunter2"
        raise RuntimeError(message)

    app.add_api_route("/broken", broken)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        response = await client.get("/broken")
    problem_of(response, 500, "internal_error")
    printed = capsys.readouterr()
    assert "RuntimeError at broken" in caplog.text
    assert "hunter2" not in response.text + caplog.text + printed.out + printed.err


async def test_health_counts_and_gives_the_time(http: httpx.AsyncClient) -> None:
    await http.post("/v1/tasks", json=GOAL)
    health = (await http.get("/v1/health")).json()
    assert health["tasks"] == {"queued": 1}
    assert health["time"].endswith("Z")
    assert health["assigns"] is True


async def test_a_stream_begins_with_a_snapshot_and_goes_on_with_changes(
    served: Served, http: httpx.AsyncClient
) -> None:
    async with asyncio.timeout(20), http.stream("GET", "/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        first = [await anext(lines), await anext(lines)]
        task_id = await served.fleet.submit(goal())
        while await anext(lines) != "event: change":
            pass
        change = json.loads((await anext(lines)).removeprefix("data: "))
    assert first[0] == "event: snapshot"
    assert json.loads(first[1].removeprefix("data: ")) == {"tasks": [], "devices": [], "counts": {}}
    assert change == {"event": "task.submitted", "task": task_id}


async def test_the_openapi_document_holds_every_schema_that_it_speaks_of(http: httpx.AsyncClient) -> None:
    document = (await http.get("/v1/openapi.json")).json()
    spoken = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert spoken
    assert spoken <= set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path


async def test_texts_that_hold_json_are_checked_before_they_are_kept(served: Served) -> None:
    async with served.host("h1", shell()), served.http("credential-of-h1") as client:
        ending = {"kind": "done", "reason": "completed", "output": "{"}
        body = {"lease_id": "lease_x", "ending": ending, "stopped": True, "clean": True}
        document = problem_of(await client.post("/v1/host/finish", json=body), 422, "invalid_input")
    assert document["detail"] == "ending.output is a text that holds JSON"


async def test_bounds_of_host_calls(served: Served) -> None:
    async with served.host("h1"), served.http("credential-of-h1") as client:
        for verb, body in (
            ("claim", {"claim_id": "c", "limit": 0}),
            ("claim", {"claim_id": "c", "limit": 1, "wait_seconds": -1}),
            ("renew", {"lease_ids": []}),
            ("renew", {"lease_ids": ["l"] * 101}),
        ):
            problem_of(await client.post(f"/v1/host/{verb}", json=body), 422, "invalid_input")


async def test_every_route_is_documented_and_has_its_scope_tested(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/v1/openapi.json")).json()["paths"]
    said = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
    names = {"{task_id}": "task_x", "{host}": "h", "{serial}": "d"}
    tested = {(method, path) for method, path, _ in SCOPE_OF} | {("POST", f"/v1/host/{verb}") for verb in HOST_VERBS}
    for path, operations in paths.items():
        assert f"{path}`" in said or f"{path}?" in said, path
        filled = path
        for name, value in names.items():
            filled = filled.replace(name, value)
        for method in operations:
            tested.remove((method.upper(), filled))
    assert tested == set()


def family(kind: type[InterlockError]) -> list[type[InterlockError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in family(child))]


def test_every_error_has_a_status() -> None:
    made = [kind for kind in family(InterlockError) if "__init__" not in vars(kind)]
    assert {400 <= status_of(kind("x")) < 600 for kind in made} == {True}


@pytest.mark.parametrize("kind", [k for k in family(InterlockError) if k.__module__ == errors.__name__])
def test_a_client_raises_what_the_server_met(kind: type[InterlockError]) -> None:
    document = {"code": kind.code, "detail": "said", "facts": {"faults": ["line 1: x"]}}
    error = raised(422, json.dumps(document).encode())
    assert error.code == kind.code
    if "__init__" not in vars(kind):
        assert type(error) is kind
        assert str(error) == "said"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"code": 1}', b'{"code":"x","detail":"y","facts":3}'])
def test_an_answer_that_is_no_problem_document_is_unavailable(body: bytes) -> None:
    assert type(raised(502, body)) is Unavailable


def test_a_grant_has_only_scopes_that_exist() -> None:
    with pytest.raises(ValueError, match="no such scope"):
        Grant("x", frozenset({"reed"}))


def test_a_token_is_found_by_its_hash_alone() -> None:
    with pytest.raises(NotPermitted):
        granted({"plain": Grant("x", frozenset({"read"}))}, "plain", "read")


async def test_a_remote_session_without_a_server_is_unavailable(served: Served) -> None:
    del served
    session = RemoteHostSession("http://127.0.0.1:1", "credential")
    with pytest.raises(Unavailable, match="interlock up"):
        await session.goodbye("gen-1")
    await session.close()
