"""How well do exports answer test pairs that were held out of their training: token loss, exact answers.

    python -m tests.experiments.held_out --data data/small submission/checkpoint runs/small
    python -m tests.experiments.held_out --data data/small --votes 64 submission/checkpoint

The dataset is built with `--hold-out`; an export needs embedding rows that belong to tasks. Every held-out pair is
answered under eight rotations and reflections in its own colours, and under sixteen random views; the same for each
export, in float32. With forty pairs one solved output more or less is chance, while the loss moves early, so that
votes are counted only with --votes N: those of N views, and of every few among them.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator

from arc_trm.batches import ArcBatches
from arc_trm.checkpoint import Export, RowNames, carry_over, load_weights, read_export
from arc_trm.config import TrainConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor, Voter, outputs_of_store
from arc_trm.sampler import Rows, evaluation_rows, fixed_batches, voting_views
from arc_trm.scoring import solutions_of
from arc_trm.vote import Tally
from data_prep.canvas import IGNORE_LABEL
from data_prep.files import InputError
from data_prep.grid import COLOURS, Grid
from data_prep.store import ArcStore, load

BATCH = 64
OWN, RANDOM = 8, 16


def views(pairs: Rows, own: bool) -> Rows:
    """Every pair under OWN dihedral elements without change of colours, or under RANDOM random views."""
    count = OWN if own else RANDOM
    rows = pairs[np.repeat(np.arange(len(pairs)), count)]
    generator = np.random.default_rng(7)
    if own:
        dihedrals = np.tile(np.arange(8, dtype=np.uint8), len(pairs))
        permutations = np.tile(np.arange(COLOURS, dtype=np.uint8), (len(rows), 1))
    else:
        dihedrals = generator.integers(8, size=len(rows), dtype=np.uint8)
        permutations = np.zeros((len(rows), COLOURS), np.uint8)
        permutations[:, 1:] = generator.permuted(np.tile(np.arange(1, COLOURS, dtype=np.uint8), (len(rows), 1)), axis=1)
    return Rows(rows.puzzles, rows.pairs, rows.rows, rows.columns, dihedrals, permutations)


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
    return Predictor(model, model, embedding, export.halting, torch.float32)


@torch.no_grad()
def answers(export: Export, store: ArcStore, rows: Rows) -> Iterator[tuple[float, bool]]:
    """Token loss (soft-max, mean over a row's labelled tokens) of each row, and whether all its tokens are right."""
    loaded = predictor(export, store)
    model, table = loaded.model, loaded.embedding.table
    side = max(group.side for group in store.groups)
    batches, size = ArcBatches(store, "cpu", side, None, True), min(BATCH, len(rows))
    for chunk, valid in fixed_batches(rows, size):
        batch = batches.make(chunk)
        state = model.initial_state(size, side * side, torch.float32)
        for _ in range(export.halting.max_supervision_steps):
            output = model(state, batch.inputs, table[batch.puzzle_ids], batch.views)
            state = output.state
        asked = batch.labels != IGNORE_LABEL
        losses = F.cross_entropy(
            output.logits.flatten(0, 1), batch.labels.flatten().long(), reduction="none", ignore_index=IGNORE_LABEL
        ).view(asked.shape)
        right = ((output.logits.argmax(-1) == batch.labels) | ~asked).all(1)
        yield from zip((losses.sum(1) / asked.sum(1))[:valid].tolist(), right[:valid].tolist(), strict=True)


def votes(export: Export, store: ArcStore, count: int, part: int) -> Iterator[str]:
    """What the votes of `count` views solve, and what those of every `part` among them do."""
    outputs, asked = outputs_of_store(store)
    sides = sorted({group.side for group in store.groups})
    if len(sides) > 1:
        raise InputError(f"--votes: a dataset with canvases of {sides}, expected one size")
    rows, order = voting_views(store, count, own_colours=TrainConfig().own_colours, seed=0)
    voter = Voter(store, asked, 8, Accelerator(cpu=True), windows=True, task_rows=True)
    loaded, solutions, whole = predictor(export, store), solutions_of(store), Tally(outputs)
    for start in range(0, count, part):
        tally, chosen = Tally(outputs), rows[np.flatnonzero((order >= start) & (order < start + part))]
        for _, found in voter.answers(loaded, chosen, sides[0]):
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
    parser.add_argument("--votes", metavar="N", type=int, default=0, help="count the votes of N views")
    parser.add_argument("--parts", metavar="N", type=int, default=16, help="and of every N views among them")
    arguments = parser.parse_args()
    store = load(arguments.data)
    pairs = evaluation_rows(store, augmentations=1)
    for path in arguments.exports:
        export, said = read_export(path), []
        for name, own in (("own colours", True), ("random views", False)):
            losses, right = np.array(list(answers(export, store, views(pairs, own)))).T
            hit = int(right.reshape(len(pairs), -1).any(1).sum())
            said.append(f"{name}: loss {losses.mean():.3f}, exact {right.mean():.2%}, {hit} of {len(pairs)} pairs hit")
        print(f"{path}: {'; '.join(said)}", flush=True)
        for line in votes(export, store, arguments.votes, arguments.parts) if arguments.votes else ():
            print(f"{path}: {line}", flush=True)


if __name__ == "__main__":
    main()
