"""Kill a process at a moment chosen by what it has done: before or after an event, or by chance between two; or let its
disk be full for a while.

An event is a call of one of some functions: those that change files, take a step, or answer. No moment is chosen by
the clock, so a kill finds the same work done on a fast machine and on a slow one.
"""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch._dynamo  # noqa: F401  (optimisers import it late, which would take every forked child a second)

Function = tuple[Any, str]  # its owner, a module or a class, and its name
KILLED = (-signal.SIGKILL, -signal.SIGALRM)  # how `wait` shows that one of the functions below ended a process


def fork(work: Callable[[], object], log: Path | str | None = os.devnull) -> int:
    """Do `work` in a child, which says in the file `log` (None: where this process does) what it has to say; returns
    its process id.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
        work()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int) -> int:
    """Exit status of a child, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def events(
    functions: Sequence[Function],
    before: Callable[[int], object] = lambda number: None,
    after: Callable[[int], object] = lambda number: None,
) -> Iterator[None]:
    """Within this context `before` and `after` are told the number (1, 2, …) of every call of the functions."""
    numbers = count(1)

    def told(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            number = next(numbers)
            before(number)
            result = call(*arguments, **options)
            after(number)
            return result

        return wrapper

    with ExitStack() as patches:
        for owner, name in functions:
            patches.enter_context(patch.object(owner, name, told(getattr(owner, name))))
        yield


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """Let no file grow beyond `size` bytes within this context."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def dying_between(functions: Sequence[Function], event: int, seconds: float) -> AbstractContextManager[None]:
    """Within this context the process dies `seconds` after its event number `event`, or before the next one.

    The timer is the kernel's: SIGALRM ends the process in whatever it is doing. Not for runs that compile, which
    catch it.
    """
    return events(
        functions,
        before=lambda number: die() if number == event + 1 else None,
        after=lambda number: signal.setitimer(signal.ITIMER_REAL, seconds) if number == event else None,
    )
