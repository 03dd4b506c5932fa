"""The worker process of one attempt: it opens the device, runs the task, and ends when its agent's socket closes.

User code lives here. It holds no credential: whatever it writes goes through the agent, which checks the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from interlock.actions import CancellationSignal
from interlock.drivers.driver import Device, load_driver
from interlock.errors import InterlockError
from interlock.fleet.dispatcher import TaskDispatcher
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import Assignment, Ending, GoalWork, HandOver, RunSave, Settlement, WorkflowWork
from interlock.guard.lease import LeaseWatch
from interlock.guard.policy import Policy
from interlock.runners.channel import Arguments, Channel
from interlock.runners.goal import GoalRunner
from interlock.runners.messages import Start, start_from_json
from interlock.runners.workflow import WorkflowRunner


class ChannelLedger:
    """The attempt's ledger, as the worker has it: every word goes through the agent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def save(self, save: RunSave) -> None:
        """See `AttemptLedger.save`."""
        await self._channel.call("save", **asdict(save))

    async def hand_over(self, entry: HandOver) -> None:
        """See `AttemptLedger.hand_over`."""
        await self._channel.call("hand_over", **asdict(entry))

    async def withdraw(self, run_id: str, action_id: str) -> None:
        """See `AttemptLedger.withdraw`."""
        await self._channel.call("withdraw", run_id=run_id, action_id=action_id)

    async def settle(self, settlement: Settlement) -> None:
        """See `AttemptLedger.settle`."""
        await self._channel.call("settle", **asdict(settlement))

    async def output(self, action_id: str) -> object:
        """See `AttemptLedger.output`."""
        return await self._channel.call("output", action_id=action_id)

    async def finish(self, ending: Ending) -> None:
        """See `AttemptLedger.finish`."""
        await self._channel.call("finish", **asdict(ending))


class Worker:
    """One attempt, from the start that the agent gives to its ending."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stop = CancellationSignal()
        self._watch = LeaseWatch(deadline=0.0)
        self._started: asyncio.Future[Start] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Say hello, take the one assignment, run it."""
        self._channel.note("hello")
        start = await self._started
        driver = load_driver(start.assignment.driver_type)
        async with driver.open(start.options) as device:
            dispatcher = self._dispatcher(start, device)
            await dispatcher.dispatch(start.assignment, ChannelLedger(self._channel))

    def _dispatcher(self, start: Start, device: Device) -> TaskDispatcher:
        policy = Policy.parse(start.policy)

        async def run_workflow(assignment: Assignment, ledger: AttemptLedger) -> Ending:
            return await WorkflowRunner().run(assignment, ledger=ledger, **given)

        async def run_goal(assignment: Assignment, ledger: AttemptLedger) -> Ending:
            return await GoalRunner().run(assignment, ledger=ledger, **given)

        given: dict[str, Any] = {
            "tools": device.tools(),
            "policy": policy,
            "watch": self._watch,
            "cancellation": self._stop,
        }
        return TaskDispatcher(start.assignment.device.host, {WorkflowWork: run_workflow, GoalWork: run_goal})

    def hear(self, note: str, arguments: Arguments) -> None:
        """What the agent says: the start, a later deadline, a person's cancel, or that the lease is lost."""
        if note == "start" and not self._started.done():
            start = start_from_json(arguments)
            self._watch.deadline = start.deadline
            self._started.set_result(start)
        elif note == "deadline":
            self._watch.deadline = float(str(arguments["deadline"]))
        elif note == "cancel":
            self._watch.cancel_requested = True
            self._stop.cancel()
        elif note == "lost":
            self._watch.lost = True
            self._stop.cancel()

    def stop(self) -> None:
        """A polite request to stop, from whoever may signal this process."""
        self._stop.cancel()


async def _answer(call: str, arguments: Mapping[str, object]) -> object:
    del arguments
    message = f"a worker answers no call, and no {call}"
    raise InterlockError(message)


async def work(descriptor: int) -> None:
    """Run the worker over an inherited socket, and end when the agent is gone."""
    # A child that kept this open would outlive the agent unseen.
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's own signature
    channel = await Channel.over(socket.socket(fileno=descriptor))
    worker = Worker(channel)
    # The first process of a namespace ignores what it has no handler for.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    serving = asyncio.create_task(channel.serve(_answer, worker.hear))
    running = asyncio.create_task(worker.run())
    await asyncio.wait({serving, running}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        # Nobody is left to answer for this attempt, so nothing of it may go on: not even an orderly end.
        os._exit(1)
    with contextlib.suppress(InterlockError):
        running.result()
    await channel.close()
    await serving


def main() -> None:
    """The entry point: `python -m interlock.runners.worker DESCRIPTOR`."""
    asyncio.run(work(int(sys.argv[1])))


if __name__ == "__main__":
    main()
