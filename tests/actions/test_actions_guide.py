"""The guide's example, and the contract's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import interlock.actions
from actions.stage import COMMITTED, Saves, Stage

GUIDE = Path(__file__).parents[2] / "docs" / "actions.md"


@pytest.mark.contract("A-09")
@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (
            0,
            [
                "left tool:example.agent/fetch",
                "right tool:example.agent/fetch",
                "join tool:example.agent/review",
                "completed 3",
            ],
        ),
        (
            1,
            [
                "completed {'call-000': ['hello', 'invoice'], 'call-001': []}",
                "completed {'call-000': True, 'call-001': ['invoice']}",
                "refused: 5 calls asked for, 4 left",
            ],
        ),
        (2, ["review_required review_required", "completed ['letter-1', 'letter-2', 'letter-3']"]),
    ],
    ids=["first", "agent", "going on"],
)
def test_each_example_of_the_guide_runs_as_it_stands(
    number: int, printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    exec(compile(examples[number], str(GUIDE), "exec"), {"__name__": "guide"})  # noqa: S102 - it is our own guide
    assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.contract("A-09", "A-16")
async def test_positional_and_named_arguments_are_those_of_the_contract() -> None:
    names: Any = interlock.actions
    actions = [
        names.ScheduledAction(names.ActionNode("left", "tool:example.agent/fetch"), read_only=True),
        names.ScheduledAction(names.ActionNode("join", "tool:example.agent/review", ("left",))),
    ]
    limits = names.SchedulerLimits(
        max_concurrency=2,
        max_actions=2,
        max_inflight_units=2,
        max_total_units=2,
        max_elapsed_ns=30_000_000_000,
        parallel_reads=True,
    )
    assert names.preflight(actions, limits).fits

    class Dispatcher(Stage):
        async def dispatch(self, run_id: Any, node: Any, cancellation: Any) -> Any:
            del run_id, node, cancellation
            return COMMITTED

    scheduler = names.ActionScheduler(actions, limits, Dispatcher(), Saves())
    result = await scheduler.run(names.RunId.generate())
    assert result.stop_reason is names.StopReason.COMPLETED
