"""A built dataset as the trainer needs it: sources for the batch slots, the length of an epoch, what to remember."""

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from arc_trm.batches import ArcSource, Part, sources_by_side
from arc_trm.boards import BoardSource
from arc_trm.checkpoint import RowNames
from arc_trm.config import RunConfig
from data_prep.boards import BoardStore
from data_prep.files import InputError
from data_prep.store import ArcStore, open_store

# What an export says of its dataset, as the manifest has it.
FACTS = ("recipe", "canvas", "leak", "held_out", "seed", "augmentations", "corpora")
# Every canvas size gets a multiple of this many slots: up to four processes share them evenly and train alike.
SHARED_BY = 4


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on."""

    store: ArcStore | BoardStore
    parts: list[Part]
    examples_per_epoch: int
    names: RowNames | None = None  # what each embedding row stands for; None where there is one row
    training_tasks: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """arc, sudoku or maze."""
        return str(self.store.manifest["kind"])

    def planned_steps(self, config: RunConfig) -> int:
        """Optimiser steps of the whole run: `train.steps`, or as many as `train.epochs` take."""
        return config.train.steps or max(1, config.train.epochs * self.examples_per_epoch // config.train.batch_size)


def open_training_data(folder: Path, config: RunConfig, accelerator: Accelerator) -> TrainingData:
    """Open the dataset in `folder`; raises InputError when it is none, or is not what `config` is for."""
    store, device = open_store(folder), accelerator.device
    multiple = math.lcm(SHARED_BY, accelerator.num_processes)
    return (
        arc_data(store, config, device, multiple) if isinstance(store, ArcStore) else board_data(store, config, device)
    )


def arc_data(store: ArcStore, config: RunConfig, device: torch.device, multiple: int = SHARED_BY) -> TrainingData:
    """An ARC dataset on the full canvas, or on windows: a part for each size, with a `multiple` of slots."""
    train = config.train
    if train.canvas != "full" and config.model.mixer != "attention":
        raise InputError(
            f"train.canvas {train.canvas} with model.mixer {config.model.mixer}: windows need attention, expected full"
        )
    task_rows = config.model.embedding_rows == "task"
    make = partial(
        ArcSource if train.canvas == "full" else partial(sources_by_side, multiple=multiple),
        seed=config.seed,
        batch_size=train.batch_size,
        device=device,
        task_rows=task_rows,
        colours_from=train.colours_from,
    )
    try:
        made = make(store)
        sources = [made] if isinstance(made, ArcSource) else made
    except ValueError as error:
        raise InputError(f"this dataset and these settings: {error}") from error
    _check(
        config, "arc", sources[0].vocab_size, max(source.seq_len for source in sources), window=train.canvas != "full"
    )
    return TrainingData(
        store,
        [Part(source, source.batch_size) for source in sources],
        int(store.pair_training.sum()),
        RowNames.of_owners(store.demonstration_digests()) if task_rows else RowNames.of_puzzles(store),
        store.training_digests(),
        {name: store.manifest.get(name) for name in FACTS},
    )


def board_data(store: BoardStore, config: RunConfig, device: torch.device) -> TrainingData:
    """A Sudoku or maze dataset; all its puzzles share one embedding row."""
    if config.model.embedding_rows == "task":
        raise InputError(f"model.embedding_rows task: a dataset of kind {store.kind} has no tasks, expected puzzle")
    try:
        source = BoardSource(
            store,
            seed=config.seed,
            batch_size=config.train.batch_size,
            device=device,
            augment=config.train.augment,
        )
    except ValueError as error:
        raise InputError(f"this dataset and these settings: {error}") from error
    _check(config, store.kind, source.vocab_size, source.seq_len)
    facts = {name: store.manifest.get(name) for name in ("source", "seed", "generator")}
    return TrainingData(store, [Part(source, source.batch_size)], len(store.train), facts=facts)


def _check(config: RunConfig, kind: str, vocab_size: int, tokens: int, window: bool = False) -> None:
    model = config.model
    if model.vocab_size != vocab_size or (tokens > model.seq_len if window else tokens != model.seq_len):
        raise InputError(
            f"the dataset ({kind}) has {tokens} tokens of {vocab_size} kinds, "
            f"the model is for {model.seq_len} of {model.vocab_size}: choose a preset for this data"
        )
