"""torch.compile where the toolchain allows it, eager with one clear line where it does not."""

import importlib.util
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch._dynamo
from torch import nn
from torch._functorch import config as autograd_config

# A model has one graph for every canvas size, with and without gradient, and one for every batch size of evaluation.
GRAPHS = 64


def missing_toolchain(device: torch.device) -> str | None:
    """What torch.compile lacks for `device`, or None: a C++ compiler on a CPU, Triton on a GPU."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton is not installed"
    compilers = ("g++", "c++", "clang++")
    return None if any(map(shutil.which, compilers)) else "there is no C++ compiler"


def compile_or_explain(model: nn.Module, device: torch.device, backend: str = "inductor") -> nn.Module:
    """`model` compiled with static shapes, a graph per canvas size; itself, with a line on stderr, if it cannot be."""
    lacking = missing_toolchain(device)
    if lacking is not None:
        print(f"note: running without torch.compile: {lacking}", file=sys.stderr)
        return model
    print("note: compiling, which takes a minute or so for every canvas size", file=sys.stderr)
    torch._dynamo.config.recompile_limit = GRAPHS
    return torch.compile(model, dynamic=False, fullgraph=True, backend=backend)  # type: ignore[return-value]


# Within a limit of time ---------------------------------------------------------------------------------------


class OutOfTime(BaseException):
    """Compiling took too long; like KeyboardInterrupt no `Exception`, so that no compiler takes it for its own."""


@contextmanager
def interrupted_when(over: Callable[[], bool]) -> Iterator[None]:
    """Raise OutOfTime within this context, at most half a second after `over` has become true.

    By a timer's signal, which reaches Python code (and most of a compiler is, or waits for other programs) in the main
    thread only. Another thread could not be ended, and another process would have to import and trace everything again.
    """

    def look(number: int, frame: FrameType | None) -> None:
        if over():
            raise OutOfTime

    old = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)  # again and again: a callback somewhere may swallow an exception
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def compile_within(
    pieces: Iterable[Callable[[], object]], left: Callable[[], float], now: Callable[[], float] = time.monotonic
) -> int:
    """Compile what `pieces` of work run, as long as that pays and seconds are `left`; how many of them are compiled.

    A piece runs a compiled model and waits for the device; nothing that it does may last. From then on what is compiled
    runs so, all else runs as it is, and nothing is ever compiled again (torch's stance). The first piece tells whether
    the compiled model is faster here; where it is not, nothing stays compiled.
    """
    done, last = 0, 0.0
    torch.compiler.set_stance("force_eager")
    if threading.current_thread() is not threading.main_thread():
        return 0
    for piece in pieces:
        eager = 0.0 if done else _warm_seconds(piece, now)
        if left() <= last:
            break
        began = now()
        try:
            with _compiling(), interrupted_when(lambda: left() <= 0):
                piece()
        except OutOfTime:
            break
        last = now() - began
        if done == 0:
            with torch.compiler.set_stance("eager_on_recompile"):
                if _warm_seconds(piece, now) >= eager:
                    return 0
        done += 1
    torch.compiler.set_stance("eager_on_recompile" if done else "force_eager")
    return done


@contextmanager
def _compiling() -> Iterator[None]:
    """Let torch compile, and the backward pass at once too, not in a thread of autograd's that no signal reaches."""
    with torch.compiler.set_stance("default"), autograd_config.patch(force_non_lazy_backward_lowering=True):
        yield


def _warm_seconds(piece: Callable[[], object], now: Callable[[], float]) -> float:
    piece()
    began = now()
    piece()
    return now() - began
