"""The memory of this process: what it took at most, and how the C library keeps it."""

import contextlib
import ctypes
import resource
import sys

import torch

# Parameters of glibc's mallopt (malloc.h).
TRIM_THRESHOLD, MMAP_MAX = -1, -4


def peak_memory(device: torch.device) -> float:
    """The most memory so far, in GB: allocated on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte / 1e9


def keep_freed_memory() -> bool:
    """Let large tensors reuse memory that others freed, as GPUs do; says whether the C library can.

    By default glibc takes every tensor of over 32 MB fresh from the system and gives it back at once, and the system
    clears every page of it: seen to take up to a fifth of a float32 training step on a CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Give the system back what is free now, after something rare and large; the next step takes what it needs anew."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
