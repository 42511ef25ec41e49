"""Training on canvas sizes and on the full canvas, compiled and not: python -m tests.benchmarks training

Steps are whole ones: batch, forward, backward, optimiser, embedding rows, moving average. On a GPU the batches are the
published ones.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from arc_trm.batches import ArcSource, Batch, Part, sources_by_side
from arc_trm.config import RunConfig
from arc_trm.device import make_accelerator
from arc_trm.presets import PRESETS
from arc_trm.trainer import Trainer
from tests.benchmarks.bench_batches import arc1_store
from tests.benchmarks.table import Row, median_seconds

GPU = torch.accelerator.is_available()
STEPS = 10 if GPU else 1
PUBLISHED_BATCH = PRESETS["arc1"].train.batch_size


class FixedSource:
    """The same random examples at every step, so that the step alone is measured."""

    num_puzzles = 1000

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """Make a batch for the model of `config`."""
        self.vocab_size, self.seq_len = config.model.vocab_size, config.model.seq_len
        rng, shape = np.random.default_rng(0), (config.train.batch_size, self.seq_len)
        tokens = torch.from_numpy(rng.integers(0, self.vocab_size, shape, dtype=np.int32)).to(device)
        self.batch = Batch(tokens, tokens.flip(1), torch.from_numpy(rng.integers(0, 1000, shape[0])).to(device))

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples of `slots`."""
        return Batch(self.batch.inputs[slots], self.batch.labels[slots], self.batch.puzzle_ids[slots])


def accelerator() -> Accelerator:
    """On the GPU where there is one."""
    return make_accelerator("none", Path())


def trainer_of(
    config: RunConfig,
    sources: Sequence[ArcSource] | None = None,
) -> Trainer:
    """A trainer on `sources`, or on examples that are always the same."""
    own = accelerator()
    parts = [Part(source, source.batch_size) for source in sources or ()]
    parts = parts or [Part(FixedSource(config, own.device), config.train.batch_size)]
    return Trainer(config, parts, own, 1000)


def rate(trainer: Trainer, steps: int = STEPS) -> float:
    """Examples a second: the median of three times `steps` steps, after one that warms up."""

    def work(steps: int) -> None:
        for _ in range(steps):
            trainer.train_step()
        trainer.read_metrics()

    work(1)
    return steps * trainer.batch_size / median_seconds(lambda: work(steps), repeats=3, warmups=0)


def with_batch(config: RunConfig, batch: int, precision: str) -> RunConfig:
    """The published batch on a GPU, `batch` on a CPU."""
    train = replace(config.train, batch_size=PUBLISHED_BATCH if GPU else batch, precision=precision)  # type: ignore[arg-type]
    return replace(config, train=train)


def canvas_rows() -> list[Row]:
    """ARC-AGI-1 with the small preset: every example on the full canvas, or on the size that its task needs."""
    store, config = arc1_store(), PRESETS["arc1-small"]
    batch, device = (PUBLISHED_BATCH if GPU else 32), accelerator().device
    config = replace(config, train=replace(config.train, batch_size=batch))
    full = rate(trainer_of(config, [ArcSource(store, seed=0, batch_size=batch, device=device)]))
    sources = sources_by_side(store, seed=0, batch_size=batch, device=device, multiple=4)
    sizes = rate(trainer_of(config, sources), 2 * STEPS)
    shares = " + ".join(f"{source.batch_size} of {source.seq_len}" for source in sources)
    return [
        Row("step on the full canvas", f"arc1-small, batch {batch}", full, "examples/s", None, "ARC-AGI-1 examples"),
        Row("step on canvas sizes", f"arc1-small, batch {batch}", sizes, "examples/s", sizes / full, f"slots {shares}"),
    ]


def compiled_rows() -> list[Row]:
    """The small preset on one window, eager and compiled."""
    store, device = arc1_store(), accelerator().device
    config = PRESETS["arc1-small"]
    small = np.flatnonzero([group.side <= 16 for group in store.groups])

    def trainer() -> Trainer:
        source = ArcSource(store, seed=0, batch_size=32, device=device, side=16, groups=small)
        return trainer_of(config, [source])

    eager = rate(trainer(), 3 * STEPS)
    rows = [Row("step eager", "arc1-small, 32 of 256", eager, "examples/s")]
    compiled, start = trainer(), time.perf_counter()
    if compiled.compile():
        note = f"{time.perf_counter() - start:.0f} s to compile"
        figure = rate(compiled, 3 * STEPS)
        rows.append(Row("step compiled", "arc1-small, 32 of 256", figure, "examples/s", figure / eager, note))
    return rows


def run() -> list[Row]:
    """Examples a second of whole training steps."""
    return [*canvas_rows(), *compiled_rows()]
