"""A training run on disk: how it begins or goes on, reports, saves, stops and exports."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import torch
from accelerate import Accelerator

from arc_trm.checkpoint import (
    UNKNOWN_TRAINING,
    Export,
    RowNames,
    below,
    carry_over,
    checkpoint_folder,
    checkpoint_folders,
    load_weights,
    read_export,
    read_newest_checkpoint,
    tidy_checkpoints,
    with_rows_of_others,
    write_checkpoint,
    write_export,
)
from arc_trm.config import ModelConfig, RunConfig, flat, from_json
from arc_trm.device import out_of_memory, return_freed_memory
from arc_trm.trainer import OPTIMISER, ROWS, TABLE, Trainer
from data_prep.files import InputError, make_folder, read_json, write_atomic, write_json
from data_prep.progress import Progress

Evaluate = Callable[[Trainer], dict[str, float]]
TRAINED = "training_tasks.json"  # in the run folder, see trained_so_far
# Settings of a model that its weights do not depend on.
FREE = ("activation_checkpointing", "latent_steps", "deep_steps", "gradient_updates")
# Settings that may differ between a run and its resumption: what is only reported or written, and what costs memory.
FREE_SETTINGS = ("log.", "model.activation_checkpointing")
SLOW_STEP = 0.5  # seconds, beside which it does not matter that the device waits for a moment
SHOWN = 60  # characters of a value in a line about a difference


# Beginning ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """How a run is asked to begin; the training program's options."""

    out: Path
    """Run folder: checkpoints, logs, export."""
    resume: bool = False
    """Go on from the newest whole checkpoint in --out; without any, start a new run."""
    init_from: Path | None = None
    """Start a new run from the weights and the mean embedding of this export or run folder."""
    allow_changes: bool = False
    """Resume although settings or data differ; rows of known puzzles keep what they learned."""


def begin(trainer: Trainer, start: Start, facts: Mapping[str, Any]) -> str:
    """Resume, start from an export, or start afresh; returns a line that says which.

    `facts` describe the dataset, its `data_digest` among them. Raises InputError when the folder cannot be used or
    holds another run, or when settings or data differ from the resumed ones.
    """
    make_folder(start.out)
    if checkpoint_folders(start.out) and not start.resume:
        raise InputError(f"{start.out}: already holds a run; add --resume to go on with it, or choose another --out")
    line = _resume(trainer, start, facts) if start.resume else None
    if line is None:
        line = "starting a new run"
        if start.init_from is not None:
            exported = read_export(start.init_from)
            known = load_export(trainer, exported)
            if exported.puzzle_table is not None and exported.puzzle_names:
                _keep_rows(trainer, RowNames.of_owners(exported.puzzle_names), exported.puzzle_table)
            line = f"starting from {start.init_from}" + (f", which knows {known} of the tasks" if known else "")
    _check_agreement(trainer, start.out)
    if trainer.accelerator.is_main_process:
        tidy_checkpoints(start.out, trainer.step, trainer.config.log.keep_checkpoints)
        for leftover in (*start.out.glob(".config.json.*"), *start.out.glob(".metrics.jsonl.*")):
            leftover.unlink(missing_ok=True)  # of a kill in the middle of a write
        write_json(start.out / "config.json", trainer.config)
    return line


def _check_agreement(trainer: Trainer, out: Path) -> None:
    """Refuse to go on when the processes do not stand at the same step: they see different folders."""
    steps = trainer.gathered(torch.tensor([trainer.step], device=trainer.accelerator.device)).tolist()
    if len(set(steps)) > 1:
        raise InputError(
            f"{out}: the processes find different checkpoints (steps {', '.join(map(str, steps))}); "
            "--out must lie on a file system that all machines see"
        )


def _resume(trainer: Trainer, start: Start, facts: Mapping[str, Any]) -> str | None:
    """Load the newest whole checkpoint; None where the folder holds none at all."""
    main = trainer.accelerator.is_main_process
    found = read_newest_checkpoint(start.out, lambda line: main and print(f"note: {line}", file=sys.stderr))
    if found is None:
        return None
    tensors, kept = found
    # A checkpoint of an older version lacks settings that are newer: it ran with their defaults.
    earlier = from_json(RunConfig, kept["config"], "the configuration of the checkpoint")
    changes = _changes(trainer, facts, kept, earlier)
    if changes and not start.allow_changes:
        raise InputError(
            f"{start.out}: differs from the run to resume ({'; '.join(changes)}); add --allow-changes to go on"
        )
    if sizes := model_differences(earlier.model, trainer.config.model):
        raise InputError(f"{start.out}: holds another model ({'; '.join(sizes)}), which cannot go on as this one")
    if earlier.train.optimiser != trainer.config.train.optimiser:  # its moments mean nothing to another one
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(OPTIMISER)}
    line = f"resuming at step {kept['step']}"
    known = _take_rows(trainer, tensors, kept)
    if kept["data_digest"] != facts["data_digest"]:
        kept["parts"] = None  # slots in work hold puzzles and placements of the old data
        line += " with other data" + ("" if known is None else f": {known} of its puzzles are known")
    trainer.load_state_dict(tensors, kept)
    trainer.saved_step = trainer.step
    return line


def _changes(trainer: Trainer, facts: Mapping[str, Any], kept: Mapping[str, Any], earlier: RunConfig) -> list[str]:
    """What differs between a checkpoint, which ran as `earlier` says, and the run as it is asked for."""
    changes = differences(flat(earlier), flat(trainer.config), FREE_SETTINGS)
    if kept["data_digest"] != facts["data_digest"]:
        details = differences({name: kept.get(name) for name in facts}, facts, ("data_digest",))
        changes.append(f"the dataset ({', '.join(details) or 'its content'})")
    if kept["planned_steps"] != trainer.planned_steps:
        changes.append(f"planned steps: {kept['planned_steps']}, now {trainer.planned_steps}")
    return changes


def differences(old: Mapping[str, Any], new: Mapping[str, Any], free: tuple[str, ...]) -> list[str]:
    """A line for each name that does not begin with one of `free` and whose value differs: `name: old, now new`."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and not name.startswith(free):
            shown = f"{old.get(name)!r}, now {new.get(name)!r}"
            lines.append(f"{name}: {shown}" if len(shown) <= SHOWN else name)
    return lines


def model_differences(old: ModelConfig, new: ModelConfig) -> list[str]:
    """What differs between two models so that the weights of one are none of the other's, a line each."""
    return differences(asdict(old), asdict(new), FREE)


def _take_rows(trainer: Trainer, tensors: dict[str, torch.Tensor], kept: Mapping[str, Any]) -> int | None:
    """Order a checkpoint's embedding rows as the data names them; returns how many are known, None without names."""
    if trainer.names is None or kept["puzzle_groups"] is None:
        return None
    old, table = RowNames.from_tensors(below(tensors, ROWS), kept["puzzle_groups"]), tensors[TABLE]
    trainer.embedding.table, known = carry_over(old, table, trainer.names, table.mean(0))
    _keep_rows(trainer, old, table)
    tensors[TABLE] = trainer.embedding.table
    return known


def _keep_rows(trainer: Trainer, old: RowNames, table: torch.Tensor) -> None:
    """Keep the rows of tasks that the data lacks, behind those of the data, so that an export still knows them."""
    if trainer.names is not None and trainer.config.model.embedding_rows == "task":
        own = trainer.embedding.table
        trainer.names, trainer.embedding.table = with_rows_of_others(trainer.names, own, old, table)


def trained_so_far(
    trainer: Trainer, start: Start, data_tasks: tuple[str, ...], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What the run's weights were trained on since they were random: `training_tasks`, `training_known`, `leak`, and
    the `stages` of training before this run.

    That is more than the dataset where the run began with `--init-from`, or was resumed with other data, so the run
    folder keeps it. `facts` describe the dataset. To be called after `begin`, on all processes.
    """
    path = start.out / TRAINED
    before: dict[str, Any] = {"training_tasks": [], "training_known": True, "leak": [], "stages": []}
    if trainer.saved_step is not None:
        before |= read_json(path) if path.is_file() else {}  # a run of an older version has none
    elif start.init_from is not None:
        export = read_export(start.init_from)
        before = {"training_tasks": export.training_tasks, "training_known": export.training_known}
        before |= {name: export.facts.get(name) or [] for name in ("leak", "stages")}
    # A task whose test outputs some datasets hide has several lines; the pairs that were trained on tell.
    by_pairs = {frozenset(line.split()[1:]): line for line in [*before["training_tasks"], *data_tasks]}
    trained = before | {"training_tasks": list(by_pairs.values())}
    trained["leak"] = [*before["leak"], *(leak for leak in facts.get("leak") or [] if leak not in before["leak"])]
    _in_main_process(trainer, lambda: write_atomic(path, orjson.dumps(trained)))
    return trained


def load_export(trainer: Trainer, exported: Export) -> int:
    """Take an export's weights, and its embedding rows where it names those of `trainer.names`.

    All other rows start from its mean embedding, and a convolution that it lacks from zero, which changes no answer.
    Returns how many are known; raises InputError where sizes differ.
    """
    asked = trainer.config.model
    grown = replace(exported.model, convolution=exported.model.convolution or asked.convolution)
    if changes := model_differences(grown, asked):
        raise InputError(f"the export's model differs: {'; '.join(changes)}")
    weights = dict(exported.weights)
    if grown != exported.model:
        own = trainer.model.state_dict()
        weights |= {name: torch.zeros_like(own[name]) for name in own if ".mix_neighbours." in name}
    load_weights(trainer.model, weights)
    if trainer.ema is not None:
        trainer.ema.update(0.0)  # the averages are the weights
    table, mean = trainer.embedding.table, exported.puzzle_mean
    table.copy_(mean.expand_as(table))
    if exported.puzzle_table is None or not exported.puzzle_names or trainer.names is None:
        return 0
    rows, known = carry_over(RowNames.of_owners(exported.puzzle_names), exported.puzzle_table, trainer.names, mean)
    table.copy_(rows)
    return known


# Reports --------------------------------------------------------------------------------------------------------------


class MetricLog:
    """Every reported figure, one JSON line a report in `metrics.jsonl`, and the trackers of Accelerate.

    Training has one, and so has solving.
    """

    def __init__(self, accelerator: Accelerator, out: Path, config: RunConfig, step: int, prefix: str = "") -> None:
        """Open the log of a run that stands at `step`; reports of later steps (from before a kill) are dropped.

        `prefix` stands in front of the names in the folder `out`.
        """
        self.accelerator, self.path = accelerator, out / f"{prefix}metrics.jsonl"
        self.scores: dict[str, float] = {}  # the latest report of an evaluation, known to the main process
        if accelerator.is_main_process:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            kept = [line for line in lines if _step_of(line) <= step]
            write_atomic(self.path, b"".join(kept))
            for line in kept:
                self._remember(orjson.loads(line))
        # TensorBoard hides what an earlier process wrote of steps that are done again.
        options = {"tensorboard": {"purge_step": step + 1}}
        accelerator.init_trackers(f"{prefix}logs", None if step else flat(config), options)

    def add(self, values: dict[str, float], step: int) -> None:
        """Report `values` for `step`; raises InputError where that cannot be written."""
        if not values:
            return
        line = {"step": step, **values}
        self._remember(line)
        try:
            if self.accelerator.is_main_process:
                with self.path.open("ab") as file:
                    file.write(orjson.dumps(line) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())  # a checkpoint that survives a power cut finds the reports before it
            self.accelerator.log(values, step=step)
        except OSError as error:
            raise InputError(f"{self.path}: cannot write ({error.strerror})") from error

    def _remember(self, line: dict[str, float]) -> None:
        if any(name.startswith("evaluation/") for name in line):
            self.scores = line


def _step_of(line: bytes) -> float:
    try:
        return float(orjson.loads(line)["step"])
    except (KeyError, TypeError, ValueError):
        return float("inf")  # cut short by a kill


# The loop -------------------------------------------------------------------------------------------------------------


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Catch SIGTERM (preemption) and Ctrl-C within this context, for a run that saves and ends after the step in work.

    Says whether there was one. A second Ctrl-C interrupts at once. Signals can only be caught in the main thread.
    """
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    main = threading.current_thread() is threading.main_thread()
    old = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def train(
    trainer: Trainer,
    out: Path,
    facts: dict[str, Any],
    evaluate: Evaluate | None,
    log: MetricLog,
    deadline: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> str:
    """Train to the planned steps, `deadline` (seconds of the clock `now`) or a signal; returns why it ended.

    Writes checkpoints below `out`, which hold `facts`. Evaluates as the settings say and at the end; a kill or a
    signal that cuts an evaluation short loses nothing, since it is done again on resuming.
    """
    settings, quiet = trainer.config.log, not trainer.accelerator.is_main_process
    every, saved, asked, signalled = 1, now(), now(), False
    with stop_on_signal() as stop, Progress("training", trainer.planned_steps, trainer.step, quiet=quiet) as bar:
        trainer.should_stop = lambda: trainer.agreed(stop() or now() >= deadline)
        _evaluate_if_due(trainer, out, facts, evaluate, log)
        while trainer.step < trainer.planned_steps:
            trainer.train_step()
            bar.update(1, _report_if_due(trainer, log))
            if _evaluate_if_due(trainer, out, facts, evaluate, log):
                saved = now()
            if trainer.step % every == 0:
                due, slow = now() >= saved + 60 * settings.checkpoint_minutes, now() - asked > SLOW_STEP * every
                signalled, over, due, slow = trainer.each_agreed(stop(), now() >= deadline, due, slow)
                every, asked = settings.every if asking_waits(trainer) and not slow else 1, now()
                if due:
                    save(trainer, out, facts)
                    saved = now()
                if signalled or over:
                    break
        save(trainer, out, facts)
    if signalled:
        return "stopped by a signal"
    return "finished" if trainer.step >= trainer.planned_steps else "out of time"


def asking_waits(trainer: Trainer) -> bool:
    """Whether asking the other processes makes the device wait: then they are asked when metrics do so anyway.

    Steps that take long can wait, and a launcher that was told to end does not: there they are asked at every step.
    """
    return trainer.accelerator.num_processes > 1 and trainer.accelerator.device.type != "cpu"


def _report_if_due(trainer: Trainer, log: MetricLog) -> str | None:
    """Read and log metrics where the settings want it; the few figures that fit beside a progress bar."""
    if trainer.step < trainer.planned_steps and trainer.step % trainer.config.log.every:
        return None
    metrics = trainer.read_metrics()
    log.add({f"train/{name}": value for name, value in metrics.items()}, trainer.step)
    exact = f"exact {metrics['exact_accuracy']:.1%}, " if "exact_accuracy" in metrics else ""
    return f"loss {metrics['loss']:.3f}, {exact}{metrics['examples_per_second']:.1f} examples/s"


def _evaluate_if_due(
    trainer: Trainer, out: Path, facts: dict[str, Any], evaluate: Evaluate | None, log: MetricLog
) -> bool:
    """Whether the settings want an evaluation here; saves and evaluates then, unless the log has this step's scores."""
    step, every = trainer.step, trainer.config.log.evaluate_every
    if evaluate is None or not (step == trainer.planned_steps or (every and step and step % every == 0)):
        return False
    save(trainer, out, facts)
    if trainer.agreed(trainer.accelerator.is_main_process and log.scores.get("step") != trainer.step):
        log.add(evaluate(trainer), trainer.step)
        return_freed_memory()
    return True


def save(trainer: Trainer, out: Path, facts: dict[str, Any]) -> None:
    """Write a checkpoint unless this step has one; collective, the main process writes.

    Raises NonFiniteLoss or UnequalReplicas before saving a broken state, InputError where it cannot be written.
    """
    if trainer.saved_step == trainer.step:
        return
    trainer.check_finite()
    trainer.check_replicas()
    tensors, state = trainer.state_dict()
    keep = trainer.config.log.keep_checkpoints
    state = {"config": asdict(trainer.config), **facts, **state}
    _in_main_process(trainer, lambda: write_checkpoint(out, trainer.step, tensors, state, keep))
    trainer.saved_step = trainer.step
    tensors.clear()  # what was gathered and copied for the file
    return_freed_memory()


def last_good(trainer: Trainer, out: Path) -> str:
    """Words for where one can go on after a failure."""
    if trainer.saved_step is None:
        return "no checkpoint was written before"
    return f"the last good checkpoint is {checkpoint_folder(out, trainer.saved_step)}"


def export(trainer: Trainer, out: Path, trained: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Write the export of the trainer's averaged weights; rows that belong to tasks come along, in half precision.

    `trained` is what `trained_so_far` says. `facts["stages"]` has the recipe of every training since the weights were
    random, the latest last. The main process writes.
    """
    with trainer.averaged():
        weights = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    config, table = trainer.config, trainer.embedding.table
    stage: dict[str, Any] = {
        "steps": trainer.step,
        "planned_steps": trainer.planned_steps,
        "rows": trainer.parts[0].source.num_puzzles,
    }
    stage |= {"seed": config.seed, "train": asdict(config.train), "halting": asdict(config.halting)}
    facts = {"steps": trainer.step, **facts, "leak": trained["leak"], "stages": [*trained["stages"], stage]}
    facts |= {} if trained["training_known"] else {"training_tasks": UNKNOWN_TRAINING}
    tasks = tuple(trained["training_tasks"])
    exported = Export(config.model, config.halting, weights, table.mean(0), tasks, facts=facts)
    if trainer.names is not None and config.model.embedding_rows == "task":
        exported = replace(exported, puzzle_table=table.half(), puzzle_names=trainer.names.owners)
    _in_main_process(trainer, lambda: write_export(out, exported))


def _in_main_process(trainer: Trainer, write: Callable[[], object]) -> None:
    """Let the main process write and the others wait; where it fails, none of them goes on alone."""
    failure: InputError | None = None
    if trainer.accelerator.is_main_process:
        try:
            write()
        except InputError as error:
            failure = error
    if trainer.agreed(failure is not None):
        raise failure or SystemExit(2)


@contextmanager
def explained_memory(config: RunConfig, device: torch.device, kept: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn running out of memory into an InputError: which setting to lower, and what `kept` says is not lost."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"out of memory on {device}: switch model.activation_checkpointing on or lower train.batch_size "
            f"(now {config.train.batch_size})" + (f"; {kept()}" if kept else "")
        ) from error
