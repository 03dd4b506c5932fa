"""The order of the guard, step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from interlock.actions import ActionNode, CancellationSignal, DispatchOutcome, RunId
from interlock.errors import CancelRequested, LeaseSuperseded, Unavailable
from interlock.fleet.model import EntryState, HandOver, JournalEntry, RunSave, Settlement
from interlock.guard.bindings import Template, literal, template
from interlock.guard.canonical import canonical, digest
from interlock.guard.dispatcher import Cause, Guard, ToolDispatcher
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.tools import Access, CallContext, Parameter, ToolContract, ToolResult
from interlock.telemetry import Event, Fact, subscribed
from interlock.testing.ledger import DEVICE, MemoryLedger, MemoryRecord
from interlock.testing.tools import ScriptedTool, committed

SEND = ToolContract("tool:example.agent/send", parameters=(Parameter("text"),))
FETCH = ToolContract("tool:example.agent/fetch", Access.READ, (Parameter("text"),))
RUN = RunId.generate()


@dataclass
class HandClock:
    """A clock that stands still until a test moves it."""

    at: float = 100.0

    def now(self) -> int:
        return int(self.at * 1_000_000)

    def elapsed(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class WatchedLedger(MemoryLedger):
    """Notes each write, and lets a test do something before or after one, or hold it up."""

    def __init__(self, record: MemoryRecord) -> None:
        record.attempt()
        assert record.live is not None
        super().__init__(record, record.live, DEVICE)
        self.writes: list[str] = []
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}

    async def _meet(self, hooks: dict[str, Any], name: str) -> None:
        answer = hooks[name]() if name in hooks else None
        if asyncio.iscoroutine(answer):
            await answer

    async def hand_over(self, entry: HandOver) -> None:
        self.writes.append("hand_over")
        await self._meet(self.before, "hand_over")
        await super().hand_over(entry)
        await self._meet(self.after, "hand_over")

    async def withdraw(self, run_id: str, action_id: str) -> None:
        self.writes.append("withdraw")
        await super().withdraw(run_id, action_id)

    async def settle(self, settlement: Settlement) -> None:
        self.writes.append("settle")
        await self._meet(self.before, "settle")
        await super().settle(settlement)
        await self._meet(self.after, "settle")


@dataclass
class Scene:
    """One attempt with one action of one tool, admitted by a stored checkpoint."""

    contract: ToolContract = SEND
    arguments: Template = field(default_factory=lambda: literal({"text": "hello"}))
    policy: Policy = field(default_factory=lambda: Policy.allowing(["example.agent"]))
    script: Any = committed
    contracts: Mapping[str, ToolContract] | None = None

    def __post_init__(self) -> None:
        self.clock = HandClock()
        self.record = MemoryRecord(self.clock)
        self.ledger = WatchedLedger(self.record)
        self.watch = LeaseWatch(deadline=self.clock.at + 60)
        self.signal = CancellationSignal()
        self.stop = CancellationSignal()
        self.tool = ScriptedTool(self.contract, self.script)
        tools = {self.contract.id: self.tool}
        self.guard = Guard(tools, self.policy, self.ledger, self.watch, DEVICE, 7, self.clock)
        contracts = {self.contract.id: self.contract} if self.contracts is None else self.contracts
        self.dispatcher = ToolDispatcher(self.guard, contracts, {"a": self.arguments}, self.stop)
        self.events: list[tuple[Event, dict[str, Fact]]] = []

    async def dispatch(self, action: str = "a", tool: str | None = None) -> DispatchOutcome:
        states = [[each, "running"] for each in sorted({action, "a", "b"})]
        checkpoint = {"plan_digest": "", "states": states, "admitted_actions": 1, "reserved_units": 1, "elapsed_ns": 0}
        run = RUN.serialize()
        if run not in self.record.runs:
            await self.ledger.save(RunSave(run, None, 1, json.dumps({**checkpoint, "stop_reason": None})))
        node = ActionNode(action, tool or self.contract.id)
        with subscribed(lambda event, facts: self.events.append((event, facts))):
            return await self.dispatcher.dispatch(RUN, node, self.signal)

    @property
    def entry(self) -> JournalEntry | None:
        return self.record.journal.get((RUN.serialize(), "a"))

    @property
    def cause(self) -> Cause | None:
        return self.dispatcher.closings["a"].cause


def raising(error: BaseException) -> Any:
    def script(*_: object) -> ToolResult:
        raise error

    return script


def answering(outcome: Any, output: object = None, evidence: Any = "proof") -> Any:
    return lambda *_: ToolResult(outcome, output, evidence)


@pytest.mark.contract("G-06", "G-08", "G-12")
async def test_an_effect_goes_through_every_step_in_order() -> None:
    scene = Scene()
    steps: list[str] = []

    def call(arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        assert scene.entry is not None
        steps.append(f"call {scene.entry.state} {context.key}")
        return committed(arguments, context)

    scene.tool.script = call
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert scene.ledger.writes == ["hand_over", "settle"]
    assert steps == [f"call handed_over {RUN.serialize()}/a"]
    assert scene.tool.calls == [{"text": "hello"}]
    assert scene.entry is not None
    assert (scene.entry.state, scene.entry.outcome, scene.entry.evidence) == (EntryState.SETTLED, "committed", "done a")
    assert scene.entry.arguments_digest == digest(canonical({"text": "hello"}))
    assert scene.record.outputs == {"a": '{"text":"hello"}'}


@pytest.mark.contract("G-13")
async def test_a_read_has_an_output_and_no_entry() -> None:
    scene = Scene(FETCH)
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert scene.ledger.writes == ["settle"]
    assert scene.record.journal == {}
    assert scene.record.outputs == {"a": '{"text":"hello"}'}


@pytest.mark.contract("G-13")
async def test_r10_a_read_that_failed_is_called_once_and_leaves_nothing() -> None:
    scene = Scene(FETCH, script=answering(DispatchOutcome.FAILED, {"error": "x"}))
    assert await scene.dispatch() is DispatchOutcome.FAILED
    assert (len(scene.tool.calls), scene.ledger.writes, scene.record.outputs) == (1, [], {})


REFUSALS = [
    (Scene(policy=Policy()), Cause.REFUSED_BY_POLICY),
    (Scene(policy=Policy.parse({"tools": {SEND.id: "ask"}})), Cause.NEEDS_APPROVAL),
    (Scene(policy=Policy.parse({"tools": {"tool:*/*": "allow", SEND.id: "deny"}})), Cause.REFUSED_BY_POLICY),
    (Scene(arguments=literal({"text": 5})), Cause.BAD_ARGUMENTS),
    (Scene(arguments=literal({})), Cause.BAD_ARGUMENTS),
    (Scene(arguments=literal({"text": "x", "more": 1})), Cause.BAD_ARGUMENTS),
    (Scene(arguments=literal({"text": {1, 2}})), Cause.BAD_ARGUMENTS),
    (Scene(arguments=template({"text": "${steps.none.x}"})), Cause.BAD_REFERENCE),
    (Scene(contracts={}), Cause.CONTRACT_CHANGED),
    (Scene(contracts={SEND.id: ToolContract(SEND.id, Access.READ, SEND.parameters)}), Cause.CONTRACT_CHANGED),
    (Scene(FETCH, policy=Policy()), Cause.REFUSED_BY_POLICY),
    (Scene(FETCH, arguments=literal({"text": 5})), Cause.BAD_ARGUMENTS),
]


@pytest.mark.contract("G-02", "G-03", "G-07", "G-13")
@pytest.mark.parametrize("number", range(12))
async def test_what_is_refused_has_failed_with_no_entry_and_no_call(number: int) -> None:
    pattern, cause = REFUSALS[number]
    scene = Scene(pattern.contract, pattern.arguments, pattern.policy, pattern.script, pattern.contracts)
    assert await scene.dispatch() is DispatchOutcome.FAILED
    assert scene.cause is cause
    assert (scene.tool.calls, scene.ledger.writes, scene.record.journal) == ([], [], {})


@pytest.mark.contract("G-07")
async def test_a_tool_that_is_not_there_is_refused() -> None:
    scene = Scene()
    assert await scene.dispatch(tool="tool:example.agent/gone") is DispatchOutcome.FAILED
    assert scene.cause is Cause.UNKNOWN_TOOL


@pytest.mark.contract("G-07")
async def test_r22_the_policy_of_the_tool_that_is_called_applies() -> None:
    policy = Policy.parse({"tools": {FETCH.id: "allow", SEND.id: "deny"}})
    assert await Scene(FETCH, policy=policy).dispatch() is DispatchOutcome.COMMITTED
    scene = Scene(SEND, policy=policy)
    assert await scene.dispatch() is DispatchOutcome.FAILED
    assert scene.tool.calls == []


@pytest.mark.contract("G-07", "G-15")
@pytest.mark.parametrize("contract", [SEND, FETCH])
@pytest.mark.parametrize("why", ["signal", "lost", "deadline"])
async def test_nothing_is_handed_over_once_it_is_time_to_stop(contract: ToolContract, why: str) -> None:
    scene = Scene(contract)
    if why == "signal":
        scene.signal.cancel()
    scene.watch.lost = why == "lost"
    if why == "deadline":
        scene.clock.at = scene.watch.deadline
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.cause is Cause.HELD_BACK
    assert (scene.tool.calls, scene.ledger.writes, scene.record.journal) == ([], [], {})
    assert scene.stop.cancelled is (why != "signal")


@pytest.mark.contract("G-08")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [LeaseSuperseded("lost"), Unavailable("away"), RuntimeError("canary")])
async def test_a_hand_over_that_fails_is_followed_by_no_call(when: str, error: Exception) -> None:
    scene = Scene()
    getattr(scene.ledger, when)["hand_over"] = raising(error)
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.tool.calls == []
    assert scene.watch.lost is scene.stop.cancelled is isinstance(error, LeaseSuperseded)
    assert (scene.entry is None) is (when == "before")


@pytest.mark.contract("G-57")
async def test_an_effect_of_a_task_that_is_to_be_cancelled_is_not_called() -> None:
    scene = Scene()
    scene.ledger.before["hand_over"] = raising(CancelRequested("stop"))
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert (scene.tool.calls, scene.entry) == ([], None)
    assert scene.stop.cancelled
    assert (scene.watch.cancel_requested, scene.watch.lost) == (True, False)


@pytest.mark.contract("G-08")
async def test_an_effect_that_was_handed_over_before_is_not_called() -> None:
    scene = Scene()
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert len(scene.tool.calls) == 1


@pytest.mark.contract("G-09")
@pytest.mark.parametrize("why", ["signal", "lost", "deadline"])
async def test_the_last_look_withdraws_what_was_handed_over(why: str) -> None:
    scene = Scene()

    def happen() -> None:
        if why == "signal":
            scene.signal.cancel()
        scene.watch.lost = why == "lost"
        if why == "deadline":
            scene.clock.at = scene.watch.deadline

    scene.ledger.after["hand_over"] = happen
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.ledger.writes == ["hand_over", "withdraw"]
    assert scene.tool.calls == []
    assert scene.cause is Cause.WITHDRAWN
    assert scene.entry is not None
    assert scene.entry.state is EntryState.WITHDRAWN
    assert scene.stop.cancelled is (why != "signal")


@pytest.mark.contract("G-09")
async def test_nothing_is_awaited_between_the_last_look_and_the_call() -> None:
    scene = Scene()
    looked: list[str] = []

    class Watch(LeaseWatch):
        def usable(self, now: float) -> bool:
            if scene.ledger.writes == ["hand_over"]:
                looked.append("look")
                # Whatever else is ready to run gets its turn at the next await: it must find the call begun.
                asyncio.get_running_loop().call_soon(looked.append, "others")
            return super().usable(now)

    def call(arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        looked.append("call")
        return committed(arguments, context)

    scene.tool.script = call
    watch = Watch(scene.watch.deadline)
    guard = Guard({SEND.id: scene.tool}, scene.policy, scene.ledger, watch, DEVICE, 1, scene.clock)
    scene.dispatcher = ToolDispatcher(guard, {SEND.id: SEND}, {"a": scene.arguments}, scene.stop)
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert looked[:2] == ["look", "call"]


@pytest.mark.contract("G-09")
async def test_a_cancellation_during_the_hand_over_is_answered_by_a_withdrawal() -> None:
    scene = Scene()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await go_on.wait()

    scene.ledger.before["hand_over"] = hold
    running = asyncio.create_task(scene.dispatch())
    await reached.wait()
    running.cancel()
    go_on.set()
    assert await running is DispatchOutcome.REVIEW_REQUIRED
    assert scene.ledger.writes == ["hand_over", "withdraw"]
    assert scene.tool.calls == []


@pytest.mark.contract("G-10")
@pytest.mark.parametrize(
    "script",
    [
        raising(RuntimeError("canary")),
        raising(TimeoutError()),
        raising(ConnectionResetError()),
        answering(DispatchOutcome.REVIEW_REQUIRED),
        answering("perhaps"),
        answering(None),
        lambda *_: None,
    ],
)
async def test_what_goes_wrong_after_the_hand_over_is_doubt(script: Any) -> None:
    scene = Scene(script=script)
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.entry is not None
    assert scene.entry.state is EntryState.HANDED_OVER
    assert (len(scene.tool.calls), scene.ledger.writes) == (1, ["hand_over"])


@pytest.mark.contract("G-10")
async def test_r35_a_cancelled_call_is_doubt_and_the_cancellation_goes_on() -> None:
    scene = Scene()
    begun = asyncio.Event()

    async def hang(*_: object) -> ToolResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    scene.tool.script = hang
    running = asyncio.create_task(scene.dispatch())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert scene.entry is not None
    assert scene.entry.state is EntryState.HANDED_OVER
    assert scene.cause is Cause.UNCERTAIN


@pytest.mark.contract("G-11")
@pytest.mark.parametrize("evidence", [None, "", 5, "x" * 257, "two\nlines", "ümlaut", True])
async def test_an_effect_without_evidence_is_doubt(evidence: object) -> None:
    scene = Scene(script=answering(DispatchOutcome.COMMITTED, "done", evidence))
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.cause is Cause.NO_EVIDENCE
    assert scene.entry is not None
    assert scene.entry.state is EntryState.HANDED_OVER
    assert scene.record.outputs == {}


@pytest.mark.contract("G-12")
async def test_a_definite_failure_of_an_effect_is_settled_as_one() -> None:
    scene = Scene(script=answering(DispatchOutcome.FAILED, {"status": 7}, "marker"))
    assert await scene.dispatch() is DispatchOutcome.FAILED
    assert scene.entry is not None
    assert (scene.entry.outcome, scene.entry.evidence, scene.cause) == ("failed", "marker", Cause.TOOL_FAILED)
    assert scene.record.outputs == {"a": '{"status":7}'}


@pytest.mark.contract("G-12")
@pytest.mark.parametrize("contract", [SEND, FETCH])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_cannot_be_settled_is_never_reported_as_committed(contract: ToolContract, when: str) -> None:
    scene = Scene(contract)
    getattr(scene.ledger, when)["settle"] = raising(Unavailable("away"))
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert len(scene.tool.calls) == 1


@pytest.mark.contract("G-12", "G-15")
async def test_a_lease_that_is_lost_during_the_call_leaves_doubt_and_stops_the_run() -> None:
    scene = Scene()

    def call(arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        scene.record.supersede()
        return committed(arguments, context)

    scene.tool.script = call
    assert await scene.dispatch() is DispatchOutcome.REVIEW_REQUIRED
    assert scene.watch.lost
    assert scene.stop.cancelled
    assert scene.entry is not None
    assert scene.entry.state is EntryState.HANDED_OVER


@pytest.mark.contract("G-12")
async def test_a_cancellation_during_the_settlement_does_not_lose_it() -> None:
    scene = Scene()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await go_on.wait()

    scene.ledger.before["settle"] = hold
    running = asyncio.create_task(scene.dispatch())
    await reached.wait()
    running.cancel()
    go_on.set()
    assert await running is DispatchOutcome.COMMITTED
    assert scene.entry is not None
    assert scene.entry.state is EntryState.SETTLED


@pytest.mark.contract("G-14")
@pytest.mark.parametrize("contract", [SEND, FETCH])
async def test_a_large_output_is_kept_as_a_mark_and_the_effect_stays_committed(contract: ToolContract) -> None:
    scene = Scene(contract, script=answering(DispatchOutcome.COMMITTED, "x" * 70_000))
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert scene.record.outputs == {"a": '{"bytes":70002,"truncated":true}'}
    fits = Scene(contract, script=answering(DispatchOutcome.COMMITTED, "x" * 65_534))
    assert await fits.dispatch() is DispatchOutcome.COMMITTED
    assert fits.record.outputs["a"] == '"' + "x" * 65_534 + '"'


@pytest.mark.contract("G-06")
async def test_a_tool_that_changes_its_arguments_changes_nothing_else() -> None:
    source: dict[str, Any] = {"text": "hello"}
    scene = Scene(arguments=literal(source))

    def spoil(arguments: Any, _: CallContext) -> ToolResult:
        arguments["text"] = "spoilt"
        return ToolResult(DispatchOutcome.COMMITTED, None, "proof")

    scene.tool.script = spoil
    scene.ledger.after["hand_over"] = lambda: source.update(text="spoilt")
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert scene.tool.calls == [{"text": "hello"}]
    assert scene.entry is not None
    assert scene.entry.arguments_digest == digest(canonical({"text": "hello"}))


@pytest.mark.contract("G-17")
async def test_a_reference_takes_the_output_from_memory_or_from_the_ledger() -> None:
    scene = Scene(arguments=template({"text": "${steps.early.word}"}))
    scene.record.outputs["early"] = '{"word":"${steps.x.y}"}'
    assert await scene.dispatch() is DispatchOutcome.COMMITTED
    assert scene.tool.calls == [{"text": "${steps.x.y}"}]
    held = Scene(arguments=template({"text": "${steps.early.word}"}))
    held.dispatcher.outputs.keep("early", '{"word":"here"}')
    assert await held.dispatch() is DispatchOutcome.COMMITTED
    assert held.tool.calls == [{"text": "here"}]


@pytest.mark.contract("G-16")
async def test_r58_no_payload_and_no_words_of_an_error_are_in_journal_or_events() -> None:
    for script in (committed, raising(RuntimeError("canary")), answering(DispatchOutcome.FAILED, "canary", "")):
        scene = Scene(arguments=literal({"text": "canary"}), script=script)
        await scene.dispatch()
        assert "canary" not in repr(scene.record.journal)
        assert "canary" not in repr(scene.events)
        assert [event for event, _ in scene.events] == [Event.ACTION_ADMITTED, Event.ACTION_ENDED]


@pytest.mark.contract("G-16")
async def test_r60_refused_arguments_are_kept_nowhere() -> None:
    scene = Scene(arguments=literal({"text": ["canary"]}))
    assert await scene.dispatch() is DispatchOutcome.FAILED
    for kept in (scene.record, scene.events, scene.dispatcher.closings, scene.dispatcher.outputs):
        assert "canary" not in repr(kept)


async def test_reads_may_go_through_the_guard_side_by_side() -> None:
    scene = Scene(FETCH)
    both = asyncio.Barrier(2)

    async def meet(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        await both.wait()
        return committed(arguments, call)

    scene.tool.script = meet
    scene.dispatcher._bindings = {"a": literal({"text": "1"}), "b": literal({"text": "2"})}
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(scene.dispatch("a"), scene.dispatch("b"))
    assert set(outcomes) == {DispatchOutcome.COMMITTED}
