"""Grids to hand in where the model predicted nothing: of the likely size, in the likely colours.

Several simple guesses are tried on the demonstrations first; those that come closest there go first.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from data_prep.canvas import Shape, implied_shapes
from data_prep.grid import COLOURS, MAX_SIDE, Grid
from data_prep.tasks import Pair, Task


def fallback_grids(task: Task, test: int) -> Iterator[Grid]:
    """Guesses at the output of test input number `test`, best first; always at least two distinct ones."""
    question = task.tests[test].input
    shape = likely_shape(task, question)
    shown = [pair for pair in task.demonstrations if pair.output is not None]
    for name in sorted(GUESSES, key=lambda name: -_agreement(GUESSES[name], shown)):
        grid = GUESSES[name](shown, question, shape)
        if grid is not None:
            yield grid
    for colour in _colours_by_frequency(shown):
        yield np.full(shape, colour, dtype=np.uint8)


def likely_shape(task: Task, question: Grid) -> Shape:
    """The output size that the demonstrations imply for `question`.

    Same as the input if they allow it, else what most of the size rules that hold say, else the most common
    size of a demonstration's output.
    """
    asked = implied_shapes(replace(task, tests=(Pair(question, None),)))
    possible = [shape for shape in asked if all(1 <= side <= MAX_SIDE for side in shape)]
    if not possible:
        possible = [pair.output.shape for pair in task.demonstrations if pair.output is not None]
    own = (question.shape[0], question.shape[1])
    return own if own in possible or not possible else Counter(possible).most_common(1)[0][0]


# A guess sees the demonstrations (maybe none), a question and the size its answer has; None: nothing to say.
Guess = Callable[[Sequence[Pair], Grid, Shape], Grid | None]


def _recolour(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    """The input, each colour replaced by what mostly stands in its place in demonstrations of equal size."""
    if question.shape != shape:
        return None
    counts = np.zeros((COLOURS, COLOURS), dtype=np.int64)
    for pair in shown:
        if pair.output is not None and pair.output.shape == pair.input.shape:
            np.add.at(counts, (pair.input, pair.output), 1)
    unseen = counts.sum(axis=1) == 0
    mapping = np.where(unseen, np.arange(COLOURS), counts.argmax(axis=1))
    return mapping.astype(np.uint8)[question]


def _copy(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    return question if question.shape == shape else None


def _common_cells(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    """In each cell the colour that stands there in most outputs of this size."""
    outputs = [pair.output for pair in shown if pair.output is not None and pair.output.shape == shape]
    if not outputs:
        return None
    votes = np.stack([(np.stack(outputs) == colour).sum(axis=0) for colour in range(COLOURS)])
    return votes.argmax(axis=0).astype(np.uint8)


def _tiled(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    repeats = _whole_ratio(question, shape)
    return None if repeats is None else np.tile(question, repeats)


def _enlarged(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    repeats = _whole_ratio(question, shape)
    return None if repeats is None else np.kron(question, np.ones(repeats, dtype=np.uint8))


def _filled(shown: Sequence[Pair], question: Grid, shape: Shape) -> Grid | None:
    return np.full(shape, _colours_by_frequency(shown)[0], dtype=np.uint8)


# Where two guesses agree equally well with the demonstrations, the one that stands first here goes first.
GUESSES: dict[str, Guess] = {
    "recolour": _recolour,
    "copy": _copy,
    "enlarged": _enlarged,
    "tiled": _tiled,
    "common cells": _common_cells,
    "filled": _filled,
}


def _whole_ratio(question: Grid, shape: Shape) -> Shape | None:
    height, width = question.shape
    return None if shape[0] % height or shape[1] % width else (shape[0] // height, shape[1] // width)


def _colours_by_frequency(shown: Sequence[Pair]) -> list[int]:
    """All ten colours, the most common one of the demonstrations' outputs first."""
    counts = sum(
        (np.bincount(pair.output.reshape(-1), minlength=COLOURS) for pair in shown if pair.output is not None),
        start=np.zeros(COLOURS, dtype=np.int64),
    )
    return np.argsort(-counts, kind="stable").tolist()


def _agreement(guess: Guess, shown: Sequence[Pair]) -> float:
    """Mean share of cells that the guess gets right on each demonstration, seeing only the others."""
    shares = [0.0]
    for i, pair in enumerate(shown):
        if pair.output is None:
            continue
        height, width = pair.output.shape
        grid = guess([*shown[:i], *shown[i + 1 :]], pair.input, (height, width))
        shares.append(0.0 if grid is None else float((grid == pair.output).mean()))
    return sum(shares) / len(shares)
