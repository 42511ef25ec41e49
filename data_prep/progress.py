"""Progress of long work on stderr: a bar on a terminal, elsewhere a plain line once a minute."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from tqdm import tqdm

LINE_EVERY = 60.0  # seconds
_last_line: float | None = None  # time of this process's last line; before it, when its first piece of work began


class Progress(AbstractContextManager["Progress"]):
    """Context that shows the progress of one piece of work; `quiet` in all processes but the main one.

    If stderr is no terminal, `update` prints a line if the last line of this process is a minute old. The minute is
    shared by all pieces of work, because many short ones in a row would otherwise print nothing or far too much; tqdm's
    own interval is one for each bar.
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
        """Begin at `done` of `total` units (None: unknown); `now` returns the time in seconds."""
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
        """Add `count` to what is done; `figures` is further text, which stays until it is replaced."""
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
        """Restart the clock of the rate and of the time left."""
        self._began = self._now()

    def line(self) -> str:
        """Return, as far as known, a line like `training: 120 of 500 steps, loss 0.7, 1.9 steps/s, 3m20s left`."""
        seconds, new = self._now() - self._began, self.done - self._first
        parts = [f"{self.what}: {self.done}{'' if self.total is None else f' of {self.total}'} {self.unit}"]
        parts += [self.figures] if self.figures else []
        if new > 0 and seconds > 0:
            parts.append(f"{new / seconds:.3g} {self.unit}/s")
            if self.total is not None and self.done < self.total:
                parts.append(f"{duration_text((self.total - self.done) * seconds / new)} left")
        return ", ".join(parts)

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._bar.close()


def duration_text(seconds: float) -> str:
    """Format seconds as 11h30m, 4m05s or 7.3s."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
