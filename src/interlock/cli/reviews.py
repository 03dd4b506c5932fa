"""The commands about doubt: reviews, resolve."""

from __future__ import annotations

from typing import Annotated

import typer

from interlock.api import wire
from interlock.api.client import Client
from interlock.cli.options import AsJson, Data
from interlock.cli.output import clean, print_json, table, to_person
from interlock.cli.showing import at
from interlock.errors import InvalidInput
from interlock.fleet.model import ReviewAnswer


def reviews(*, data: Data = None, as_json: AsJson = False) -> None:
    """List the effects of which nobody knows whether they happened, with what is known of each."""
    with Client.local(data) as client:
        found = client.reviews()
    if as_json:
        print_json(wire.DoubtList(tuple(found)))
        return
    shown = table("TASK", "NAME", "STEP", "TOOL", "DEVICE", "HANDED OVER", "STOP CONFIRMED", "KNOWN")
    for each in found:
        stopped = at(each.stop_confirmed_at) if each.stop_confirmed_at else "not yet: it may still happen"
        handed_over = at(each.handed_over_at)
        known = clean(each.said or "nothing")
        where = (each.tool_id, each.device)
        shown.add_row(each.task_id, clean(each.label), each.action_id, *where, handed_over, stopped, known)
    to_person().print(shown if found else "nothing is in doubt")


def resolve(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task whose effects are in doubt.")],
    *,
    happened: Annotated[list[str], typer.Option("--happened", metavar="STEP", help="It did. Repeatable.")] = [],  # noqa: B006
    did_not_happen: Annotated[
        list[str],
        typer.Option("--did-not-happen", metavar="STEP", help="It did not, and is to be done. Repeatable."),
    ] = [],  # noqa: B006
    drop: Annotated[
        list[str],
        typer.Option("--drop", metavar="STEP", help="Leave it out, and all that depends on it. Repeatable."),
    ] = [],  # noqa: B006
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of every effect in doubt of a task, and go on with what remains as a new task."""
    given = {
        ReviewAnswer.HAPPENED: happened,
        ReviewAnswer.DID_NOT_HAPPEN: did_not_happen,
        ReviewAnswer.DROP: drop,
    }
    steps = [step for each in given.values() for step in each]
    if twice := sorted({step for step in steps if steps.count(step) > 1}):
        message = f"{twice[0]} has more than one answer: give one"
        raise InvalidInput(message)
    with Client.local(data) as client:
        answers = {step: answer.value for answer, each in given.items() for step in each}
        resolution = client.resolve(task, answers)
    if as_json:
        print_json(resolution)
    elif resolution.successor_id is None:
        to_person().print("noted: the task did not fail, so nothing goes on")
    else:
        to_person().print(f"{resolution.successor_id} goes on with what remains")
