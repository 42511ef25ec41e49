"""Device of a process, Accelerate and the other processes, precision, memory, compiling."""

import contextlib
import ctypes
import gc
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch

# Before there is a process group: imported later, by the first optimiser, it keeps the group's threads from ending with
# it, and a process with threads of C++ may abort at its exit.
import torch._dynamo.utils
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedType, InitProcessGroupKwargs, LoggerType, broadcast, parse_flag_from_env

from arc_trm.config import ModelConfig
from arc_trm.layers import Network, swiglu_width
from arc_trm.model import RecursiveModel, network, rotary_angles
from arc_trm.optim import gpu_has_bf16
from data_prep.files import InputError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# A CPU uses bf16 if it takes at most this share of the time of float32.
WORTHWHILE = 0.8
# Ways to launch processes that each hold the whole model.
PLAIN = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU}
# Makes Accelerate use the CPU although there is a GPU; `accelerate launch --cpu` sets it.
USE_CPU = "ACCELERATE_USE_CPU"
# Parameters of glibc's mallopt (malloc.h).
TRIM_THRESHOLD, MMAP_MAX = -1, -4
# A network has one graph for every canvas size, with and without gradient, and one for every batch size of evaluation.
GRAPHS = 64
# Errors by which compilers fail: no C++ compiler, no Triton, no Python headers, a GPU that is too old.
COMPILER_ERRORS = (RuntimeError, ImportError, OSError, AttributeError, subprocess.SubprocessError)
# Longest wait for another process. One may compile longer than another, and NCCL's own limit of ten minutes would end
# them all.
PATIENCE = timedelta(minutes=40)
# CUDA kernels, cuBLAS among them, index the elements of a tensor with 32 bits.
MOST_ELEMENTS = 2**31 - 1
# Messages of PyTorch, besides its own exception, when memory runs out on a CPU or GPU. A GPU library that finds no
# memory at its start reports that it is not initialised.
NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def make_accelerator(track: str, out: Path) -> Accelerator:
    """Make the Accelerator of a run; a note says so if the package of the tracker is missing.

    The model casts by itself and the trainer averages gradients, so mixed precision is off, whatever the user's
    configuration says, and FSDP, DeepSpeed and the like are refused. On a CPU the process keeps freed memory from here
    on. Raises InputError for those, for a tracker unknown to Accelerate, and for a GPU that does not work.
    """
    # On a CPU several processes find each other only when the program asks for the CPU.
    cpu = parse_flag_from_env(USE_CPU) or not _gpu_works()
    if cpu:
        keep_freed_memory()
    known = sorted(str(name) for name in LoggerType if name != LoggerType.ALL)
    if track != "none" and track not in known:
        raise InputError(f"track: found {track!r}, expected none or one of {', '.join(known)}")
    available = track in [str(name) for name in get_available_trackers()]
    tracking = {"log_with": track, "project_dir": str(out)} if available else {}
    handlers = [InitProcessGroupKwargs(timeout=PATIENCE)]
    accelerator = Accelerator(mixed_precision="no", cpu=cpu, kwargs_handlers=handlers, **tracking)
    if accelerator.distributed_type not in PLAIN:
        raise InputError(
            f"Accelerate's configuration: found {accelerator.distributed_type.value}, expected processes alone"
        )
    if track != "none" and not available and accelerator.is_main_process:
        print(f"note: {track} is not installed, going on without it; metrics.jsonl has every figure", file=sys.stderr)
    return accelerator


def _gpu_works() -> bool:
    """Tell if this process has a GPU; raises InputError if it has one that does not work."""
    gpu = own_gpu()
    if gpu is None:
        return torch.accelerator.is_available()
    if failure := gpu_failure(gpu):
        raise InputError(f"{gpu} is there but does not work ({failure}); {USE_CPU}=true makes this run use the CPU")
    return True


def own_gpu() -> torch.device | None:
    """Return the GPU of this process, if there is one."""
    count = torch.cuda.device_count()
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count) if count else None


def gpu_failure(gpu: torch.device) -> str | None:
    """Multiply matrices on `gpu`; return why that fails in one line, or None if it works.

    torch also counts a GPU whose driver is too old for it, or that is too old for its kernels.
    """
    try:
        ones = torch.ones(64, 64, device=gpu)
        return None if float((ones @ ones).sum()) == 64**3 else "it multiplies wrongly"
    except (RuntimeError, AssertionError) as error:
        return first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 120 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def describe_device(accelerator: Accelerator) -> str:
    """Describe the processes and their devices in words."""
    count, device = accelerator.num_processes, accelerator.device
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return f"{count} process{'es' if count > 1 else ''} on {device.type}{name}"


def agreed_values(values: Sequence[float], accelerator: Accelerator) -> list[float]:
    """Return the main process's `values` in every process: clocks differ, decisions must not."""
    if accelerator.num_processes == 1:
        return list(values)
    return broadcast(torch.tensor(values, dtype=torch.float32, device=accelerator.device)).tolist()


# Arithmetic -----------------------------------------------------------------------------------------------------------


def resolve_precision(name: str, model: ModelConfig, accelerator: Accelerator) -> torch.dtype:
    """Return the precision to use, the same in all processes.

    `auto` is bf16 on a GPU that has it, fp16 on an older GPU; on a CPU float32, or bf16 if that is faster.
    """
    device = accelerator.device
    if name != "auto":
        return PRECISIONS[name]
    if device.type == "cuda":
        return torch.bfloat16 if gpu_has_bf16(device) else torch.float16
    if device.type == "cpu" and agreed_values([float(bf16_is_faster(model))], accelerator) == [1.0]:
        return torch.bfloat16
    return torch.float32


@cache
def bf16_is_faster(model: ModelConfig) -> bool:
    """Tell if forward and backward passes of the network in bf16 take at most WORTHWHILE of float32's time.

    Some CPUs emulate bf16 and are a hundred times slower, which a small product shows at once.
    """
    length = model.prefix + model.canvas_positions(model.seq_len)
    net = network(model, model.layers)
    rotary = rotary_angles(model) if model.mixer == "attention" else None

    def product(dtype: torch.dtype) -> object:
        values = torch.ones(256, 256, dtype=dtype)
        return values @ values

    def both_ways(dtype: torch.dtype) -> object:
        return net(torch.ones(1, length, model.hidden, dtype=dtype), rotary).sum().backward()

    def share(work: Callable[[torch.dtype], object]) -> float:
        return best_seconds(lambda: work(torch.bfloat16)) / best_seconds(lambda: work(torch.float32))

    return share(product) <= 2 and share(both_ways) <= WORTHWHILE


def best_seconds(work: Callable[[], object], times: int = 3, now: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of some calls, after one to warm up."""
    seconds = []
    for _ in range(times + 1):
        began = now()
        work()
        seconds.append(now() - began)
    return min(seconds[1:])


# Memory ---------------------------------------------------------------------------------------------------------------


def peak_memory(device: torch.device) -> float:
    """Return the peak memory so far in GB: allocated on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte / 1e9


def out_of_memory(error: Exception) -> bool:
    """Tell if `error` means that memory ran out; on a CPU and in libraries torch has no exception of its own for it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in NO_MEMORY)


def free_memory(device: torch.device) -> None:
    """Collect garbage and return unused memory of a GPU to its driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def rows_at_once(model: ModelConfig, tokens: int) -> int:
    """Return how many examples of `tokens` cells keep the largest tensor in the network within MOST_ELEMENTS."""
    length = model.prefix + model.canvas_positions(tokens)
    # Gate and up of a SwiGLU, over features or over positions; queries, keys and values.
    widths = [2 * swiglu_width(model.hidden, model.expansion) * length, 3 * model.hidden * length]
    if model.mixer != "attention":
        widths.append(2 * swiglu_width(length, model.expansion) * model.hidden)
    return max(1, MOST_ELEMENTS // max(widths))


def keep_freed_memory() -> bool:
    """Let large tensors reuse freed memory, as on GPUs; return True if the C library can.

    By default glibc maps every tensor of over 32 MB anew, and the system clears its pages: up to a fifth of a float32
    training step on a CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Return free memory to the system, after something rare and large."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


# Compiling ------------------------------------------------------------------------------------------------------------


def compile_networks(model: RecursiveModel, backend: str = "inductor") -> None:
    """Compile the networks of a model in place with static shapes; the compiler works when they next run.

    Only `Network` is compiled, not the recursion around it: its blocks are one graph for each shape, with and without
    gradient. Names in the state dict do not change.
    """
    torch._dynamo.config.recompile_limit = GRAPHS
    # Dynamo looks at the gradients of the weights; weights that were cast are no leaves and have none.
    warnings.filterwarnings("ignore", message=".*not a leaf Tensor.*")
    for net in _networks(model):
        net.compile(dynamic=False, fullgraph=True, backend=backend)


def run_eagerly(model: RecursiveModel) -> None:
    """Undo `compile_networks`."""
    for net in _networks(model):
        net._compiled_call_impl = None


def _networks(model: RecursiveModel) -> list[Network]:
    return [net for net in (model.net, model.second_net) if net is not None]


def compiled_graphs() -> int:
    """Count the graphs that this process has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compile_error(error: Exception) -> str:
    """Return in one line why compiling failed."""
    inner = getattr(error, "inner_exception", error)  # Dynamo wraps what a compiler raises
    return f"{type(inner).__name__}: {first_line(inner)}"
