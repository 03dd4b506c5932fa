"""ActionScheduler: one validated graph, its budgets, and the two that it works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from interlock.actions.checkpoint import SchedulerCheckpoint
from interlock.actions.codes import Code
from interlock.actions.dispatch import CancellationSignal, GuardedDispatcher
from interlock.actions.graph import ScheduledAction
from interlock.actions.identifiers import RunId
from interlock.actions.integers import is_count
from interlock.actions.limits import SchedulerLimits
from interlock.actions.plan import Outline, Plan, Why
from interlock.actions.run import Collaborators, Run, SaveCheckpoint
from interlock.clock import monotonic_ns
from interlock.errors import SchedulerError


class ActionScheduler:
    """Runs one validated graph of actions, one run at a time.

    `save_checkpoint` is called before each dispatch and after each completion, and once more with the stop reason. It
    must have persisted its snapshot, whole and durably, when it returns None or when the awaitable that it returns
    gives None; anything else stops the run with `checkpoint_failed`, and nothing is saved after that.

    `clock` gives nanoseconds that never fall. While dispatches run, the default clock is waited on by one exact timer;
    any other is looked at every 10 ms. `drain_timeout_ns` bounds, on the event loop's own clock, how long a stopped
    run waits for dispatches that suppress cancellation; with 0 it does not wait.

    Raises:
        SchedulerError: `invalid_actions`, `too_many_actions`, `invalid_graph`, `invalid_limits`, `invalid_policy` for
            a collaborator that cannot be called, `invalid_integer` for the drain timeout.
    """

    def __init__(
        self,
        actions: Iterable[ScheduledAction],
        limits: SchedulerLimits,
        dispatcher: GuardedDispatcher,
        save_checkpoint: SaveCheckpoint,
        *,
        clock: Callable[[], int] = monotonic_ns,
        drain_timeout_ns: int | None = None,
    ) -> None:
        self._outline = Outline.of(actions, limits)
        if not all(map(callable, (getattr(dispatcher, "dispatch", None), save_checkpoint, clock))):
            raise SchedulerError(Code.INVALID_POLICY)
        if drain_timeout_ns is not None and not is_count(drain_timeout_ns):
            raise SchedulerError(Code.INVALID_INTEGER)
        self.undrained: tuple[str, ...] = ()
        """The ids of the last run whose dispatches outlived its drain, ascending. Each may still be alive."""
        self._host = Collaborators(dispatcher, save_checkpoint, clock, drain_timeout_ns)
        self._outliving: set[asyncio.Task[None]] = set()
        self._active = False
        self._run: Run | None = None

    @property
    def plan_digest(self) -> str:
        """What the checkpoints of this graph under these limits carry."""
        return self._outline.digest

    async def run(
        self,
        run_id: RunId,
        *,
        cancellation: CancellationSignal | None = None,
        checkpoint: SchedulerCheckpoint | None = None,
    ) -> SchedulerCheckpoint:
        """Run the graph until nothing more may happen, or go on from `checkpoint`.

        A checkpoint with a stop reason is returned as it is. One with work in flight, failed or in need of review is
        returned stopped with `review_required`. The snapshot returned is no evidence that it was saved.

        Raises:
            SchedulerError: `scheduler_already_running`, `invalid_run_id`, `invalid_cancellation`,
                `invalid_checkpoint`, or a `checkpoint_..._mismatch` with this graph, its limits or the run id.
            asyncio.CancelledError: The task was cancelled; what ran was drained and the stopped run saved before.
        """
        if self._active:
            raise SchedulerError(Code.SCHEDULER_ALREADY_RUNNING)
        if not isinstance(run_id, RunId):
            raise SchedulerError(Code.INVALID_RUN_ID)
        if cancellation is not None and not isinstance(cancellation, CancellationSignal):
            raise SchedulerError(Code.INVALID_CANCELLATION)
        if checkpoint is not None and not isinstance(checkpoint, SchedulerCheckpoint):
            raise SchedulerError(Code.INVALID_CHECKPOINT)
        plan = Plan(self._outline, run_id, checkpoint)
        if checkpoint is not None and checkpoint.stop_reason is not None:
            return checkpoint
        elapsed_ns = 0 if checkpoint is None else checkpoint.elapsed_ns
        return await self._execute(Run(plan, run_id, self._host, elapsed_ns, cancellation or CancellationSignal()))

    async def _execute(self, run: Run) -> SchedulerCheckpoint:
        self._active, self._run, self.undrained = True, run, ()
        try:
            return await run.execute()
        finally:
            self._active = False
            self.undrained = tuple(self._outline.ids[rank] for rank in sorted(run.left))
            self._keep(run.left.values())

    def _keep(self, outliving: Iterable[asyncio.Task[None]]) -> None:
        """Hold dispatches that outlived their run until they end: the loop itself holds no task."""
        for task in outliving:
            self._outliving.add(task)
            task.add_done_callback(self._outliving.discard)

    def why(self, action_id: str) -> Why:
        """Why an action of the present run, or of the last one, is where it is.

        Raises:
            SchedulerError: `invalid_action`, for an id that is not in the graph, or before the first run.
        """
        if self._run is None:
            raise SchedulerError(Code.INVALID_ACTION)
        return self._run.plan.why(action_id, stopped=self._run.stop is not None)
