"""Every exception that Interlock raises on purpose.

InterlockError
├── SchedulerError             the run level refused: one code of a closed set (also a ValueError)
├── InvalidInput               what a caller gave cannot be taken: says what to change
│   ├── InvalidWorkflow        a workflow definition, with every fault and its line
│   ├── UnknownStrategy        no assignment strategy of that name
│   └── UnknownTool            no tool of that id
├── NotFound                   no task, device, host or definition of that id
├── NotPermitted               the credential is unknown, or not good for this
├── Conflict                   the state has moved on, or another body was given under the same key
│   ├── CancelRequested        the task is to be cancelled: no further effect of it may begin
│   ├── ReportConflict         another outcome was reported under the same lease
│   └── NotLocal               an assignment of another host
├── LeaseSuperseded            the lease is lost, for ever: stop
├── QueueFull                  the queue holds as many tasks as it may
├── StoreHeld                  another process owns this database
├── VaultLocked                what the vault holds cannot be opened with the keys at hand
├── ToolFailed                 a tool call of a goal failed for certain: the agent may go on
└── Unavailable                the control plane cannot be reached, or cannot answer now
"""

from __future__ import annotations

from collections.abc import Mapping


class InterlockError(Exception):
    """The root of the family. `code` is stable, for programs; the message says what happened and what to do."""

    code = "interlock_error"

    @property
    def facts(self) -> Mapping[str, object]:
        """What a program needs beside the code: ids, numbers, faults. Never a payload or a secret."""
        return {}


class SchedulerError(InterlockError, ValueError):
    """The run level refused an argument or a restored checkpoint. The message is the code and nothing else."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class InvalidInput(InterlockError, ValueError):
    """What a caller gave cannot be taken."""

    code = "invalid_input"


class InvalidWorkflow(InvalidInput):
    """A workflow definition with faults: `faults` names each with its line."""

    code = "invalid_workflow"

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults

    @property
    def facts(self) -> Mapping[str, object]:
        """Every fault, each beginning with `line N: `."""
        return {"faults": list(self.faults)}


class UnknownStrategy(InvalidInput):
    """No assignment strategy is registered under that name."""

    code = "unknown_strategy"


class UnknownTool(InvalidInput):
    """No tool is registered under that id."""

    code = "unknown_tool"


class NotFound(InterlockError, LookupError):
    """There is no such task, device, host or definition."""

    code = "not_found"


class NotPermitted(InterlockError):
    """The credential is unknown, or not good for what was asked."""

    code = "not_permitted"


class Conflict(InterlockError):
    """The state has moved on, or the same key came with another body."""

    code = "conflict"


class CancelRequested(Conflict):
    """The task is to be cancelled: no further effect of it may begin."""

    code = "cancel_requested"


class ReportConflict(Conflict):
    """Another outcome was already reported under the same lease."""

    code = "report_conflict"


class NotLocal(Conflict):
    """The assignment is of a device that another host owns."""

    code = "not_local"


class LeaseSuperseded(InterlockError):
    """The lease is lost and will never be good again: stop the work done under it."""

    code = "lease_superseded"


class QueueFull(InterlockError):
    """The queue holds as many tasks as it may. Nothing was written: come back later.

    `eligible_devices` is how many devices in service could run the task, `retry_after_seconds` an estimate of when the
    queue has room, from how long devices were held lately; None where nothing is known of that.
    """

    code = "queue_full"

    def __init__(
        self, message: str, *, eligible_devices: int | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.eligible_devices = eligible_devices
        self.retry_after_seconds = retry_after_seconds

    @property
    def facts(self) -> Mapping[str, object]:
        """Both numbers."""
        return {"eligible_devices": self.eligible_devices, "retry_after_seconds": self.retry_after_seconds}


class StoreHeld(InterlockError):
    """Another process owns this database: talk to it through its API."""

    code = "store_held"


class VaultLocked(InterlockError):
    """What the vault holds cannot be opened: the keys at hand did not seal it, or its key file is not usable."""

    code = "vault_locked"


class ToolFailed(InterlockError):
    """A tool call of a goal failed for certain, so its agent may go on.

    `cause` is a word of a closed set and `output` what the tool left, for the agent alone: it is in no message.
    """

    code = "tool_failed"

    def __init__(self, tool_id: str, cause: str, output: object = None) -> None:
        super().__init__(f"{tool_id} failed: {cause}")
        self.tool_id = tool_id
        self.cause = cause
        self.output = output


class Unavailable(InterlockError):
    """The control plane cannot be reached, or cannot answer now."""

    code = "unavailable"
