"""From predicted canvases to counted candidate grids in the frame of their task.

Cut the largest rectangle out of every canvas, undo colours and dihedral element, count equal grids. Undoing
equals `augmentation.inverse().apply(grid)`; here it runs over whole groups of predictions at once.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from data_prep.canvas import COLOUR_OFFSET, VOCAB_SIZE, largest_rectangles
from data_prep.grid import COLOURS, DIHEDRALS, INVERSE_DIHEDRAL, dihedral
from submission.vote import Counted, count_votes

# Canvases handled at once: few enough to stay in the processor's cache.
CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Predictions:
    """n predicted canvases at placement (0, 0), and the augmentation that each one's puzzle carries."""

    tokens: NDArray[np.uint8]  # [n, side * side]
    halting: NDArray[np.float32]  # [n] probability
    outputs: NDArray[np.int32]  # [n] which output is predicted
    dihedrals: NDArray[np.uint8]  # [n]
    permutations: NDArray[np.uint8]  # [n, 10]
    closed: NDArray[np.bool_] | None = None  # [n]; those that are not get no vote: the caller predicts them anew
    puzzles: NDArray[np.int64] | None = None  # [n] ids of the augmented views, remembered with the candidates

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together."""
        n = len(self.tokens)
        if self.tokens.dtype != np.uint8 or self.tokens.ndim != 2 or self.side**2 != self.tokens.shape[1]:
            raise ValueError(f"tokens {self.tokens.dtype}{list(self.tokens.shape)}, expected uint8[n, side * side]")
        if self.permutations.shape != (n, COLOURS):
            raise ValueError(f"permutations {list(self.permutations.shape)}, expected [{n}, {COLOURS}]")
        for name in ("halting", "outputs", "dihedrals", "closed", "puzzles"):
            values = getattr(self, name)
            if values is not None and values.shape != (n,):
                raise ValueError(f"{name} {list(values.shape)}, expected [{n}]")

    @property
    def side(self) -> int:
        """Side of the canvases."""
        return isqrt(self.tokens.shape[1])


def count_candidates(predictions: Predictions) -> Counted:
    """The distinct grids that were predicted for each output, counted; an empty cut is no candidate."""
    rows, keys = candidate_keys(predictions)
    puzzles = None if predictions.puzzles is None else predictions.puzzles[rows]
    return count_votes(predictions.outputs[rows], keys, predictions.halting[rows], puzzles)


def candidate_keys(predictions: Predictions) -> tuple[NDArray[np.int64], list[bytes]]:
    """(rows, keys): the predictions that hold a grid, and its key with the augmentation undone.

    Rows come in no particular order; missing are those where nothing was cut out and those not closed. For
    keys see `submission.ranking`. Raises ValueError for a dihedral element or a permutation that is none.
    """
    if len(predictions.dihedrals) and predictions.dihedrals.max() >= len(DIHEDRALS):
        raise ValueError(f"dihedral element {predictions.dihedrals.max()}, expected 0-{len(DIHEDRALS) - 1}")
    tables = _token_tables(predictions.permutations)
    heights, widths = _rectangles(predictions.tokens, predictions.side)
    there = heights > 0 if predictions.closed is None else (heights > 0) & predictions.closed
    # Equal shape and dihedral element: one list of source cells serves them all. 13 bits sort by radix.
    kinds = heights.astype(np.uint16) << 8 | widths.astype(np.uint16) << 3 | predictions.dihedrals
    rows = np.flatnonzero(there)
    rows = rows[np.argsort(kinds[rows], kind="stable")]
    kinds = kinds[rows]
    starts = np.flatnonzero(np.diff(kinds, prepend=np.uint16(0))).tolist()
    keys: list[bytes] = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=False):
        kind = int(kinds[start])
        for first in range(start, end, CHUNK):
            chosen = rows[first : min(first + CHUNK, end)]
            keys += _undo(predictions.tokens[chosen], tables[chosen], (kind >> 8, kind >> 3 & 31), kind & 7)
    return rows, keys


def _rectangles(tokens: NDArray[np.uint8], side: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(heights, widths) of all cuts, taken in pieces that stay in the cache."""
    heights, widths = np.empty(len(tokens), dtype=np.uint8), np.empty(len(tokens), dtype=np.uint8)
    for start in range(0, len(tokens), CHUNK):
        part = slice(start, start + CHUNK)
        heights[part], widths[part] = largest_rectangles(tokens[part], side)
    return heights, widths


def _token_tables(permutations: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8[n, 12]: for every prediction the original colour behind each token."""
    colours = np.arange(COLOURS, dtype=np.uint8)
    wrong = (np.sort(permutations, axis=1) != colours).any(axis=1)
    if wrong.any():
        raise ValueError(f"colours {permutations[wrong][0].tolist()}, expected a permutation of 0-9")
    tables = np.zeros((len(permutations), VOCAB_SIZE), dtype=np.uint8)
    np.put_along_axis(tables, permutations.astype(np.intp) + COLOUR_OFFSET, colours[None], axis=1)
    return tables


def _undo(canvases: NDArray[np.uint8], tables: NDArray[np.uint8], shape: tuple[int, int], element: int) -> list[bytes]:
    """Keys of the `shape` corner of every canvas, after the inverse of `element` and of the colours."""
    side = isqrt(canvases.shape[1])
    corner = np.arange(side * side).reshape(side, side)[: shape[0], : shape[1]]
    source = dihedral(corner, INVERSE_DIHEDRAL[element])
    # One look-up in the tables of all predictions laid end to end.
    places = np.add(
        canvases.take(source.reshape(-1), axis=1),
        np.arange(0, tables.size, VOCAB_SIZE)[:, None],
        dtype=np.intp,
    )
    keys = np.empty((len(canvases), 2 + source.size), dtype=np.uint8)
    keys[:, :2] = source.shape
    keys[:, 2:] = tables.reshape(-1).take(places)
    return keys.view(f"V{keys.shape[1]}")[:, 0].tolist()
