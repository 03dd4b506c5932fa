"""Workflows of real attempts: through the scheduler, the guard and a ledger, and again after every possible crash."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from interlock.actions import CancellationSignal, DispatchOutcome
from interlock.clock import SystemClock
from interlock.drivers.shell import ShellDriver
from interlock.errors import LeaseSuperseded, Unavailable
from interlock.fleet.model import (
    Assignment,
    AttemptId,
    DeviceRef,
    Ending,
    EndKind,
    EntryState,
    HandOver,
    HostId,
    LeaseId,
    RunSave,
    Settlement,
    TaskId,
    WorkflowWork,
)
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.guard.tools import (
    Access,
    Answer,
    CallContext,
    Parameter,
    ProbeReport,
    ToolContract,
    ToolRegistry,
    ToolResult,
)
from interlock.runners.workflow import WorkflowRunner
from interlock.telemetry import Event, Fact, subscribed
from interlock.testing.ledger import DEVICE, MemoryLedger, MemoryRecord
from interlock.testing.tools import ScriptedTool, committed
from interlock.workflows import WorkflowDefinition, compile_workflow

FETCH = ToolContract("tool:example.agent/fetch", Access.READ, (Parameter("of"),))
JOIN = ToolContract("tool:example.agent/join", parameters=(Parameter("left"), Parameter("right")))
TELL = ToolContract("tool:example.agent/tell", parameters=(Parameter("text"),))
CONTRACTS = {each.id: each for each in (FETCH, JOIN, TELL)}
POLICY = Policy.allowing(["example.agent"])
EXAMPLE = Path(__file__).parents[2] / "examples" / "inventory.yaml"

TEXT = """\
name: w
inputs: {who: {type: string, default: us}}
steps:
  left: {tool: "tool:example.agent/fetch", with: {of: "${inputs.who}"}}
  right: {tool: "tool:example.agent/fetch", with: {of: r}}
  join:
    tool: tool:example.agent/join
    with: {left: "${steps.left.of}", right: "${steps.right.of}"}
  tell: {tool: "tool:example.agent/tell", with: {text: "${steps.join.left}+${steps.join.right}"}}
"""


def work_of(text: str, inputs: Mapping[str, object] | None = None) -> WorkflowWork:
    definition = WorkflowDefinition.parse(text, CONTRACTS)
    return WorkflowWork(definition.digest, definition.document, inputs or {})


def assignment(work: WorkflowWork, record: MemoryRecord, device: DeviceRef = DEVICE) -> Assignment:
    return Assignment(
        task_id=TaskId("task_1"),
        attempt_id=AttemptId("att_1"),
        lease_id=LeaseId("lease_1"),
        number=1,
        device=device,
        driver_type="example",
        fence=1,
        work=work,
        history=record.history(),
        lease_seconds=60,
        renew_seconds=15,
    )


@dataclass
class World:
    """What is outside of all checkpoints: how often each effect took place."""

    tools: dict[str, ScriptedTool] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tools = {each.id: ScriptedTool(each, self._act) for each in (FETCH, JOIN, TELL)}

    def _act(self, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        if call.action_id in {"join", "tell"}:
            self.effects.append(call.action_id)
        return committed(arguments, call)

    def script(self, contract: ToolContract, script: Any) -> None:
        self.tools[contract.id].script = script

    def calls_of(self, contract: ToolContract) -> int:
        return len(self.tools[contract.id].calls)


@dataclass
class Attempt:
    """The pieces of one attempt, to be changed before it runs."""

    world: World
    record: MemoryRecord
    work: WorkflowWork = field(default_factory=lambda: work_of(TEXT))
    policy: Policy = POLICY
    device: DeviceRef = DEVICE
    runner: WorkflowRunner = field(default_factory=WorkflowRunner)
    ledger: MemoryLedger | None = None
    cancellation: CancellationSignal = field(default_factory=CancellationSignal)

    def __post_init__(self) -> None:
        self.watch = LeaseWatch(SystemClock().elapsed() + 1_000)

    async def run(self) -> Ending:
        given = assignment(self.work, self.record, self.device)
        ledger = self.ledger or self.record.attempt(self.device)
        return await self.runner.run(
            given,
            ledger=ledger,
            tools=ToolRegistry(self.world.tools.values()),
            policy=self.policy,
            watch=self.watch,
            cancellation=self.cancellation,
        )


def states_of(record: MemoryRecord) -> dict[str, str]:
    (*_, last) = record.runs.values()
    return dict(json.loads(last[-1].checkpoint)["states"])


def states_of_or(record: MemoryRecord) -> dict[str, str]:
    return states_of(record) if record.runs else {}


def has_two_running(record: MemoryRecord) -> bool:
    return list(states_of_or(record).values()).count("running") == 2


@pytest.mark.contract("G-33", "G-46", "G-47")
async def test_a_workflow_runs_in_order_and_gives_the_output_that_nobody_else_needs() -> None:
    world, record = World(), MemoryRecord()
    ending = await Attempt(world, record).run()
    assert ending == Ending(EndKind.DONE, "completed", '{"tell":{"text":"us+r"}}')
    assert world.effects == ["join", "tell"]
    assert world.tools[JOIN.id].calls == [{"left": "us", "right": "r"}]
    ((run_id, saves),) = record.runs.items()
    assert [save.sequence for save in saves] == list(range(1, len(saves) + 1))
    assert {(save.run_id, save.parent_run_id) for save in saves} == {(run_id, None)}
    assert [entry.state for entry in record.journal.values()] == [EntryState.SETTLED] * 2


@pytest.mark.contract("G-35")
async def test_inputs_of_the_task_reach_their_steps() -> None:
    world, record = World(), MemoryRecord()
    ending = await Attempt(world, record, work_of(TEXT, {"who": "me"})).run()
    assert ending.output == '{"tell":{"text":"me+r"}}'


@pytest.mark.contract("G-26")
async def test_what_does_not_compile_here_is_a_failure_before_anything_happens() -> None:
    whole = work_of(TEXT)
    for work in (
        work_of(TEXT, {"who": 5}),
        work_of(TEXT, {"canary": "x"}),
        WorkflowWork("sha256:0", whole.document),
        WorkflowWork(whole.digest, whole.document + " "),
    ):
        world, record = World(), MemoryRecord()
        assert await Attempt(world, record, work).run() == Ending(EndKind.FAILED, "invalid_workflow")
        assert (world.calls_of(FETCH), record.runs) == (0, {})
    world = World()
    del world.tools[TELL.id]
    assert await Attempt(world, MemoryRecord()).run() == Ending(EndKind.FAILED, "invalid_workflow")


@pytest.mark.contract("G-03", "G-07", "G-45")
async def test_a_refused_effect_ends_the_task_and_nothing_after_it_runs() -> None:
    world, record = World(), MemoryRecord()
    policy = Policy.parse({"tools": {"tool:example.agent/*": "allow", JOIN.id: "ask"}})
    why = '{"not committed":{"join":{"cause":"needs_approval","output":null}}}'
    assert await Attempt(world, record, policy=policy).run() == Ending(EndKind.FAILED, "dispatch_failed", why)
    assert (world.effects, record.journal) == ([], {})


@pytest.mark.contract("G-36")
async def test_reads_of_a_file_overlap_and_effects_do_not() -> None:
    world, record = World(), MemoryRecord()
    both = asyncio.Barrier(2)

    async def meet(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        await both.wait()
        return committed(arguments, call)

    world.script(FETCH, meet)
    async with asyncio.timeout(5):
        assert (await Attempt(world, record).run()).kind is EndKind.DONE


@pytest.mark.contract("G-36")
def test_limits_hold_the_graph_and_what_can_be_in_flight_again_in_each_further_attempt() -> None:
    definition = WorkflowDefinition.parse(TEXT.replace("of: r}}", "of: r}, units: 3}"), CONTRACTS)
    limits = compile_workflow(definition, CONTRACTS, {}).limits
    assert (limits.max_concurrency, limits.parallel_reads, limits.max_elapsed_ns) == (8, True, 3_600_000_000_000)
    assert (limits.max_actions, limits.max_total_units, limits.max_inflight_units) == (4 + 2 * 2, 6 + 2 * 4, 4)
    once = compile_workflow(definition, CONTRACTS, {}, max_attempts=1).limits
    assert (once.max_actions, once.max_total_units) == (4, 6)
    given = TEXT.replace("steps:", "limits: {max_actions: 4, max_concurrency: 1, max_total_units: 9}\nsteps:", 1)
    limits = compile_workflow(WorkflowDefinition.parse(given, CONTRACTS), CONTRACTS, {}).limits
    assert (limits.max_actions, limits.max_concurrency, limits.max_total_units) == (4, 1, 9)


@pytest.mark.contract("G-01")
def test_only_the_contract_classifies() -> None:
    definition = WorkflowDefinition.parse(TEXT, CONTRACTS)
    reads = {each.node.action_id for each in compile_workflow(definition, CONTRACTS, {}).actions if each.read_only}
    assert reads == {"left", "right"}
    effects = {**CONTRACTS, FETCH.id: ToolContract(FETCH.id, parameters=FETCH.parameters)}
    assert not any(each.read_only for each in compile_workflow(definition, effects, {}).actions)


class TimelineLedger(MemoryLedger):
    """Keeps a copy of all that is durable, and of the world, before and after each write: each is a possible crash."""

    def __init__(self, record: MemoryRecord, world: World) -> None:
        record.attempt()
        assert record.live is not None
        super().__init__(record, record.live, DEVICE)
        self.world = world
        self.moments: list[tuple[str, MemoryRecord, list[str]]] = []

    def moment(self, name: str) -> None:
        self.moments.append((name, copy.deepcopy(self.record), list(self.world.effects)))

    async def save(self, save: RunSave) -> None:
        self.moment("before save")
        await super().save(save)
        self.moment("after save")

    async def hand_over(self, entry: HandOver) -> None:
        self.moment(f"before handing over {entry.action_id}")
        await super().hand_over(entry)
        self.moment(f"handed over {entry.action_id}")

    async def settle(self, settlement: Settlement) -> None:
        self.moment(f"before settling {settlement.action_id}")
        await super().settle(settlement)
        self.moment(f"settled {settlement.action_id}")


@pytest.mark.contract("G-18", "G-19", "G-20", "G-21", "G-22", "G-23")
async def test_after_a_crash_between_any_two_steps_no_effect_is_repeated() -> None:
    world, record = World(), MemoryRecord()
    ledger = TimelineLedger(record, world)

    def act(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        ledger.moment(f"before the call of {call.action_id}")
        result = world._act(arguments, call)
        ledger.moment(f"after the call of {call.action_id}")
        return result

    for contract in (FETCH, JOIN, TELL):
        world.script(contract, act)
    assert (await Attempt(world, record, ledger=ledger).run()).kind is EndKind.DONE
    ledger.moment("at the end")
    doubtful = set()
    for name, durable, effects in ledger.moments:
        later = World(effects=list(effects))
        ending = await Attempt(later, durable).run()
        assert len(later.effects) == len(set(later.effects)), name
        open_entries = [entry for entry in durable.journal.values() if entry.state is EntryState.HANDED_OVER]
        if open_entries:
            doubtful.add(name)
            assert ending == Ending(EndKind.FAILED, "review_required"), name
            assert later.effects == effects, name
            assert sum(map(later.calls_of, (FETCH, JOIN, TELL))) == 0, name
        else:
            assert ending == Ending(EndKind.DONE, "completed", '{"tell":{"text":"us+r"}}'), name
            assert later.effects == ["join", "tell"], name
    assert {name for name in doubtful if "join" in name} == {
        "handed over join",
        "before the call of join",
        "after the call of join",
        "before settling join",
    }


@pytest.mark.contract("G-18", "G-22")
async def test_r9_a_run_that_is_delivered_again_calls_no_committed_effect() -> None:
    world, record = World(), MemoryRecord()
    world.script(TELL, lambda *_: ToolResult(DispatchOutcome.FAILED))
    assert (await Attempt(world, record).run()).reason == "dispatch_failed"
    again = World()
    assert (await Attempt(again, record).run()).reason == "dispatch_failed"
    assert again.effects == []


@pytest.mark.contract("G-22", "G-46")
async def test_a_clean_run_goes_on_under_its_own_id_with_the_next_number() -> None:
    world, record = World(), MemoryRecord()
    ledger = TimelineLedger(record, world)
    await Attempt(world, record, ledger=ledger).run()
    clean = next(
        durable
        for _, durable, _ in ledger.moments
        if durable.runs and sorted(states_of(durable).values()) == ["committed", "committed", "pending", "pending"]
    )
    (run_id,) = clean.runs
    before = len(clean.runs[run_id])
    later = World()
    assert (await Attempt(later, clean).run()).kind is EndKind.DONE
    assert list(clean.runs) == [run_id]
    assert len(clean.runs[run_id]) > before
    assert (later.calls_of(FETCH), later.effects) == (0, ["join", "tell"])


@pytest.mark.contract("G-21", "G-23")
async def test_an_interrupted_read_goes_on_in_a_successor_run() -> None:
    world, record = World(), MemoryRecord()
    ledger = TimelineLedger(record, world)
    await Attempt(world, record, ledger=ledger).run()
    amid = next(durable for name, durable, _ in ledger.moments if name == "settled left")
    later = World()
    assert (await Attempt(later, amid).run()).kind is EndKind.DONE
    first, second = amid.runs
    assert amid.runs[second][0].parent_run_id == first
    assert amid.runs[second][0].sequence == 1


@pytest.mark.contract("G-36")
async def test_default_limits_pay_for_a_crash_among_reads_in_each_further_attempt() -> None:
    world, record = World(), MemoryRecord()
    for attempts in (1, 2):
        ledger = TimelineLedger(record, world)
        await Attempt(World(), record, ledger=ledger).run()
        of_this_run = [durable for _, durable, _ in ledger.moments if len(durable.runs) == attempts]
        record = next(durable for durable in of_this_run if has_two_running(durable))
    assert (await Attempt(world, record).run()).kind is EndKind.DONE
    assert len(record.runs) == 3


class RefusingLedger(MemoryLedger):
    """Refuses every save from the given one on."""

    def __init__(self, record: MemoryRecord, error: Exception, first: int) -> None:
        record.attempt()
        assert record.live is not None
        super().__init__(record, record.live, DEVICE)
        self.error, self.first, self.saves = error, first, 0

    async def save(self, save: RunSave) -> None:
        self.saves += 1
        if self.saves >= self.first:
            raise self.error
        await super().save(save)


@pytest.mark.contract("G-45", "G-46")
@pytest.mark.parametrize("first", range(1, 9))
async def test_once_the_lease_is_lost_no_save_and_no_action_follows(first: int) -> None:
    world, record = World(), MemoryRecord()
    attempt = Attempt(world, record, ledger=RefusingLedger(record, LeaseSuperseded("lost"), first))
    ending = await attempt.run()
    assert ending.kind is EndKind.RELEASED
    assert attempt.watch.lost
    later = World(effects=list(world.effects))
    ending = await Attempt(later, record).run()
    assert ending.kind is EndKind.DONE
    assert later.effects == ["join", "tell"]


@pytest.mark.contract("G-45")
async def test_a_save_that_fails_gives_the_task_back() -> None:
    world, record = World(), MemoryRecord()
    attempt = Attempt(world, record, ledger=RefusingLedger(record, Unavailable("away"), 3))
    assert await attempt.run() == Ending(EndKind.RELEASED, "worker_lost")


@pytest.mark.contract("G-09", "G-45")
@pytest.mark.parametrize("asked", [True, False])
async def test_a_cancel_ends_the_task_and_a_stop_gives_it_back(asked: bool) -> None:  # noqa: FBT001 - a table of cases
    world, record = World(), MemoryRecord()
    attempt = Attempt(world, record)

    def act(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        attempt.watch.cancel_requested = asked
        attempt.cancellation.cancel()
        return world._act(arguments, call)

    world.script(JOIN, act)
    ending = await attempt.run()
    assert world.effects == ["join"]
    assert ending == (Ending(EndKind.CANCELLED, "cancelled") if asked else Ending(EndKind.RELEASED, "interrupted"))
    later = World(effects=["join"])
    assert (await Attempt(later, record).run()).kind is EndKind.DONE
    assert later.effects == ["join", "tell"]


@pytest.mark.contract("G-15")
async def test_a_local_deadline_stops_the_run_and_another_attempt_goes_on() -> None:
    world, record = World(), MemoryRecord()
    attempt = Attempt(world, record)

    def act(arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        attempt.watch.deadline = 0
        return world._act(arguments, call)

    world.script(JOIN, act)
    assert await attempt.run() == Ending(EndKind.RELEASED, "interrupted")
    assert world.effects == ["join"]
    later = World(effects=["join"])
    assert (await Attempt(later, record).run()).kind is EndKind.DONE
    assert later.effects == ["join", "tell"]


@pytest.mark.contract("G-10", "G-45")
async def test_an_effect_in_doubt_ends_the_task_and_no_later_attempt_calls_anything() -> None:
    world, record = World(), MemoryRecord()

    def die(*_: object) -> ToolResult:
        raise ConnectionResetError

    world.script(JOIN, die)
    why = '{"not committed":{"join":{"cause":"uncertain","output":null}}}'
    assert await Attempt(world, record).run() == Ending(EndKind.FAILED, "review_required", why)
    later = World()
    assert await Attempt(later, record).run() == Ending(EndKind.FAILED, "review_required")
    assert (later.calls_of(FETCH), later.effects) == (0, [])


@dataclass
class ProbedTool(ScriptedTool):
    """A tool that says of its effects what a test wants."""

    report: ProbeReport = field(default_factory=lambda: ProbeReport(Answer.CANNOT_TELL))
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def probe(self, arguments: Mapping[str, Any], call: CallContext) -> ProbeReport:
        del call
        self.asked.append(dict(arguments))
        return self.report


async def in_doubt(contract: ToolContract = JOIN) -> MemoryRecord:
    """What is durable when a worker died during the call of `join`."""
    world, record = World(), MemoryRecord()
    ledger = TimelineLedger(record, world)
    await Attempt(world, record, ledger=ledger).run()
    return next(durable for name, durable, _ in ledger.moments if name == f"before settling {contract.id[-4:]}")


@pytest.mark.contract("G-27")
@pytest.mark.parametrize(
    ("report", "kind", "effects"),
    [
        (ProbeReport(Answer.HAPPENED, {"left": "L", "right": "R"}, "seen"), EndKind.DONE, ["join", "tell"]),
        (ProbeReport(Answer.DID_NOT_HAPPEN), EndKind.DONE, ["join", "join", "tell"]),
        (ProbeReport(Answer.CANNOT_TELL), EndKind.FAILED, ["join"]),
        (ProbeReport(Answer.HAPPENED, {}, None), EndKind.FAILED, ["join"]),
    ],
)
async def test_a_probe_settles_a_doubt(report: ProbeReport, kind: EndKind, effects: list[str]) -> None:
    record, later = await in_doubt(), World(effects=["join"])
    tool = ProbedTool(JOIN, later._act, report=report)
    later.tools[JOIN.id] = tool
    ending = await Attempt(later, record).run()
    assert (ending.kind, later.effects) == (kind, effects)
    assert tool.asked == [{"left": "us", "right": "r"}]
    if report.evidence:
        assert ending.output == '{"tell":{"text":"L+R"}}'
    told = [(each.outcome, each.evidence) for each in record.journal.values()]
    assert (("review_required", "no probe could tell") in told) is (kind is EndKind.FAILED)


@pytest.mark.contract("G-27")
async def test_a_probe_that_fails_cannot_tell() -> None:
    class Failing(ProbedTool):
        async def probe(self, arguments: Mapping[str, Any], call: CallContext) -> ProbeReport:
            await super().probe(arguments, call)
            message = "canary"
            raise RuntimeError(message)

    record, later = await in_doubt(), World()
    later.tools[JOIN.id] = Failing(JOIN, later._act)
    assert await Attempt(later, record).run() == Ending(EndKind.FAILED, "review_required")
    assert [(each.outcome, each.evidence) for each in record.journal.values()] == [
        ("review_required", "no probe could tell")
    ]


@pytest.mark.contract("G-27")
async def test_a_probe_is_not_asked_elsewhere_nor_where_policy_forbids_its_tool() -> None:
    for device, policy in (
        (DeviceRef(HostId("host"), "other"), POLICY),
        (DEVICE, Policy.parse({"tools": {FETCH.id: "allow"}})),
    ):
        record, later = await in_doubt(), World()
        tool = ProbedTool(JOIN, later._act, report=ProbeReport(Answer.DID_NOT_HAPPEN))
        later.tools[JOIN.id] = tool
        ending = await Attempt(later, record, device=device, policy=policy).run()
        assert ending == Ending(EndKind.FAILED, "review_required")
        assert (tool.asked, later.effects) == ([], [])


@pytest.mark.contract("G-27")
async def test_a_probe_is_not_asked_about_other_arguments() -> None:
    record, later = await in_doubt(), World()
    record.outputs["left"] = '{"of":"changed"}'
    tool = ProbedTool(JOIN, later._act, report=ProbeReport(Answer.DID_NOT_HAPPEN))
    later.tools[JOIN.id] = tool
    assert await Attempt(later, record).run() == Ending(EndKind.FAILED, "review_required")
    assert tool.asked == []


@pytest.mark.contract("G-27")
async def test_an_answer_that_the_ledger_does_not_take_counts_for_nothing() -> None:
    class Refusing(MemoryLedger):
        async def withdraw(self, run_id: str, action_id: str) -> None:
            del run_id, action_id
            message = "away"
            raise Unavailable(message)

    record, later = await in_doubt(), World()
    later.tools[JOIN.id] = ProbedTool(JOIN, later._act, report=ProbeReport(Answer.DID_NOT_HAPPEN))
    record.attempt()
    assert record.live is not None
    ledger = Refusing(record, record.live, DEVICE)
    assert await Attempt(later, record, ledger=ledger).run() == Ending(EndKind.FAILED, "review_required")
    assert later.effects == []


@pytest.mark.contract("G-27")
async def test_a_probe_waits_for_the_settling_time_of_its_tool() -> None:
    class Moving(SystemClock):
        slept: float = 0

        async def sleep(self, seconds: float) -> None:
            self.slept += seconds

    record, later, clock = await in_doubt(), World(), Moving()
    slow = ToolContract(JOIN.id, parameters=JOIN.parameters, settle_seconds=30)
    later.tools[JOIN.id] = ProbedTool(slow, later._act, report=ProbeReport(Answer.DID_NOT_HAPPEN))
    assert (await Attempt(later, record, runner=WorkflowRunner(clock)).run()).kind is EndKind.DONE
    assert clock.slept == 30


@pytest.mark.contract("G-26")
async def test_r55_a_class_that_has_changed_does_not_go_on_under_the_same_run() -> None:
    world, record = World(), MemoryRecord()
    ledger = TimelineLedger(record, world)
    await Attempt(world, record, ledger=ledger).run()
    clean = next(
        durable
        for _, durable, _ in ledger.moments
        if sorted(states_of_or(durable).values()) == ["committed", "committed", "pending", "pending"]
    )
    later = World()
    changed = ToolContract(TELL.id, Access.READ, TELL.parameters)
    later.tools[TELL.id] = ScriptedTool(changed, later._act)
    assert await Attempt(later, clean).run() == Ending(EndKind.FAILED, "plan_changed")
    assert later.effects == []


@pytest.mark.contract("G-47")
async def test_a_large_result_is_bounded_step_by_step() -> None:
    steps = "".join(f"  s{n}: {{tool: 'tool:example.agent/fetch', with: {{of: {'x' * 30_000}}}}}\n" for n in range(4))
    world, record = World(), MemoryRecord()
    ending = await Attempt(world, record, work_of(f"name: w\nsteps:\n{steps}")).run()
    assert ending.output is not None
    assert len(ending.output) <= 65_536
    result = json.loads(ending.output)
    assert [len(result[name]["of"]) for name in ("s0", "s1")] == [30_000, 30_000]
    assert result["s2"] == result["s3"] == {"truncated": True, "bytes": 30_009}


@pytest.mark.contract("G-16")
async def test_r58_no_canary_is_in_checkpoints_journal_or_events() -> None:
    seen: list[tuple[Event, dict[str, Fact]]] = []
    world, record = World(), MemoryRecord()

    def fail(*_: object) -> ToolResult:
        message = "canary"
        raise RuntimeError(message)

    world.script(TELL, fail)
    with subscribed(lambda event, facts: seen.append((event, facts))):
        await Attempt(world, record, work_of(TEXT, {"who": "canary"})).run()
    assert "canary" in repr(record.outputs)
    for kept in (record.runs, record.journal, seen):
        assert "canary" not in repr(kept)
    assert [event for event, _ in seen].count(Event.ACTION_ENDED) == 4
    assert [event for event, _ in seen].count(Event.RUN_ENDED) == 1


@pytest.mark.contract("G-36", "G-47")
async def test_the_example_takes_stock_of_an_empty_directory(tmp_path: Path) -> None:
    driver = ShellDriver()
    definition = WorkflowDefinition.parse(EXAMPLE.read_text(), driver.contracts)
    assert len(definition.steps) >= 8
    record = MemoryRecord()
    work = WorkflowWork(definition.digest, definition.document, {"title": "Stock"})
    async with driver.open({"directory": tmp_path}) as device:
        ending = await WorkflowRunner().run(
            assignment(work, record),
            ledger=record.attempt(),
            tools=device.tools(),
            policy=Policy.allowing(["interlock.shell"]),
            watch=LeaseWatch(SystemClock().elapsed() + 1_000),
            cancellation=CancellationSignal(),
        )
    assert ending.kind is EndKind.DONE
    assert ending.output is not None
    assert json.loads(ending.output)["check"]["content"].startswith("Stock\nsystem: ")
    assert (tmp_path / "stock" / "inventory.sha256").exists()
