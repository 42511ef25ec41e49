"""What a solving run finds: a GPU that works or none, and a short table to read before spending hours."""

import os
import platform
import shutil
import sys
from collections.abc import Sequence

import torch
from accelerate import Accelerator

from arc_trm.checkpoint import Export
from arc_trm.config import ModelConfig
from arc_trm.device import PRECISIONS, USE_CPU, describe_device, gpu_failure, own_gpu, resolve_precision
from data_prep.files import InputError
from data_prep.progress import duration_text
from data_prep.tasks import Task
from submission.budget import RunClock
from submission.settings import Settings
from submission.submission_file import SubmissionFile


def leave_broken_gpu() -> None:
    """Use the CPU where the GPU of this process does not work; InputError where that is one process among several."""
    gpu = own_gpu()
    failure = None if gpu is None else gpu_failure(gpu)
    if failure is None:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(f"{gpu}: no operation works there ({failure}); start fewer processes, or one on the CPU")
    print(f"note: {gpu} is there but does not work ({failure}); using the CPU", file=sys.stderr)
    os.environ[USE_CPU] = "true"


def chosen_precision(settings: Settings, model: ModelConfig, accelerator: Accelerator) -> str:
    """The precision asked for, or what training `model` would take here; the same in all processes."""
    dtype = resolve_precision(settings.precision, model, accelerator)
    return next(name for name, own in PRECISIONS.items() if own == dtype)


def table(
    accelerator: Accelerator, precision: str, file: SubmissionFile, exports: Sequence[Export], clock: RunClock
) -> str:
    """What was found, a line each."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    device = f"{describe_device(accelerator)}, {precision}"
    if accelerator.device.type == "cuda":
        device += f", {torch.cuda.get_device_properties(accelerator.device).total_memory / 1e9:.1f} GB"
    rows = [
        ("mode", file.facts["mode"]),
        *(("checkpoint", describe_export(export)) for export in exports),
        ("device", device),
        ("memory", f"{memory:.1f} GB, {os.cpu_count()} cores, {torch.get_num_threads()} threads"),
        ("disk", f"{shutil.disk_usage(file.path.parent).free / 1e9:.1f} GB free at {file.path.parent}"),
        ("challenges", describe_tasks(file.tasks)),
        ("time", f"{duration_text(clock.budget)}, {duration_text(clock.reserve)} of them in reserve"),
        ("software", f"Python {platform.python_version()}, torch {torch.__version__}, {sys.platform}"),
    ]
    return "\n".join(f"{name:10}  {text}" for name, text in rows)


def describe_export(export: Export) -> str:
    """Its digest, its size, and how much it was trained."""
    weights = sum(tensor.numel() for tensor in export.weights.values())
    steps = export.facts.get("steps", "unknown")
    digest, trained = export.facts["sha256"][:12], len(export.training_tasks)
    return f"{digest}, {weights / 1e6:.2f} million weights, {steps} steps on {trained} tasks"


def describe_tasks(tasks: Sequence[Task]) -> str:
    """How many tasks and outputs, and how many tasks ask for several."""
    outputs = sum(len(task.tests) for task in tasks)
    several = sum(len(task.tests) > 1 for task in tasks) / len(tasks)
    return f"{len(tasks)} tasks, {outputs} outputs, {several:.0%} of the tasks with several"
