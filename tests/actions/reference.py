"""A run, told slowly and plainly: what the loop must do, step for step, with lists, scans and no asyncio.

The same events drive it and the real run. Each dispatch has an answer from the start; whenever nothing moves by itself
the run waits for one event: some dispatches end together, the clock moves or breaks, or the run is cancelled.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from interlock.actions import ScheduledAction, SchedulerCheckpoint, SchedulerLimits

VERDICTS = {
    "committed": ("committed", None),
    "failed": ("failed", "dispatch_failed"),
    "review": ("review_required", "review_required"),
    "raises": ("review_required", "review_required"),
    "odd": ("review_required", "review_required"),
}

Event = tuple[str, int]
Moments = Generator[None, Event, None]


@dataclass(frozen=True)
class Script:
    """What is known of a run beforehand.

    `answers` has what each dispatch says. `stubborn` has what a dispatch does with its first cancellation: `says` its
    answer at once, or `stays` until it is ended or cancelled again. `saves` has what happens during the save of a
    number, from 1: `fail`, `cancel`, `break` of the clock, nanoseconds that pass, or the `end` of a running dispatch
    (of an awaited save alone). `awaited` says of each save in turn whether it is awaited. `drains` is false where the
    run does not wait for what will not stop.
    """

    answers: Mapping[str, str]
    saves: Mapping[int, str | int]
    stubborn: Mapping[str, str]
    awaited: tuple[bool, ...] = (False,)
    drains: bool = True

    def awaits(self, number: int) -> bool:
        return self.awaited[number % len(self.awaited)]


def ended_together(running: list[str], number: int) -> list[str]:
    """Which of the running dispatches an `end` event ends: every other one or all of them, from a place."""
    start = number % len(running) if running else 0
    return (running[start:] + running[:start])[:: 2 if number % 2 else 1]


@dataclass
class Reference:
    """The slow run. `trace` has its saves and its invocations, in order."""

    actions: list[ScheduledAction]
    limits: SchedulerLimits
    script: Script
    restored: SchedulerCheckpoint | None = None
    trace: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    swallowed: list[str] = field(default_factory=list)
    uninvoked: list[str] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    reason: str | None = None
    admitted: int = 0
    units: int = 0
    now: int = 0
    elapsed: int = 0
    saved: int = 0
    cancelled: bool = False
    interrupted: bool = False
    clock_broken: bool = False
    saves_no_more: bool = False
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.by_id = {action.node.action_id: action for action in self.actions}
        self.states = dict.fromkeys(sorted(self.by_id), "pending")
        if self.restored is not None:
            self.states = {key: state.value for key, state in self.restored.states}
            self.admitted, self.units = self.restored.admitted_actions, self.restored.reserved_units
            self.elapsed = self.restored.elapsed_ns
        self.before = self.elapsed

    def run(self) -> Moments:
        """Go as far as it goes by itself, then take the next event, until the run is over."""
        if self.restored is not None and self.restored.stop_reason is not None:
            self.reason = self.restored.stop_reason.value
            return
        if any(state in {"running", "failed", "review_required"} for state in self.states.values()):
            self.states = {key: "review_required" if s == "running" else s for key, s in self.states.items()}
            self.halt("review_required")
        self.look()
        while self.reason is None:
            if self.finished:
                self.collect()
            elif (key := self.next()) is not None:
                self.begin(key)
            elif self.running or self.uninvoked:
                self.invoke()
                if not self.finished:
                    self.happen((yield))
                self.look()
            else:
                done = all(state == "committed" for state in self.states.values())
                self.halt("completed" if done else "budget_exhausted")
        yield from self.drain()
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
        while self.finished and self.reason is None:
            self.collect()
        if self.reason is None:
            self.uninvoked.append(key)
        else:
            self.finished.append((key, "review_required"))

    def invoke(self) -> None:
        """Let what was admitted begin."""
        for key in self.uninvoked:
            if self.reason is not None or self.cancelled:
                self.finished.append((key, "review_required"))
                continue
            self.trace.append(f"dispatch {key}")
            self.running.append(key)
        self.uninvoked = []

    def happen(self, event: Event) -> None:
        kind, number = event
        if kind == "end":
            for key in ended_together(self.running, number):
                self.end(key)
        elif kind == "time":
            self.now += number
        elif kind == "break":
            self.clock_broken = True
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

    def drain(self) -> Moments:
        """Everything that runs is cancelled, and waited for; what stays is cancelled again by each interrupt."""
        self.cancel_running()
        self.finished += [(key, "review_required") for key in self.uninvoked]
        self.uninvoked = []
        while self.running or self.finished:
            if self.finished:
                self.collect()
            elif not self.script.drains:
                self.left = sorted(self.running)
                self.finished += [(key, "review_required") for key in self.left]
                self.running = []
            else:
                event = yield
                self.happen(event)
                if event[0] == "interrupt":
                    self.cancel_running()

    def cancel_running(self) -> None:
        for key in tuple(self.running):
            manner = self.script.stubborn.get(key)
            if manner == "stays" and key not in self.swallowed:
                self.swallowed.append(key)
                continue
            self.running.remove(key)
            says = VERDICTS[self.script.answers[key]][0] if manner == "says" else "review_required"
            self.finished.append((key, says))

    def halt(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason

    def look(self) -> None:
        if not self.clock_broken:
            self.elapsed = self.before + self.now
        if self.cancelled:
            self.halt("cancelled")
        if self.clock_broken:
            self.halt("clock_failed")
        if self.elapsed >= self.limits.max_elapsed_ns:
            self.halt("budget_exhausted")

    def save(self, reason: str | None = None) -> None:
        if self.saves_no_more:
            return
        if self.script.awaits(self.saved + 1) and self.reason is None:
            self.invoke()  # what was admitted before begins while the save is awaited
        self.saved += 1
        happens = self.script.saves.get(self.saved)
        if happens == "fail":
            self.saves_no_more = True
            self.reason = "checkpoint_failed"
            return
        word = "".join({"review_required": "v"}.get(state, state[0]) for state in self.states.values())
        self.trace.append(f"save {word} {self.admitted} {self.units} {self.elapsed} {reason}")
        if happens == "cancel":
            self.cancelled = True
        elif happens == "break":
            self.clock_broken = True
        elif isinstance(happens, int):
            self.now += happens
        elif happens == "end" and self.script.awaits(self.saved) and self.running:
            self.end(self.running[0])
