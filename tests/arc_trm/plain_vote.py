"""The plain path from predictions to votes, one prediction at a time, and predictions to feed it with."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from arc_trm.vote import MOST_COST, Predictions
from data_prep.augment import Augmentations
from data_prep.canvas import COLOUR_OFFSET, EOS, PAD, encode
from data_prep.grid import INVERSE_DIHEDRAL, Grid, dihedral, grid_digest
from tests.data_prep.material import IDENTITY, Augmentation, decode, together

# (output, grid digest) -> the halting probabilities of its votes, in feeding order
PlainVotes = dict[tuple[int, str], list[float]]


def augmentation_of(predictions: Predictions, i: int) -> Augmentation:
    return Augmentation.of_row(predictions.augmentations, i)


def plain_grid(predictions: Predictions, i: int) -> Grid | None:
    """Prediction i in the frame of its task."""
    grid = decode(predictions.tokens[i], side=predictions.side)
    return None if grid is None else augmentation_of(predictions, i).inverse().apply(grid)


def plain_votes(predictions: Predictions) -> PlainVotes:
    votes: PlainVotes = defaultdict(list)
    for i in range(len(predictions.tokens)):
        grid = plain_grid(predictions, i)
        if grid is not None:
            votes[int(predictions.outputs[i]), grid_digest(grid)].append(float(predictions.halting[i]))
    return dict(votes)


def plain_ranking(votes: PlainVotes, output: int) -> list[str]:
    """Digests of the grids of one output, best first."""
    own = {digest: halting for (i, digest), halting in votes.items() if i == output}
    return sorted(own, key=lambda d: (-len(own[d]), -sum(own[d]) / len(own[d]), d))


def random_augmentations(n: int, rng: np.random.Generator) -> Augmentations:
    """Random augmentations [n] that keep colour 0."""
    permutations = np.tile(np.arange(10, dtype=np.uint8), (n, 1))
    permutations[:, 1:] = rng.permuted(permutations[:, 1:], axis=1)
    return Augmentations(rng.integers(0, 8, n, dtype=np.uint8), permutations)


def random_predictions(
    outputs: int, per_output: int, rng: np.random.Generator, side: int = 30, wrong: float = 0.3
) -> Predictions:
    """Predictions of a random grid for each output (3 cells a side or more), a share of them wrong.

    Half of the wrong ones come from four repeated mistakes, the others differ each; a third of all wrong
    ones has another size.
    """
    n = outputs * per_output
    augmentations = random_augmentations(n, rng)
    tokens = np.empty((n, side * side), dtype=np.uint8)
    for output in range(outputs):
        right = rng.integers(0, 10, rng.integers(3, side + 1 - (side < 30), 2), dtype=np.uint8)
        mistakes = [_mistaken(right, rng) for _ in range(4)]
        for i in range(output * per_output, (output + 1) * per_output):
            grid = right
            if rng.random() < wrong:
                grid = mistakes[rng.integers(4)] if rng.random() < 0.5 else _mistaken(right, rng)
            tokens[i] = encode(Augmentation.of_row(augmentations, i).apply(grid), side=side)
    return Predictions(
        tokens,
        rng.random(n, dtype=np.float32),
        np.repeat(np.arange(outputs, dtype=np.int32), per_output),
        augmentations,
    )


def _mistaken(grid: Grid, rng: np.random.Generator) -> Grid:
    """The grid with one to three cells repainted, and every third time cut short."""
    wrong = grid.copy()
    for _ in range(rng.integers(1, 4)):
        wrong[rng.integers(wrong.shape[0]), rng.integers(wrong.shape[1])] = rng.integers(0, 10)
    if rng.random() < 1 / 3:
        wrong = wrong[: rng.integers(2, wrong.shape[0] + 1), : rng.integers(2, wrong.shape[1] + 1)]
    return wrong


def weird_predictions(n: int, outputs: int, side: int, rng: np.random.Generator) -> Predictions:
    """Canvases as an untrained model fills them: few colours so that grids repeat, stray PAD and EOS, a token 12."""
    augmentations = random_augmentations(n, rng)
    tokens = rng.integers(2, 4, (n, side * side), dtype=np.uint8)
    stray = rng.random((n, side * side)) < rng.choice([0.0, 0.05, 0.4, 1.0], (n, 1))
    tokens[stray] = rng.choice(np.array([PAD, EOS, 12], dtype=np.uint8), int(stray.sum()))
    drawn = rng.integers(0, outputs, n, dtype=np.int32)
    costs = rng.integers(0, MOST_COST, (n, side * side, 10), dtype=np.int16)
    return Predictions(tokens, rng.random(n, dtype=np.float32), drawn, augmentations, costs)


def plain_consensus(predictions: Predictions, output: int) -> Grid | None:
    """The likeliest colour of every cell, by all grids of the size with most predictions; the best's among several."""
    assert predictions.costs is not None
    costs: dict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)
    for i in np.flatnonzero(predictions.outputs == output).tolist():
        grid, augmentation = plain_grid(predictions, i), augmentation_of(predictions, i)
        if grid is not None:
            own = np.empty((*grid.shape, 10), np.int64)
            for colour in range(10):
                seen = predictions.costs[i, :, augmentation.permutation[colour]].reshape(predictions.side, -1)
                shape = augmentation.apply(grid).shape
                own[..., colour] = dihedral(seen[: shape[0], : shape[1]], INVERSE_DIHEDRAL[augmentation.dihedral])
            costs[grid.shape].append(own)
    if not costs:
        return None
    most = max(map(len, costs.values()))
    grids = {digest: plain_grid(predictions, i) for i, digest in _digests(predictions, output)}
    shapes = (grids[digest].shape for digest in plain_ranking(plain_votes(predictions), output))  # type: ignore[union-attr]
    shape = next(shape for shape in shapes if len(costs[shape]) == most)
    return np.argmin(sum(costs[shape]), axis=2).astype(np.uint8)


def _digests(predictions: Predictions, output: int) -> list[tuple[int, str]]:
    grids = ((i, plain_grid(predictions, i)) for i in np.flatnonzero(predictions.outputs == output).tolist())
    return [(i, grid_digest(grid)) for i, grid in grids if grid is not None]


def select(predictions: Predictions, rows: np.ndarray) -> Predictions:
    """Those predictions only, in that order."""
    columns = (getattr(predictions, field.name) for field in fields(Predictions))
    return Predictions(*(None if column is None else column[rows] for column in columns))


def sure(predictions: Predictions, wrong: int = 3) -> Predictions:
    """The predictions, each sure of all its cells: a colour that it does not have costs `wrong`."""
    tokens = predictions.tokens[..., None] - COLOUR_OFFSET
    return replace(predictions, costs=np.where(tokens == np.arange(10), 0, wrong).astype(np.int16))


def votes_for(
    votes: Sequence[tuple[int, Grid, float]], augmentations: Sequence[Augmentation] | None = None, side: int = 30
) -> Predictions:
    """A prediction of each grid, given as (number of the output, grid, halting probability)."""
    made = augmentations or [IDENTITY] * len(votes)
    canvases = [encode(one.apply(grid), side=side) for one, (_, grid, _) in zip(made, votes, strict=True)]
    return Predictions(
        np.stack(canvases),
        np.array([halting for _, _, halting in votes], dtype=np.float32),
        np.array([output for output, _, _ in votes], dtype=np.int32),
        together(made),
    )
