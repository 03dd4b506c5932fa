"""The outputs of an attempt's actions: a bounded memory in front of the ledger."""

from __future__ import annotations

import json

from interlock.fleet.ledger import AttemptLedger

_MEMORY_CHARACTERS = 8_388_608


class Outputs:
    """What committed actions gave. The latest are held here, all others are asked of the ledger."""

    def __init__(self, ledger: AttemptLedger) -> None:
        self._ledger = ledger
        self._held: dict[str, str] = {}
        self._characters = 0

    def keep(self, action_id: str, text: str) -> None:
        """Hold an output, as JSON, that is durable already."""
        self._characters += len(text) - len(self._held.pop(action_id, ""))
        self._held[action_id] = text
        while self._characters > _MEMORY_CHARACTERS:
            self._characters -= len(self._held.pop(next(iter(self._held))))

    async def of(self, action_id: str) -> object:
        """The output of a committed action under any run of the task. Raises `NotFound` where it left none."""
        if action_id in self._held:
            return json.loads(self._held[action_id])
        return await self._ledger.output(action_id)
