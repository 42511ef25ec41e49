"""Signals that end a run early: it saves after the step in work and stops."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Catch SIGTERM (preemption) and Ctrl-C within this context; yield a function that tells if one arrived.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread no signal can be caught.
    """
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
