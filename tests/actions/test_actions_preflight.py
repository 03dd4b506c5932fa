"""What is said of a graph and its limits before anything runs."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.stage import RUN, Stage, effect, limits, read, turns
from interlock.actions import ActionScheduler, ScheduledAction, SchedulerError, SchedulerLimits, preflight


@pytest.mark.contract("A-16")
def test_preflight_says_whether_a_graph_fits_before_anything_runs() -> None:
    actions = [read("b", units=5), effect("a", units=7), effect("c")]
    fits = preflight(actions, limits(actions=3, inflight=7, units=13))
    assert fits.fits
    assert (fits.actions_needed, fits.units_needed) == (3, 13)
    assert not preflight(actions, limits(actions=2, inflight=7, units=13)).fits
    assert not preflight(actions, limits(actions=3, inflight=7, units=12)).fits
    tight = preflight(actions, limits(actions=3, inflight=4, units=13))
    assert (tight.fits, tight.oversized) == (False, ("a", "b"))


@pytest.mark.contract("A-16")
def test_preflight_refuses_what_a_scheduler_would() -> None:
    wrong: Any = None
    with pytest.raises(SchedulerError, match=r"^invalid_limits$"):
        preflight([effect("a")], wrong)
    with pytest.raises(SchedulerError, match=r"^invalid_actions$"):
        preflight(wrong, limits())
    with pytest.raises(SchedulerError, match=r"^invalid_graph$"):
        preflight([effect("a", "b")], limits())


@pytest.mark.contract("A-16")
def test_preflight_names_the_critical_path_and_the_width() -> None:
    actions = [read("a"), read("b"), read("c", "a"), effect("d", "c"), read("e", "d"), read("f", "d"), read("g", "d")]
    wide = preflight(actions, limits(concurrency=8, parallel=True))
    assert (wide.critical_path, wide.width) == (("a", "c", "d", "e"), 3)
    assert preflight(actions, limits(concurrency=2, parallel=True)).width == 2
    assert preflight(actions, limits(concurrency=8, parallel=False)).width == 1
    assert preflight([], limits()).critical_path == ()


@st.composite
def graphs(draw: st.DrawFn) -> list[ScheduledAction]:
    keys = [f"n{number}" for number in draw(st.permutations(range(draw(st.integers(1, 8)))))]
    parents = [
        draw(st.lists(st.sampled_from(keys[:place]), unique=True)) if place else [] for place in range(len(keys))
    ]
    return [draw(st.sampled_from([read, effect]))(key, *needs) for key, needs in zip(keys, parents, strict=True)]


def longest_chain(actions: list[ScheduledAction]) -> int:
    needs = {action.node.action_id: action.node.depends_on for action in actions}

    def length(key: str) -> int:
        return 1 + max(map(length, needs[key]), default=0)

    return max(map(length, needs))


async def widest_step(actions: list[ScheduledAction], bounds: SchedulerLimits) -> int:
    """Run the graph in step: everything in flight ends together."""
    stage = Stage()
    run = asyncio.create_task(ActionScheduler(actions, bounds, stage, lambda _: None).run(RUN))
    widest = 0
    for _ in actions:
        await turns()
        widest = max(widest, len(stage.running))
        for key in list(stage.running):
            stage.end(key)
    await run
    return widest


@pytest.mark.contract("A-16")
@given(actions=graphs(), concurrency=st.integers(1, 4))
def test_the_critical_path_is_a_longest_chain_and_the_width_is_that_of_a_run_in_step(
    actions: list[ScheduledAction], concurrency: int
) -> None:
    bounds = limits(concurrency=concurrency, parallel=True)
    found = preflight(actions, bounds)
    needs = {action.node.action_id: action.node.depends_on for action in actions}
    assert all(earlier in needs[later] for earlier, later in pairwise(found.critical_path))
    assert len(found.critical_path) == longest_chain(actions)
    assert found.width == asyncio.run(widest_step(actions, bounds))
