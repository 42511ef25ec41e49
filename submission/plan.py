"""How the time budget is shared among adaptation, prediction and a reserve, replanned from what was measured."""

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
# A year of hours; far beyond it the clocks of the system, which watch over a run, overflow.
LONGEST = 8760 * 3600.0


def duration(text: str) -> float:
    """Seconds of a duration such as 11h30m, 10m or 90s, for argparse."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a duration such as 11h30m, 10m or 90s")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected more than no time")
    if seconds > LONGEST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected at most {LONGEST / 3600:.0f}h")
    return seconds


@dataclass
class TimePlan:
    """The clock of a solving run, in seconds of `now`; `prediction_work` is in tokens to be answered.

    Nothing here is a promise by the machine: every end is a time of the clock, and the estimates only decide how
    the time is shared. A machine that turns slower loses votes, not the deadline.
    """

    budget: float = math.inf
    started: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic
    prediction_work: float = 0.0  # tokens of all votes that are wanted
    first_pass: float = 0.0  # share of it that gives every output its first vote
    seconds_per_token: float | None = None  # of prediction, as measured last
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def reserve(self) -> float:
        """Seconds kept for the last write, for a last batch that takes longer than those before, and for leaving."""
        return min(0.1 * self.budget, 5 + 0.01 * self.budget, 120.0)

    @property
    def deadline(self) -> float:
        """When the program must have ended."""
        return self.started + self.budget

    @property
    def last_call(self) -> float:
        """When a program that hangs is ended: late, but with time for its last words."""
        return self.deadline - self.reserve / 3

    @property
    def prediction_end(self) -> float:
        """When the last answer must be there."""
        return self.deadline - self.reserve

    @property
    def adaptation_end(self) -> float:
        """When prediction has to begin: early enough for all votes with some slack, and for the first vote of every
        output on a machine three times slower; but half of the time is for adaptation whatever prediction would like.
        """
        hoped = self.prediction_work * (self.seconds_per_token or 0.0)
        wanted = max(1.1 * hoped, 3 * self.first_pass * hoped, min(0.03 * self.budget, 10.0))
        return self.prediction_end - min(wanted, (self.budget - self.reserve) / 2)

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
