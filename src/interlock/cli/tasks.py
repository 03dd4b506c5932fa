"""The commands about tasks: submit, tasks, show, why, cancel."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Optional

import typer

from interlock.api import wire
from interlock.api.client import Client
from interlock.cli.follow import Follower
from interlock.cli.options import AsJson, Data, Inputs, QueueTimeout, Tags, parsed_inputs, read_text
from interlock.cli.output import Exit, clean, print_json, table, tell, to_person, word
from interlock.cli.showing import at, print_task
from interlock.errors import InvalidInput
from interlock.fleet.model import Constraints, DeviceRef
from interlock.fleet.service import GoalRequest, SubmitRequest, WorkflowRequest
from interlock.fleet.views import TaskDetail

TIMES = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z"]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]


def submit(  # noqa: PLR0913 - one parameter for each option
    goal: Annotated[Optional[str], typer.Argument(metavar="[GOAL]", help="What to reach, in words.")] = None,  # noqa: UP045
    *,
    agent: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--agent", metavar="MODULE:FUNCTION", help="The agent that pursues the goal."),
    ] = None,
    workflow: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--workflow", "-w", metavar="FILE", help="Submit this workflow in place of a goal."),
    ] = None,
    inputs: Inputs = [],  # noqa: B006 - typer copies it
    driver: Annotated[str | None, typer.Option("--driver", metavar="NAME", help="Only devices of this driver.")] = None,
    tags: Tags = [],  # noqa: B006
    device: Annotated[Optional[str], typer.Option("--device", metavar="HOST/SERIAL", help="This device alone.")] = None,  # noqa: UP045
    priority: Annotated[int, typer.Option("--priority", help="For strategies that rank by it: higher is sooner.")] = 0,
    key: Annotated[Optional[str], typer.Option("--key", help="The same key again gives the same task.")] = None,  # noqa: UP045
    not_before: Annotated[
        Optional[datetime],  # noqa: UP045
        typer.Option(
            "--not-before", metavar="TIME", formats=TIMES, help="Hold it until this time: 2030-01-31T08:00:00Z."
        ),
    ] = None,
    queue_timeout: QueueTimeout = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the task to its end; exit 1 where it is not done.")
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Submit a goal or a workflow as a task."""
    pinned = None if device is None else DeviceRef.parse(device)
    request = SubmitRequest(
        work=_work(goal, agent, workflow, inputs),
        constraints=Constraints(driver, frozenset(tags), pinned),
        priority=priority,
        idempotency_key=key,
        not_before=not_before,
        queue_timeout_seconds=queue_timeout,
    )
    with Client.local(data) as client:
        task_id = client.submit(request)
    if wait:
        _follow(task_id, data, as_json=as_json)
    elif as_json:
        print_json(wire.Submitted(task_id))
    else:
        to_person().print(task_id)


def _work(
    goal: str | None, agent: str | None, workflow: Path | None, inputs: list[str]
) -> GoalRequest | WorkflowRequest:
    if (goal is None) == (workflow is None):
        message = "submit takes a goal or --workflow FILE, and one of them"
        raise InvalidInput(message)
    if workflow is not None:
        if agent is not None:
            message = "--agent goes with a goal, not with --workflow"
            raise InvalidInput(message)
        text = read_text(workflow)
        return WorkflowRequest(text=text, inputs=parsed_inputs(inputs, text))
    if agent is None:
        message = "a goal takes an agent: add --agent MODULE:FUNCTION"
        raise InvalidInput(message)
    if inputs:
        message = "--input goes with --workflow, not with a goal"
        raise InvalidInput(message)
    return GoalRequest(str(goal), agent)


def _follow(task_id: str, data: Path | None, *, as_json: bool) -> None:
    try:
        detail = Follower(task_id, data).follow()
    except KeyboardInterrupt:
        tell(f"{task_id} goes on: see `interlock show {task_id}`, or end it with `interlock cancel {task_id}`")
        raise typer.Exit(Exit.INTERRUPTED) from None
    _print_detail(detail, as_json=as_json)
    if detail.task.status != "done":
        raise typer.Exit(Exit.FOUND)


def _print_detail(detail: TaskDetail, *, as_json: bool) -> None:
    if as_json:
        print_json(detail)
    else:
        print_task(detail)


def tasks(
    *,
    most: Annotated[int, typer.Option("--most", min=1, max=1000, help="How many.")] = 20,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the newest tasks."""
    with Client.local(data) as client:
        found = client.tasks(most=most)
    if as_json:
        print_json(wire.TaskList(tuple(found)))
        return
    shown = table("TASK", "WHAT", "STATUS", "REASON", "ON", "RETRIES", "SUBMITTED")
    for task in found:
        reason = task.held_for or ("" if task.reason in {None, task.status} else task.reason)
        attempts = f"{task.attempts_used}/{task.max_attempts}"
        times = at(task.submitted_at)
        shown.add_row(
            task.task_id, clean(task.label), word(task.status), reason, task.running_on or "", attempts, times
        )
    console = to_person()
    console.print(shown if found else "there is no task yet: submit one with `interlock submit`")


def show(task_id: TaskId, *, data: Data = None, as_json: AsJson = False) -> None:
    """Show everything on record about a task."""
    with Client.local(data) as client:
        _print_detail(client.get(task_id), as_json=as_json)


def why(task_id: TaskId, *, data: Data = None, as_json: AsJson = False) -> None:
    """Say why a task is not running."""
    with Client.local(data) as client:
        waiting = client.why(task_id)
    if as_json:
        print_json(waiting)
        return
    console = to_person()
    console.print(f"{waiting.task_id} is {waiting.status}: {waiting.summary}")
    if waiting.ahead is not None:
        console.print(f"{waiting.ahead} tasks are ahead of it" + _about(waiting.about_seconds))
    if waiting.status == "queued" and waiting.obstacles:
        shown = table("DEVICE", "WHY")
        for obstacle in waiting.obstacles:
            shown.add_row(obstacle.device, obstacle.reason)
        console.print(shown)


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f", so its turn is in about {max(1, round(seconds))} s"


def cancel(task_id: TaskId, *, data: Data = None, as_json: AsJson = False) -> None:
    """Cancel a task, or ask its host to."""
    with Client.local(data) as client:
        answer = client.cancel(task_id)
    if as_json:
        print_json(answer)
        return
    said = {
        "cancelled": "is cancelled",
        "cancel_requested": "is running: its host was asked to stop it",
    }.get(answer.outcome, f"had ended before: {answer.outcome}")
    to_person().print(f"{task_id} {said}")
