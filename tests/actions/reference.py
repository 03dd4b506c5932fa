"""A run, told slowly and plainly: what the loop must do, step for step, with lists, scans and no asyncio.

The same script drives it and the real run. A script gives each dispatch an answer, and after each quiet moment one
event: some dispatches end together, the clock moves, or the run is cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from interlock.actions import ScheduledAction, SchedulerLimits

VERDICTS = {
    "committed": ("committed", None),
    "failed": ("failed", "dispatch_failed"),
    "review": ("review_required", "review_required"),
    "raises": ("review_required", "review_required"),
    "odd": ("review_required", "review_required"),
}


@dataclass(frozen=True)
class Script:
    """What happens to a run from outside.

    `events` come one at each moment at which nothing moves by itself: `("end", n)` ends the n-th and every other
    running dispatch counted from there, `("time", n)` moves the clock, `("cancel", 0)` cancels by the signal, and
    `("interrupt", 0)` the task. When they have all come, dispatches end one by one. `saves` has what happens during
    the save of a number, from 1: `fail`, `cancel`, or nanoseconds that pass.
    """

    answers: dict[str, str]
    events: tuple[tuple[str, int], ...]
    saves: dict[int, object]
    swallows: frozenset[str] = frozenset()


def ended_together(running: list[str], number: int) -> list[str]:
    """Which of the running dispatches an `end` event ends: every other one, from a place."""
    start = number % len(running)
    return (running[start:] + running[:start])[:: 2 if number % 2 else 1]


@dataclass
class Reference:
    """The slow run. `trace` has its saves and its invocations, in order."""

    actions: list[ScheduledAction]
    limits: SchedulerLimits
    script: Script
    awaited: bool = False
    states: dict[str, str] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    uninvoked: list[str] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)
    reason: str | None = None
    admitted: int = 0
    units: int = 0
    now: int = 0
    saved: int = 0
    cancelled: bool = False
    interrupted: bool = False
    broken: bool = False
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.by_id = {action.node.action_id: action for action in self.actions}
        self.states = dict.fromkeys(sorted(self.by_id), "pending")
        self.events = list(self.script.events)

    def run(self) -> None:
        self.look()
        while self.reason is None:
            if self.finished:
                self.collect()
            elif (key := self.next()) is not None:
                self.begin(key)
            elif self.running or self.uninvoked:
                self.wait()
                self.look()
            else:
                done = all(state == "committed" for state in self.states.values())
                self.halt("completed" if done else "budget_exhausted")
        self.drain()
        self.save(self.reason)

    def next(self) -> str | None:
        """The lowest id that may go now, by a scan over all of them."""
        flying = [key for key, state in self.states.items() if state == "running"]
        free = self.limits.max_inflight_units - sum(self.by_id[key].resource_units for key in flying)
        for key, state in self.states.items():
            action = self.by_id[key]
            if self.exhausted or state != "pending":
                continue
            if any(self.states[need] != "committed" for need in action.node.depends_on):
                continue
            if flying and not action.read_only:
                return None
            if flying and not self.limits.parallel_reads:
                return None
            if any(not self.by_id[each].read_only for each in flying) or len(flying) >= self.limits.max_concurrency:
                return None
            if free < action.resource_units <= self.limits.max_inflight_units:
                continue
            over = action.resource_units > self.limits.max_inflight_units
            spent = self.admitted + 1 > self.limits.max_actions
            if over or spent or self.units + action.resource_units > self.limits.max_total_units:
                self.exhausted = True
                return None
            return key
        return None

    def begin(self, key: str) -> None:
        self.states[key] = "running"
        self.admitted += 1
        self.units += self.by_id[key].resource_units
        self.save()
        self.look()
        if self.reason is None:
            self.uninvoked.append(key)
        else:
            self.finished.append((key, "review_required"))

    def wait(self) -> None:
        """Let what was admitted begin; then, if nothing has ended by itself, let the next event come."""
        self.invoke()
        if not self.finished:
            self.event()

    def invoke(self) -> None:
        for key in self.uninvoked:
            if self.reason is not None or self.cancelled:
                self.finished.append((key, "review_required"))
                continue
            self.trace.append(f"dispatch {key}")
            self.running.append(key)
        self.uninvoked = []

    def event(self) -> None:
        kind, number = self.events.pop(0) if self.events else ("end", 2 * len(self.running))
        if kind == "end":
            for key in ended_together(self.running, number) if self.events else self.running[:1]:
                self.end(key)
        elif kind == "time":
            self.now += number
        else:
            self.cancelled = True
            self.interrupted |= kind == "interrupt"

    def end(self, key: str) -> None:
        self.running.remove(key)
        state, reason = VERDICTS[self.script.answers[key]]
        self.finished.append((key, state))
        if reason is not None:
            self.halt("cancelled" if self.cancelled else reason)

    def collect(self) -> None:
        key, state = self.finished.pop(0)
        self.states[key] = state
        self.save()
        self.look()

    def drain(self) -> None:
        """Everything that runs is cancelled; what swallows that gives its answer all the same."""
        for key in [*self.running, *self.uninvoked]:
            swallows = key in self.running and key in self.script.swallows
            state = VERDICTS[self.script.answers[key]][0] if swallows else "review_required"
            self.finished.append((key, state))
        self.running, self.uninvoked = [], []
        while self.finished:
            self.collect()

    def halt(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason

    def look(self) -> None:
        if self.cancelled:
            self.halt("cancelled")
        if self.now >= self.limits.max_elapsed_ns:
            self.halt("budget_exhausted")

    def save(self, reason: str | None = None) -> None:
        if self.broken:
            return
        if self.awaited and self.reason is None:
            self.invoke()  # what was admitted before begins while the save is awaited
        self.saved += 1
        happens = self.script.saves.get(self.saved)
        if happens == "fail":
            self.broken = True
            self.reason = "checkpoint_failed"
            return
        word = "".join({"review_required": "v"}.get(state, state[0]) for state in self.states.values())
        self.trace.append(f"save {word} {self.admitted} {self.units} {reason}")
        if happens == "cancel":
            self.cancelled = True
        elif isinstance(happens, int):
            self.now += happens
