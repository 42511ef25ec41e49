"""Look before spending hours: what truly works here, found by real operations, as one short table."""

import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from arc_trm.checkpoint import Export
from arc_trm.config import ModelConfig
from arc_trm.device import PRECISIONS, resolve_precision
from data_prep.files import InputError
from data_prep.progress import duration_text
from data_prep.tasks import Task
from submission.plan import TimePlan
from submission.settings import Settings
from submission.submission_file import SubmissionFile

# The precisions to try on a device.
CHOICES = {"cuda": ("bf16", "fp16", "fp32"), "cpu": ("fp32", "bf16")}
# A share of the sum of absolute values, which every precision must come within of the exact result.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Arithmetic:
    """What a device can do: seconds of a piece of work by precision; without those that fail there."""

    device: torch.device
    seconds: dict[str, float]
    failures: dict[str, str]

    @property
    def works(self) -> bool:
        """Whether anything works at all."""
        return bool(self.seconds)


def choices(device: torch.device) -> tuple[str, ...]:
    """The precisions to try on a device."""
    return CHOICES.get(device.type, ("fp32",))


def try_arithmetic(device: torch.device, size: int = 512, repeats: int = 12) -> Arithmetic:
    """Multiply, attend and differentiate in every precision on `device`, and compare with the CPU's float32.

    A driver may report a device as available although every kernel fails there (P100 with a new torch).
    """
    working, failures = {}, {}
    for name in choices(device):
        try:
            working[name] = _tried(device, PRECISIONS[name], size)
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            failures[name] = str(error).strip().splitlines()[0][:80] if str(error) else type(error).__name__
    seconds = dict.fromkeys(working, math.inf)
    # By turns, and the best of many: what else runs on the machine must not decide.
    for _ in range(repeats):
        for name, values in working.items():
            began = time.perf_counter()
            with torch.no_grad():
                float(_work(values).sum())  # reading a number waits for the device
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return Arithmetic(device, seconds, failures)


def _tried(device: torch.device, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Values of `dtype` to work on; raises AssertionError where that gives wrong results, or what the device raises."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(size, size, generator=generator)
    values = exact.to(device, dtype).requires_grad_()
    found = _work(values)
    [gradient] = torch.autograd.grad(found.float().sum(), values)
    wanted = _work(exact)
    error = (found.detach().float().cpu() - wanted).abs().sum() / wanted.abs().sum()
    if not error < TOLERANCE or not bool(gradient.isfinite().all()):
        raise AssertionError(f"wrong results (off by {float(error):.1%})")
    return values


def _work(values: torch.Tensor) -> torch.Tensor:
    """Products and attention over [n, n] values, scaled so that half precision does not overflow."""
    n = values.shape[0]
    product = values @ values.T / n**0.5
    heads = product.view(1, n, n // 32, 32).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(n, n)


def own_device() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def usable_arithmetic() -> list[Arithmetic]:
    """What the devices of this process can do; a GPU on which nothing works gives way to the CPU.

    Raises InputError where that is one process among several.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    own = own_device()
    count = torch.cuda.device_count() if alone and own.type == "cuda" else 0
    others = [torch.device("cuda", i) for i in range(count) if i != own.index]
    found = [try_arithmetic(device) for device in (own, *others)]
    if found[0].works:
        return found
    reason = next(iter(found[0].failures.values()), "")
    if not alone:
        raise InputError(f"{own}: no operation works there ({reason}); start fewer processes, or one on the CPU")
    print(f"note: {own} is there but does not work ({reason}); using the CPU", file=sys.stderr)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    return [try_arithmetic(torch.device("cpu")), *found]


def chosen_precision(settings: Settings, model: ModelConfig, accelerator: Accelerator) -> str:
    """The precision asked for, or what training `model` would take here; the same in all processes."""
    dtype = resolve_precision(settings.precision, model, accelerator)
    return next(name for name, own in PRECISIONS.items() if own == dtype)


# The table ------------------------------------------------------------------------------------------------


def table(
    arithmetics: Sequence[Arithmetic], file: SubmissionFile, exports: Sequence[Export], plan: TimePlan, mode: str
) -> str:
    """What was found, a line each."""
    rows = [("mode", mode), *(("checkpoint", describe_export(export)) for export in exports)]
    rows += [(str(arithmetic.device), describe_device(arithmetic)) for arithmetic in arithmetics]
    rows += [
        ("memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB"),
        ("disk", f"{shutil.disk_usage(file.path.parent).free / 1e9:.1f} GB free at {file.path.parent}"),
        ("challenges", describe_tasks(file.tasks)),
        ("time", f"{duration_text(plan.budget)}, {duration_text(plan.reserve)} of them in reserve"),
        ("software", f"Python {platform.python_version()}, torch {torch.__version__}, {sys.platform}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


def describe_export(export: Export) -> str:
    """Its digest, its size, and how much it was trained."""
    weights = sum(tensor.numel() for tensor in export.weights.values())
    steps = export.facts.get("steps", "unknown")
    digest, trained = export.facts["sha256"][:12], len(export.training_tasks)
    return f"{digest}, {weights / 1e6:.2f} million weights, {steps} steps on {trained} tasks"


def describe_device(arithmetic: Arithmetic) -> str:
    """Name, memory, and what works how fast."""
    device = arithmetic.device
    name = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name = f"{properties.name}, {properties.total_memory / 1e9:.1f} GB"
    results = [f"{name} {seconds * 1e3:.2g} ms" for name, seconds in arithmetic.seconds.items()]
    results += [f"{name} fails ({reason})" for name, reason in arithmetic.failures.items()]
    return f"{name}; {', '.join(results)}"


def describe_tasks(tasks: Sequence[Task]) -> str:
    """How many tasks and outputs, and how many tasks ask for several."""
    outputs = sum(len(task.tests) for task in tasks)
    several = sum(len(task.tests) > 1 for task in tasks) / len(tasks)
    return f"{len(tasks)} tasks, {outputs} outputs, {several:.0%} of the tasks with several"
