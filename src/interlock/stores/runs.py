"""Operations inside an attempt: checkpoints, the journal and outputs, each behind the attempt's lease."""

from __future__ import annotations

import hashlib
import json

from interlock.fleet.store import (
    Applied,
    HandOverEffect,
    Outcome,
    Replayed,
    Row,
    SaveRun,
    SettleCall,
    WithdrawEffect,
)
from interlock.stores.leases import live_lease
from interlock.stores.transaction import Refusal, Transaction, number, text

_FINAL = frozenset({"committed", "failed", "review_required"})
_CHARGES = ("admitted_actions", "reserved_units", "elapsed_ns")


def chain_digest(sequence: int, previous: str, checkpoint: str) -> str:
    """The digest of a stored snapshot: over itself, its place and the one before."""
    return hashlib.sha256(f"{sequence}\n{previous}\n{checkpoint}".encode()).hexdigest()


def save_run(tx: Transaction, operation: SaveRun) -> Outcome:
    """Store a checkpoint that extends the run's last one."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    save = operation.save
    if not well_formed(save.checkpoint):
        raise Refusal("stale_save", "the checkpoint is none: it lacks its states, charges or plan")
    last = tx.row("run", run_id=save.run_id)
    if last is None:
        return _first_save(tx, operation, lease)
    if last["task"] != lease["task"]:
        raise Refusal("stale_save", "the run is another task's")
    if save.sequence == last["sequence"] and save.checkpoint == last["checkpoint"]:
        return Replayed()
    if save.sequence != number(last, "sequence") + 1 or save.parent_run_id != last["parent"]:
        raise Refusal("stale_save", f"the run's last save is number {last['sequence']}")
    fault = regression(text(last, "checkpoint"), save.checkpoint)
    if fault is not None:
        raise Refusal("stale_save", fault)
    previous = text(last, "digest")
    written = tx.write(
        "update_run",
        run_id=save.run_id,
        sequence=save.sequence,
        digest=chain_digest(save.sequence, previous, save.checkpoint),
        previous=previous,
        checkpoint=save.checkpoint,
        attempt=lease["attempt"],
    )
    if not written:
        raise Refusal("stale_save", "somebody else has saved this run")
    return Applied()


def _first_save(tx: Transaction, operation: SaveRun, lease: Row) -> Outcome:
    save = operation.save
    if save.sequence != 1:
        raise Refusal("stale_save", "the run has no save yet")
    ordinal = tx.row("run_ordinal", task=lease["task"])
    tx.write(
        "insert_run",
        run_id=save.run_id,
        task=lease["task"],
        parent=save.parent_run_id,
        ordinal=ordinal["ordinal"] if ordinal else 1,
        sequence=save.sequence,
        digest=chain_digest(save.sequence, "", save.checkpoint),
        previous="",
        checkpoint=save.checkpoint,
        attempt=lease["attempt"],
    )
    return Applied()


def well_formed(checkpoint: str) -> bool:
    """Whether a text has what is later read of a checkpoint. The run level checks the rest when it restores one."""
    try:
        said = json.loads(checkpoint)
        states = dict(said["states"])
        charges = [said[charge] for charge in _CHARGES]
    except (ValueError, KeyError, TypeError):
        return False
    words = [*states, *states.values(), said.get("plan_digest")]
    return "stop_reason" in said and all(isinstance(word, str) for word in words) and all(map(_is_whole, charges))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def regression(last: str, following: str) -> str | None:
    """Why a checkpoint does not extend the one before, or None where it does."""
    before, after = json.loads(last), json.loads(following)
    if before["plan_digest"] != after["plan_digest"]:
        return "the plan is another one"
    if any(after[charge] < before[charge] for charge in _CHARGES):
        return "its charges are lower"
    if before["stop_reason"] is not None and before["stop_reason"] != after["stop_reason"]:
        return "the run had stopped"
    states = dict(after["states"])
    if any(states.get(action) != state for action, state in before["states"] if state in _FINAL):
        return "an action's end has changed"
    return None


def hand_over(tx: Transaction, operation: HandOverEffect) -> Outcome:
    """Write *handed over*, once for one effect of one run, with a checkpoint that admits it already stored."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    entry = operation.entry
    run = tx.row("run", run_id=entry.run_id)
    if run is None or run["task"] != lease["task"]:
        raise Refusal("not_admitted", "the run has no checkpoint of this task")
    if dict(json.loads(text(run, "checkpoint"))["states"]).get(entry.action_id) != "running":
        raise Refusal("not_admitted", "the run's checkpoint does not admit this action")
    if tx.row("entry", run_id=entry.run_id, action_id=entry.action_id) is not None:
        raise Refusal("handed_over_before")
    attempt = tx.row("attempt", attempt=lease["attempt"])
    if attempt is None:
        raise Refusal("lease_superseded")
    tx.write(
        "insert_entry",
        run_id=entry.run_id,
        action_id=entry.action_id,
        task=lease["task"],
        attempt=lease["attempt"],
        host=attempt["host"],
        serial=attempt["serial"],
        tool_id=entry.tool_id,
        arguments_digest=entry.arguments_digest,
    )
    return Applied()


def withdraw(tx: Transaction, operation: WithdrawEffect) -> Outcome:
    """Write that a handed-over effect was not begun after all."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    key = {"run_id": operation.run_id, "action_id": operation.action_id}
    _check_word(tx, lease, key)
    if tx.write("withdraw_entry", task=lease["task"], **key):
        return Applied()
    entry = tx.row("entry", **key)
    if entry is not None and entry["state"] == "withdrawn":
        return Replayed()
    raise Refusal("not_handed_over")


def settle(tx: Transaction, operation: SettleCall) -> Outcome:
    """Write outcome, evidence and output of a call in one commit."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    settlement = operation.settlement
    if settlement.effect:
        replayed = _settle_entry(tx, operation, lease)
        if replayed is not None:
            return replayed
    if settlement.output is not None:
        tx.write(
            "keep_output",
            task=lease["task"],
            action_id=settlement.action_id,
            sealed=settlement.output,
            run_id=settlement.run_id,
        )
    return Applied()


def _check_word(tx: Transaction, lease: Row, key: dict[str, str]) -> None:
    """Of an earlier attempt's effect a later one may speak only from its device, once its stop was confirmed."""
    entry = tx.row("entry", **key)
    if entry is None or entry["attempt"] == lease["attempt"]:
        return
    earlier, own = tx.row("attempt", attempt=entry["attempt"]), tx.row("attempt", attempt=lease["attempt"])
    if earlier is None or own is None or earlier["stopped_at"] is None or earlier["device"] != own["device"]:
        raise Refusal(
            "not_to_be_told", "the effect of an earlier attempt is probed on its device, once that has stopped"
        )


def _settle_entry(tx: Transaction, operation: SettleCall, lease: Row) -> Outcome | None:
    settlement = operation.settlement
    key = {"run_id": settlement.run_id, "action_id": settlement.action_id}
    said = {"outcome": settlement.outcome, "evidence": settlement.evidence}
    if settlement.outcome == "committed" and not settlement.evidence:
        raise Refusal("no_evidence", "a return value is not evidence: an effect is committed by what its tool names")
    _check_word(tx, lease, key)
    if tx.write("settle_entry", task=lease["task"], **key, **said):
        return None
    entry = tx.row("entry", **key)
    if entry is not None and entry["state"] == "settled" and all(entry[name] == said[name] for name in said):
        return Replayed()
    raise Refusal("not_handed_over")
