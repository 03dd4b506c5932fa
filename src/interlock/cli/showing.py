"""A task as a person reads it."""

from __future__ import annotations

import json
from datetime import datetime

from rich.console import Console
from rich.text import Text

from interlock.cli.output import clean, table, to_person, word
from interlock.fleet.views import RunView, ScheduledTask, TaskDetail

MOST_CHARACTERS = 4_000
MEANINGS = {
    "agent_failed": "the agent raised an error, or returned what is no JSON",
    "agent_refused": "the policy does not name the agent",
    "agent_unknown": "the agent cannot be imported on the host: see --agent-path",
    "budget_exhausted": "the limits are used up",
    "clock_failed": "the host's clock could not be read",
    "dispatch_failed": "a step failed for certain",
    "history_unreadable": "what earlier attempts left is not what was written",
    "interrupted": "it was given back too often",
    "invalid_workflow": "the workflow does not fit the tools of the device",
    "lease_expired": "nothing was heard of its host in time, at the last attempt",
    "not_resumable": "an earlier attempt made effects, and the agent does not declare that it resumes",
    "not_started": "no worker could be started for it, too often",
    "plan_changed": "the tools of the device are not those that the run was planned for",
    "review_required": "nobody knows whether an effect took place",
    "task_unreadable": "what was submitted cannot be read any more",
    "worker_lost": "its worker was lost, at the last attempt",
}
CAUSES = {
    "bad_arguments": "the arguments do not fit the tool",
    "bad_reference": "a reference leads to no output",
    "contract_changed": "the tool is not the one that was planned with",
    "held_back": "the run was stopped before the call",
    "in_doubt": "the same call was made before, and nobody knows whether it happened",
    "needs_approval": "the policy asks for an approval",
    "no_evidence": "the tool gave no evidence that it happened",
    "refused_by_policy": "no rule of the policy allows it",
    "tool_failed": "the tool says that it failed",
    "uncertain": "nobody knows whether it happened",
    "unknown_tool": "the device has no such tool",
    "withdrawn": "it was handed over and not begun",
}


def print_task(detail: TaskDetail, *, kept: bool = True) -> None:
    """Everything on record about a task, on standard output. `kept` is whether the record outlives this command."""
    console = to_person()
    _print_head(console, detail)
    _print_attempts(console, detail)
    for run in detail.runs:
        _print_run(console, run)
    _print_effects(console, detail)
    _print_outputs(console, detail)
    _print_failure(console, detail.task)
    _print_doubt(console, detail.task, kept=kept)


def _print_head(console: Console, detail: TaskDetail) -> None:
    task = detail.task
    console.print(
        Text(task.task_id, style="bold"),
        Text(clean(task.label if task.kind == "goal" else f"{task.kind} {task.label}")),
    )
    status = word(task.status)
    if task.reason not in {None, task.status}:
        status.append(f" ({task.reason})")
    if task.cancel_requested and task.ended_at is None:
        status.append(" (a cancel was asked for)")
    console.print("status    ", status)
    console.print("asked for ", _wanted(task))
    console.print("submitted ", at(task.submitted_at))
    if task.ended_at is not None:
        console.print("ended     ", f"{at(task.ended_at)}, after {lasted(task.submitted_at, task.ended_at)}")
    if task.continues is not None:
        console.print("continues ", task.continues)
    if task.continued_by is not None:
        console.print("goes on as", task.continued_by)
    spent = f"{task.attempts_used} of {task.max_attempts} attempts lost"
    console.print("attempts  ", f"{len(detail.attempts)}, {spent}")


def _wanted(task: ScheduledTask) -> str:
    wanted = [f"driver {task.driver_type}"] if task.driver_type else []
    wanted += [f"device {task.device}"] if task.device else []
    wanted += [f"tag {tag}" for tag in task.tags]
    return ", ".join(wanted) or "any device"


def _print_attempts(console: Console, detail: TaskDetail) -> None:
    if not detail.attempts:
        return
    shown = table("ATTEMPT", "DEVICE", "ASSIGNED", "CLAIMED", "ENDED", "TOOK", "END", "REASON")
    for each in detail.attempts:
        took = lasted(each.claimed_at, each.ended_at)
        times = (at(each.assigned_at), at(each.claimed_at), at(each.ended_at))
        shown.add_row(str(each.number), each.device, *times, took, word(each.end or "live"), each.reason or "")
    console.print()
    console.print(shown)


def _print_run(console: Console, run: RunView) -> None:
    after = f", goes on from {run.parent_run_id}" if run.parent_run_id else ""
    stopped = run.stop_reason or "not ended"
    console.print()
    console.print(Text(run.run_id, style="bold"), f"{stopped}, {run.elapsed_seconds:.1f} s, {run.saves} saves{after}")
    shown = table("STEP", "STATE")
    for step, state in run.states.items():
        shown.add_row(step, word(state))
    console.print(shown)


def _print_effects(console: Console, detail: TaskDetail) -> None:
    if not detail.effects:
        return
    live = {attempt.attempt_id for attempt in detail.attempts if attempt.ended_at is None}
    shown = table("EFFECT", "STANDING", "TOOL", "DEVICE", "HANDED OVER", "SETTLED")
    for each in detail.effects:
        times = (at(each.handed_over_at), at(each.settled_at))
        # Until its attempt has ended, what is not settled is under way and not in doubt.
        standing = "under way" if each.attempt_id in live and each.settled_at is None else each.standing
        shown.add_row(each.action_id, word(standing), each.tool_id, each.device, *times)
    console.print()
    console.print(shown)


def _print_outputs(console: Console, detail: TaskDetail) -> None:
    left = dict(detail.outputs)
    if detail.task.kind == "goal" and detail.task.result is not None:
        left["result"] = detail.task.result
    for name, value in left.items():
        console.print()
        console.print(Text(f"output of {name}" if name != "result" else name, style="bold"))
        console.print(Text(readable(value)))


def _print_failure(console: Console, task: ScheduledTask) -> None:
    """Why the task failed: what its reason means, and what is known of each step that did not commit."""
    if task.status != "failed":
        return
    console.print()
    meaning = MEANINGS.get(task.reason or "")
    said = f"failed: {clean(task.reason or 'no reason is on record')}" + (f": {meaning}" if meaning else "")
    console.print(Text(said, style="bold red"))
    for name, value in _causes(task):
        cause = value.get("cause") if isinstance(value, dict) else value
        console.print(f"  {clean(name)}: {_cause(cause)}")
        output = value.get("output") if isinstance(value, dict) else None
        if output is not None:
            console.print(Text("\n".join(f"    {line}" for line in readable(output).splitlines())))


def _causes(task: ScheduledTask) -> list[tuple[str, object]]:
    """What a failed task left: each step that did not commit with its cause, or what is known of an agent's error."""
    left = task.result
    if not isinstance(left, dict):
        return []
    steps = left.get("not committed")
    if isinstance(steps, dict):
        return [(str(step), value) for step, value in steps.items()]
    error = left.get("agent")
    if isinstance(error, dict):
        place = f"{error.get('error')} in {error.get('file')}, line {error.get('line')}"
        return [("agent", {"cause": place, "output": error.get("output")})]
    return [("result", {"cause": "see --json"})]


def _cause(cause: object) -> str:
    word = clean(str(cause))
    return f"{word}: {CAUSES[word]}" if word in CAUSES else word


def _print_doubt(console: Console, task: ScheduledTask, *, kept: bool) -> None:
    if not task.in_doubt:
        return
    console.print()
    console.print(Text(f"in doubt: {', '.join(task.in_doubt)}", style="bold red"))
    said = "Each was handed over to its tool, and nothing on record says whether it took place. "
    if kept:
        said += "It is not repeated on a guess: look at the device, then say what became of it with "
        console.print(said + f"`interlock resolve {task.task_id}`.")
    else:
        console.print(said + "Nothing of this run is kept: look at its working directory before you run it again.")


def readable(value: object) -> str:
    """A decoded output for a terminal: short values in a line, texts as they are, the rest as JSON."""
    if isinstance(value, dict) and value:
        lines = [f"{name}: {_entry(each)}" for name, each in value.items()]
        text = "\n".join(lines)
    else:
        text = _entry(value)
    text = clean(text)
    if len(text) > MOST_CHARACTERS:
        return f"{text[:MOST_CHARACTERS]}\n... {len(text) - MOST_CHARACTERS} more characters: see --json"
    return text


def _entry(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if "\n" not in value.rstrip("\n"):
        return value.rstrip("\n")
    return "\n" + "\n".join(f"  {line}" for line in value.rstrip("\n").split("\n"))


def at(moment: datetime | None) -> str:
    """A time as people here read it."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def lasted(begin: datetime | None, end: datetime | None) -> str:
    """The time between, in seconds."""
    return "" if begin is None or end is None else f"{(end - begin).total_seconds():.1f} s"
