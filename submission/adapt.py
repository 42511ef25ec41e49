"""Adapt an exported model to tasks without solutions: the trainer's own steps, as the schedule wants them.

New puzzles start from the mean embedding of the export. First the embeddings move alone, then everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from arc_trm.batches import arc_data, upload
from arc_trm.checkpoint import Export
from arc_trm.config import LogConfig, RunConfig, TrainConfig
from arc_trm.trainer import NonFiniteLoss, Supervised, Trainer
from data_prep.progress import Progress
from data_prep.store import ArcStore
from submission.schedule import Unit
from submission.settings import Settings

# Batch slots when nothing is said: what a GPU needs to be busy, what keeps a step short on a CPU.
BATCH_SIZES = {"cuda": 256, "cpu": 32}
# Steps over which the figures of a task are means: one so many steps ago counts 1/e of the newest.
RECENT = 1000
MOST_HALVINGS = 3  # of the rates, after losses that are no numbers; the next such loss ends the adaptation
WARMUP_STEPS = 200  # at most a tenth of all
# Settings that training has by the same name.
SAME = ("lr", "puzzle_lr", "ema", "precision", "compile")


def run_config(settings: Settings, export: Export, device: torch.device, processes: int) -> RunConfig:
    """The trainer's configuration for adapting `export`; settings of 0 keep what the export was trained with."""
    model, halting = export.model, export.halting
    model = replace(model, deep_steps=settings.deep_steps or model.deep_steps)
    halting = replace(halting, max_supervision_steps=settings.supervision_steps or halting.max_supervision_steps)
    train = TrainConfig(
        batch_size=shared_size(settings.batch_size or BATCH_SIZES.get(device.type, BATCH_SIZES["cpu"]), processes),
        steps=settings.steps or 0,
        warmup_steps=WARMUP_STEPS,
        **{name: getattr(settings, name) for name in SAME},
        # The token-mixing MLP is built for one length.
        canvas="sizes" if settings.canvas != "full" and model.mixer == "attention" else "full",
    )
    return RunConfig(model=model, halting=halting, train=train, log=LogConfig(track=settings.track), seed=settings.seed)


def shared_size(wanted: int, processes: int) -> int:
    """The batch size, raised to a multiple of the processes that leaves every canvas size a slot in each."""
    return max(4, -(-wanted // processes)) * processes


def make_trainer(settings: Settings, export: Export, store: ArcStore, accelerator: Accelerator) -> Trainer:
    """A trainer that stands at the export: its weights, its rows for the tasks that it knows, else its mean row."""
    config = run_config(settings, export, accelerator.device, accelerator.num_processes)
    data = arc_data(store, config, accelerator.device, accelerator.num_processes)
    names = None if settings.forget else data.names
    trainer = Trainer(config, data.parts, accelerator, settings.steps or 1, names=names)
    trainer.load_export(export)
    return trainer


@dataclass
class Adaptation:
    """The optimiser steps of one solving run, from one look at clock and loss to the next."""

    trainer: Trainer
    bar: Progress
    metrics: dict[str, float] = field(default_factory=dict)  # as read last
    halvings: int = 0  # of the learning rates
    _good: list[Tensor] = field(default_factory=list)  # what training moves, when it was last seen to be finite

    def take_steps(self, unit: Unit, over: Callable[[], bool], figures: Callable[[], str]) -> int:
        """The steps of `unit`, fewer where all processes are told that it is `over`; how many.

        Raises NonFiniteLoss, in all processes alike, after going back to the weights that were last seen to be finite
        and halving the learning rates.
        """
        trainer = self.trainer
        trainer.planned_steps, trainer.trunk_factor = unit.planned_steps, float(unit.trunk)
        if trainer.step == 0:
            self.bar.begin()
        if not self._good:  # the export, should the first steps diverge
            self._good = [tensor.clone() for tensor in _moving(trainer)]
        first = trainer.step
        while trainer.step < first + unit.steps:
            trainer.train_step()
            # Before anything is measured, how many are planned is a guess.
            self.bar.total = trainer.planned_steps if self.metrics else None
            self.bar.update(1, figures())
            if over():
                break
        try:
            self.metrics = trainer.read_metrics()
            trainer.check_finite()
        except NonFiniteLoss:
            for tensor, good in zip(_moving(trainer), self._good, strict=True):
                tensor.copy_(good)
            trainer.forget_momentum()
            self.halve_rates()
            raise
        self._good = [tensor.clone() for tensor in _moving(trainer)]
        return trainer.step - first

    def halve_rates(self, times: int = 1) -> None:
        """Train with half the learning rates from here on, or, where that is done several times, half of that again."""
        self.halvings += times
        config, factor = self.trainer.config, 0.5**times
        train = replace(config.train, lr=config.train.lr * factor, puzzle_lr=config.train.puzzle_lr * factor)
        self.trainer.config = replace(config, train=train)


class TaskFigures:
    """Loss and exact accuracy on the demonstrations of every task of late, gathered without waiting for the device."""

    def __init__(self, store: ArcStore, trainer: Trainer) -> None:
        """Watch the steps of `trainer`, whose embedding rows belong to the puzzles of `store`, or to its tasks."""
        task_rows = trainer.config.model.embedding_rows == "task"
        owners = np.arange(len(store.groups)) if task_rows else store.puzzle_groups
        self._names, self._accelerator = [group.task_id for group in store.groups], trainer.accelerator
        self._owners = upload(owners.astype(np.int64), trainer.accelerator.device)
        # Of this process, for each task: sum of losses and how many they are; right answers, and how many ended.
        self._sums = torch.zeros(len(store.groups), 4, dtype=torch.float64, device=trainer.accelerator.device)
        trainer.watch = self.add

    def add(self, results: Sequence[Supervised]) -> None:
        """Count a step."""
        self._sums *= 1 - 1 / RECENT
        for result in results:
            rows = result.rows
            figures = (rows["loss"], torch.ones_like(rows["loss"]), rows["exact_accuracy"], rows["count"])
            self._sums.index_add_(0, self._owners[result.puzzle_ids], torch.stack(figures, 1).double())

    def sums(self) -> Tensor:
        """Over all processes, float64 [tasks, 4]; collective."""
        return self._accelerator.reduce(self._sums, "sum")

    def restore(self, sums: Tensor) -> None:
        """Go on from what `sums` gave; one process has them all, so that they count once."""
        self._sums.copy_(sums * self._accelerator.is_main_process)

    def means(self) -> dict[str, dict[str, float]]:
        """`loss` and `exact_accuracy` of each task that was seen (that ended, for the latter); collective."""
        found: dict[str, dict[str, float]] = {}
        for name, (loss, rows, exact, ended) in zip(self._names, self.sums().tolist(), strict=True):
            if rows:
                found[name] = {"loss": round(loss / rows, 4)}
                found[name] |= {"exact_accuracy": round(exact / ended, 4)} if ended else {}
        return found


def _moving(trainer: Trainer) -> list[Tensor]:
    """All tensors that training moves, but for the optimiser's."""
    averages = [] if trainer.ema is None else trainer.ema.averages
    return [*(p.detach() for p in trainer.model.parameters()), *averages, trainer.embedding.table]


def step_work(trainer: Trainer) -> float:
    """What an optimiser step is like, in tokens to be answered.

    A deep recursion costs T passes of a latent recursion forward, and 2 more backward in training; an answer takes
    all supervision steps, forward alone.
    """
    tokens = sum(part.slots * part.source.seq_len for part in trainer.parts)
    deep_steps = trainer.config.model.deep_steps
    return tokens * (deep_steps + 2) / deep_steps / trainer.config.halting.max_supervision_steps
