"""What surrounds training steps: checkpoints, a large embedding table, evaluation: python -m tests.benchmarks runs"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from arc_trm.batches import ArcSource, Part
from arc_trm.checkpoint import STATE, read_folder, write_folder
from arc_trm.predict import Voter, outputs_of_store
from arc_trm.presets import PRESETS, override
from arc_trm.sampler import evaluation_rows
from arc_trm.supervision import initial_carry
from arc_trm.trainer import Trainer
from tests.benchmarks.bench_batches import arc1_store
from tests.benchmarks.bench_training import GPU, FixedSource, accelerator, trainer_of, with_batch
from tests.benchmarks.table import Row, median_seconds

PUZZLES, SOME_PUZZLES = 1_200_000, 100_000
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Puzzles:
    """A source of examples of many puzzles."""

    plain: FixedSource
    num_puzzles: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.plain, name)


def resident() -> float:
    """Memory of this process, in GB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e9


def full_width(puzzles: int) -> Trainer:
    """A trainer of the ARC preset with few slots and many puzzles."""
    config = with_batch(override(PRESETS["arc1"], {"model": {"latent_steps": 1, "deep_steps": 1}}), 1, "auto")
    config = replace(config, train=replace(config.train, batch_size=1))
    own = accelerator()
    return Trainer(config, [Part(Puzzles(FixedSource(config, own.device), puzzles), 1)], own, 10)  # type: ignore[arg-type]


def table_rows() -> list[Row]:
    """What the embedding table of 1.2 million puzzles takes, all told."""
    small = full_width(1000)
    small.train_step()
    small.read_metrics()
    before = resident()
    large = full_width(PUZZLES)
    large.embedding.table.fill_(0.5)  # memory that nobody wrote to is not there yet
    large.train_step()
    large.read_metrics()
    model = sum(parameter.nbytes for parameter in large.model.parameters()) / 1e9
    figure = torch.cuda.max_memory_allocated() / 1e9 if GPU else resident() - before
    table = large.embedding.table.nbytes / 1e9
    note = f"the numbers alone are {table:.2f} GB; the model, its moments and average {4 * model:.2f} GB"
    return [Row("memory of a trainer", f"{PUZZLES:,} puzzles x 512", figure, "GB", figure / table, note)]


def checkpoint_rows() -> list[Row]:
    """Writing and reading a whole training state, flushed to the disk and verified."""
    trainer = full_width(SOME_PUZZLES)
    trainer.train_step()
    tensors, facts = trainer.state_dict()
    size = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "state"
        writing = median_seconds(lambda: write_folder(place, STATE, tensors, facts), 3)
        reading = median_seconds(lambda: trainer.load_state_dict(*read_folder(place, STATE)), 3)
    what = f"{SOME_PUZZLES:,} puzzles x 512, {size:.2f} GB"
    return [
        Row("checkpoint written", what, writing, "s", None, f"{size / writing:.2f} GB/s with sha256 and fsync"),
        Row("checkpoint read", what, reading, "s", None, f"{size / reading:.2f} GB/s, verified and taken over"),
    ]


def stall_rows() -> list[Row]:
    """How long training stands still for a checkpoint with a published run's puzzles, and a carry of its batch."""
    config = override(PRESETS["arc1"], {"train": {"precision": "bf16"}})
    own, slots = accelerator(), PRESETS["arc1"].train.batch_size
    trainer = Trainer(config, [Part(Puzzles(FixedSource(config, own.device), PUZZLES), slots)], own, 10)  # type: ignore[arg-type]
    trainer.embedding.table.fill_(0.5)
    for work in trainer.work:
        work.carry = initial_carry(trainer.model, work.part.source.offer(0, work.local), trainer.dtype)
    times, work_times = [], []  # a disk, and others on this machine, make the one longer than the other
    for _ in range(3):
        trainer.step += 1
        with tempfile.TemporaryDirectory() as folder:
            began, worked = time.perf_counter(), time.process_time()
            trainer.save(Path(folder), {"data_digest": ""})
            times.append(time.perf_counter() - began)
            work_times.append(time.process_time() - worked)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e9
    stall = statistics.median(times)
    what = f"{PUZZLES:,} puzzles x 512, carry of {slots}, {size:.1f} GB"
    note = f"{statistics.median(work_times):.1f} s of processor time; the ratio is the share of 20 minutes"
    return [Row("checkpoint stall", what, stall, "s", stall / 1200, note)]


def evaluation_rows_() -> list[Row]:
    """Answers a second in a window, all sixteen supervision steps."""
    store, own = arc1_store(), accelerator()
    fitting = np.flatnonzero([group.side == 16 for group in store.groups])
    source = ArcSource(store, seed=0, batch_size=32, device=own.device, side=16, groups=fitting)
    trainer = trainer_of(PRESETS["arc1-small"], [source])
    rows = evaluation_rows(store, augmentations=2)
    rows = rows[np.flatnonzero(np.isin(store.pair_groups[rows.pairs], fitting))][: 512 if GPU else 16]
    voter = Voter(store, outputs_of_store(store)[1], len(rows), own)
    start = time.perf_counter()
    for _ in voter.answers(trainer.predictor(), rows, 16):
        pass
    rate = len(rows) / (time.perf_counter() - start)
    return [Row("evaluation", f"arc1-small, {len(rows)} of 256", rate, "answers/s", None, "all 16 supervision steps")]


def run() -> list[Row]:
    """Seconds, gigabytes, answers a second."""
    return [*table_rows(), *checkpoint_rows(), *stall_rows(), *evaluation_rows_()]
