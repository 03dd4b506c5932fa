"""`interlock demo`: a control plane, a host with four devices, twelve tasks, two killed workers, and a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from interlock.api.client import RemoteFleet
from interlock.app import check_database, running
from interlock.app.settings import AppSettings
from interlock.cli.demo import sabotage, show, work
from interlock.cli.demo.work import Planned
from interlock.cli.output import print_json, to_person
from interlock.fleet.service import FleetService
from interlock.fleet.settings import FleetSettings
from interlock.fleet.views import TaskDetail, Violation
from interlock.guard.policy import Policy

LIMIT_SECONDS = 50.0
REFRESH_SECONDS = 0.2
SETTINGS = FleetSettings(
    lease_ttl_seconds=10.0, renew_every_seconds=2.5, beat_every_seconds=1.0, retry_first_seconds=0.2
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the demo came to: each task with what is to be said of it, and what breaks an invariant."""

    rows: tuple[tuple[Planned, TaskDetail, str, str | None], ...]
    violations: tuple[Violation, ...]

    @property
    def faults(self) -> int:
        """How many tasks did not end as they must."""
        return sum(fault is not None for *_, fault in self.rows)


async def play(console: Console) -> Outcome:
    """Play the whole demo in a directory of its own, and show it on the console."""
    with tempfile.TemporaryDirectory(prefix="interlock-demo-") as folder:
        data = Path(folder)
        settings = AppSettings(
            data=data,
            devices=await asyncio.to_thread(work.devices, data),
            policy=Policy.allowing(["interlock.shell"], [work.AGENT]),
            agent_path=data,
            fleet=SETTINGS,
        )
        async with running(settings) as now, RemoteFleet(now.url or "", now.token or "") as fleet:
            console.print(f"Control plane at {now.url}; workers {now.isolation}")
            planned = {str(await fleet.submit(each.request)): each for each in work.plan()}
            await _watch(console, fleet, planned, data)
            rows = [await _row(fleet, task_id, each, data) for task_id, each in planned.items()]
        return Outcome(tuple(rows), tuple(await check_database(data)))


async def _watch(console: Console, fleet: FleetService, planned: Mapping[str, Planned], data: Path) -> None:
    """Show what goes on until every task that can end has ended, or the time is up."""
    roles = {each.role: task_id for task_id, each in planned.items() if each.role}
    titles = {task_id: each.title for task_id, each in planned.items()}
    ending = [task_id for task_id, each in planned.items() if each.end is not None]
    faults = [
        asyncio.create_task(sabotage.kill_during_read(fleet, roles["read"], data)),
        asyncio.create_task(sabotage.kill_during_effect(fleet, roles["effect"], data)),
        asyncio.create_task(sabotage.cancel_running(fleet, roles["cancel"])),
    ]
    try:
        await _show(console, fleet, titles, ending)
    finally:
        for fault in faults:
            fault.cancel()
        await asyncio.gather(*faults, return_exceptions=True)


async def _show(console: Console, fleet: FleetService, titles: Mapping[str, str], ending: Sequence[str]) -> None:
    changes = show.Changes(console, titles)
    with contextlib.suppress(TimeoutError), Live(console=console, auto_refresh=False, transient=True) as live:
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                tasks = await fleet.tasks()
                if console.is_terminal:
                    live.update(show.live_view(await fleet.devices(), tasks, titles), refresh=True)
                else:
                    changes.tell(tasks)
                if all(task.ended_at is not None for task in tasks if task.task_id in ending):
                    break
                await asyncio.sleep(REFRESH_SECONDS)


async def _row(
    fleet: FleetService, task_id: str, planned: Planned, data: Path
) -> tuple[Planned, TaskDetail, str, str | None]:
    detail = await fleet.get(task_id)
    note = await _note(fleet, planned, detail)
    return planned, detail, note, _fault(planned, detail, await asyncio.to_thread(_ledgers, data, detail))


async def _note(fleet: FleetService, planned: Planned, detail: TaskDetail) -> str:
    if planned.end is None:
        return (await fleet.why(detail.task.task_id)).summary
    if detail.task.in_doubt:
        return f"in doubt: {', '.join(detail.task.in_doubt)}; its worker was killed after the effect was handed over"
    if len(detail.attempts) > 1 and detail.task.status == "done":
        return "resumed: the worker was killed during a read, what had committed was not done again"
    if planned.role == "cancel":
        return "a person cancelled it"
    found = detail.task.result.get("found") if isinstance(detail.task.result, dict) else None
    return str(found) if isinstance(found, str) else ""


def _ledgers(data: Path, detail: TaskDetail) -> str:
    """What the effects themselves left behind, outside the database."""
    names = {attempt.device.partition("/")[2] for attempt in detail.attempts}
    paths = [data / "devices" / name / "ledger.txt" for name in sorted(names)]
    return "".join(path.read_text("utf-8") for path in paths if path.exists())


def _fault(planned: Planned, detail: TaskDetail, ledgers: str) -> str | None:
    """What is not as the rules require, or None."""
    if planned.end is None:
        return None if detail.task.status == "queued" else "it should wait"
    if (detail.task.status, detail.task.reason) != planned.end:
        return f"it should be {planned.end[0]} ({planned.end[1]})"
    if len(detail.attempts) != planned.attempts:
        return f"it should have taken {planned.attempts} attempts"
    return _repeated(planned, detail, ledgers)


def _repeated(planned: Planned, detail: TaskDetail, ledgers: str) -> str | None:
    wanted: Mapping[str, Sequence[str]] = {"read": ["before", "after"], "effect": ["heat", "burn"]}
    if planned.role in wanted and sorted(ledgers.split()) != sorted(wanted[planned.role]):
        return f"its effects left {ledgers.split()}"
    if planned.role == "effect" and detail.task.in_doubt != ("burn",):
        return "the step burn should be in doubt"
    if planned.role == "read" and len(detail.runs) != 2:  # noqa: PLR2004 - the run, and its successor
        return "it should have gone on in a successor run"
    return None


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """One task of the demo for a program. `fault` is what is not as the rules require."""

    title: str
    detail: TaskDetail
    note: str
    fault: str | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The demo for a program."""

    tasks: tuple[TaskReport, ...]
    violations: tuple[Violation, ...]


async def present(*, as_json: bool) -> bool:
    """Play the demo and say what came of it; whether everything was as it must be."""
    outcome = await play(to_person(errors=as_json))
    if as_json:
        rows = (TaskReport(planned.title, detail, note, fault) for planned, detail, note, fault in outcome.rows)
        print_json(Report(tuple(rows), outcome.violations))
    else:
        console = to_person()
        console.print(show.end_table(outcome.rows))
        console.print(show.verdict_line(outcome.violations, outcome.faults))
    return not outcome.violations and not outcome.faults
