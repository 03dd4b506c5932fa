"""The edge of a run: whom it asks to act, what it hears back, and how it says stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from interlock.actions.graph import ActionNode
from interlock.actions.identifiers import RunId


class DispatchOutcome(StrEnum):
    """What a dispatcher may say of one invocation. Anything else, and any exception, is uncertain work."""

    COMMITTED = "committed"
    """Its protected input and output are durable; for an effect there is authentic evidence of the sink as well."""
    FAILED = "failed"
    """It did not take place, and is known not to have."""
    REVIEW_REQUIRED = "review_required"
    """Nobody knows: a person has to look."""


class CancellationSignal:
    """A request to stop. Set once, never cleared; read it immediately before every sensitive read or effect."""

    def __init__(self) -> None:
        self._cancelled = False
        self._observers: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether a stop has been asked for."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask for a stop. Call it on the event loop of the run."""
        self._cancelled = True
        for observer in tuple(self._observers):
            # One that raises is not heard of, or those after it would not hear of the stop.
            with contextlib.suppress(Exception):
                observer()

    def observe(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Have `observer` called at each `cancel`. Returns what ends that. Reading the signal needs none of it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)


class RunSignal(CancellationSignal):
    """The signal that one run gives its dispatches. It reads cancelled as soon as the caller's does.

    The caller's signal is read and listened to, never set. `release` ends the listening.
    """

    def __init__(self, caller: CancellationSignal) -> None:
        super().__init__()
        self._caller = caller
        self.release = caller.observe(self.cancel)

    @property
    def cancelled(self) -> bool:
        """Whether the run stops, or its caller wants it to."""
        return self._cancelled or self._caller.cancelled


class GuardedDispatcher(Protocol):
    """The application's one way to a tool.

    It verifies authority, tool identity and any approval at the moment of the call, keeps arguments and results in a
    protected store of its own, and bears concurrent reads.
    """

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        """Carry out one admitted action, once."""
        ...
