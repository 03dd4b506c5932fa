"""Following a task from outside to its end, through restarts of the control plane."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from interlock.api.client import Client
from interlock.cli.output import tell
from interlock.clock import SystemClock
from interlock.errors import NotPermitted, Unavailable
from interlock.fleet.views import TaskDetail

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 60.0


@dataclass
class Follower:
    """Looks at one task until it has ended, and at the one that continues it, and tells what has changed."""

    task_id: str
    data: Path | None

    def __post_init__(self) -> None:
        self._said = ""
        self._give_up_at: float | None = None
        self._clock = SystemClock()
        self._never = threading.Event()

    def follow(self) -> TaskDetail:
        """The task once it has ended. Raises `Unavailable` where nobody answers for a minute."""
        while True:
            try:
                # A control plane that was started again has another token: read it anew.
                with Client.local(self.data) as client:
                    return self._until_ended(client)
            except (Unavailable, NotPermitted):
                if self._out_of_patience():
                    raise
            self._never.wait(LOOK_SECONDS)

    def _out_of_patience(self) -> bool:
        now = self._clock.elapsed()
        if self._give_up_at is None:
            self._give_up_at = now + PATIENCE_SECONDS
            self._tell("the control plane does not answer: waiting for it")
        return now >= self._give_up_at

    def _until_ended(self, client: Client) -> TaskDetail:
        while True:
            detail = client.get(self.task_id)
            self._give_up_at = None
            self._tell(progress(detail))
            if detail.task.continued_by is not None:
                self.task_id = detail.task.continued_by
            elif detail.task.ended_at is not None:
                return detail
            client.wait(self.task_id, LOOK_SECONDS)

    def _tell(self, line: str) -> None:
        if line != self._said:
            tell(line)
            self._said = line


def progress(detail: TaskDetail) -> str:
    """Where a task stands, in a line."""
    task = detail.task
    said = [task.task_id, task.status]
    if task.running_on is not None:
        said.append(f"on {task.running_on}, attempt {len(detail.attempts)}")
    if task.held_for is not None:
        said.append(f"held: {task.held_for}")
    if detail.runs and task.ended_at is None:
        states = list(detail.runs[-1].states.values())
        said.append(f"{states.count('committed')} of {len(states)} steps")
    return "  ".join(said)
