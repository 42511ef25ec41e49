"""Measure exports on the frozen ruler: exact answers and token loss on held-out pairs, solved outputs, comparisons.

    python -m tests.experiments.ruler --data data/ruler runs/one runs/other
    python -m tests.experiments.ruler --data data/ruler --votes 64 --steps 1 2 4 8 runs/one

The dataset is built with `--hold-out` and lists of the ruler (`data_prep.corpus.ruler`); an export needs embedding rows
that belong to tasks. Every held-out pair is answered under eight rotations and reflections in its own colours and under
sixteen random views, placed at (0, 0), in float32.

THE RULE OF CHOICE: the figure of a pair is the mean of its share of exact answers under own and under random views; one
way is better than another if the 90 % interval of the mean difference, by paired bootstrap over tasks, lies above 0.
Otherwise the simpler or cheaper way is kept. Solved outputs are reported and choose nothing.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.batches import ArcBatches
from arc_trm.checkpoint import Export, RowNames, carry_over, load_weights, read_export
from arc_trm.config import TrainConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor, Voter, outputs_of_store, roll_out
from arc_trm.sampler import Rows, evaluation_rows, fixed_batches, voting_views
from arc_trm.scoring import solutions_of
from arc_trm.vote import Tally
from data_prep.augment import Augmentations
from data_prep.canvas import IGNORE_LABEL
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.store import ArcStore, load

BATCH = 64
OWN, RANDOM = 8, 16
RESAMPLES = 10_000


def views(pairs: Rows, own: bool) -> Rows:
    """Every pair under OWN dihedral elements without change of colours, or under RANDOM random views."""
    count = OWN if own else RANDOM
    rows = pairs[np.repeat(np.arange(len(pairs)), count)]
    generator, augmentations = np.random.default_rng(7), Augmentations.identity(len(rows))
    if own:
        augmentations.dihedrals[:] = np.tile(np.arange(8), len(pairs))
    else:
        augmentations.dihedrals[:] = generator.integers(8, size=len(rows), dtype=np.uint8)
        augmentations.permutations[:, 1:] = generator.permuted(augmentations.permutations[:, 1:], axis=1)
    return replace(rows, augmentations=augmentations)


def predictor(export: Export, store: ArcStore) -> Predictor:
    """The model of `export` in float32, with the rows that it has for the tasks of `store`."""
    model = RecursiveModel(export.model).eval()
    load_weights(model, export.weights)
    if export.puzzle_names is None or export.puzzle_table is None or not model.config.view_positions:
        raise InputError("an export without rows of tasks, expected one of model.embedding_rows task")
    known = RowNames.of_owners(export.puzzle_names)
    wanted = RowNames.of_owners(store.demonstration_digests())
    table, _ = carry_over(known, export.puzzle_table.float(), wanted, export.puzzle_mean.float())
    embedding = PuzzleEmbedding(*table.shape)
    embedding.table.copy_(table)
    return Predictor(model, embedding, export.halting, torch.float32)


@torch.no_grad()
def answers(loaded: Predictor, store: ArcStore, rows: Rows, steps: Sequence[int]) -> NDArray[np.float64]:
    """Token loss (soft-max, mean over a row's labelled tokens) and exactness of each row, [rows, len(steps), 2].

    `steps` are the supervision steps after which an answer is read. A label that leaves its canvas is never exact.
    """
    found = np.zeros((len(rows), len(steps), 2))
    sides = np.array([group.side for group in store.groups])[store.pair_groups[rows.pairs]]
    for side in np.unique(sides).tolist():
        chosen = np.flatnonzero(sides == side)
        groups = np.flatnonzero([group.side == side for group in store.groups])
        batches, size = ArcBatches(store, "cpu", side, groups, task_rows=True), min(BATCH, len(chosen))
        fits = store.pair_shapes[rows.pairs[chosen]].max(1) < side + (side == 30)
        for (part, valid), start in zip(fixed_batches(rows[chosen], size), range(0, len(chosen), size), strict=True):
            batch = batches.make(part)
            state = tuple(t.contiguous() for t in loaded.model.initial_state(size, side**2, loaded.dtype))
            puzzle = loaded.embedding.table[batch.puzzle_ids]
            outputs = roll_out(loaded.model, state, batch.inputs, puzzle, batch.views)
            asked = batch.labels != IGNORE_LABEL
            places = chosen[start : start + valid]
            for step, output in zip(range(1, max(steps) + 1), outputs, strict=False):
                if step not in steps:
                    continue
                logits, labels = output.logits.float().flatten(0, 1), batch.labels.flatten().long()
                losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE_LABEL).view(asked.shape)
                right = ((output.logits.argmax(-1) == batch.labels) | ~asked).all(1) & asked.any(1)
                both = torch.stack((losses.sum(1) / asked.sum(1).clamp(min=1), right.double()), dim=1)
                found[places, steps.index(step)] = both[:valid].numpy()
        found[chosen[~fits], :, 1] = 0
    return found


def measure(loaded: Predictor, store: ArcStore, steps: Sequence[int] = ()) -> NDArray[np.float64]:
    """Of every held-out pair, after each of `steps`: loss and share of exact answers under own, then random views.

    Shape [pairs, len(steps), 2 kinds of views, 2]. Without `steps` after the last supervision step.
    """
    pairs, steps = evaluation_rows(store, augmentations=1), steps or (loaded.halting.max_supervision_steps,)
    kinds = [answers(loaded, store, views(pairs, own), list(steps)) for own in (True, False)]
    return np.stack([kind.reshape(len(pairs), -1, len(steps), 2).mean(1) for kind in kinds], axis=2)


def summary(store: ArcStore, found: NDArray[np.float64]) -> dict[str, float]:
    """Loss and exactness under own and random views, over all and for every canvas size; `found` [pairs, 2, 2]."""
    pairs = evaluation_rows(store, augmentations=1).pairs
    sides = np.array([group.side for group in store.groups])[store.pair_groups[pairs]]
    parts = {"": np.ones(len(pairs), bool)} | {f"_{side}": sides == side for side in np.unique(sides).tolist()}
    return {
        f"{name}_{kind}{part}": float(found[chosen, k, f].mean())
        for part, chosen in parts.items()
        for k, kind in enumerate(("own", "random"))
        for f, name in enumerate(("loss", "exact"))
    }


def difference(store: ArcStore, one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean of the first's exactness minus the second's over tasks, and its 90 % interval; each [pairs, 2, 2]."""
    tasks = store.pair_groups[evaluation_rows(store, augmentations=1).pairs]
    gains = (one - other)[:, :, 1].mean(1)
    per_task = np.array([gains[tasks == task].mean() for task in np.unique(tasks)])
    draws = np.random.default_rng(0).integers(len(per_task), size=(RESAMPLES, len(per_task)))
    low, high = np.quantile(per_task[draws].mean(1), (0.05, 0.95)).tolist()
    return float(per_task.mean()), low, high


def votes(loaded: Predictor, store: ArcStore, count: int, part: int) -> Iterator[str]:
    """What the votes of `count` views solve, and what those of every `part` among them do."""
    outputs, asked = outputs_of_store(store)
    rows, order = voting_views(store, count, own_colours=TrainConfig().own_colours, seed=0)
    sides = np.array([group.side for group in store.groups])[store.pair_groups[rows.pairs]]
    voter = Voter(store, asked, 8, Accelerator(cpu=True), windows=True, task_rows=True)
    solutions, whole = solutions_of(store), Tally(outputs)
    for start in range(0, count, part):
        tally, chosen = Tally(outputs), (order >= start) & (order < start + part)
        for side in np.unique(sides).tolist():
            for _, found in voter.answers(loaded, rows[np.flatnonzero(chosen & (sides == side))], side):
                tally.add(found)
                whole.add(found)
        yield f"views {start} to {start + part - 1}: {solved(tally, solutions)}"
    yield f"all {count} views: {solved(whole, solutions)}"


def solved(tally: Tally, solutions: Mapping[str, Sequence[Grid]]) -> str:
    """How many outputs different ways to choose attempts solve."""
    candidates = [[candidate.grid for candidate in own] for own in tally.ranked().values()]
    attempts = [tally.attempts(output) for output in range(len(candidates))]
    truths = [grid for grids in solutions.values() for grid in grids]
    ways = {"two attempts": (attempts, 2), "the consensus": (attempts, 1), "two candidates": (candidates, 2)}
    ways |= {"one candidate": (candidates, 1), "any": (candidates, max(map(len, candidates)))}
    counts = {
        way: sum(any(np.array_equal(truth, grid) for grid in own[:k]) for truth, own in zip(truths, grids, strict=True))
        for way, (grids, k) in ways.items()
    }
    return ", ".join(f"{way} {count}" for way, count in counts.items()) + f" of {len(truths)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", metavar="N", type=int, nargs="*", default=(), help="read answers after these steps")
    parser.add_argument("--votes", metavar="N", type=int, default=0, help="count the votes of N views")
    parser.add_argument("--parts", metavar="N", type=int, default=16, help="and of every N views among them")
    arguments = parser.parse_args()
    store, first = load(arguments.data), None
    for path in arguments.exports:
        export = read_export(path)
        loaded = predictor(export, store)
        found = measure(loaded, store, arguments.steps)
        for index, step in enumerate(arguments.steps or (export.halting.max_supervision_steps,)):
            figures = summary(store, found[:, index])
            print(f"{path}, {step} steps: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
            if first is None:
                first = found[:, index]
            else:
                mean, low, high = difference(store, found[:, index], first)
                print(f"  exact, minus the first: {mean:+.4f}, 90 % interval {low:+.4f} to {high:+.4f}", flush=True)
        loaded = replace(loaded, halting=export.halting)
        for line in votes(loaded, store, arguments.votes, arguments.parts) if arguments.votes else ():
            print(f"{path}: {line}", flush=True)


if __name__ == "__main__":
    main()
