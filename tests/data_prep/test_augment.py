"""The augmentation group: laws, distinct augmentations."""

import math
from itertools import pairwise, permutations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.augment import Augmentations, distinct_augmentations
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
    same_augmentations,
    together,
)


@given(augmentations(), grids(5))
def test_the_plain_reference_is_undone_by_its_inverse(augmentation: Augmentation, drawn: Grid) -> None:
    assert np.array_equal(augmentation.inverse().apply(augmentation.apply(drawn)), drawn)
    assert np.array_equal(augmentation.apply(augmentation.inverse().apply(drawn)), drawn)
    assert augmentation.inverse().inverse() == augmentation
    assert np.array_equal(IDENTITY.apply(drawn), drawn)


@given(st.lists(augmentations(), min_size=1, max_size=7), st.integers(1, 5), st.data())
def test_apply_and_inverse_equal_the_plain_reference_of_every_row(
    rows: list[Augmentation], side: int, data: st.DataObject
) -> None:
    stacked = data.draw(hnp.arrays(np.uint8, (len(rows), side, side), elements=st.integers(0, 9)))
    many = together(rows)
    applied = many.apply(stacked)
    assert all(np.array_equal(*both) for both in zip(applied, map(Augmentation.apply, rows, stacked), strict=True))
    assert same_augmentations(many.inverse(), together([row.inverse() for row in rows]))
    assert np.array_equal(many.inverse().apply(applied), stacked)


@given(augmentations(), hnp.arrays(np.uint8, (3, 2, 5), elements=st.integers(0, 9)))
def test_oblong_grids_under_one_augmentation_are_turned_together(row: Augmentation, stacked: np.ndarray) -> None:
    many = together([row] * 3)
    applied = many.apply(stacked)
    assert np.array_equal(applied, np.stack([row.apply(one) for one in stacked]))
    assert np.array_equal(many.turned(np.array([[2, 5]] * 3)), [applied.shape[1:]] * 3)


def test_apply_refuses_oblong_grids_that_would_differ_in_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        together([Augmentation(t, IDENTITY.permutation) for t in (0, 1)]).apply(np.zeros((2, 2, 5), np.uint8))


def test_joined_rows_are_found_again_and_the_identity_changes_nothing() -> None:
    rows = [Augmentation(t, (0, *range(9, 0, -1))) for t in (3, 5)]
    both = Augmentations.joined([Augmentations.identity(3), together(rows)])
    assert len(both) == 5
    assert [Augmentation.of_row(both, i) for i in range(5)] == [IDENTITY] * 3 + rows
    assert same_augmentations(both[3:], together(rows))
    assert same_augmentations(both[np.array([4, 0])], together([rows[1], IDENTITY]))


def test_there_are_eight_dihedral_elements_and_half_of_them_keep_the_shape() -> None:
    shapes = [dihedral(grid(["12"]), element).shape for element in range(8)]
    assert tuple(shape == (1, 2) for shape in shapes) == DIHEDRAL_KEEPS_SHAPE
    with pytest.raises(ValueError, match="expected 0-7"):
        dihedral(grid(["1"]), 8)


def augmented_digests(pairs: list[Pair], augmentation: Augmentation) -> tuple[str, ...]:
    """The digests of the augmented pairs, sorted."""
    grids = ([p.input] if p.output is None else [p.input, p.output] for p in pairs)
    return tuple(sorted("".join(grid_digest(augmentation.apply(one)) for one in both) for both in grids))


def images(pairs: list[Pair], drawn: Augmentations) -> list[tuple[str, ...]]:
    """The augmented pairs as sorted digests, one entry for each augmentation."""
    return [augmented_digests(pairs, Augmentation.of_row(drawn, row)) for row in range(len(drawn))]


def orbit_size(pairs: list[Pair]) -> int:
    """How many distinct augmentations exist, by trying each one on the colours in use."""
    grids = [g for p in pairs for g in (p.input, p.output) if g is not None]
    used = sorted({int(c) for g in grids for c in np.unique(g)} - {0})
    unused = [c for c in range(10) if c not in used]
    found = set()
    for image in permutations(range(1, 10), len(used)):
        table = dict(zip(used + unused, [*image, *(c for c in range(10) if c not in image)], strict=True))
        permutation = tuple(table[c] for c in range(10))
        found |= {augmented_digests(pairs, Augmentation(element, permutation)) for element in range(8)}
    return len(found)


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
def test_distinct_augmentations_are_all_that_exist_and_none_twice(name: str) -> None:
    pairs = SYMMETRIC[name]
    drawn = distinct_augmentations(pairs, 5000, np.random.default_rng(5))
    found = images(pairs, drawn)
    assert len(set(found)) == len(found) == orbit_size(pairs)
    assert Augmentation.of_row(drawn, 0) == IDENTITY
    assert drawn.dihedrals.dtype == drawn.permutations.dtype == np.uint8


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(2, 10))
@settings(max_examples=30)
def test_distinct_augmentations_are_as_many_as_asked_for_or_exist(seed: int, count: int, colours: int) -> None:
    pairs = list(random_task(seed, colours=colours).pairs)
    found = images(pairs, distinct_augmentations(pairs, count, np.random.default_rng(seed)))
    existing = 8 * math.perm(9, colours - 1)
    assert len(set(found)) == len(found) == min(count + 1, existing)
    assert found[0] == augmented_digests(pairs, IDENTITY)


def test_distinct_augmentations_depend_on_the_seed_and_are_spread() -> None:
    pairs = list(random_task(3).pairs)
    first, again, other = (distinct_augmentations(pairs, 4000, np.random.default_rng(s)) for s in (1, 1, 2))
    assert same_augmentations(first, again)
    assert not same_augmentations(first, other)
    assert np.all(np.bincount(first.dihedrals, minlength=8) > 4000 / 8 * 0.8)
    assert np.all(np.bincount(first.permutations[:, 4], minlength=10)[1:] > 4000 / 9 * 0.8)


@pytest.mark.parametrize(
    "pairs", [list(random_task(1).pairs), SYMMETRIC["one colour, no symmetry"]], ids=["many exist", "few exist"]
)
def test_a_larger_count_gives_the_same_ones_first_and_then_more(pairs: list[Pair]) -> None:
    found = [distinct_augmentations(pairs, count, np.random.default_rng(5)) for count in (7, 23, 500)]
    for fewer, more in pairwise(found):
        assert len(fewer) < len(more)
        assert same_augmentations(fewer, more[: len(fewer)])
