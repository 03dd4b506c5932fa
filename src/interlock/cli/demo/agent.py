"""An example agent: it follows a trail of notes, where each call is chosen from the output of the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.runners.calls import GoalTools
    from interlock.runners.goal import GoalContext

MAX_NOTES = 20


async def follow_trail(goal: str, tools: GoalTools, context: GoalContext) -> dict[str, object]:
    """List the directory, read the first note, go where each one points, and write down the way."""
    listing = await tools.call("tool:interlock.shell/list", path="notes")
    name: str | None = min(entry["name"] for entry in listing["entries"])
    way: list[str] = []
    found = ""
    while name is not None and len(way) < MAX_NOTES:
        way.append(name)
        note = await tools.call("tool:interlock.shell/read", path=f"notes/{name}")
        found, name = _read(note["content"])
    await tools.call("tool:interlock.shell/write", path="way.txt", content=" > ".join(way) + "\n")
    return {"goal": goal, "device": context.device.serial, "way": way, "found": found}


def _read(note: str) -> tuple[str, str | None]:
    """What a note says, and which note it points to."""
    words, _, following = note.strip().partition("next: ")
    return words.strip(), following.strip() or None
