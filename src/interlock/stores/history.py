"""Forgetting: whole tasks that ended long ago, with all that is on record of them."""

from __future__ import annotations

from typing import Final

from interlock.stores.transaction import Transaction, number

MOST_LOOKED_AT: Final = 100
_PARTS: Final = (
    *("forget_saves", "forget_states", "forget_runs", "forget_journal"),
    *("forget_outputs", "forget_attempts", "forget_task"),
)


def forget(tx: Transaction, keep: int) -> int:
    """Look at the next few tasks and forget those that ended longer ago than `keep` microseconds; says how many.

    A task stays while another one continues it, while a person has yet to answer about it, and while its device waits
    for its end. After the last task it begins at the first again.
    """
    looked_at = tx.rows("history", most=MOST_LOOKED_AT)
    before = tx.now() - keep
    old = [row for row in looked_at if row["ended_at"] is not None and number(row, "ended_at") <= before]
    forgotten = [row for row in old if not row["needed"]]
    for row in forgotten:
        for part in _PARTS:
            tx.write(part, task=row["id"])
    tx.write("history_looked", seq=looked_at[-1]["seq"] if len(looked_at) == MOST_LOOKED_AT else 0)
    return len(forgotten)
