"""Asking the tools of a device about the effects that an earlier attempt left in doubt there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from interlock.actions import CancellationSignal, DispatchOutcome
from interlock.fleet.model import EntryState, History, JournalEntry, Settlement
from interlock.guard.bindings import Reference, Template, resolve
from interlock.guard.canonical import bounded, canonical, digest
from interlock.guard.dispatcher import Guard
from interlock.guard.journal import Standing, entry_standing
from interlock.guard.outputs import Outputs
from interlock.guard.tools import Answer, CallContext, ProbedTool, ProbeReport

CANNOT_TELL: Final = "no probe could tell"


async def answered(
    history: History, guard: Guard, bindings: Mapping[str, Template], cancellation: CancellationSignal
) -> History:
    """The history with every doubt settled that a probe can settle.

    An answer counts once the ledger has it. A probe is asked on the device where its effect was handed over, and on
    no other, and only once the stop of the attempt that handed it over was confirmed.
    """
    journal = [await _answered(entry, guard, bindings, cancellation) for entry in history.journal]
    return replace(history, journal=tuple(journal))


async def _answered(
    entry: JournalEntry, guard: Guard, bindings: Mapping[str, Template], cancellation: CancellationSignal
) -> JournalEntry:
    tool = guard.tools.get(entry.tool_id)
    here = (
        entry.stop_confirmed
        and entry.device == guard.device
        and entry.action_id in bindings
        and guard.policy.allows(entry.tool_id)
    )
    if entry_standing(entry) is not Standing.IN_DOUBT or not here or not isinstance(tool, ProbedTool):
        return entry
    call = CallContext(entry.run_id, entry.action_id, guard.device, guard.fence, cancellation)
    try:
        report = await _asked(entry, tool, bindings, guard, call)
        return entry if report is None else await _recorded(entry, guard, report)
    except Exception:  # noqa: BLE001 - what was not recorded was not said, and the words may hold what is protected
        return entry


async def _asked(
    entry: JournalEntry, tool: ProbedTool, bindings: Mapping[str, Template], guard: Guard, call: CallContext
) -> ProbeReport | None:
    """The probe's answer, or None where it cannot be asked now. A probe that fails cannot tell."""
    outputs = Outputs(guard.ledger)

    async def lookup(reference: Reference) -> object:
        return await outputs.of(reference.name)

    arguments = await resolve(bindings[entry.action_id], lookup)
    if digest(canonical(arguments)) != entry.arguments_digest:
        return None
    await guard.clock.sleep(guard.tools[entry.tool_id].contract.settle_seconds)
    if call.cancellation.cancelled or not guard.watch.usable(guard.clock.elapsed()):
        return None
    try:
        return await tool.probe(arguments, call)
    except Exception:  # noqa: BLE001 - its words may hold what is protected
        return ProbeReport(Answer.CANNOT_TELL)


async def _recorded(entry: JournalEntry, guard: Guard, report: ProbeReport) -> JournalEntry:
    """The entry with the answer in it. That a probe cannot tell is on record too, for whoever reviews the doubt."""
    if report.answer is Answer.DID_NOT_HAPPEN:
        await guard.ledger.withdraw(entry.run_id, entry.action_id)
        return replace(entry, state=EntryState.WITHDRAWN)
    outcome, output, evidence = DispatchOutcome.REVIEW_REQUIRED.value, None, CANNOT_TELL
    if report.answer is Answer.HAPPENED and report.evidence:
        outcome, output, evidence = DispatchOutcome.COMMITTED.value, bounded(report.output), report.evidence
    await guard.ledger.settle(
        Settlement(entry.run_id, entry.action_id, outcome, effect=True, output=output, evidence=evidence)
    )
    return replace(entry, state=EntryState.SETTLED, outcome=outcome, evidence=evidence)
