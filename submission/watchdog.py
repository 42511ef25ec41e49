"""The last resort against a hanging machine: at a given moment the program says its last words and ends."""

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType


class Watchdog:
    """Within this context, after `seconds`: call `last_words` and end the process with status 0.

    A collective operation waits for ever for a process that was lost, and no exception or signal handler gets through
    to it; a thread does. What is on disk is valid at any moment, so ending there loses nothing.
    """

    def __init__(
        self,
        seconds: float,
        last_words: Callable[[], object],
        end: Callable[[int], object] = os._exit,
        patience: float = 5.0,
    ) -> None:
        """`patience`: seconds that the last words may take."""
        self._seconds, self._last_words, self._end, self._patience = seconds, last_words, end, patience
        self._over = threading.Event()

    def __enter__(self) -> "Watchdog":
        """Start to wait."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go away."""
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(max(0.0, self._seconds)):
            return
        speaker = threading.Thread(target=self._last_words, daemon=True)
        speaker.start()
        speaker.join(self._patience)
        sys.stdout.flush()
        if not self._over.is_set():
            self._end(0)
