"""Names, numbers, nodes, limits and the check of a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlock.actions
from actions.stage import RUN, TOOL, Saves, Stage, effect, finished, limits, read
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    Code,
    RunId,
    ScheduledAction,
    SchedulerError,
    SchedulerLimits,
    StopReason,
    validate_action_graph,
)


def code_of(refused: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """The code of a refusal, held to having nothing else to say."""
    with pytest.raises(SchedulerError) as caught:
        refused(*arguments, **named)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.args == (error.code,)
    assert str(error) in set(Code)
    return str(error)


@pytest.mark.contract("A-01")
def test_a_run_id_is_generated_parsed_and_serialised_and_never_shown() -> None:
    first, second = RunId.generate(), RunId.generate()
    assert first != second
    assert re.fullmatch("run_[0-9a-f]{32}", first.serialize())
    assert RunId.parse(first.serialize()) == first
    assert first.serialize()[4:] not in repr(first) + str(first)


@pytest.mark.contract("A-01", "A-08")
@pytest.mark.parametrize(
    "text", ["", "run_", "run_" + "G" * 32, "run_" + "A" * 32, "run_" + "a" * 31, "run_" + "a" * 33, 5, None]
)
def test_anything_else_is_no_run_id(text: Any) -> None:
    assert code_of(RunId.parse, text) == "invalid_run_id"
    assert code_of(RunId.parse, "run_" + "a" * 32 + "\n") == "invalid_run_id"


@pytest.mark.contract("A-02")
def test_an_action_id_has_1_to_128_plain_characters_and_ends_in_letters_or_digits() -> None:
    for key in ("a", "Z", "0", "a_b.c-d", "a" * 128, "9-9"):
        assert ActionNode(key, TOOL).action_id == key
    wrong: tuple[Any, ...] = ("", "a" * 129, "-a", "a.", "_a", "a b", "a/b", "å", "a\n", 1, None)
    for each in wrong:
        assert code_of(ActionNode, each, TOOL) == "invalid_action"


@pytest.mark.contract("A-03")
def test_a_tool_id_has_a_namespace_of_two_labels_a_name_and_perhaps_a_version() -> None:
    for tool in ("tool:a.b/c", "tool:interlock.shell/run_1", "tool:a.b.c/d@1.2.3", "tool:a.b/c@0.0.10"):
        assert ActionNode("a", tool).tool_id == tool
    bad: tuple[Any, ...] = ("", None, "a.b/c", "tool:a/c", "tool:a.b", "tool:A.b/c", "tool:a.b/C", "tool:a.b/c@1.2")
    for each in (
        *bad,
        "tool:a.b/c@01.2.3",
        "tool:a..b/c",
        "tool:a.b/c@1.2.3.4",
        "tool:a.b/c ",
        "tool:a.b/" + "c" * 256,
    ):
        assert code_of(ActionNode, "a", each) == "invalid_action"


@pytest.mark.contract("A-04")
def test_a_node_holds_identifiers_and_at_most_64_dependencies() -> None:
    needs = tuple(f"n{number}" for number in range(65))
    assert ActionNode("a", TOOL, needs[:64]).depends_on == needs[:64]
    assert code_of(ActionNode, "a", TOOL, needs) == "invalid_action"
    assert set(ActionNode("a", TOOL).to_dict()) == {"action_id", "tool_id", "depends_on"}
    for needs_of in ("b", ("-",), (1,), None, {"b"}):
        assert code_of(ActionNode, "a", TOOL, needs_of) == "invalid_action"


@pytest.mark.contract("A-04")
def test_r74_a_list_that_the_caller_keeps_cannot_change_a_node_afterwards() -> None:
    needs: Any = ["b"]
    node = ActionNode("a", TOOL, needs)
    needs.append("c")
    assert node.depends_on == ("b",)
    with pytest.raises(AttributeError):
        node.action_id = "x"  # type: ignore[misc]


@pytest.mark.contract("A-05", "A-06")
def test_an_action_is_an_effect_of_one_unit_unless_the_host_says_otherwise() -> None:
    action = ScheduledAction(ActionNode("a", TOOL))
    assert (action.read_only, action.resource_units) == (False, 1)
    for units in (0, -1, True, 1.0, "1", None, 2**63):
        assert code_of(effect, "a", units=units) == "invalid_integer"
    for word in (1, "yes", None):
        assert code_of(ScheduledAction, ActionNode("a", TOOL), read_only=word) == "invalid_policy"
    not_a_node: Any = {"action_id": "a", "tool_id": TOOL}
    assert code_of(ScheduledAction, not_a_node) == "invalid_action"


@pytest.mark.contract("A-06", "A-07")
def test_limits_are_positive_integers_and_serial_by_default() -> None:
    assert SchedulerLimits(1, 1, 1, 1, 1).parallel_reads is False
    for place in range(5):
        for value in (0, -1, True, 1.5, "1", None):
            numbers: list[Any] = [1] * 5
            numbers[place] = value
            assert code_of(SchedulerLimits, *numbers) == "invalid_integer"
    word: Any = 1
    assert code_of(SchedulerLimits, 1, 1, 1, 1, 1, parallel_reads=word) == "invalid_policy"


@pytest.mark.contract("A-08")
def test_the_codes_are_a_closed_set() -> None:
    named = """invalid_integer invalid_policy invalid_action invalid_actions too_many_actions invalid_limits
        invalid_graph invalid_run_id invalid_cancellation invalid_plan_digest invalid_states invalid_state
        invalid_state_order invalid_stop_reason invalid_checkpoint scheduler_already_running
        checkpoint_identity_mismatch checkpoint_budget_mismatch checkpoint_dependency_mismatch
        checkpoint_completion_mismatch"""
    assert set(Code) == set(named.split())


@pytest.mark.contract("A-09")
def test_every_public_name_is_imported_from_the_package() -> None:
    wanted = """ActionGraphReport ActionNode ActionScheduler ActionState CancellationSignal DispatchOutcome
        FileCheckpoints GuardedDispatcher RunId ScheduledAction SchedulerCheckpoint SchedulerError SchedulerLimits
        SqliteCheckpoints StopReason preflight validate_action_graph"""
    assert set(wanted.split()) <= set(interlock.actions.__all__)
    assert all(hasattr(interlock.actions, name) for name in interlock.actions.__all__)


@pytest.mark.contract("A-10")
def test_every_fault_of_a_graph_is_named_in_one_pass() -> None:
    nodes = [
        ActionNode("a", TOOL, ("b",)),
        ActionNode("b", TOOL, ("a",)),
        ActionNode("c", TOOL, ("a", "a", "c", "nowhere")),
        ActionNode("d", TOOL),
        ActionNode("d", TOOL),
    ]
    report = validate_action_graph(nodes)
    found = [(each.action_id, each.reason_code, each.dependency_id) for each in report.findings]
    assert found == [
        ("a", "dependency_cycle", None),
        ("b", "dependency_cycle", None),
        ("c", "duplicate_dependency", "a"),
        ("c", "missing_dependency", "nowhere"),
        ("c", "self_dependency", "c"),
        ("d", "duplicate_action_id", None),
    ]
    assert not report.is_valid
    assert report.order == ()
    assert report.reason_codes == tuple(code for _, code, _ in found)
    assert report.to_dict()["node_count"] == 4
    assert report.to_json() == validate_action_graph(nodes).to_json()


@pytest.mark.contract("A-10")
def test_what_hangs_on_a_cycle_is_not_in_it() -> None:
    nodes = [ActionNode("a", TOOL, ("c",)), ActionNode("b", TOOL, ("a",)), ActionNode("c", TOOL, ("b",))]
    report = validate_action_graph([*nodes, ActionNode("tail", TOOL, ("a",))])
    assert [each.action_id for each in report.findings] == ["a", "b", "c"]


@pytest.mark.contract("A-11")
@pytest.mark.parametrize(("count", "last"), [(1_000, "self_dependency"), (1_001, "findings_truncated")])
def test_faults_are_named_up_to_a_thousand(count: int, last: str) -> None:
    nodes = [ActionNode(f"n{number:05}", TOOL, (f"n{number:05}",)) for number in range(count)]
    report = validate_action_graph(nodes)
    assert len(report.findings) == 1_000
    assert report.findings[-1].reason_code == last


@pytest.mark.contract("A-12")
def test_a_sound_graph_has_one_ascending_order() -> None:
    nodes = [ActionNode("z", TOOL), ActionNode("a", TOOL, ("m",)), ActionNode("m", TOOL), ActionNode("b", TOOL)]
    assert validate_action_graph(nodes).order == ("b", "m", "a", "z")
    assert validate_action_graph(reversed(nodes)).order == ("b", "m", "a", "z")
    assert validate_action_graph(nodes).edge_count == 1
    assert validate_action_graph([]).is_valid


@st.composite
def edges(draw: st.DrawFn) -> list[ActionNode]:
    keys = [f"n{number}" for number in range(draw(st.integers(1, 7)))]
    chosen = st.lists(st.sampled_from(keys), max_size=3, unique=True)
    return [ActionNode(key, TOOL, tuple(draw(chosen))) for key in keys]


@pytest.mark.contract("A-10", "A-12")
@given(edges())
def test_an_action_is_on_a_cycle_exactly_when_it_can_reach_itself(nodes: list[ActionNode]) -> None:
    parents = {node.action_id: set(node.depends_on) - {node.action_id} for node in nodes}

    def reachable(key: str) -> set[str]:
        seen: set[str] = set()
        todo = list(parents[key])
        while todo:
            if (each := todo.pop()) not in seen:
                seen.add(each)
                todo += parents[each]
        return seen

    report = validate_action_graph(nodes)
    cyclic = {each.action_id for each in report.findings if each.reason_code == "dependency_cycle"}
    assert cyclic == {key for key in parents if key in reachable(key)}
    if report.is_valid:
        places = {key: place for place, key in enumerate(report.order)}
        assert all(places[parent] < places[key] for key in parents for parent in parents[key])


@pytest.mark.contract("A-13")
async def test_more_than_10_000_nodes_are_too_many_and_more_than_max_actions_are_not() -> None:
    many = [ActionNode(f"n{number:05}", TOOL) for number in range(10_001)]
    assert validate_action_graph(many[:-1]).is_valid
    assert code_of(validate_action_graph, many) == "too_many_actions"
    actions = [ScheduledAction(node) for node in many]
    assert code_of(ActionScheduler, actions, limits(), Stage(), Saves()) == "too_many_actions"
    last = await finished([effect("a"), effect("b")], limits(actions=1), Stage(otherwise="x"), Saves())
    assert last.admitted_actions == 1


@pytest.mark.contract("A-13")
def test_an_endless_iterable_is_read_no_further_than_the_limit() -> None:
    def endless() -> Iterable[ActionNode]:
        while True:
            yield ActionNode("a", TOOL)

    assert code_of(validate_action_graph, endless()) == "too_many_actions"


@pytest.mark.contract("A-14", "A-08")
def test_a_scheduler_is_not_built_over_anything_faulty() -> None:
    stage, saves, bounds = Stage(), Saves(), limits()
    wrong: Any = object()

    def broken() -> Iterable[ScheduledAction]:
        yield effect("a")
        message = "canary"
        raise RuntimeError(message)

    built: Any = ActionScheduler
    assert code_of(built, [effect("a", "b")], bounds, stage, saves) == "invalid_graph"
    assert code_of(built, [effect("a"), effect("a")], bounds, stage, saves) == "invalid_graph"
    assert code_of(built, [ActionNode("a", TOOL)], bounds, stage, saves) == "invalid_actions"
    assert code_of(built, 5, bounds, stage, saves) == "invalid_actions"
    assert code_of(built, broken(), bounds, stage, saves) == "invalid_actions"
    assert code_of(built, [effect("a")], wrong, stage, saves) == "invalid_limits"
    assert code_of(built, [effect("a")], bounds, wrong, saves) == "invalid_policy"
    assert code_of(built, [effect("a")], bounds, stage, wrong) == "invalid_policy"
    assert code_of(built, [effect("a")], bounds, stage, saves, clock=5) == "invalid_policy"
    for timeout in (-1, True, 1.0):
        refused = code_of(built, [effect("a")], bounds, stage, saves, drain_timeout_ns=timeout)
        assert refused == "invalid_integer"


@pytest.mark.contract("A-15")
def test_the_digest_binds_nodes_classes_units_and_limits_and_no_order() -> None:
    def digest(*actions: ScheduledAction, bounds: SchedulerLimits | None = None) -> str:
        return ActionScheduler(actions, bounds or limits(), Stage(), Saves()).plan_digest

    first = digest(effect("a"), effect("b"), effect("c", "a", "b"))
    assert re.fullmatch("sha256:[0-9a-f]{64}", first)
    assert digest(effect("c", "b", "a"), effect("b"), effect("a")) == first
    other_tool = ScheduledAction(ActionNode("b", "tool:example.agent/other"))
    changed = [
        digest(effect("a"), effect("x"), effect("c", "a", "x")),
        digest(effect("a"), other_tool, effect("c", "a", "b")),
        digest(effect("a"), effect("b"), effect("c", "a")),
        digest(effect("a"), read("b"), effect("c", "a", "b")),
        digest(effect("a"), effect("b", units=2), effect("c", "a", "b")),
    ]
    bounds = [
        limits(concurrency=5),
        limits(actions=99),
        limits(inflight=99),
        limits(units=99),
        limits(elapsed_ns=9),
        limits(parallel=False),
    ]
    changed += [digest(effect("a"), effect("b"), effect("c", "a", "b"), bounds=each) for each in bounds]
    assert len({first, *changed}) == len(changed) + 1


async def test_a_graph_without_actions_is_complete() -> None:
    last = await finished([], limits(), Stage())
    assert (last.stop_reason, last.states, last.run_id) == (StopReason.COMPLETED, (), RUN)
