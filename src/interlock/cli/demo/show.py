"""What the demo shows: the devices and tasks while it runs, and the table at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from interlock.cli.demo.work import Planned
from interlock.fleet.views import DeviceView, ScheduledTask, TaskDetail, Violation

_COLOURS = {
    "queued": "yellow",
    "assigned": "cyan",
    "dispatched": "blue",
    "done": "green",
    "failed": "red",
    "cancelled": "magenta",
    "busy": "blue",
    "reserved": "cyan",
    "idle": "green",
}


def live_view(devices: Sequence[DeviceView], tasks: Sequence[ScheduledTask], titles: Mapping[str, str]) -> Group:
    """The queue, the devices, and who is where."""
    pool = Table(title="Devices", title_justify="left", expand=False)
    for column in ("device", "tags", "state", "task"):
        pool.add_column(column)
    for device in devices:
        name = device.name.partition("/")[2]
        pool.add_row(name, " ".join(device.tags), _word(device.state), titles.get(device.task_id or "", ""))
    queue = Table(title="Tasks", title_justify="left", expand=False)
    for column in ("task", "status", "on", "attempts lost"):
        queue.add_column(column)
    for task in reversed(tasks):
        on = (task.running_on or "").partition("/")[2]
        queue.add_row(titles.get(task.task_id, "?"), _word(task.status), on, str(task.attempts_used or ""))
    return Group(pool, queue)


def _word(word: str) -> Text:
    return Text(word, style=_COLOURS.get(word, ""))


class Changes:
    """Tells what has changed since the last look, a line each: the live view of a pipe."""

    def __init__(self, console: Console, titles: Mapping[str, str]) -> None:
        self._console = console
        self._titles = titles
        self._seen: dict[str, str] = {}

    def tell(self, tasks: Sequence[ScheduledTask]) -> None:
        """Look again."""
        for task in reversed(tasks):
            now = f"{task.status} on {task.running_on}" if task.running_on else task.status
            if self._seen.get(task.task_id) != now:
                self._seen[task.task_id] = now
                self._console.print(f"  {self._titles.get(task.task_id, task.task_id)}: {now}")


def end_table(rows: Sequence[tuple[Planned, TaskDetail, str, str | None]]) -> Table:
    """What ran where, in which attempt, and what the rules say of it."""
    table = Table(title="What happened", title_justify="left")
    for column in ("task", "ended", "where, attempt by attempt", "runs", "note", "as the rules require"):
        table.add_column(column, overflow="fold")
    for planned, detail, note, fault in rows:
        where = ", ".join(
            f"{attempt.number}: {attempt.device.partition('/')[2]} {attempt.end or 'live'}"
            for attempt in detail.attempts
        )
        end = detail.task.status + (f" ({detail.task.reason})" if detail.task.status == "failed" else "")
        verdict = Text("yes", style="green") if fault is None else Text(f"NO: {fault}", style="bold red")
        table.add_row(planned.title, end, where, str(len(detail.runs) or ""), note, verdict)
    return table


def verdict_line(violations: Sequence[Violation], faults: int) -> Text:
    """One line: do the invariants hold in the database, and is each end the one that the rules require."""
    if not violations and not faults:
        return Text("Every invariant holds in the database, and each task ended as the rules require.", style="green")
    broken = ", ".join(sorted({violation.invariant for violation in violations})) or "none"
    return Text(f"Broken invariants: {broken}. Tasks that ended otherwise than they must: {faults}.", style="bold red")
