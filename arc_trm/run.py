"""A training run on disk: how it starts or resumes, what it was trained on, and its export."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch

from arc_trm.checkpoint import (
    UNKNOWN_TRAINING,
    Export,
    checkpoint_folder,
    checkpoint_folders,
    read_export,
    read_newest_checkpoint,
    tidy_checkpoints,
    write_export,
)
from arc_trm.config import RunConfig, differences, flat, from_json, model_differences
from arc_trm.device import out_of_memory
from arc_trm.trainer import OPTIMISER, Trainer
from data_prep.files import InputError, make_folder, read_json, write_atomic, write_json

TRAINED = "training_tasks.json"  # in the run folder, see trained_so_far
# Settings that may differ when a run is resumed: they change only reports, files and memory.
FREE_SETTINGS = ("log.", "model.activation_checkpointing")


@dataclass(frozen=True)
class Start:
    """Options of the training program that say how a run starts."""

    out: Path
    """Run folder: checkpoints, logs, export."""
    resume: bool = False
    """Go on from the newest whole checkpoint in --out; without any, start a new run."""
    init_from: Path | None = None
    """Start a new run from the weights and the mean embedding of this export or run folder."""
    allow_changes: bool = False
    """Resume although settings or data differ; rows of known puzzles keep what they learned."""


def begin(trainer: Trainer, start: Start, facts: Mapping[str, Any]) -> str:
    """Resume, start from an export, or start afresh; return a line that says which.

    `facts` describe the dataset, its `data_digest` among them. Raises InputError if the folder cannot be used or holds
    another run, or if settings or data differ from the resumed ones.
    """
    make_folder(start.out)
    if checkpoint_folders(start.out) and not start.resume:
        raise InputError(f"{start.out}: already holds a run; add --resume to go on with it, or choose another --out")
    line = _resume(trainer, start, facts) if start.resume else None
    if line is None:
        line = "starting a new run"
        if start.init_from is not None:
            known = trainer.load_export(read_export(start.init_from))
            line = f"starting from {start.init_from}" + (f", which knows {known} of the tasks" if known else "")
    steps = trainer.gathered(torch.tensor([trainer.step], device=trainer.accelerator.device)).tolist()
    if len(set(steps)) > 1:
        raise InputError(
            f"{start.out}: the processes find different checkpoints (steps {', '.join(map(str, steps))}); "
            "--out must lie on a file system that all machines see"
        )
    if trainer.accelerator.is_main_process:
        tidy_checkpoints(start.out, trainer.step, trainer.config.log.keep_checkpoints)
        for leftover in (*start.out.glob(".config.json.*"), *start.out.glob(".metrics.jsonl.*")):
            leftover.unlink(missing_ok=True)  # of a kill in the middle of a write
        write_json(start.out / "config.json", trainer.config)
    return line


def _resume(trainer: Trainer, start: Start, facts: Mapping[str, Any]) -> str | None:
    """Load the newest whole checkpoint; return None if the folder holds none at all."""
    main = trainer.accelerator.is_main_process
    found = read_newest_checkpoint(start.out, lambda line: main and print(f"note: {line}", file=sys.stderr))
    if found is None:
        return None
    tensors, kept = found
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
    other_data = kept["data_digest"] != facts["data_digest"]
    if other_data:
        kept["parts"] = None  # the carried examples are puzzles and placements of the old data
    known = trainer.load_state_dict(tensors, kept)
    trainer.saved_step = trainer.step
    line = f"resuming at step {trainer.step}" + (" with other data" if other_data else "")
    return line + (f": {known} of its puzzles are known" if other_data and known is not None else "")


def _changes(trainer: Trainer, facts: Mapping[str, Any], kept: Mapping[str, Any], earlier: RunConfig) -> list[str]:
    """List the differences between a checkpoint, which ran with the settings `earlier`, and the run asked for."""
    changes = differences(flat(earlier), flat(trainer.config), FREE_SETTINGS)
    if kept["data_digest"] != facts["data_digest"]:
        details = differences({name: kept.get(name) for name in facts}, facts, ("data_digest",))
        changes.append(f"the dataset ({', '.join(details) or 'its content'})")
    if kept["planned_steps"] != trainer.planned_steps:
        changes.append(f"planned steps: {kept['planned_steps']}, now {trainer.planned_steps}")
    return changes


def trained_so_far(
    trainer: Trainer, start: Start, data_tasks: tuple[str, ...], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that the weights were trained on: `training_tasks`, `training_known`, `leak` and earlier `stages`.

    That is more than the dataset if the run started with `--init-from` or was resumed with other data, so the run
    folder keeps it. `facts` describe the dataset. Call it after `begin`, in all processes.
    """
    path = start.out / TRAINED
    before: dict[str, Any] = {"training_tasks": [], "training_known": True, "leak": [], "stages": []}
    if trainer.saved_step is not None:
        before = read_json(path)
    elif start.init_from is not None:
        export = read_export(start.init_from)
        before = {"training_tasks": export.training_tasks, "training_known": export.training_known}
        before |= {name: export.facts.get(name) or [] for name in ("leak", "stages")}
    # A task whose test outputs some datasets hide has several lines; the pairs that were trained on tell.
    by_pairs = {frozenset(line.split()[1:]): line for line in [*before["training_tasks"], *data_tasks]}
    trained = before | {"training_tasks": list(by_pairs.values())}
    trained["leak"] = [*before["leak"], *(leak for leak in facts.get("leak") or [] if leak not in before["leak"])]
    trainer.in_main_process(lambda: write_atomic(path, orjson.dumps(trained)))
    return trained


def export(trainer: Trainer, out: Path, trained: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """Write the export of the trainer's averaged weights; rows that belong to tasks come along, in half precision.

    `trained` is the result of `trained_so_far`. `facts["stages"]` of the export has the recipe of every training since
    the weights were random, the latest last. The main process writes.
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
    trainer.in_main_process(lambda: write_export(out, exported))


# Failures -------------------------------------------------------------------------------------------------------------


def last_good(trainer: Trainer, out: Path) -> str:
    """Name the checkpoint from which one can go on after a failure."""
    if trainer.saved_step is None:
        return "no checkpoint was written before"
    return f"the last good checkpoint is {checkpoint_folder(out, trainer.saved_step)}"


@contextmanager
def explained_memory(config: RunConfig, device: torch.device, kept: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn running out of memory into an InputError that names the settings to change and, by `kept`, what is kept."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"out of memory on {device}: switch model.activation_checkpointing on or lower train.batch_size "
            f"(now {config.train.batch_size})" + (f"; {kept()}" if kept else "")
        ) from error
