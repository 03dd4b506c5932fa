"""Random graphs of actions."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from actions.stage import effect, read
from interlock.actions import ScheduledAction

MOST_ACTIONS = 60


@st.composite
def graphs(
    draw: st.DrawFn, sizes: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 12, 20, 40, MOST_ACTIONS)
) -> list[ScheduledAction]:
    """Graphs whose order is not that of the ids: an action may depend on later ids as on earlier ones."""
    size = draw(st.sampled_from(sizes))
    stride = draw(st.integers(1, MOST_ACTIONS))  # any one is prime to the number after the most
    keys = [f"n{place * stride % (MOST_ACTIONS + 1):02}" for place in range(1, size + 1)]
    kinds = st.sampled_from([read, read, effect] if draw(st.booleans()) else [read] * 9 + [effect])
    back = st.sets(st.integers(1, 9), max_size=draw(st.integers(0, 3)))
    actions = []
    for place, key in enumerate(keys):
        needs = [keys[place - step] for step in sorted(draw(back)) if step <= place]
        actions.append(draw(kinds)(key, *needs, units=draw(st.integers(1, 3))))
    return actions
