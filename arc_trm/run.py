"""A training run on disk: how it starts, resumes, reports, stops and exports."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from tqdm import tqdm

from arc_trm.checkpoint import (
    Export,
    checkpoint_folders,
    read_export,
    read_newest_checkpoint,
    write_checkpoint,
    write_export,
)
from arc_trm.config import RunConfig, to_json
from arc_trm.naming import PuzzleNaming, carry_over, read_naming, write_naming
from arc_trm.trainer import Trainer
from data_prep.files import InputError, write_atomic

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
    log: "MetricLog",
    deadline: float | None = None,
) -> str:
    """Train to the planned steps, `deadline` (time.monotonic seconds) or a signal; returns why it ended.

    Writes checkpoints below `out` and, at the end, the export. `facts` go into both.
    """
    settings = trainer.config.log
    accelerator = trainer.accelerator
    reason = "finished"
    with (
        stop_on_signal() as stop,
        tqdm(
            total=trainer.planned_steps, initial=trainer.step, unit="step", disable=_quiet(accelerator), smoothing=0.05
        ) as bar,
    ):
        for _ in steps(trainer, lambda: stop.requested or (deadline is not None and time.monotonic() >= deadline)):
            bar.update()
            last = trainer.step == trainer.planned_steps
            if last or trainer.step % settings.every == 0:
                metrics = trainer.read_metrics()
                log.add({f"train/{name}": value for name, value in metrics.items()}, trainer.step)
                bar.set_postfix_str(progress_text(metrics))
            if settings.evaluate_every and trainer.step % settings.evaluate_every == 0 and not last and evaluate:
                log.add(evaluate(trainer), trainer.step)
            if trainer.step % settings.checkpoint_every == 0 and not last:
                save(trainer, out, facts)
    if trainer.step < trainer.planned_steps:
        reason = "stopped by a signal" if stop.requested else "out of time"
    save(trainer, out, facts)
    return reason


def steps(trainer: Trainer, stop: Callable[[], bool]) -> Iterator[int]:
    """Train up to the planned steps, or until any process wants to stop; yields the number of every step done."""
    while trainer.step < trainer.planned_steps:
        trainer.train_step()
        yield trainer.step
        if agreed(trainer, stop()):
            return


def agreed(trainer: Trainer, mine: bool) -> bool:
    """Whether any process wants to stop; all of them learn it in the same step."""
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        return mine
    wish = torch.tensor([float(mine)], device=accelerator.device)
    return bool(accelerator.reduce(wish, "sum").item() > 0)


def progress_text(metrics: dict[str, float]) -> str:
    """The few figures that fit beside a progress bar."""
    loss, exact, rate = (metrics[name] for name in ("loss", "exact_accuracy", "examples_per_second"))
    return f"loss {loss:.3f}, exact {exact:.1%}, {rate:.1f} examples/s"


def save(trainer: Trainer, out: Path, facts: dict[str, Any]) -> None:
    """Write a checkpoint; collective, the main process writes. Raises NonFiniteLoss before saving a broken state."""
    trainer.read_metrics()
    tensors, state = trainer.state_dict()
    if trainer.accelerator.is_main_process:
        facts = {"config": to_json(trainer.config), **facts, **state, "planned_steps": trainer.planned_steps}
        write_checkpoint(out, trainer.step, tensors, facts, trainer.config.log.keep_checkpoints)
    trainer.accelerator.wait_for_everyone()


def export(trainer: Trainer, out: Path, training_tasks: tuple[str, ...], facts: dict[str, Any]) -> None:
    """Write the export of the trainer's averaged weights; the main process writes."""
    if trainer.accelerator.is_main_process:
        with trainer.averaged():
            weights = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
        config = trainer.config
        mean = trainer.embedding.table.mean(0)
        facts = {"steps": trainer.step, **facts}
        write_export(out, Export(config.model, config.halting, weights, mean, training_tasks, facts=facts))
    trainer.accelerator.wait_for_everyone()


def _quiet(accelerator: Accelerator) -> bool | None:
    """Bars only in the main process; None lets tqdm be quiet where the output is not a terminal."""
    return None if accelerator.is_main_process else True


# Starting -----------------------------------------------------------------------------------------------------------


def make_accelerator(track: str, out: Path) -> Accelerator:
    """The Accelerator of a run; without the asked-for tracker's package it says so and goes on without."""
    # The model does its own casting (float32 weights, a few statistics in float32), so no mixed precision here.
    # On a CPU several processes find each other only when the program asks for the CPU.
    cpu = not torch.accelerator.is_available()
    options: dict[str, Any] = {"kwargs_handlers": [DistributedDataParallelKwargs(broadcast_buffers=False)], "cpu": cpu}
    if track == "none":
        return Accelerator(**options)
    try:
        return Accelerator(log_with=track, project_dir=str(out), **options)
    except (ImportError, ValueError) as error:
        print(f"note: no tracking by {track}: {error}", file=sys.stderr)
        return Accelerator(**options)


class MetricLog:
    """Every reported figure, one JSON line a report in `metrics.jsonl`, and the trackers of Accelerate."""

    def __init__(self, accelerator: Accelerator, out: Path, config: RunConfig, step: int) -> None:
        """Open the log of a run that stands at `step`; lines of later steps (from before a kill) are dropped."""
        self.accelerator, self.path = accelerator, out / "metrics.jsonl"
        if accelerator.is_main_process:
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
            write_atomic(self.path, b"".join(line + b"\n" for line in lines if _step_of(line) <= step))
        accelerator.init_trackers("logs", config=_flat(to_json(config)))

    def add(self, values: dict[str, float], step: int) -> None:
        """Report `values` for `step`."""
        if self.accelerator.is_main_process and values:
            with self.path.open("ab") as file:
                file.write(orjson.dumps({"step": step, **values}) + b"\n")
        self.accelerator.log(values, step=step)


def _step_of(line: bytes) -> float:
    try:
        return float(orjson.loads(line)["step"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return float("inf")  # cut short by a kill


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


@dataclass(frozen=True)
class Start:
    """How a run begins."""

    out: Path
    resume: bool = False
    init_from: Path | None = None
    allow_changes: bool = False


def begin(trainer: Trainer, start: Start, naming: PuzzleNaming | None, data_digest: str) -> str:
    """Resume, start from an export, or start afresh; returns a line that says which.

    Raises InputError when the folder holds another run, or when settings or data differ from the resumed ones.
    """
    start.out.mkdir(parents=True, exist_ok=True)
    config = to_json(trainer.config)
    if checkpoint_folders(start.out) and not start.resume:
        raise InputError(f"{start.out}: already holds a run; add --resume to go on with it, or choose another --out")
    line = _resume(trainer, start, naming, data_digest) if start.resume else None
    if line is None:
        line = "starting a new run"
        if start.init_from is not None:
            line = f"starting from {start.init_from}"
            load_export(trainer, read_export(start.init_from))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        write_atomic(start.out / "config.json", orjson.dumps(config, option=orjson.OPT_INDENT_2))
        if naming is not None:
            write_naming(start.out, naming)
    return line


def _resume(trainer: Trainer, start: Start, naming: PuzzleNaming | None, data_digest: str) -> str | None:
    found = read_newest_checkpoint(start.out, lambda line: print(f"note: {line}", file=sys.stderr))
    if found is None:
        return None
    tensors, facts = found
    changes = _changes(_flat(facts["config"]), _flat(to_json(trainer.config)))
    if facts["data_digest"] != data_digest:
        changes.append("the dataset")
    if facts["planned_steps"] != trainer.planned_steps:
        changes.append(f"planned steps: {facts['planned_steps']}, now {trainer.planned_steps}")
    if changes and not start.allow_changes:
        raise InputError(
            f"{start.out}: differs from the run to resume ({'; '.join(changes)}); add --allow-changes to go on"
        )
    line = f"resuming at step {facts['step']}"
    if facts["data_digest"] != data_digest and naming is not None:
        table, known = carry_over(read_naming(start.out), tensors["puzzle_table"], naming)
        tensors["puzzle_table"] = table
        # Slots in work hold puzzle numbers of the old data.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("carry/")}
        line += f" with other data: {known} of {len(table)} puzzles are known"
    trainer.load_state_dict(tensors, facts)
    return line


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    # What is only reported or written may change at will.
    return [
        f"{name}: {old.get(name)!r}, now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and not name.startswith("log.")
    ]


def load_export(trainer: Trainer, exported: Export) -> None:
    """Take an export's weights; every puzzle starts from its mean embedding. Raises InputError where sizes differ."""
    differences = _changes(to_json(exported.model), to_json(trainer.config.model))
    structural = [
        d for d in differences if not d.startswith(("activation_checkpointing", "latent_steps", "deep_steps"))
    ]
    if structural:
        raise InputError(f"the export's model differs: {'; '.join(structural)}")
    trainer.model.load_state_dict(exported.weights)
    if trainer.ema is not None:
        for average, parameter in zip(trainer.ema.averages, trainer.model.parameters(), strict=True):
            average.copy_(parameter.detach())
    trainer.embedding.table.copy_(exported.puzzle_mean.expand_as(trainer.embedding.table))
