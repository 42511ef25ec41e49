"""Adapt an exported model to tasks without solutions: the trainer's own steps, as the schedule wants them.

New puzzles start from the mean embedding of the export. First the embeddings move alone, then everything.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from arc_trm.batches import arc_data, upload
from arc_trm.checkpoint import Export
from arc_trm.config import LogConfig, RunConfig, TrainConfig
from arc_trm.trainer import Supervised, Trainer
from data_prep.store import ArcStore
from submission.settings import DEEP_ENOUGH, DEEPER, IF_DEEP, Settings

# Default batch sizes: large enough to keep a GPU busy, small enough for short steps on a CPU.
BATCH_SIZES = {"cuda": 256, "cpu": 32}
# Time constant of the moving averages, in steps.
RECENT = 1000
WARMUP_STEPS = 200  # at most a tenth of all
# Settings that training has by the same name.
SAME = ("lr", "puzzle_lr", "ema", "precision", "compile")


def recursion(settings: Settings, export: Export) -> tuple[int, int]:
    """Return T and the supervision steps to answer with: those asked for, or those of training, or DEEPER."""
    trained = export.model.deep_steps, export.halting.max_supervision_steps
    deep = all(own >= least for own, least in zip(trained, DEEP_ENOUGH, strict=True))
    asked = zip((settings.deep_steps, settings.supervision_steps), trained, DEEPER if deep else trained, strict=True)
    deep_steps, steps = ({0: own, IF_DEEP: deeper}.get(wanted, wanted) for wanted, own, deeper in asked)
    return deep_steps, steps


def run_config(settings: Settings, export: Export, device: torch.device, processes: int) -> RunConfig:
    """Return the trainer's configuration for adapting `export`; settings of 0 keep what it was trained with."""
    deep_steps, steps = recursion(settings, export)
    model = replace(export.model, deep_steps=deep_steps)
    halting = replace(export.halting, max_supervision_steps=steps)
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
    """Raise a batch size to a multiple of the processes that leaves every canvas size a slot in each."""
    return max(4, -(-wanted // processes)) * processes


def make_trainer(settings: Settings, export: Export, store: ArcStore, accelerator: Accelerator) -> Trainer:
    """Make a trainer that stands at the export: its weights, its rows of tasks that it knows, else its mean row."""
    config = run_config(settings, export, accelerator.device, accelerator.num_processes)
    data = arc_data(store, config, accelerator.device, accelerator.num_processes)
    names = None if settings.forget else data.names
    trainer = Trainer(config, data.parts, accelerator, settings.steps or 1, names=names)
    trainer.load_export(export)
    return trainer


class TaskFigures:
    """Moving averages, per task, of loss and exact accuracy on the demonstrations; never waits for the device."""

    def __init__(self, store: ArcStore, trainer: Trainer) -> None:
        """Start at zero; the embedding rows of `trainer` belong to the puzzles of `store`, or to its tasks."""
        task_rows = trainer.config.model.embedding_rows == "task"
        owners = np.arange(len(store.groups)) if task_rows else store.puzzle_groups
        self._names, self._accelerator = [group.task_id for group in store.groups], trainer.accelerator
        self._owners = upload(owners.astype(np.int64), trainer.accelerator.device)
        # Of this process, for each task: sum of losses and how many they are; right answers, and how many ended.
        self._sums = torch.zeros(len(store.groups), 4, dtype=torch.float64, device=trainer.accelerator.device)

    def add(self, results: Sequence[Supervised]) -> None:
        """Count a step, whose `train_step` returned `results`."""
        self._sums *= 1 - 1 / RECENT
        for result in results:
            rows = result.rows
            figures = (rows["loss"], torch.ones_like(rows["loss"]), rows["exact_accuracy"], rows["count"])
            self._sums.index_add_(0, self._owners[result.puzzle_ids], torch.stack(figures, 1).double())

    def sums(self) -> Tensor:
        """Return the sums over all processes, float64 [tasks, 4]; collective."""
        return self._accelerator.reduce(self._sums, "sum")

    def restore(self, sums: Tensor) -> None:
        """Go on from what `sums` returned; the main process takes them, so that they count once."""
        self._sums.copy_(sums * self._accelerator.is_main_process)

    def means(self) -> dict[str, dict[str, float]]:
        """Return `loss` and `exact_accuracy` of each task seen so far (ended, for the latter); collective."""
        found: dict[str, dict[str, float]] = {}
        for name, (loss, rows, exact, ended) in zip(self._names, self.sums().tolist(), strict=True):
            if rows:
                found[name] = {"loss": round(loss / rows, 4)}
                found[name] |= {"exact_accuracy": round(exact / ended, 4)} if ended else {}
        return found


def moving(trainer: Trainer) -> list[Tensor]:
    """Return all tensors that training moves, except the optimiser's."""
    averages = [] if trainer.ema is None else trainer.ema.averages
    return [*(p.detach() for p in trainer.model.parameters()), *averages, trainer.embedding.table]


def step_work(trainer: Trainer) -> float:
    """Return how many answered tokens take as long as an optimiser step.

    A deep recursion costs T passes of a latent recursion forward, and 2 more backward in training; an answer takes
    all supervision steps, forward only.
    """
    tokens = sum(part.slots * part.source.seq_len for part in trainer.parts)
    deep_steps = trainer.config.model.deep_steps
    return tokens * (deep_steps + 2) / deep_steps / trainer.config.halting.max_supervision_steps
