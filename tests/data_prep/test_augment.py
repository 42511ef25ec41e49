"""The augmentation group: laws, distinct augmentations."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.augment import distinct_augmentations
from data_prep.grid import DIHEDRAL_KEEPS_SHAPE, Grid, dihedral, grid_digest
from data_prep.tasks import Pair
from tests.data_prep.material import (
    IDENTITY,
    Augmentation,
    augmentations,
    grid,
    grids,
    pair,
    random_task,
)


@given(augmentations(), grids(5))
def test_an_augmentation_can_be_undone(augmentation: Augmentation, drawn: Grid) -> None:
    assert np.array_equal(augmentation.inverse().apply(augmentation.apply(drawn)), drawn)
    assert np.array_equal(augmentation.apply(augmentation.inverse().apply(drawn)), drawn)
    assert augmentation.inverse().inverse() == augmentation
    assert np.array_equal(IDENTITY.apply(drawn), drawn)


def test_there_are_eight_dihedral_elements_and_half_of_them_keep_the_shape() -> None:
    shapes = [dihedral(grid(["12"]), element).shape for element in range(8)]
    assert tuple(shape == (1, 2) for shape in shapes) == DIHEDRAL_KEEPS_SHAPE
    with pytest.raises(ValueError, match="expected 0-7"):
        dihedral(grid(["1"]), 8)


def images(pairs: list[Pair], elements: np.ndarray, colours: np.ndarray) -> list[tuple[str, ...]]:
    """The augmented pairs as sorted digests, one entry for each augmentation."""
    result = []
    for element, permutation in zip(elements, colours, strict=True):
        augmentation = Augmentation(int(element), tuple(map(int, permutation)))
        result.append(
            tuple(
                sorted(
                    grid_digest(augmentation.apply(p.input))
                    + ("" if p.output is None else grid_digest(augmentation.apply(p.output)))
                    for p in pairs
                )
            )
        )
    return result


def orbit_size(pairs: list[Pair]) -> int:
    """How many distinct augmentations exist, by trying each one on the colours in use."""
    grids = [g for p in pairs for g in (p.input, p.output) if g is not None]
    used = sorted({int(c) for g in grids for c in np.unique(g)} - {0})
    rest = [c for c in range(1, 10) if c not in used]
    elements, colours = [], []
    for image in permutations(range(1, 10), len(used)):
        permutation = np.zeros(10, np.uint8)
        permutation[used] = image
        permutation[rest] = [c for c in range(1, 10) if c not in image]
        elements += range(8)
        colours += [permutation] * 8
    return len(set(images(pairs, np.array(elements), np.array(colours))))


SYMMETRIC = {
    "one colour, no symmetry": [pair(["0010", "0100"], ["1"])],
    "one colour, square symmetry": [pair(["010", "101", "010"], ["1"])],
    "background only": [pair(["00"], ["000"])],
    "colours that change places": [pair(["12", "00"], ["1"]), pair(["21", "00"], ["2"])],
    "a turn that needs a change of colours": [pair(["12"], ["1", "2"])],
    "pairs that change places": [pair(["1"], ["20"]), pair(["1"], ["02"])],
    "three colours in equal roles": [pair(["1"], ["0"]), pair(["2"], ["0"]), pair(["3"], ["0"])],
    "hidden output": [pair(["130", "022"], None), pair(["3"], ["1"])],
    "the same pair twice": [pair(["12"], ["3"]), pair(["12"], ["3"])],
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_as_many_as_exist_and_none_twice(name: str) -> None:
    pairs = SYMMETRIC[name]
    elements, colours = distinct_augmentations(pairs, 5000, np.random.default_rng(5))
    found = images(pairs, elements, colours)
    assert len(set(found)) == len(found) == orbit_size(pairs)
    assert (elements[0], tuple(colours[0])) == (0, IDENTITY.permutation)
    assert elements.dtype == colours.dtype == np.uint8


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(2, 10))
@settings(max_examples=30)
def test_counts_are_exact_whatever_the_way(seed: int, count: int, colours: int) -> None:
    pairs = list(random_task(seed, colours=colours).pairs)
    elements, permutations_ = distinct_augmentations(pairs, count, np.random.default_rng(seed))
    found = images(pairs, elements, permutations_)
    existing = 8 * math.perm(9, colours - 1)
    assert len(set(found)) == len(found) == min(count + 1, existing)
    assert found[0] == images(pairs, np.zeros(1, np.uint8), np.arange(10)[None])[0]


def test_the_draw_is_seeded_and_spread() -> None:
    pairs = list(random_task(3).pairs)
    first, again, other = (distinct_augmentations(pairs, 4000, np.random.default_rng(s)) for s in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[1], other[1])
    assert np.all(np.bincount(first[0], minlength=8) > 4000 / 8 * 0.8)
    assert np.all(np.bincount(first[1][:, 4], minlength=10)[1:] > 4000 / 9 * 0.8)


@pytest.mark.parametrize(
    "pairs", [list(random_task(1).pairs), SYMMETRIC["one colour, no symmetry"]], ids=["many exist", "few exist"]
)
def test_a_larger_count_gives_the_same_ones_first_and_then_more(pairs: list[Pair]) -> None:
    found = [distinct_augmentations(pairs, count, np.random.default_rng(5)) for count in (7, 23, 500)]
    for fewer, more in pairwise(found):
        for first, longer in zip(fewer, more, strict=True):
            assert len(first) < len(longer)
            assert np.array_equal(first, longer[: len(first)])
