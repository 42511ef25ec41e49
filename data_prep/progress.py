"""How far a long piece of work is: a bar on a terminal, elsewhere a plain line once a minute; both on stderr."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from tqdm import tqdm

LINE_EVERY = 60.0  # seconds
_last_line: float | None = None  # when this process printed a line, whatever it was about; at first: when it began


class Progress(AbstractContextManager["Progress"]):
    """The progress of one piece of work, as a context; `quiet` in all processes but the main one.

    A bar that redraws itself makes a log unreadable, and a log that says nothing looks like a program that hangs. So
    where stderr is no terminal, an `update` prints a line when the last one of this process is a minute old: several
    pieces of work that follow each other share the minute.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        done: int = 0,
        unit: str = "steps",
        quiet: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at `done` of `total` (None: unknown) of so many `unit`; `now` is the clock, in seconds."""
        global _last_line
        self.what, self.total, self.done, self.unit, self.figures = what, total, done, unit, ""
        self._now, self._first, self._began = now, done, now()
        if _last_line is None:
            _last_line = self._began
        self._prints = not quiet and not sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=done, desc=what, unit=f" {unit}", smoothing=0.05, leave=False,
            disable=quiet or self._prints,
        )  # fmt: skip

    def update(self, count: int = 1, figures: str | None = None) -> None:
        """So much more is done; `figures` are further words, which stay until others come."""
        global _last_line
        self.done += count
        if figures is not None:
            self.figures = figures
            self._bar.set_postfix_str(figures, refresh=False)
        self._bar.total = self.total
        self._bar.update(count)
        now = self._now()
        if self._prints and _last_line is not None and now - _last_line >= LINE_EVERY:
            _last_line = now
            print(self.line(), file=sys.stderr, flush=True)

    def begin(self) -> None:
        """Count the seconds, from which rate and rest follow, from now on."""
        self._began = self._now()

    def line(self) -> str:
        """Such as `training: 120 of 500 steps, loss 0.7, 1.9 steps/s, 3m20s left`; what is unknown is left out."""
        seconds, new = self._now() - self._began, self.done - self._first
        parts = [f"{self.what}: {self.done}{'' if self.total is None else f' of {self.total}'} {self.unit}"]
        parts += [self.figures] if self.figures else []
        if new > 0 and seconds > 0:
            parts.append(f"{new / seconds:.3g} {self.unit}/s")
            if self.total is not None and self.done < self.total:
                parts.append(f"{duration_text((self.total - self.done) * seconds / new)} left")
        return ", ".join(parts)

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._bar.close()


def duration_text(seconds: float) -> str:
    """Seconds as a reader wants them: 11h30m, 4m05s, 7.3s."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
