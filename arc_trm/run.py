"""A training run on disk: how it goes on, reports, saves, stops and exports."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

from arc_trm.checkpoint import Export, checkpoint_folder, write_checkpoint, write_export
from arc_trm.config import RunConfig, to_json
from arc_trm.memory import return_freed_memory
from arc_trm.resuming import Start as Start
from arc_trm.resuming import begin as begin
from arc_trm.resuming import load_export as load_export
from arc_trm.tracking import MetricLog as MetricLog
from arc_trm.tracking import make_accelerator as make_accelerator
from arc_trm.trainer import Trainer
from data_prep.files import InputError
from data_prep.progress import Progress

Evaluate = Callable[[Trainer], dict[str, float]]


class StopRequest:
    """Set by SIGTERM (preemption) or Ctrl-C: the run saves and ends after the step in work."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Catch SIGTERM and Ctrl-C within this context; signals can only be caught in the main thread."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def train(
    trainer: Trainer,
    out: Path,
    facts: dict[str, Any],
    evaluate: Evaluate | None,
    log: MetricLog,
    deadline: float | None = None,
) -> str:
    """Train to the planned steps, `deadline` (time.monotonic seconds) or a signal; returns why it ended.

    Writes checkpoints below `out`, which hold `facts`. Evaluates as the settings say and at the end; a kill or a
    signal that cuts an evaluation short loses nothing, since it is done again on resuming.
    """
    settings = trainer.config.log
    quiet = not trainer.accelerator.is_main_process
    with stop_on_signal() as stop, Progress("training", trainer.planned_steps, trainer.step, quiet=quiet) as bar:

        def enough() -> bool:
            return stop.requested or (deadline is not None and time.monotonic() >= deadline)

        trainer.should_stop = lambda: agreed(trainer, enough())
        _evaluate_if_due(trainer, evaluate, log)
        for step in steps(trainer, enough, _agreement_interval(trainer)):
            figures = None
            if step == trainer.planned_steps or step % settings.every == 0:
                metrics = trainer.read_metrics()
                log.add({f"train/{name}": value for name, value in metrics.items()}, step)
                figures = progress_text(metrics)
            bar.update(1, figures)
            if step % settings.checkpoint_every == 0 or (evaluate and _evaluation_falls_here(trainer)):
                save(trainer, out, facts)
            _evaluate_if_due(trainer, evaluate, log)
        save(trainer, out, facts)
    if stop.requested:
        return "stopped by a signal"
    return "finished" if trainer.step >= trainer.planned_steps else "out of time"


def steps(trainer: Trainer, stop: Callable[[], bool], every: int = 1) -> Iterator[int]:
    """Train up to the planned steps, or until any process wants to stop; yields the number of every step done.

    The processes ask each other after every `every` steps, which waits for the device.
    """
    while trainer.step < trainer.planned_steps:
        trainer.train_step()
        yield trainer.step
        if trainer.step % every == 0 and agreed(trainer, stop()):
            return


def _agreement_interval(trainer: Trainer) -> int:
    """How often to ask the other processes: where it makes the device wait, only when metrics do so anyway."""
    waits = trainer.accelerator.num_processes > 1 and trainer.accelerator.device.type != "cpu"
    return trainer.config.log.every if waits else 1


def agreed(trainer: Trainer, mine: bool) -> bool:
    """Whether any process wants to stop; all of them learn it in the same step."""
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        return mine
    wish = torch.tensor([float(mine)], device=accelerator.device)
    return bool(accelerator.reduce(wish, "sum").item() > 0)


def _evaluation_falls_here(trainer: Trainer) -> bool:
    every = trainer.config.log.evaluate_every
    return trainer.step == trainer.planned_steps or (every > 0 and trainer.step > 0 and trainer.step % every == 0)


def _evaluate_if_due(trainer: Trainer, evaluate: Evaluate | None, log: MetricLog) -> None:
    """Evaluate where the settings want it, unless the log has the scores of this step already."""
    if evaluate is None or not _evaluation_falls_here(trainer):
        return
    if agreed(trainer, trainer.accelerator.is_main_process and not log.evaluated(trainer.step)):
        log.add(evaluate(trainer), trainer.step)
        return_freed_memory()


def progress_text(metrics: dict[str, float]) -> str:
    """The few figures that fit beside a progress bar."""
    exact = f"exact {metrics['exact_accuracy']:.1%}, " if "exact_accuracy" in metrics else ""
    return f"loss {metrics['loss']:.3f}, {exact}{metrics['examples_per_second']:.1f} examples/s"


def save(trainer: Trainer, out: Path, facts: dict[str, Any]) -> None:
    """Write a checkpoint unless this step has one; collective, the main process writes.

    Raises NonFiniteLoss before saving a broken state, InputError where it cannot be written.
    """
    if trainer.saved_step == trainer.step:
        return
    trainer.check_finite()
    tensors, state = trainer.state_dict()
    keep = trainer.config.log.keep_checkpoints
    state = {"config": to_json(trainer.config), **facts, **state}
    _in_main_process(trainer, lambda: write_checkpoint(out, trainer.step, tensors, state, keep))
    trainer.saved_step = trainer.step
    tensors.clear()  # what was gathered and copied for the file
    return_freed_memory()


def last_good(trainer: Trainer, out: Path) -> str:
    """Words for where one can go on after a failure."""
    if trainer.saved_step is None:
        return "no checkpoint was written before"
    return f"the last good checkpoint is {checkpoint_folder(out, trainer.saved_step)}"


def export(trainer: Trainer, out: Path, training_tasks: tuple[str, ...], facts: dict[str, Any]) -> None:
    """Write the export of the trainer's averaged weights, with its embedding rows where they have names.

    The main process writes.
    """
    with trainer.averaged():
        weights = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    config, table, names = trainer.config, trainer.embedding.table, trainer.row_names
    exported = Export(
        config.model,
        config.halting,
        weights,
        table.mean(0),
        training_tasks,
        table.half() if names else None,
        names or None,
        {"steps": trainer.step, **facts},
    )
    _in_main_process(trainer, lambda: write_export(out, exported))


def _in_main_process(trainer: Trainer, write: Callable[[], object]) -> None:
    """Let the main process write and the others wait; where it fails, none of them goes on alone."""
    failure: InputError | None = None
    if trainer.accelerator.is_main_process:
        try:
            write()
        except InputError as error:
            failure = error
    if agreed(trainer, failure is not None):
        raise failure or SystemExit(2)


def _out_of_memory(error: Exception) -> bool:
    """Whether that is what happened; on a CPU torch has no exception of its own for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(phrase in str(error) for phrase in ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED"))


@contextmanager
def explained_memory(config: RunConfig, accelerator: Accelerator) -> Iterator[None]:
    """Turn running out of memory into an InputError that says which setting to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise InputError(
            f"out of memory on {accelerator.device}: raise train.micro_batches (now {config.train.micro_batches}), "
            f"switch model.activation_checkpointing on, lower train.batch_size (now {config.train.batch_size}) "
            f"or log.evaluation_batch (now {config.log.evaluation_batch})"
        ) from error
