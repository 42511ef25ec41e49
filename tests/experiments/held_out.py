"""How well do exports answer test pairs that were held out of their training: token loss, exact answers.

    python -m tests.experiments.held_out --data data/small submission/checkpoint runs/small

The dataset is built with `--hold-out`; an export needs embedding rows that belong to tasks. Every held-out pair is
answered under eight rotations and reflections in its own colours, and under sixteen random views; the same for each
export, in float32. Votes are not counted: with forty pairs one more or less is chance, while the loss moves early.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from arc_trm.batches import ArcBatches
from arc_trm.checkpoint import Export, RowNames, carry_over, load_weights, read_export
from arc_trm.model import RecursiveModel
from arc_trm.sampler import Rows, evaluation_rows, fixed_batches
from data_prep.canvas import IGNORE_LABEL
from data_prep.files import InputError
from data_prep.grid import COLOURS
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


@torch.no_grad()
def answers(export: Export, store: ArcStore, rows: Rows) -> Iterator[tuple[float, bool]]:
    """Token loss (soft-max, mean over a row's labelled tokens) of each row, and whether all its tokens are right."""
    model = RecursiveModel(export.model).eval()
    load_weights(model, export.weights)
    if export.puzzle_names is None or export.puzzle_table is None or not model.config.view_positions:
        raise InputError("an export without rows of tasks, expected one of model.embedding_rows task")
    known = RowNames.of_owners(export.puzzle_names)
    wanted = RowNames.of_owners(store.demonstration_digests())
    table, _ = carry_over(known, export.puzzle_table.float(), wanted, export.puzzle_mean.float())
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
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


if __name__ == "__main__":
    main()
