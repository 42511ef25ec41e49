"""How a run begins: afresh, from an export, or where an earlier process left it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch

from arc_trm.checkpoint import (
    Export,
    checkpoint_folders,
    read_export,
    read_newest_checkpoint,
    tidy_checkpoints,
)
from arc_trm.config import RunConfig, from_json, to_json
from arc_trm.naming import PuzzleNaming, carry_over
from arc_trm.tracking import flat
from arc_trm.trainer import Trainer
from arc_trm.training_state import TABLE, load_weights, saved_naming
from data_prep.files import InputError, write_atomic

# Settings of a model that its weights do not depend on.
FREE = {"activation_checkpointing", "latent_steps", "deep_steps", "graded_updates"}
# Settings that may differ between a run and its resumption: what is only reported or written, and what costs memory.
FREE_SETTINGS = ("log.", "train.micro_batches", "model.activation_checkpointing")
SHOWN = 60  # characters of a value in a line about a difference


@dataclass(frozen=True)
class Start:
    """How a run is asked to begin."""

    out: Path
    resume: bool = False
    init_from: Path | None = None
    allow_changes: bool = False


def begin(
    trainer: Trainer,
    start: Start,
    naming: PuzzleNaming | None,
    data_digest: str,
    data_facts: Mapping[str, Any] | None = None,
) -> str:
    """Resume, start from an export, or start afresh; returns a line that says which.

    `data_facts` describe the dataset, for the line that says what differs. Raises InputError when the folder cannot
    be used or holds another run, or when settings or data differ from the resumed ones.
    """
    try:
        start.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{start.out}: cannot make this folder ({error.strerror})") from error
    if checkpoint_folders(start.out) and not start.resume:
        raise InputError(f"{start.out}: already holds a run; add --resume to go on with it, or choose another --out")
    trainer.naming = naming
    facts = {"data_digest": data_digest, **(data_facts or {})}
    line = _resume(trainer, start, facts) if start.resume else None
    if line is None:
        line = "starting a new run"
        if start.init_from is not None:
            known = load_export(trainer, read_export(start.init_from))
            line = f"starting from {start.init_from}" + (f", which knows {known} of the tasks" if known else "")
    _check_agreement(trainer, start.out)
    if trainer.accelerator.is_main_process:
        if trainer.saved_step is not None:
            tidy_checkpoints(start.out, trainer.saved_step, trainer.config.log.keep_checkpoints)
        for leftover in (*start.out.glob(".config.json.*"), *start.out.glob(".metrics.jsonl.*")):
            leftover.unlink(missing_ok=True)  # of a kill in the middle of a write
        config = orjson.dumps(to_json(trainer.config), option=orjson.OPT_INDENT_2)
        write_atomic(start.out / "config.json", config)
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
    changes = _changes(trainer, facts, kept)
    if changes and not start.allow_changes:
        raise InputError(
            f"{start.out}: differs from the run to resume ({'; '.join(changes)}); add --allow-changes to go on"
        )
    line = f"resuming at step {kept['step']}"
    if kept["data_digest"] != facts["data_digest"]:
        line += f" with other data{_take_other_data(trainer, tensors, kept)}"
    trainer.load_state_dict(tensors, kept)
    trainer.saved_step = trainer.step
    return line


def _changes(trainer: Trainer, facts: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """What differs between a checkpoint and the run as it is asked for."""
    # A checkpoint of an older version lacks settings that are newer: it ran with their defaults.
    earlier = from_json(RunConfig, kept["config"], "the configuration of the checkpoint")
    settings = [flat(to_json(config)) for config in (earlier, trainer.config)]
    changes = differences(*({k: v for k, v in s.items() if not k.startswith(FREE_SETTINGS)} for s in settings))
    if kept["data_digest"] != facts["data_digest"]:
        described = [name for name in facts if name != "data_digest"]
        details = differences({name: kept.get(name) for name in described}, {name: facts[name] for name in described})
        changes.append(f"the dataset ({', '.join(details) or 'its content'})")
    if kept["planned_steps"] != trainer.planned_steps:
        changes.append(f"planned steps: {kept['planned_steps']}, now {trainer.planned_steps}")
    return changes


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each name whose value differs: `name: old, now new`."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            shown = f"{old.get(name)!r}, now {new.get(name)!r}"
            lines.append(f"{name}: {shown}" if len(shown) <= SHOWN else name)
    return lines


def _take_other_data(trainer: Trainer, tensors: dict[str, torch.Tensor], kept: dict[str, Any]) -> str:
    """Make a checkpoint fit other data: rows by puzzle name, slots anew; returns what to say about it."""
    kept["parts"] = None  # slots in work hold puzzles and placements of the old data
    old = saved_naming(tensors, kept)
    if trainer.naming is None or old is None:
        return ""
    tensors[TABLE], known = carry_over(old, tensors[TABLE], trainer.naming)
    return f": {known} of {len(tensors[TABLE])} puzzles are known"


def load_export(trainer: Trainer, exported: Export) -> int:
    """Take an export's weights, and its embedding rows for those of `trainer.row_names` that it knows.

    All other rows start from its mean embedding. Returns how many are known; raises InputError where sizes differ.
    """
    own, other = (
        {name: value for name, value in to_json(model).items() if name not in FREE}
        for model in (trainer.config.model, exported.model)
    )
    changes = differences(other, own)
    if changes:
        raise InputError(f"the export's model differs: {'; '.join(changes)}")
    load_weights(trainer.model, exported.weights)
    if trainer.ema is not None:
        for average, parameter in zip(trainer.ema.averages, trainer.model.parameters(), strict=True):
            average.copy_(parameter.detach())
    table = trainer.embedding.table
    table.copy_(exported.puzzle_mean.expand_as(table))
    if exported.puzzle_table is None or not trainer.row_names:
        return 0
    rows = {name: row for row, name in enumerate(exported.puzzle_names or ())}
    known = [number for number, name in enumerate(trainer.row_names) if name in rows]
    kept = exported.puzzle_table[[rows[trainer.row_names[number]] for number in known]]
    table[known] = kept.to(table)
    return len(known)
