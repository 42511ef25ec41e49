"""A solving run from its checkpoints to the finished file: one checkpoint after the other, plan, log, state."""

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from arc_trm.checkpoint import Export, read_export
from arc_trm.config import ModelConfig
from arc_trm.device import (
    PRECISIONS,
    USE_CPU,
    agreed_values,
    describe_device,
    gpu_failure,
    make_accelerator,
    own_gpu,
    resolve_precision,
)
from arc_trm.metrics import MetricLog
from arc_trm.signals import stop_on_signal
from data_prep.canvas import CANVAS_SIDE, VOCAB_SIZE, choose_side
from data_prep.files import InputError
from data_prep.overlap import trained_on, training_labels
from data_prep.progress import duration_text
from data_prep.tasks import Task, pairs_digest
from submission.adapt import BATCH_SIZES, recursion, run_config
from submission.budget import RunClock
from submission.resume import forget_state, identity, read_state
from submission.settings import Settings
from submission.solver import PREDICT_BATCHES, Solver, plan_beside_fact, plan_lines
from submission.submission_file import SubmissionFile

STOPPED_BY_SIGNAL = 143  # the status that a shell shows for a program ended by SIGTERM
PLACE = ("number", "earlier_steps", "step")  # the facts of a state that say where a run was


def solve(
    file: SubmissionFile, checkpoints: Sequence[Path], settings: Settings, clock: RunClock, resumes: bool = False
) -> None:
    """Solve the file's tasks with the exports at `checkpoints`, which share the time, and whose votes add up.

    Adds to the facts of the file's summary. A run that `resumes` goes on from the state beside the file. Raises
    InputError where there is no export, or none that fits; the file holds fallbacks then.
    """
    with stop_on_signal() as stop:
        with clock.phase("set-up"):
            exports = read_exports(checkpoints)
            file.note(**provenance(file.tasks, exports, settings.forget))
            leave_broken_gpu()
            accelerator = make_accelerator(settings.track, file.path.parent)
            # All processes end by the clock of the first.
            clock.started = clock.now() - agreed_values([clock.spent], accelerator)[0]
            precisions = [chosen_precision(settings, export.model, accelerator) for export in exports]
            precision = " + ".join(dict.fromkeys(precisions))
            if accelerator.is_main_process:
                print(table(accelerator, precision, file, exports, settings, clock), flush=True)
            run = identity(file.tasks, exports, settings)
            saved = read_state(file, run) if resumes else None
            if saved is None:
                forget_state(file)
        file.note(processes=accelerator.num_processes, device=str(accelerator.device), precision=precision)
        first, steps, step = (0, 0, 0) if saved is None else (saved.facts[name] for name in PLACE)
        log, stopped = None, False
        with file.tolerated("figures of the run"):
            config = run_config(settings, exports[0], accelerator.device, accelerator.num_processes)
            log = MetricLog(accelerator, file.path.parent, config, steps + step, f"{file.path.stem}.")
        for number in range(first, len(exports)):
            part = clock.part(len(exports) - number)
            place = number, saved, log, steps
            own = replace(settings, precision=precisions[number])
            solver = Solver(exports[number], own, part, file, accelerator, stop, run, *place)
            try:
                solver.run()
            finally:
                with clock.phase("writing"):
                    file.write()
            report_solver(solver)
            saved, steps = None, steps + solver.trainer.step
            # A signal to one process has ended the work of all.
            stopped = solver.trainer.agreed(stop())
            if stopped:
                file.note(status=STOPPED_BY_SIGNAL)
                break
        if not stopped:
            forget_state(file)
        accelerator.end_training()


def read_exports(checkpoints: Sequence[Path]) -> list[Export]:
    """The exports of ARC models at `checkpoints`; raises InputError for another model, and where two are one.

    The votes of one that is there twice would only be repeated.
    """
    exports = [read_export(checkpoint) for checkpoint in checkpoints]
    first: dict[str, Path] = {}
    for checkpoint, export in zip(checkpoints, exports, strict=True):
        if (export.model.seq_len, export.model.vocab_size) != (CANVAS_SIDE**2, VOCAB_SIZE):
            found = f"{export.model.seq_len} tokens of {export.model.vocab_size} kinds"
            raise InputError(f"{checkpoint}: a model for {found}, expected one for ARC")
        other = first.setdefault(export.facts["sha256"], checkpoint)
        if other is not checkpoint:
            raise InputError(f"--checkpoint {checkpoint}: has the weights of {other}, expected another checkpoint")
    return exports


def report_solver(solver: Solver) -> None:
    """Note in the summary, and print, how the work with one checkpoint went."""
    file, schedule = solver.file, solver.schedule
    file.note(adaptation_steps=schedule.step, seconds_per_step=schedule.stepping.seconds)
    file.note(loss=solver.metrics.get("loss"), augmentations=solver.augmentations)
    with solver.going_on("figures of the tasks"):
        file.note(demonstrations=solver.figures.means())
    if solver.planned is not None and solver.accelerator.is_main_process:
        print(plan_beside_fact(solver.planned, schedule), flush=True)


def show_plan(
    file: SubmissionFile, checkpoints: Sequence[Path], settings: Settings, clock: RunClock, rate: float, gpus: int
) -> None:
    """Print what a run would do, without solving; `rate`: training examples per second (0: measured here), `gpus`: of
    the machine that it is for (0: this one).
    """
    exports, accelerator = read_exports(checkpoints), make_accelerator("none", file.path.parent)
    if gpus:
        settings = replace(
            settings,
            precision="bf16" if settings.precision == "auto" else settings.precision,
            batch_size=settings.batch_size or BATCH_SIZES["cuda"],
            predict_batch=settings.predict_batch or PREDICT_BATCHES["cuda"] * gpus,
        )
    solver = Solver(exports[0], settings, clock.part(len(checkpoints)), file, accelerator)
    solver.build(settings.augmentations)
    solver.fit_puzzles(solver.trainer.batch_size / rate if rate else solver.measured_pace())
    lines = [f"plan      {describe_tasks(file.tasks)}; {duration_text(solver.clock.budget)} for each checkpoint"]
    lines += [f"recursion {describe_recursion(export, settings)}" for export in exports]
    processes = gpus or accelerator.num_processes
    lines += plan_lines(solver.schedule.plan(), solver.schedule, solver.trainer, processes)
    if accelerator.is_main_process:
        print("\n".join(lines), flush=True)


def provenance(tasks: Sequence[Task], exports: Sequence[Export], forget: bool) -> dict[str, Any]:
    """What has to be known about the checkpoints: of which tasks one has seen test outputs, and which one knows.

    Those that it knows have an embedding row in it, from training on their demonstrations (the paper's protocol).
    Tasks beyond the canvas have larger grids than any canvas that the checkpoints were trained on.
    """
    knowing = [export for export in exports if export.model.embedding_rows == "task" and not forget]
    rows = {name for export in knowing for name in export.puzzle_names or ()}
    seen = {name for export in exports for name in trained_on(tasks, export.training_tasks).tests}
    # Checkpoints of an older version do not say on which canvas they were trained; it may have been the full one.
    largest = max(int(export.facts.get("canvas") or CANVAS_SIDE) for export in exports)
    return {
        "checkpoint": " + ".join(export.facts["sha256"] for export in exports),
        "leak": any(export.facts.get("leak") for export in exports),
        "training_known": all(export.training_known for export in exports),
        "trained_on": [task.task_id for task in tasks if task.name in seen],
        "beyond_canvas": [task.task_id for task in tasks if choose_side(task) > largest],
        "known": [task.task_id for task in tasks if pairs_digest(task.demonstrations) in rows],
    }


# What the run finds ----------------------------------------------------------------------------------------


def leave_broken_gpu() -> None:
    """Use the CPU if the GPU of this process does not work; raise InputError if that is one process of several."""
    gpu = own_gpu()
    failure = None if gpu is None else gpu_failure(gpu)
    if failure is None:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(f"{gpu}: no operation works there ({failure}); start fewer processes, or one on the CPU")
    print(f"note: {gpu} is there but does not work ({failure}); using the CPU", file=sys.stderr)
    os.environ[USE_CPU] = "true"


def chosen_precision(settings: Settings, model: ModelConfig, accelerator: Accelerator) -> str:
    """Return the precision asked for, or the one that training `model` would take; the same in all processes."""
    dtype = resolve_precision(settings.precision, model, accelerator)
    return next(name for name, own in PRECISIONS.items() if own == dtype)


def table(
    accelerator: Accelerator,
    precision: str,
    file: SubmissionFile,
    exports: Sequence[Export],
    settings: Settings,
    clock: RunClock,
) -> str:
    """List what was found, a line each."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    device = f"{describe_device(accelerator)}, {precision}"
    if accelerator.device.type == "cuda":
        device += f", {torch.cuda.get_device_properties(accelerator.device).total_memory / 1e9:.1f} GB"
    rows = [
        ("mode", file.facts["mode"]),
        *(("checkpoint", describe_export(export)) for export in exports),
        *(("recursion", describe_recursion(export, settings)) for export in exports),
        ("device", device),
        ("memory", f"{memory:.1f} GB, {os.cpu_count()} cores, {torch.get_num_threads()} threads"),
        ("disk", f"{shutil.disk_usage(file.path.parent).free / 1e9:.1f} GB free at {file.path.parent}"),
        ("challenges", describe_tasks(file.tasks)),
        ("time", f"{duration_text(clock.budget)}, {duration_text(clock.reserve)} of them in reserve"),
        ("software", f"Python {platform.python_version()}, torch {torch.__version__}, {sys.platform}"),
    ]
    return "\n".join(f"{name:10}  {text}" for name, text in rows)


def describe_export(export: Export) -> str:
    """Describe an export by digest, size and all its trainings: steps of each, and tasks without sources of pairs."""
    weights = sum(tensor.numel() for tensor in export.weights.values())
    stages = export.facts.get("stages") or [{"steps": export.facts.get("steps", "unknown")}]
    steps, digest = " + ".join(str(stage["steps"]) for stage in stages), export.facts["sha256"][:12]
    trained = sum(bool(training_labels(line)) for line in export.training_tasks)
    return f"{digest}, {weights / 1e6:.2f} million weights, {steps} steps on {trained} tasks"


def describe_recursion(export: Export, settings: Settings) -> str:
    """Describe n, T and supervision steps of answering, and those of training if they differ."""
    trained = export.model.deep_steps, export.halting.max_supervision_steps
    answering = recursion(settings, export)
    said, before = (f"T = {deep}, {steps} supervision step{'s' * (steps > 1)}" for deep, steps in (answering, trained))
    return (
        f"n = {export.model.latent_steps}, {said}, {'as trained' if answering == trained else f'trained with {before}'}"
    )


def describe_tasks(tasks: Sequence[Task]) -> str:
    """Count tasks and outputs, and tasks that ask for several."""
    outputs = sum(len(task.tests) for task in tasks)
    several = sum(len(task.tests) > 1 for task in tasks) / len(tasks)
    return f"{len(tasks)} tasks, {outputs} outputs, {several:.0%} of the tasks with several"
