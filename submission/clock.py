"""The clock of a solving run: its deadline, where its seconds went, and how long a piece of work takes."""

import argparse
import math
import re
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

    @property
    def reserve(self) -> float:
        """Seconds kept for the last write, for a last batch that takes longer than those before, and for leaving."""
        return min(0.1 * self.budget, 5 + 0.01 * self.budget, 120.0)

    def part(self, parts: int) -> "RunClock":
        """The clock of the first of so many equal parts of the time that is left; the last part has all of it."""
        left = self.left(self.deadline) / parts
        return self if parts == 1 else RunClock(left, self.now(), self.now, self.phases)

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
        """When a program that hangs is ended: late, but with time to write and report."""
        return self.deadline - self.reserve / 3

    @property
    def prediction_end(self) -> float:
        """When the last answer must be there."""
        return self.deadline - self.reserve

    def left(self, end: float) -> float:
        """Seconds until `end`."""
        return end - self.now()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within this context as time of phase `name`."""
        began = self.now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.now() - began


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
