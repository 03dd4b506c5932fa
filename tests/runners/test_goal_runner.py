"""Goals: an agent's own code, with every call of it under guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from interlock.actions import CancellationSignal, DispatchOutcome
from interlock.clock import SystemClock
from interlock.errors import InvalidInput, LeaseSuperseded, NotFound, NotPermitted, ToolFailed, Unavailable
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    Ending,
    EndKind,
    EntryState,
    GoalWork,
    HandOver,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
)
from interlock.guard.journal import Standing
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.tools import Access, CallContext, Parameter, ToolContract, ToolRegistry, ToolResult
from interlock.runners.calls import GoalTools
from interlock.runners.goal import GoalContext, GoalRunner
from interlock.testing.ledger import DEVICE, MemoryLedger, MemoryRecord
from interlock.testing.tools import Script, ScriptedTool, committed

GET = ToolContract("tool:example.agent/get", Access.READ, (Parameter("key"),))
PUT = ToolContract("tool:example.agent/put", parameters=(Parameter("value"),))

Body = Callable[[GoalTools, GoalContext], Awaitable[object]]
_bodies: list[Body] = []


async def agent(goal: str, tools: GoalTools, context: GoalContext) -> object:
    assert goal == "reach it"
    return await _bodies[-1](tools, context)


async def resuming(goal: str, tools: GoalTools, context: GoalContext) -> object:
    return await agent(goal, tools, context)


resuming.resumes = True  # type: ignore[attr-defined]  # how an agent declares it
not_callable = "canary"


@dataclass
class Attempt:
    """The pieces of one attempt, to be changed before it runs."""

    record: MemoryRecord = field(default_factory=MemoryRecord)
    agent: str = f"{__name__}:agent"
    max_calls: int = 10
    max_elapsed_seconds: float = 100.0
    policy: Policy = field(default_factory=lambda: Policy.allowing(["example.agent"], [f"{__name__}:*", "no_such:*"]))
    runner: GoalRunner = field(default_factory=GoalRunner)
    get: ScriptedTool = field(default_factory=lambda: ScriptedTool(GET))
    put: ScriptedTool = field(default_factory=lambda: ScriptedTool(PUT))
    ledger: MemoryLedger | None = None
    cancellation: CancellationSignal = field(default_factory=CancellationSignal)

    def __post_init__(self) -> None:
        self.watch = LeaseWatch(SystemClock().elapsed() + 1_000)

    async def run(self, body: Body) -> Ending:
        _bodies.append(body)
        given = Assignment(
            task_id=TaskId("task_1"),
            attempt_id=AttemptId("att_1"),
            lease_id=LeaseId("lease_1"),
            number=1,
            device=DEVICE,
            driver_type="example",
            fence=1,
            work=GoalWork("reach it", self.agent, self.max_calls, self.max_elapsed_seconds),
            history=self.record.history(),
            lease_seconds=60,
            renew_seconds=15,
        )
        return await self.runner.run(
            given,
            ledger=self.ledger or self.record.attempt(),
            tools=ToolRegistry([self.get, self.put]),
            policy=self.policy,
            watch=self.watch,
            cancellation=self.cancellation,
        )


def unsure(*_: object) -> ToolResult:
    message = "canary"
    raise ConnectionResetError(message)


def failing(*_: object) -> ToolResult:
    return ToolResult(DispatchOutcome.FAILED, {"error": "broken"}, "marker")


@pytest.mark.contract("G-48", "G-52")
async def test_each_call_is_a_numbered_run_of_one_action_and_feeds_the_next() -> None:
    attempt = Attempt()

    async def body(tools: GoalTools, context: GoalContext) -> object:
        assert (context.task_id, context.attempt, context.device, context.record) == ("task_1", 1, DEVICE, ())
        first = await tools.call(GET.id, key="a")
        second = await tools.call(PUT.id, value=first["key"] + "b")
        third = await tools.call(GET.id, key=second["value"] + "c")
        assert tools.calls_left == 7
        return {"found": third["key"], "again": await tools.output("call-000001")}

    ending = await attempt.run(body)
    assert ending == Ending(EndKind.DONE, "completed", '{"again":{"key":"a"},"found":"abc"}')
    states = [json.loads(saves[-1].checkpoint)["states"] for saves in attempt.record.runs.values()]
    assert states == [[[f"call-00000{number}", "committed"]] for number in (1, 2, 3)]
    assert [key[1] for key in attempt.record.journal] == ["call-000002"]
    for saves in attempt.record.runs.values():
        assert [save.sequence for save in saves] == list(range(1, len(saves) + 1))
        assert json.loads(saves[0].checkpoint)["states"][0][1] == "running"


@pytest.mark.contract("G-48")
async def test_calls_are_made_one_at_a_time() -> None:
    attempt = Attempt()
    inside: list[str] = []

    async def look(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        inside.append("in")
        await asyncio.sleep(0)
        assert inside.count("in") - inside.count("out") == 1
        inside.append("out")
        return committed(arguments, call)

    attempt.get.script = look

    async def body(tools: GoalTools, _: GoalContext) -> object:
        await asyncio.gather(*(tools.call(GET.id, key=str(n)) for n in range(5)))
        return None

    assert (await attempt.run(body)).kind is EndKind.DONE
    assert inside == ["in", "out"] * 5


@pytest.mark.contract("G-49")
async def test_a_definite_failure_is_an_error_that_the_agent_can_answer() -> None:
    attempt = Attempt()
    attempt.put.script = failing

    async def body(tools: GoalTools, _: GoalContext) -> object:
        causes = []
        for tool_id, arguments in ((PUT.id, {"value": "x"}), (PUT.id, {"value": 5}), ("tool:example.agent/gone", {})):
            with pytest.raises(ToolFailed) as caught:
                await tools.call(tool_id, **arguments)
            causes.append((caught.value.cause, caught.value.output))
        with pytest.raises(InvalidInput):
            await tools.call("no tool id")
        return [*causes, (await tools.call(GET.id, key="k"))["key"], tools.calls_left]

    ending = await attempt.run(body)
    assert json.loads(ending.output or "") == [
        ["tool_failed", {"error": "broken"}],
        ["bad_arguments", None],
        ["unknown_tool", None],
        "k",
        6,
    ]
    assert len(attempt.put.calls) == 1


@pytest.mark.contract("G-03", "G-49")
async def test_the_policy_holds_for_every_call() -> None:
    attempt = Attempt(policy=Policy.parse({"tools": {GET.id: "allow"}, "agents": [f"{__name__}:*"]}))

    async def body(tools: GoalTools, _: GoalContext) -> object:
        await tools.call(GET.id, key="k")
        with pytest.raises(ToolFailed, match="refused_by_policy"):
            await tools.call(PUT.id, value="x")
        return None

    assert (await attempt.run(body)).kind is EndKind.DONE
    assert attempt.put.calls == []


@pytest.mark.contract("G-49")
@pytest.mark.parametrize("contract", [GET, PUT])
async def test_a_call_in_doubt_stops_the_goal_whatever_the_agent_catches(contract: ToolContract) -> None:
    attempt = Attempt()
    attempt.get.script = attempt.put.script = unsure
    went_on: list[str] = []

    async def body(tools: GoalTools, _: GoalContext) -> object:
        name = contract.parameters[0].name
        try:
            await tools.call(contract.id, **{name: "x"})
        except Exception:  # noqa: BLE001 - an agent that catches everything it can
            went_on.append("after the call")
        return "done"

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")
    assert went_on == []


@pytest.mark.contract("G-49")
async def test_an_agent_that_swallows_its_cancellation_makes_no_further_call() -> None:
    attempt = Attempt()
    attempt.put.script = unsure

    async def body(tools: GoalTools, _: GoalContext) -> object:
        for _again in range(3):
            try:
                await tools.call(PUT.id, value="x")
            except BaseException:  # noqa: BLE001, S112 - an agent that will not listen
                continue
        return "done"

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")
    assert len(attempt.put.calls) == 1


@pytest.mark.contract("G-49")
async def test_an_agent_that_gives_up_on_an_effect_leaves_doubt_and_on_a_read_none() -> None:
    async def hang(*_: object) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def body(tools: GoalTools, _: GoalContext) -> object:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tools.call(GET.id, key="x"), 0.01)
        await asyncio.wait_for(tools.call(PUT.id, value="x"), 0.01)
        return "done"

    attempt = Attempt()
    attempt.get.script = attempt.put.script = hang
    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")
    (entry,) = attempt.record.journal.values()
    assert entry.state is EntryState.HANDED_OVER


@pytest.mark.contract("G-50")
async def test_calls_are_bounded_over_all_attempts() -> None:
    record = MemoryRecord()

    async def body(tools: GoalTools, _: GoalContext) -> object:
        while True:
            await tools.call(GET.id, key="x")

    first = Attempt(record, max_calls=3)
    assert await first.run(body) == Ending(EndKind.FAILED, "budget_exhausted")
    assert len(first.get.calls) == 3
    second = Attempt(record, max_calls=5)
    assert await second.run(body) == Ending(EndKind.FAILED, "budget_exhausted")
    assert len(second.get.calls) == 2
    names = [json.loads(saves[-1].checkpoint)["states"][0][0] for saves in record.runs.values()]
    assert names == [f"call-00000{number}" for number in range(1, 6)]


class FastClock(SystemClock):
    """A clock on which a wait is over as soon as a test says so."""

    def __init__(self) -> None:
        self.at = 1_000.0
        self.over = asyncio.Event()

    def elapsed(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        await self.over.wait()
        self.at += seconds


@pytest.mark.contract("G-50")
async def test_time_is_bounded_while_the_agent_thinks() -> None:
    clock = FastClock()
    attempt = Attempt(runner=GoalRunner(clock))
    attempt.watch.deadline = 1e9

    async def body(tools: GoalTools, _: GoalContext) -> object:
        await tools.call(GET.id, key="x")
        clock.over.set()
        await asyncio.Event().wait()
        return None

    assert await attempt.run(body) == Ending(EndKind.FAILED, "budget_exhausted")


@pytest.mark.contract("G-50")
async def test_an_effect_in_flight_at_the_end_of_the_time_is_in_doubt() -> None:
    clock = FastClock()
    attempt = Attempt(runner=GoalRunner(clock))
    attempt.watch.deadline = 1e9

    async def hang(*_: object) -> ToolResult:
        clock.over.set()
        await asyncio.Event().wait()
        raise AssertionError

    attempt.put.script = hang

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(PUT.id, value="x")

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")


@pytest.mark.contract("G-50")
async def test_what_earlier_calls_took_counts_to_the_time() -> None:
    record = MemoryRecord()

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(GET.id, key="x")

    assert (await Attempt(record).run(body)).kind is EndKind.DONE
    ((run_id, saves),) = record.runs.items()
    document = json.loads(saves[-1].checkpoint) | {"elapsed_ns": 100_000_000_000}
    record.runs[run_id] = [*saves, replace(saves[-1], checkpoint=json.dumps(document))]
    later = Attempt(record)
    assert await later.run(body) == Ending(EndKind.FAILED, "budget_exhausted")
    assert later.get.calls == []


@pytest.mark.contract("G-09", "G-49")
async def test_an_agent_that_gives_up_before_an_effect_begins_may_go_on() -> None:
    class Slow(MemoryLedger):
        reached = asyncio.Event()
        go_on = asyncio.Event()

        async def hand_over(self, entry: HandOver) -> None:
            self.reached.set()
            await self.go_on.wait()
            await super().hand_over(entry)

    record = MemoryRecord()
    record.attempt()
    assert record.live is not None
    ledger = Slow(record, record.live, DEVICE)
    attempt = Attempt(record, ledger=ledger)

    async def body(tools: GoalTools, _: GoalContext) -> object:
        call = asyncio.create_task(tools.call(PUT.id, value="x"))
        await ledger.reached.wait()
        call.cancel()
        ledger.go_on.set()
        await asyncio.wait({call})
        return (await tools.call(PUT.id, value="y"))["value"]

    assert (await attempt.run(body)).output == '"y"'
    assert attempt.put.calls == [{"value": "y"}]
    assert [entry.state for entry in record.journal.values()] == [EntryState.WITHDRAWN, EntryState.SETTLED]


@pytest.mark.contract("G-51")
@pytest.mark.parametrize(("script", "reason"), [(committed, "not_resumable"), (unsure, "review_required")])
async def test_a_later_attempt_after_any_effect_needs_an_agent_that_resumes(script: Script, reason: str) -> None:
    record = MemoryRecord()
    first = Attempt(record)
    first.put.script = script

    async def body(tools: GoalTools, _: GoalContext) -> object:
        await tools.call(PUT.id, value="x")
        raise asyncio.CancelledError

    await first.run(body)
    again = Attempt(record)
    assert await again.run(body) == Ending(EndKind.FAILED, reason)
    assert again.put.calls == []


@pytest.mark.contract("G-51")
async def test_an_agent_that_resumes_gets_the_record() -> None:
    record = MemoryRecord()
    attempt = Attempt(record)

    async def first(tools: GoalTools, _: GoalContext) -> object:
        await tools.call(GET.id, key="k")
        await tools.call(PUT.id, value="one")
        attempt.put.script = unsure
        return await tools.call(PUT.id, value="two")

    assert await attempt.run(first) == Ending(EndKind.FAILED, "review_required")

    async def second(tools: GoalTools, context: GoalContext) -> object:
        known = [(past.call_id, past.tool_id, past.standing) for past in context.record]
        assert known == [
            ("call-000002", PUT.id, Standing.COMMITTED),
            ("call-000003", PUT.id, Standing.IN_DOUBT),
        ]
        assert await tools.output("call-000002") == {"value": "one"}
        with pytest.raises(NotFound):
            await tools.output("call-000003")
        return await tools.call(PUT.id, value="three")

    later = Attempt(record, agent=f"{__name__}:resuming")
    assert (await later.run(second)).output == '{"value":"three"}'
    assert [key[1] for key in record.journal] == ["call-000002", "call-000003", "call-000004"]


@pytest.mark.contract("G-56")
async def test_a_call_that_is_in_doubt_is_not_made_again_by_an_agent_that_resumes() -> None:
    record = MemoryRecord()
    attempt = Attempt(record)
    attempt.put.script = unsure

    async def first(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(PUT.id, value="one")

    assert await attempt.run(first) == Ending(EndKind.FAILED, "review_required")
    later = Attempt(record, agent=f"{__name__}:resuming")

    async def second(tools: GoalTools, _: GoalContext) -> object:
        with pytest.raises(ToolFailed) as refused:
            await tools.call(PUT.id, value="one")
        return [refused.value.cause, await tools.call(PUT.id, value="two")]

    assert (await later.run(second)).output == '["in_doubt",{"value":"two"}]'
    assert later.put.calls == [{"value": "two"}]


@pytest.mark.contract("G-51", "G-56")
async def test_what_is_known_not_to_have_happened_keeps_no_agent_from_beginning_again() -> None:
    record = MemoryRecord()
    attempt = Attempt(record)
    attempt.put.script = unsure

    async def body(tools: GoalTools, context: GoalContext) -> object:
        assert context.record == ()
        return await tools.call(PUT.id, value="one")

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")
    ((key, entry),) = record.journal.items()
    record.journal[key] = replace(entry, answer="did_not_happen")
    assert (await Attempt(record).run(body)).output == '{"value":"one"}'


@pytest.mark.contract("G-51")
async def test_reads_alone_let_any_agent_begin_again() -> None:
    record = MemoryRecord()

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(GET.id, key="k")

    await Attempt(record).run(body)
    assert (await Attempt(record).run(body)).kind is EndKind.DONE


@pytest.mark.contract("G-16", "G-52", "G-54")
@pytest.mark.parametrize("error", [RuntimeError("canary"), SystemExit("canary"), asyncio.CancelledError("canary")])
async def test_an_agent_that_raises_fails_the_task_and_its_words_are_kept_nowhere(error: BaseException) -> None:
    attempt = Attempt()

    async def body(*_: object) -> object:
        raise error

    ending = await attempt.run(body)
    assert (ending.kind, ending.reason) == (EndKind.FAILED, "agent_failed")
    assert "canary" not in repr((attempt.record, ending))
    if not isinstance(error, asyncio.CancelledError):
        said = json.loads(ending.output or "")["agent"]
        assert (said["error"], said["file"]) == (type(error).__name__, "test_goal_runner.py")


@pytest.mark.contract("G-54")
async def test_the_place_of_an_error_is_where_the_agent_was() -> None:
    attempt = Attempt()
    attempt.put.script = failing

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(PUT.id, value="x")

    said = json.loads((await attempt.run(body)).output or "")["agent"]
    assert (said["error"], said["file"], said["cause"]) == ("ToolFailed", "test_goal_runner.py", "tool_failed")


@pytest.mark.contract("G-52")
async def test_an_agent_that_returns_no_json_has_failed() -> None:
    async def body(*_: object) -> object:
        return {1, 2}

    ending = await Attempt().run(body)
    assert (ending.kind, ending.reason) == (EndKind.FAILED, "agent_failed")
    assert json.loads(ending.output or "")["agent"]["error"] == "TypeError"


@pytest.mark.contract("G-14", "G-52")
async def test_a_large_result_is_kept_as_a_mark() -> None:
    async def body(*_: object) -> object:
        return "x" * 70_000

    assert (await Attempt().run(body)).output == '{"bytes":70002,"truncated":true}'


@pytest.mark.contract("G-52")
async def test_no_call_is_made_once_the_goal_has_ended() -> None:
    attempt = Attempt()
    kept: list[GoalTools] = []

    async def body(tools: GoalTools, _: GoalContext) -> object:
        kept.append(tools)
        return None

    assert (await attempt.run(body)).kind is EndKind.DONE
    with pytest.raises(NotPermitted):
        await kept[0].call(PUT.id, value="x")
    assert attempt.put.calls == []


@pytest.mark.contract("G-49", "G-52")
async def test_a_call_that_the_agent_left_behind_is_ended_and_is_doubt() -> None:
    attempt = Attempt()
    begun = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def hang(*_: object) -> ToolResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    attempt.put.script = hang

    async def body(tools: GoalTools, _: GoalContext) -> object:
        left.append(asyncio.create_task(tools.call(PUT.id, value="x")))
        await begun.wait()
        return "done"

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")
    await asyncio.wait(left)


@pytest.mark.contract("G-05")
async def test_an_agent_that_policy_does_not_name_is_not_even_imported() -> None:
    attempt = Attempt(policy=Policy.allowing(["example.agent"]))

    async def body(*_: object) -> object:
        raise AssertionError

    assert await attempt.run(body) == Ending(EndKind.FAILED, "agent_refused")
    for name in ("no_such:agent", f"{__name__}:none", f"{__name__}:not_callable"):
        assert await Attempt(agent=name).run(body) == Ending(EndKind.FAILED, "agent_unknown")


@pytest.mark.contract("G-45")
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("thinking", [True, False])
async def test_a_stop_reaches_an_agent_that_thinks_and_one_that_calls(asked: bool, thinking: bool) -> None:  # noqa: FBT001
    attempt = Attempt()

    def stop() -> None:
        attempt.watch.cancel_requested = asked
        attempt.cancellation.cancel()

    async def hang(*_: object) -> ToolResult:
        stop()
        await asyncio.Event().wait()
        raise AssertionError

    attempt.get.script = hang

    async def body(tools: GoalTools, _: GoalContext) -> object:
        if thinking:
            stop()
            await asyncio.Event().wait()
        return await tools.call(GET.id, key="x")

    expected = Ending(EndKind.CANCELLED, "cancelled") if asked else Ending(EndKind.RELEASED, "interrupted")
    assert await attempt.run(body) == expected


@pytest.mark.contract("G-45")
async def test_a_goal_that_is_stopped_before_it_begins_calls_nothing() -> None:
    attempt = Attempt()
    attempt.cancellation.cancel()

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(GET.id, key="x")

    assert await attempt.run(body) == Ending(EndKind.RELEASED, "interrupted")
    assert attempt.get.calls == []


@pytest.mark.contract("G-46")
async def test_a_lost_lease_stops_the_goal() -> None:
    class Losing(MemoryLedger):
        async def save(self, save: RunSave) -> None:
            del save
            message = "lost"
            raise LeaseSuperseded(message)

    record = MemoryRecord()
    record.attempt()
    assert record.live is not None
    attempt = Attempt(record, ledger=Losing(record, record.live, DEVICE))

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(PUT.id, value="x")

    assert (await attempt.run(body)).kind is EndKind.RELEASED
    assert attempt.put.calls == []
    assert attempt.watch.lost


@pytest.mark.contract("G-12", "G-49")
async def test_a_call_whose_outcome_cannot_be_stored_is_in_doubt() -> None:
    class Away(MemoryLedger):
        async def settle(self, settlement: Settlement) -> None:
            del settlement
            message = "away"
            raise Unavailable(message)

    record = MemoryRecord()
    record.attempt()
    assert record.live is not None
    attempt = Attempt(record, ledger=Away(record, record.live, DEVICE))

    async def body(tools: GoalTools, _: GoalContext) -> object:
        return await tools.call(PUT.id, value="x")

    assert await attempt.run(body) == Ending(EndKind.FAILED, "review_required")


async def test_cancelling_the_runner_stops_the_agent_and_drains_its_call() -> None:
    attempt = Attempt()
    begun = asyncio.Event()
    ended: list[str] = []

    async def hang(*_: object) -> ToolResult:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("tool")
        raise AssertionError

    attempt.put.script = hang

    async def body(tools: GoalTools, _: GoalContext) -> object:
        try:
            return await tools.call(PUT.id, value="x")
        finally:
            ended.append("agent")

    running = asyncio.create_task(attempt.run(body))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["tool", "agent"]
