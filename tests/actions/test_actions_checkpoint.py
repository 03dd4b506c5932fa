"""Snapshots: what they hold, how they read, and how they go to JSON and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.stage import COMMITTED, RUN, Saves, Stage, effect, finished, limits, read
from actions.test_actions_values import code_of
from interlock.actions import ActionState, Outline, Plan, RunId, SchedulerCheckpoint, StopReason

DIGEST = "sha256:" + "a" * 64
PAIRS = (("a", ActionState.COMMITTED), ("b", ActionState.PENDING))
PLAIN = SchedulerCheckpoint(RUN, DIGEST, PAIRS, 1, 2, 3)


@pytest.mark.contract("A-78", "A-08")
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("run_id", RUN.serialize(), "invalid_run_id"),
        ("plan_digest", "sha256:" + "A" * 64, "invalid_plan_digest"),
        ("plan_digest", "sha256:" + "a" * 64 + "\n", "invalid_plan_digest"),
        ("plan_digest", None, "invalid_plan_digest"),
        ("states", list(PAIRS), "invalid_states"),
        ("states", (("a",),), "invalid_states"),
        ("states", (["a", ActionState.PENDING],), "invalid_states"),
        ("states", (("-", ActionState.PENDING),), "invalid_states"),
        ("states", (("a", "pending"),), "invalid_state"),
        ("states", PAIRS[::-1], "invalid_state_order"),
        ("states", (PAIRS[0], PAIRS[0]), "invalid_state_order"),
        ("admitted_actions", -1, "invalid_integer"),
        ("reserved_units", True, "invalid_integer"),
        ("elapsed_ns", 1.0, "invalid_integer"),
        ("stop_reason", "completed", "invalid_stop_reason"),
    ],
)
def test_a_snapshot_is_held_to_its_types(field: str, value: Any, code: str) -> None:
    change: Any = {field: value}
    assert code_of(replace, PLAIN, **change) == code


@pytest.mark.contract("A-72")
async def test_a_snapshot_holds_nothing_but_ids_states_numbers_and_a_reason() -> None:
    stage = Stage({"b": RuntimeError("canary-secret")}, otherwise=0)
    last = await finished([read("a"), read("b")], limits(), stage)
    assert set(last.to_dict()) == {"schema_version", *(field.name for field in dataclasses.fields(last))}
    assert "canary" not in last.to_json() + repr(last)
    assert RUN.serialize() not in repr(last)
    with pytest.raises(dataclasses.FrozenInstanceError):
        last.elapsed_ns = 0  # type: ignore[misc]


@pytest.mark.contract("A-76")
def test_a_runs_snapshot_reads_compares_and_replaces_as_sorted_pairs() -> None:
    actions = [read(f"n{number:03}") for number in range(600)]
    outline = Outline.of(actions, limits(concurrency=600, actions=600, inflight=600))
    plan = Plan(outline, RUN)
    first, again = plan.snapshot(1), plan.snapshot(1)
    for _ in range(300):
        plan.admit()
    later = plan.snapshot(1)
    assert "states" not in vars(later)
    assert first == again
    assert hash(first) == hash(again)
    assert first != later
    assert later.states == tuple(
        (f"n{number:03}", ActionState.RUNNING if number < 300 else ActionState.PENDING) for number in range(600)
    )
    assert later.states is later.states
    built = SchedulerCheckpoint(RUN, outline.digest, later.states, 300, 300, 1)
    assert built == later
    assert hash(built) == hash(later)
    assert replace(later, stop_reason=StopReason.CANCELLED).states == later.states
    assert replace(later, states=first.states, admitted_actions=0, reserved_units=0) == first
    for same in (copy.deepcopy(later), pickle.loads(pickle.dumps(later))):  # noqa: S301 - made on this line
        assert same == later
    assert repr(first).startswith("SchedulerCheckpoint(run_id=RunId(...)")
    with pytest.raises(AttributeError):
        later.nothing  # type: ignore[attr-defined]  # noqa: B018 - that it is not there is the point


@pytest.mark.contract("A-76")
def test_r48_a_snapshot_stays_as_it_was_while_the_run_goes_on() -> None:
    plan = Plan(Outline.of([read("a"), read("b")], limits()), RUN)
    plan.admit()
    taken = plan.snapshot(1)
    plan.admit()
    plan.settle(0, ActionState.COMMITTED)
    assert taken.states == (("a", ActionState.RUNNING), ("b", ActionState.PENDING))


@pytest.mark.contract("A-77")
async def test_changed_names_what_differs_from_the_snapshot_before() -> None:
    saves = Saves()
    last = await finished([effect("a"), effect("b", "a")], limits(), Stage(otherwise=COMMITTED), saves)
    states: dict[str, ActionState] = dict.fromkeys("ab", ActionState.PENDING)
    for save in saves.all:
        assert save.changed is not None
        states |= dict(save.changed)
        assert save.states == tuple(sorted(states.items()))
    assert [len(save.changed or ()) for save in saves.all] == [1, 1, 1, 1, 0]
    assert replace(last, elapsed_ns=9).changed is None
    assert SchedulerCheckpoint.from_dict(last.to_dict()).changed is None


@pytest.mark.contract("A-78")
@given(
    st.dictionaries(st.from_regex("[a-z0-9]{1,4}", fullmatch=True), st.sampled_from(ActionState), max_size=5),
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), st.sampled_from(StopReason)),
)
def test_a_snapshot_goes_to_json_and_back(
    states: dict[str, ActionState], number: int, reason: StopReason | None
) -> None:
    pairs = tuple(sorted(states.items()))
    checkpoint = SchedulerCheckpoint(RunId.generate(), DIGEST, pairs, number, number, number, reason)
    text = checkpoint.to_json()
    back = SchedulerCheckpoint.from_dict(json.loads(text))
    assert back == checkpoint
    assert back.to_json() == text
    assert " " not in text


@pytest.mark.contract("A-78", "A-08")
def test_anything_that_to_dict_did_not_write_is_an_invalid_checkpoint() -> None:
    good = PLAIN.to_dict()
    assert SchedulerCheckpoint.from_dict(good) == PLAIN
    changes: list[dict[str, Any]] = [
        {"schema_version": "interlock.actions.checkpoint.v2"},
        {"schema_version": None},
        {"extra": 1},
        {"run_id": "canary"},
        {"run_id": None},
        {"plan_digest": "canary"},
        {"states": None},
        {"states": {"a": "pending"}},
        {"states": "ab"},
        {"states": ["ab"]},
        {"states": [["a"]]},
        {"states": [["a", "canary"]]},
        {"states": [["a", ["pending"]]]},
        {"states": [[1, "pending"]]},
        {"states": [["b", "pending"], ["a", "pending"]]},
        {"states": [["a", "pending"], ["a", "pending"]]},
        {"admitted_actions": True},
        {"reserved_units": "1"},
        {"elapsed_ns": -1},
        {"elapsed_ns": 2**63},
        {"stop_reason": "canary"},
        {"stop_reason": ["completed"]},
        {"stop_reason": ""},
    ]
    for change in changes:
        assert code_of(SchedulerCheckpoint.from_dict, {**good, **change}) == "invalid_checkpoint"
    for key in good:
        fewer = {name: value for name, value in good.items() if name != key}
        assert code_of(SchedulerCheckpoint.from_dict, fewer) == "invalid_checkpoint"
    documents: tuple[Any, ...] = (None, [], "{}", 5)
    for document in documents:
        assert code_of(SchedulerCheckpoint.from_dict, document) == "invalid_checkpoint"
