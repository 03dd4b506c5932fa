"""Operations inside an attempt: checkpoints, the journal and outputs, each behind the attempt's lease."""

from __future__ import annotations

import json

from interlock.fleet.checkpoints import BEFORE, CHARGES, Said, chain_digest, difference, regression, whole
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


def save_run(tx: Transaction, operation: SaveRun) -> Outcome:
    """Store a checkpoint that extends the run's last one."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    save = operation.save
    last = tx.row("run", run_id=save.run_id)
    if last is None:
        return _first_save(tx, operation, lease)
    if last["task"] != lease["task"]:
        raise Refusal("stale_save", "the run is another task's")
    if save.sequence == last["sequence"] and _is_stored(tx, operation):
        return Replayed()
    if save.sequence != number(last, "sequence") + 1 or save.parent_run_id != last["parent"]:
        raise Refusal("stale_save", f"the run's last save is number {last['sequence']}")
    said = difference(save.checkpoint)
    if said is None:
        raise Refusal("stale_save", "the save is none: after its first one a run saves what changed, and its charges")
    fault = regression(_head(last), said)
    if fault is not None:
        raise Refusal("stale_save", fault)
    digest = chain_digest(save.sequence, text(last, "digest"), save.checkpoint)
    key = {"run_id": save.run_id, "sequence": save.sequence, "digest": digest}
    written = tx.write("update_run", **key, attempt=lease["attempt"], stop_reason=said.stop_reason, **said.charges)
    if not written:
        raise Refusal("stale_save", "somebody else has saved this run")
    _move_states(tx, save.run_id, said)
    tx.write("insert_save", **key, body=save.checkpoint)
    return Applied()


def _first_save(tx: Transaction, operation: SaveRun, lease: Row) -> Outcome:
    save = operation.save
    said = whole(save.checkpoint)
    if save.sequence != 1:
        raise Refusal("stale_save", "the run has no save yet")
    if said is None:
        raise Refusal("stale_save", "the checkpoint is none: it lacks its states, charges or plan")
    ordinal = tx.row("run_ordinal", task=lease["task"])
    key = {"run_id": save.run_id, "sequence": 1, "digest": chain_digest(1, "", save.checkpoint)}
    tx.write(
        "insert_run",
        **key,
        task=lease["task"],
        parent=save.parent_run_id,
        ordinal=ordinal["ordinal"] if ordinal else 1,
        attempt=lease["attempt"],
        plan_digest=said.plan_digest,
        stop_reason=said.stop_reason,
        **said.charges,
    )
    tx.write("insert_states", run_id=save.run_id, pairs=json.dumps(sorted(said.states.items())))
    tx.write("insert_save", **key, body=save.checkpoint)
    return Applied()


def _is_stored(tx: Transaction, operation: SaveRun) -> bool:
    """Whether this very save is the last one: its answer was lost, and it is asked again."""
    stored = tx.row("save", run_id=operation.save.run_id, sequence=operation.save.sequence)
    return stored is not None and stored["body"] == operation.save.checkpoint


def _head(run: Row) -> Said:
    """What the last save of a run said, but for the states. A run that was damaged before has no charges."""
    try:
        charges = {name: number(run, name) for name in CHARGES}
        stop = None if run["stop_reason"] is None else text(run, "stop_reason")
        return Said(text(run, "plan_digest"), {}, charges, stop)
    except TypeError:
        raise Refusal("stale_save", "what is stored of the run is damaged") from None


def _move_states(tx: Transaction, run_id: str, said: Said) -> None:
    """Write the states that changed, each from the one state that it may come from."""
    for action, state in sorted(said.states.items()):
        key = {"run_id": run_id, "action_id": action}
        if not tx.write("move_state", **key, state=state, before=BEFORE.get(state)):
            raise Refusal("stale_save", f"the action cannot have come to be {state}: {action}")


def _check_admitted(tx: Transaction, lease: Row, run_id: str, action_id: str) -> None:
    """Hold an action to being in flight by the last save of a run of this task."""
    run = tx.row("run", run_id=run_id)
    if run is None or run["task"] != lease["task"]:
        raise Refusal("not_admitted", "the run has no checkpoint of this task")
    found = tx.row("state", run_id=run_id, action_id=action_id)
    if found is None or found["state"] != "running":
        raise Refusal("not_admitted", "the run's checkpoint does not admit this action")


def hand_over(tx: Transaction, operation: HandOverEffect) -> Outcome:
    """Write *handed over*, once for one effect of one run, with a checkpoint that admits it already stored."""
    lease = live_lease(tx, operation.host, operation.lease_id)
    entry = operation.entry
    _check_admitted(tx, lease, entry.run_id, entry.action_id)
    before = tx.row("entry", run_id=entry.run_id, action_id=entry.action_id)
    if before is not None:
        return _handed_over_again(before, operation, lease)
    task = tx.row("task", task=lease["task"])
    if task is None or task["cancel_requested_at"] is not None:
        raise Refusal("cancel_requested")
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
        nonce=entry.nonce,
    )
    return Applied()


def _handed_over_again(before: Row, operation: HandOverEffect, lease: Row) -> Outcome:
    """The same hand-over, asked again because its answer was lost, is the same answer. Any other comes too late."""
    nonce = operation.entry.nonce
    same = before["attempt"] == lease["attempt"] and before["nonce"] == nonce and before["state"] == "handed_over"
    if nonce and same:
        return Replayed()
    raise Refusal("handed_over_before")


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
    else:
        _check_read(tx, operation, lease)
    if settlement.output is not None:
        tx.write(
            "keep_output",
            task=lease["task"],
            action_id=settlement.action_id,
            sealed=settlement.output,
            run_id=settlement.run_id,
        )
    return Applied()


def _check_read(tx: Transaction, operation: SettleCall, lease: Row) -> None:
    """What was handed over as an effect is never settled as a read, nor anything that is not in flight."""
    settlement = operation.settlement
    _check_admitted(tx, lease, settlement.run_id, settlement.action_id)
    if tx.row("entry", run_id=settlement.run_id, action_id=settlement.action_id) is not None:
        raise Refusal("handed_over_before", "the action was handed over as an effect: it is no read")


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
