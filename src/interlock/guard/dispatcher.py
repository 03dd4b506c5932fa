"""The only way from an action to a tool.

For an effect, in this order: the write-ahead save (the scheduler's), frozen arguments, policy, contract, lease, the
journal's *handed over*, one last look, the call, its evidence, one commit for outcome, evidence and output. A read
has neither journal nor evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from interlock.actions import ActionNode, CancellationSignal, DispatchOutcome, RunId
from interlock.clock import Clock, new_id
from interlock.errors import CancelRequested, InvalidInput, LeaseSuperseded, NotFound
from interlock.fleet.ledger import AttemptLedger
from interlock.fleet.model import DeviceRef, HandOver, Settlement
from interlock.guard.bindings import Reference, Template, resolve
from interlock.guard.canonical import OUTPUT_BYTES, bounded, canonical, digest
from interlock.guard.lease import LeaseWatch
from interlock.guard.outputs import Outputs
from interlock.guard.policy import Policy, Verdict
from interlock.guard.shielding import to_the_end
from interlock.guard.tools import CallContext, Tool, ToolContract, ToolResult
from interlock.telemetry import Event, emit

_EVIDENCE_CHARACTERS = 256


class Cause(StrEnum):
    """Why an action did not commit. The first seven are definite: nothing was handed over."""

    BAD_REFERENCE = "bad_reference"
    BAD_ARGUMENTS = "bad_arguments"
    REFUSED_BY_POLICY = "refused_by_policy"
    NEEDS_APPROVAL = "needs_approval"
    UNKNOWN_TOOL = "unknown_tool"
    CONTRACT_CHANGED = "contract_changed"
    IN_DOUBT = "in_doubt"
    TOOL_FAILED = "tool_failed"
    HELD_BACK = "held_back"
    WITHDRAWN = "withdrawn"
    NO_EVIDENCE = "no_evidence"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class Closing:
    """How one call was closed; `output` is JSON, where there is any."""

    outcome: DispatchOutcome
    cause: Cause | None = None
    output: str | None = None


@dataclass(frozen=True)
class Guard:
    """What stands between one attempt and its device's tools.

    `doubts` are the tool ids and the digests of arguments of calls that may have taken place: none is made again.
    """

    tools: Mapping[str, Tool]
    policy: Policy
    ledger: AttemptLedger
    watch: LeaseWatch
    device: DeviceRef
    fence: int
    clock: Clock
    doubts: frozenset[tuple[str, str]] = frozenset()


class _Refused(Exception):
    """The call is refused before anything is handed over."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


class ToolDispatcher:
    """The `GuardedDispatcher` of one attempt.

    `bindings` has the argument template of each action and `contracts` what its class was taken from; a tool whose
    contract is another one by now is refused. `stop` is the signal of the attempt: it is set where the lease turns
    out to be lost, so that the run ends `cancelled` and can be gone on with.
    """

    def __init__(
        self,
        guard: Guard,
        contracts: Mapping[str, ToolContract],
        bindings: Mapping[str, Template],
        stop: CancellationSignal,
    ) -> None:
        self.outputs = Outputs(guard.ledger)
        self.closings: dict[str, Closing] = {}
        self._guard = guard
        self._contracts = contracts
        self._bindings = bindings
        self._stop = stop

    async def dispatch(self, run_id: RunId, node: ActionNode, cancellation: CancellationSignal) -> DispatchOutcome:
        """Carry out one admitted action. Raises nothing but cancellation: all that is not known is for review."""
        run, guard = run_id.serialize(), self._guard
        call = CallContext(run, node.action_id, guard.device, guard.fence, cancellation)
        emit(Event.ACTION_ADMITTED, run_id=run, action_id=node.action_id, tool_id=node.tool_id)
        closing = Closing(DispatchOutcome.REVIEW_REQUIRED, Cause.UNCERTAIN)
        try:
            closing = await self._close(call, node)
        except LeaseSuperseded:
            self._lose()
        except CancelRequested:
            # The word reached the journal sooner than this process.
            self._guard.watch.cancel_requested = True
            self._stop.cancel()
            closing = Closing(DispatchOutcome.REVIEW_REQUIRED, Cause.HELD_BACK)
        except Exception:  # noqa: BLE001, S110 - its text may hold what is protected; that it is uncertain says all
            pass
        finally:
            self._note(call, node, closing)
        return closing.outcome

    def _note(self, call: CallContext, node: ActionNode, closing: Closing) -> None:
        # Only words are kept: the output of a committed action is with the outputs, that of a failed one nowhere else.
        kept = None if closing.outcome is DispatchOutcome.COMMITTED else closing.output
        self.closings[node.action_id] = Closing(closing.outcome, closing.cause, kept)
        emit(
            Event.ACTION_ENDED,
            run_id=call.run_id,
            action_id=call.action_id,
            tool_id=node.tool_id,
            outcome=closing.outcome.value,
            cause=closing.cause.value if closing.cause else None,
        )

    async def _close(self, call: CallContext, node: ActionNode) -> Closing:
        try:
            arguments = await self._frozen(node)
            tool = self._permitted(node, arguments)
        except _Refused as refused:
            return Closing(DispatchOutcome.FAILED, refused.cause)
        if self._stopped(call):
            return self._held_back(Cause.HELD_BACK)
        if tool.contract.is_read:
            return await self._settled(call, tool, await tool.invoke(json.loads(arguments), call))
        return await self._effect(call, tool, arguments)

    async def _frozen(self, node: ActionNode) -> str:
        """The arguments as canonical text. Whatever happens to their sources from now on, this is what is called."""

        async def lookup(reference: Reference) -> object:
            return await self.outputs.of(reference.name)

        try:
            arguments = await resolve(self._bindings[node.action_id], lookup)
            return canonical(arguments)
        except (InvalidInput, NotFound, KeyError):
            raise _Refused(Cause.BAD_REFERENCE) from None
        except (TypeError, ValueError):
            raise _Refused(Cause.BAD_ARGUMENTS) from None

    def _permitted(self, node: ActionNode, frozen: str) -> Tool:
        """The tool, where policy lets this call go ahead and the tool is still what the plan was made for."""
        verdict = self._guard.policy.decide(node.tool_id)
        if verdict is not Verdict.ALLOW:
            raise _Refused(Cause.NEEDS_APPROVAL if verdict is Verdict.ASK else Cause.REFUSED_BY_POLICY)
        tool = self._guard.tools.get(node.tool_id)
        if tool is None:
            raise _Refused(Cause.UNKNOWN_TOOL)
        if tool.contract != self._contracts.get(node.tool_id):
            raise _Refused(Cause.CONTRACT_CHANGED)
        if tool.contract.faults(json.loads(frozen)):
            raise _Refused(Cause.BAD_ARGUMENTS)
        if (node.tool_id, digest(frozen)) in self._guard.doubts:
            raise _Refused(Cause.IN_DOUBT)
        return tool

    async def _effect(self, call: CallContext, tool: Tool, frozen: str) -> Closing:
        entry = HandOver(call.run_id, call.action_id, tool.contract.id, digest(frozen), new_id("handover"))
        arguments = json.loads(frozen)
        _, cancelled = await to_the_end(self._guard.ledger.hand_over(entry))
        # The look. Nothing is awaited between it and the call: what it saw is still so when the tool begins.
        if cancelled or self._stopped(call):
            await to_the_end(self._guard.ledger.withdraw(call.run_id, call.action_id))
            return self._held_back(Cause.WITHDRAWN)
        return await self._settled(call, tool, await tool.invoke(arguments, call))

    async def _settled(self, call: CallContext, tool: Tool, result: ToolResult) -> Closing:
        """Judge a result, and make it durable before anybody hears of it."""
        effect = not tool.contract.is_read
        outcome = DispatchOutcome(result.outcome)
        if outcome is DispatchOutcome.REVIEW_REQUIRED:
            return Closing(outcome, Cause.UNCERTAIN)
        if outcome is DispatchOutcome.COMMITTED and effect and not _is_evidence(result.evidence):
            return Closing(DispatchOutcome.REVIEW_REQUIRED, Cause.NO_EVIDENCE)
        output = bounded(result.output, OUTPUT_BYTES)
        failed = outcome is DispatchOutcome.FAILED
        if effect or not failed:
            evidence = result.evidence if effect and _is_evidence(result.evidence) else None
            settlement = Settlement(call.run_id, call.action_id, outcome.value, effect, output, evidence)
            await to_the_end(self._guard.ledger.settle(settlement))
        if not failed:
            self.outputs.keep(call.action_id, output)
        return Closing(outcome, Cause.TOOL_FAILED if failed else None, output)

    def _stopped(self, call: CallContext) -> bool:
        watch = self._guard.watch
        return call.cancellation.cancelled or not watch.usable(self._guard.clock.elapsed())

    def _held_back(self, cause: Cause) -> Closing:
        if not self._guard.watch.usable(self._guard.clock.elapsed()):
            self._stop.cancel()
        return Closing(DispatchOutcome.REVIEW_REQUIRED, cause)

    def _lose(self) -> None:
        self._guard.watch.lost = True
        self._stop.cancel()


def _is_evidence(evidence: object) -> bool:
    """A digest or a marker: a short line of plain characters, so that no payload passes for one."""
    return (
        isinstance(evidence, str)
        and 0 < len(evidence) <= _EVIDENCE_CHARACTERS
        and evidence.isascii()
        and evidence.isprintable()
    )
