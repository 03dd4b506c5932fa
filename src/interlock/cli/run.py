"""One workflow here and now: no server, a database that is gone afterwards, and its steps on view."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import typer
from rich.live import Live
from rich.table import Table

from interlock.api.wire import encoded
from interlock.app import InstalledDefinitions, Running, running
from interlock.app.settings import AppSettings, DeviceSettings
from interlock.cli.local_host import chosen_policy
from interlock.cli.options import parsed_inputs, read_text
from interlock.cli.output import Exit, print_json, table, tell, to_person, word
from interlock.cli.showing import print_task
from interlock.cli.stopping import Stops, stops
from interlock.errors import InvalidInput
from interlock.fleet.model import Constraints, TaskId, checked_tags
from interlock.fleet.service import SubmitRequest, WorkflowRequest
from interlock.fleet.views import TaskDetail
from interlock.workflows import WorkflowDefinition

LOOK_SECONDS = 0.2
SERIAL = "here"


@dataclass(frozen=True)
class RunRequest:
    """What a person wants run, already checked."""

    text: str
    inputs: Mapping[str, Any]
    steps: Mapping[str, str]
    tags: frozenset[str]
    workdir: Path
    policy: Path | None


def checked_request(
    file: Path, inputs: list[str], tags: list[str], workdir: Path | None, policy: Path | None
) -> RunRequest:
    """The request, or `InvalidInput` with every fault, before anything is started."""
    text = read_text(file)
    definitions = InstalledDefinitions()
    checked = definitions.check(text)
    given = parsed_inputs(inputs, text)
    definitions.check_inputs(checked.document, given)
    steps = {step.name: step.tool for step in WorkflowDefinition.from_document(checked.document).steps}
    if workdir is not None and not workdir.is_dir():
        message = f"{workdir} is no directory: make it, or leave --workdir out for a fresh one"
        raise InvalidInput(message)
    directory = Path(tempfile.mkdtemp(prefix="interlock-")) if workdir is None else workdir.resolve()
    return RunRequest(text, given, steps, checked_tags(tags), directory, policy)


async def run_here(request: RunRequest, *, as_json: bool) -> None:
    """Run it and print what came of it. Raises `typer.Exit` where that is not *done*."""
    tell(f"working directory {request.workdir}")
    with _state() as data, stops() as noted:
        settings = AppSettings(
            data=data,
            devices=(DeviceSettings(SERIAL, "shell", request.tags, options={"directory": str(request.workdir)}),),
            policy=chosen_policy(request.policy),
            agent_path=Path.cwd(),
        )
        async with running(settings, serve=False) as now:
            if now.isolation.startswith("not separated"):
                tell(f"WARNING  {now.isolation}")
            task_id = await now.fleet.submit(
                SubmitRequest(WorkflowRequest(text=request.text, inputs=request.inputs), Constraints(tags=request.tags))
            )
            detail = await _until_ended(now, task_id, request, noted)
    _print_result(detail, request, as_json=as_json)
    if noted.asked.is_set():
        raise typer.Exit(Exit.INTERRUPTED)
    if detail.task.status != "done":
        raise typer.Exit(Exit.FOUND)


@contextlib.contextmanager
def _state() -> Iterator[Path]:
    home = Path(platformdirs.user_state_dir("interlock"))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=home) as data:
        yield Path(data)


async def _until_ended(now: Running, task_id: TaskId, request: RunRequest, noted: Stops) -> TaskDetail:
    following = asyncio.create_task(_follow(now, task_id, request))
    ending = asyncio.create_task(_end_when_asked(now, task_id, noted))
    try:
        ends: list[asyncio.Future[Any]] = [following, ending, now.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await ending
        if now.failed.done():
            now.failed.result()
        return await following
    finally:
        for task in (following, ending):
            task.cancel()
        await asyncio.gather(following, ending, return_exceptions=True)


async def _end_when_asked(now: Running, task_id: TaskId, noted: Stops) -> None:
    """A first signal cancels the task, which then ends by itself. A second ends everything at once."""
    await noted.asked.wait()
    tell("cancelling, press again to stop at once")
    await now.fleet.cancel(task_id)
    await noted.insisted.wait()
    tell("stopping at once")
    await now.kill()
    raise typer.Exit(Exit.INTERRUPTED)


async def _follow(now: Running, task_id: TaskId, request: RunRequest) -> TaskDetail:
    view = StepView(request.steps)
    with view.live():
        while True:
            detail = await now.fleet.get(task_id)
            view.show(detail)
            if detail.task.ended_at is not None:
                return detail
            await now.fleet.wait(task_id, LOOK_SECONDS)


class StepView:
    """The steps with their states: a table that changes in place, or a line for each change in a pipe."""

    def __init__(self, steps: Mapping[str, str]) -> None:
        self._steps = steps
        self._said: dict[str, str] = {}
        self._console = to_person(errors=True)
        self._live: Live | None = None

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Take the terminal, where there is one."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield

    def show(self, detail: TaskDetail) -> None:
        """Bring the view up to date."""
        states = dict.fromkeys(self._steps, "pending")
        for run in detail.runs:
            states.update(run.states)
        if self._live is not None:
            self._live.update(self._table(states), refresh=True)
        else:
            for step, state in states.items():
                if state not in {self._said.get(step), "pending"}:
                    self._console.print(f"{step}  {state}")
        self._said = states

    def _table(self, states: Mapping[str, str]) -> Table:
        shown = table("STEP", "STATE", "TOOL")
        for step, state in states.items():
            shown.add_row(step, word(state), self._steps.get(step, ""))
        return shown


def _print_result(detail: TaskDetail, request: RunRequest, *, as_json: bool) -> None:
    if as_json:
        print_json({**json.loads(encoded(detail)), "workdir": str(request.workdir)})
    else:
        print_task(detail, kept=False)
