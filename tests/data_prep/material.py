"""Grids from text, and random grids, pairs and tasks for property tests."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.augment import Augmentations
from data_prep.canvas import (
    CANVAS_SIDE,
    COLOUR_OFFSET,
    IGNORE_LABEL,
    ORIGIN,
    PAD,
    Placement,
    encode,
    largest_rectangles,
)
from data_prep.files import InputError, read_manifest, verify_digests
from data_prep.grid import COLOURS, INVERSE_DIHEDRAL, Grid, dihedral
from data_prep.store import ArcStore
from data_prep.tasks import Pair, Task


def grid(rows: Sequence[str]) -> Grid:
    """A grid from rows of colour digits."""
    return np.array([[int(cell) for cell in row] for row in rows], dtype=np.uint8)


def pair(given: Sequence[str], asked: Sequence[str] | None) -> Pair:
    return Pair(grid(given), None if asked is None else grid(asked))


def task(task_id: str, demonstrations: Sequence[Pair], tests: Sequence[Pair], corpus: str = "own") -> Task:
    return Task(task_id, corpus, tuple(demonstrations), tuple(tests))


def random_task(seed: int, task_id: str = "random", corpus: str = "own", colours: int = 10) -> Task:
    """Three demonstrations and two tests of prime sizes, too large to be alike by chance."""
    rng = np.random.default_rng(seed)

    def draw(height: int, width: int) -> Grid:
        return rng.integers(0, colours, (height, width), dtype=np.uint8)

    pairs = [Pair(draw(5, 7), draw(3, 2)), Pair(draw(7, 5), draw(2, 3)), Pair(draw(5, 5), draw(3, 3))]
    return task(task_id, pairs, [Pair(draw(7, 11), draw(5, 2)), Pair(draw(5, 7), draw(2, 2))], corpus)


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect InputError from the block, with `message` in its one line."""
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        yield
    assert "\n" not in str(caught.value)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def verified(folder: Path) -> Path:
    """The folder of a dataset whose files are what its manifest recorded; raises InputError for any other."""
    verify_digests(folder, read_manifest(folder))
    return folder


def as_json(made: Task, hide: bool = False) -> dict[str, Any]:
    """The task as JSON values; `hide` leaves out the test outputs."""

    def one(value: Pair, hidden: bool) -> dict[str, Any]:
        output = {} if value.output is None or hidden else {"output": value.output.tolist()}
        return {"input": value.input.tolist(), **output}

    return {
        "train": [one(value, False) for value in made.demonstrations],
        "test": [one(value, hide) for value in made.tests],
    }


def same_task(a: Task, b: Task) -> bool:
    """Whether ids, roles, order and every grid agree."""
    return (a.task_id, as_json(a)) == (b.task_id, as_json(b))


@dataclass(frozen=True)
class Augmentation:
    """The plain reference: recolour by `permutation` (old colour -> new colour), then apply a dihedral element."""

    dihedral: int
    permutation: tuple[int, ...]

    def apply(self, drawn: Grid) -> Grid:
        """A new contiguous array."""
        return np.ascontiguousarray(dihedral(np.array(self.permutation, dtype=np.uint8)[drawn], self.dihedral))

    def inverse(self) -> "Augmentation":
        return Augmentation(INVERSE_DIHEDRAL[self.dihedral], tuple(map(self.permutation.index, range(COLOURS))))

    @classmethod
    def of_row(cls, augmentations: Augmentations, row: int) -> "Augmentation":
        """One row of a value that holds many."""
        return cls(int(augmentations.dihedrals[row]), tuple(augmentations.permutations[row].tolist()))

    @classmethod
    def of(cls, store: ArcStore, puzzle: int) -> "Augmentation":
        """What makes a puzzle out of its task."""
        return cls.of_row(store.puzzle_augmentations, puzzle)


IDENTITY = Augmentation(0, tuple(range(COLOURS)))


def same_augmentations(a: Augmentations, b: Augmentations) -> bool:
    """Whether both hold the same rows."""
    return np.array_equal(a.dihedrals, b.dihedrals) and np.array_equal(a.permutations, b.permutations)


def together(rows: Sequence[Augmentation]) -> Augmentations:
    """The value that holds these rows."""
    elements, permutations = zip(*((row.dihedral, row.permutation) for row in rows), strict=True)
    return Augmentations(np.array(elements, np.uint8), np.array(permutations, np.uint8))


def grids(largest: int = 30, colours: int = 10) -> st.SearchStrategy[Grid]:
    shapes = st.tuples(st.integers(1, largest), st.integers(1, largest))
    return shapes.flatmap(lambda shape: hnp.arrays(np.uint8, shape, elements=st.integers(0, colours - 1)))


def augmentations() -> st.SearchStrategy[Augmentation]:
    orders = st.permutations(range(1, 10))
    return st.builds(lambda t, order: Augmentation(t, (0, *order)), st.integers(0, 7), orders)


SEPARATOR = "|||"


def puzzle_name(task_id: str, augmentation: Augmentation) -> str:
    """The puzzle's published name: `task|||t3|||0123456789`, the bare task id for the identity."""
    if augmentation == IDENTITY:
        return task_id
    return SEPARATOR.join([task_id, f"t{augmentation.dihedral}", "".join(map(str, augmentation.permutation))])


def named_augmentation(name: str) -> tuple[str, Augmentation]:
    """(task id, augmentation) of a published puzzle name."""
    task_id, *parts = name.rsplit(SEPARATOR, 2)
    return task_id, Augmentation(int(parts[0][1:]), tuple(map(int, parts[1]))) if parts else IDENTITY


def encode_example(
    input_grid: Grid,
    output_grid: Grid | None,
    augmentation: Augmentation,
    placement: Placement = ORIGIN,
    side: int = CANVAS_SIDE,
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """(tokens uint8[side * side], labels int32[side * side]) of one augmented, placed pair.

    Labels are the output's tokens, IGNORE_LABEL on PAD and everywhere when the output is hidden. This is
    the plain reference that batches must equal.
    """
    tokens = encode(augmentation.apply(input_grid), placement, side)
    labels = np.full(side * side, IGNORE_LABEL, dtype=np.int32)
    if output_grid is not None:
        output_tokens = encode(augmentation.apply(output_grid), placement, side)
        labels = np.where(output_tokens == PAD, IGNORE_LABEL, output_tokens.astype(np.int32))
    return tokens, labels


def decode(tokens: NDArray[np.uint8], placement: Placement = ORIGIN, side: int = CANVAS_SIDE) -> Grid | None:
    """The largest rectangle of colours whose top left cell is at the placement; None where it is empty.

    Among equal areas the one with fewer rows (the published rule).
    """
    canvas = tokens.reshape(side, side)[placement.row :, placement.column :]
    squared = np.full((side, side), PAD, dtype=tokens.dtype)
    squared[: canvas.shape[0], : canvas.shape[1]] = canvas
    heights, widths = largest_rectangles(squared.reshape(1, -1), side)
    if heights[0] == 0:
        return None
    return squared[: heights[0], : widths[0]] - np.uint8(COLOUR_OFFSET)
