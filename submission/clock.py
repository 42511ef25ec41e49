"""The clock of a solving run: its deadline, where its seconds went, and how long a piece of work takes."""

import argparse
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
# A year of hours; far beyond it the clocks of the system, which watch over a run, overflow.
LONGEST = 8760 * 3600.0


def duration(text: str) -> float:
    """Seconds of a duration such as 11h30m, 10m or 90s, for argparse."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    understood = "".join(number + unit for number, unit in parts) == text
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts) if understood else 0.0
    if not 0 < seconds <= LONGEST:
        expected = f"a duration of at most {LONGEST / 3600:.0f}h, such as 11h30m, 10m or 90s"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return seconds


@dataclass
class RunClock:
    """The clock of a solving run, in seconds of `now`."""

    budget: float = math.inf
    started: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic
    phases: dict[str, float] = field(default_factory=dict)  # seconds spent, by name
    limits: list[float] = field(default_factory=list)  # moments at which a process that hangs is ended earlier

    @property
    def reserve(self) -> float:
        """Seconds kept for the last write, for a last batch that takes longer than those before, and for leaving."""
        return min(0.1 * self.budget, 5 + 0.01 * self.budget, 120.0)

    def part(self, parts: int) -> "RunClock":
        """The clock of the first of so many equal parts of the time that is left; the last part has all of it."""
        left = self.left(self.deadline) / parts
        return self if parts == 1 else RunClock(left, self.now(), self.now, self.phases, self.limits)

    def resume(self, spent: float) -> None:
        """Count `spent` seconds of an earlier process as part of this run; the deadline stays."""
        self.started, self.budget = self.started - spent, self.budget + spent

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return self.now() - self.started

    @property
    def deadline(self) -> float:
        """When the program must have ended."""
        return self.started + self.budget

    @property
    def last_call(self) -> float:
        """When a process that hangs is ended: late, but with time to write and report; or at an earlier limit."""
        return min([self.deadline - self.reserve / 3, *self.limits])

    @property
    def prediction_end(self) -> float:
        """When the last answer must be there."""
        return self.deadline - self.reserve

    def left(self, end: float) -> float:
        """Seconds until `end`."""
        return end - self.now()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """End the process if this context takes longer than `seconds`; see `watchdog`."""
        self.limits.append(self.now() + seconds)
        try:
            yield
        finally:
            self.limits.pop()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within this context as time of phase `name`."""
        began = self.now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.now() - began


@contextmanager
def watchdog(
    clock: RunClock,
    leave: Callable[[], object],
    end: Callable[[int], object] = os._exit,
    patience: float = 5.0,
) -> Iterator[None]:
    """Within this context, at the clock's last call: run `leave`, for at most `patience` seconds, and end the process.

    A collective operation waits for ever for a process that was lost, and no exception or signal handler interrupts
    it; a thread goes on. The file on disk is valid at any moment, so nothing is lost. The exit status is 0 at the end
    of the time, 1 at an earlier limit.
    """
    over = threading.Event()

    def watch() -> None:
        while (seconds := clock.left(clock.last_call)) > 0:
            if over.wait(min(seconds, 1.0)):  # a limit may be set meanwhile
                return
        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(patience)
        sys.stdout.flush()
        if not over.is_set():
            end(int(bool(clock.limits)))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@dataclass
class Speed:
    """Seconds that one unit of some work takes, as measured last on work that was warm.

    The first work of a shape (a batch size, a canvas size) makes tables, fills caches and may compile; its time says
    nothing about what follows, and counts only as long as nothing better is known.
    """

    seconds: float | None = None
    cold: bool = True  # nothing warm was measured yet
    _known: set[Hashable] = field(default_factory=set)
    _added: list[tuple[bool, float, float]] = field(default_factory=list)  # since `settle`: warm, amount, seconds

    def add(self, shape: Hashable, amount: float, seconds: float) -> None:
        """Note that `amount` of work of this shape took so long."""
        self._added.append((shape in self._known, amount, seconds))
        self._known.add(shape)

    def settle(self) -> None:
        """Let what was added since the last call be the newest measurement."""
        warm = any(is_warm for is_warm, _, _ in self._added)
        measured = [(amount, seconds) for is_warm, amount, seconds in self._added if is_warm == warm]
        if measured and (warm or self.cold):
            amount, seconds = map(sum, zip(*measured, strict=True))
            self.seconds, self.cold = seconds / amount, not warm
        self._added = []

    def cool(self) -> None:
        """Every shape is cold again, as after compiling."""
        self._known.clear()
