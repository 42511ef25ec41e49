"""Training batches of ARC-AGI-1, augmented and placed on the fly: python -m tests.benchmarks batches"""

from collections.abc import Callable
from itertools import count, islice

import numpy as np
import torch
from numpy.typing import NDArray

from arc_trm.batches import ArcSource
from arc_trm.sampler import Rows, Sampler
from data_prep.canvas import IGNORE_LABEL, PAD, Placement
from data_prep.corpus import pinned_corpus
from data_prep.store import ArcStore, TaskEntry, build_store
from tests.benchmarks.table import Row, median_seconds
from tests.data_prep.material import Augmentation, encode_example

BATCH = 768
STEPS = 50  # more than ten epochs, so that planning them counts in full
ONE_BY_ONE = 256
EVERY = slice(None)


def arc1_store() -> ArcStore:
    """ARC-AGI-1 with the tests of its training tasks as labels, a hundred augmentations a task."""
    entries = [TaskEntry.all_pairs(task) for task in pinned_corpus("arc1-training").tasks]
    entries += [TaskEntry.demonstrations_only(task) for task in pinned_corpus("arc1-evaluation").tasks]
    return build_store(entries, 100, seed=0)


def one_by_one(store: ArcStore, rows: Rows, side: int) -> list[NDArray[np.int32]]:
    """The plain path: augment, place and pad every grid of every example on its own."""
    columns = zip(*(part.tolist() for part in (rows.puzzles, rows.pairs, rows.top, rows.left)), strict=True)
    examples = [
        encode_example(
            store.input(pair), store.output(pair), Augmentation.of(store, puzzle), Placement(row, column), side
        )
        for puzzle, pair, row, column in columns
    ]
    return [np.stack(part).astype(np.int32) for part in zip(*examples, strict=True)]


class ReadyMade:
    """Finished uint8 arrays in memory, from which a batch is picked and widened."""

    def __init__(self, source: ArcSource) -> None:
        """Hold about an epoch of the examples of `source`."""
        batches = [
            source.offer(step, EVERY) for step in range(round(source.sampler.examples_per_epoch / source.batch_size))
        ]
        self.inputs = torch.cat([batch.inputs for batch in batches]).numpy().astype(np.uint8)
        labels = torch.cat([batch.labels for batch in batches]).numpy()
        self.labels = np.where(labels == IGNORE_LABEL, PAD, labels).astype(np.uint8)
        self.rng = np.random.default_rng(0)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        index = self.rng.permutation(len(self.inputs))[:BATCH]
        labels = self.labels[index].astype(np.int32)
        labels[labels == PAD] = IGNORE_LABEL
        return torch.from_numpy(self.inputs[index].astype(np.int32)), torch.from_numpy(labels)


def examples_per_second(make: Callable[..., object], *more: object) -> float:
    """Examples a second of batches made and dropped; every repeat goes on where the last one stopped."""
    steps = count()

    def some_steps() -> None:
        for step in islice(steps, STEPS):
            make(step, *more)

    return STEPS * BATCH / median_seconds(some_steps)


def run() -> list[Row]:
    """Examples a second on this machine's cores, sampling included."""
    store = arc1_store()
    source = ArcSource(store, seed=0, batch_size=BATCH, device="cpu")
    few = source.sampler.rows(0, slice(0, ONE_BY_ONE))
    plain = ONE_BY_ONE / median_seconds(lambda: one_by_one(store, few, source.side))
    arrays = ReadyMade(source)
    finished = examples_per_second(lambda step: arrays.batch())
    full = examples_per_second(lambda step: source.offer(step, EVERY))
    small = np.flatnonzero([group.side <= 16 for group in store.groups])
    small_source = ArcSource(store, seed=0, batch_size=BATCH, device="cpu", side=16, groups=small)
    window = examples_per_second(lambda step: small_source.offer(step, EVERY))
    mixed = {
        name: examples_per_second(
            Sampler(store, seed=0, batch_size=BATCH, mixed=True, fresh_views=fresh, own_colours=0.3).rows, EVERY
        )
        for name, fresh in (("puzzle", False), ("task", True))
    }
    size = f"{BATCH} examples of 900 tokens"
    threads = f"{torch.get_num_threads()} threads"
    return [
        Row(
            "batches one example at a time", f"{ONE_BY_ONE} examples of 900 tokens", plain, "examples/s", None, "numpy"
        ),
        Row("batches from finished arrays", size, finished, "examples/s", finished / plain, "numpy, in memory"),
        Row("batches augmented on the fly", size, full, "examples/s", full / plain, f"{threads}, goal 150,000"),
        Row("batches on a small window", f"{BATCH} examples of 256 tokens", window, "examples/s", None, threads),
        *(
            Row(f"mixed stream, rows a {name}", f"batches of {BATCH}", speed, "examples/s", None, "target >= 400,000")
            for name, speed in mixed.items()
        ),
    ]
