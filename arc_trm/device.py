"""What a process finds and sets up: Accelerate and the other processes, arithmetic, memory."""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedType, LoggerType, broadcast

from data_prep.files import InputError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Ways to launch processes that each hold the whole model.
PLAIN = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU}
# Parameters of glibc's mallopt (malloc.h).
TRIM_THRESHOLD, MMAP_MAX = -1, -4


def make_accelerator(track: str, out: Path) -> Accelerator:
    """The Accelerator of a run; without the asked-for tracker's package it says so and goes on without.

    On a CPU the process keeps the memory that it frees from here on. The model does its own casting and its gradients
    are summed here, so no mixed precision, whatever the user's configuration says, and no FSDP, DeepSpeed or the like.
    Raises InputError for those, and for a tracker that Accelerate does not know.
    """
    # On a CPU several processes find each other only when the program asks for the CPU.
    cpu = not torch.accelerator.is_available()
    if cpu:
        keep_freed_memory()
    known = sorted(str(name) for name in LoggerType if name != LoggerType.ALL)
    if track != "none" and track not in known:
        raise InputError(f"log.track: found {track!r}, expected none or one of {', '.join(known)}")
    available = track in [str(name) for name in get_available_trackers()]
    tracking = {"log_with": track, "project_dir": str(out)} if available else {}
    accelerator = Accelerator(mixed_precision="no", cpu=cpu, **tracking)
    if accelerator.distributed_type not in PLAIN:
        raise InputError(
            f"Accelerate's configuration: found {accelerator.distributed_type.value}, expected processes alone"
        )
    if track != "none" and not available and accelerator.is_main_process:
        print(f"note: {track} is not installed, going on without it; metrics.jsonl has every figure", file=sys.stderr)
    return accelerator


def agreed_values(values: Sequence[float], accelerator: Accelerator) -> list[float]:
    """The main process's `values`, in every process: clocks differ, decisions must not."""
    if accelerator.num_processes == 1:
        return list(values)
    return broadcast(torch.tensor(values, dtype=torch.float32, device=accelerator.device)).tolist()


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """The arithmetic to use; `auto` is bf16 on a GPU that has it, fp16 on an older GPU, fp32 on a CPU."""
    if name != "auto":
        return PRECISIONS[name]
    if device.type != "cuda":
        return torch.float32
    # Emulated bf16 (before compute capability 8) is reported as supported too, and is slow.
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16


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
