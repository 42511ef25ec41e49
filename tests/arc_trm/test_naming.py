"""Embedding rows find their puzzles again when the data grow, shrink or change their order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.naming import PuzzleNaming, carry_over
from data_prep.grid import Augmentation
from tests.arc_trm.arc_stores import mixed_store, puzzle_names

# A puzzle by name: (group, dihedral element, which of a few permutations)
Names = list[tuple[str, int, int]]
PERMUTATIONS = (tuple(range(10)), (0, 9, 8, 7, 6, 5, 4, 3, 2, 1), (0, 2, 1, 3, 4, 5, 6, 7, 8, 9))

names_strategy = st.lists(
    st.tuples(st.sampled_from(["a/1", "a/2", "b/1", "b/11"]), st.integers(0, 7), st.integers(0, 2)),
    unique=True,
    min_size=1,
    max_size=30,
)


def naming(names: Names) -> PuzzleNaming:
    groups = tuple(sorted({group for group, _, _ in names}, reverse=len(names) % 2 == 0))
    return PuzzleNaming(
        groups,
        np.array([groups.index(group) for group, _, _ in names], np.int32),
        np.array([element for _, element, _ in names], np.uint8),
        np.array([PERMUTATIONS[which] for _, _, which in names], np.uint8),
    )


@given(names_strategy, names_strategy)
def test_known_puzzles_keep_their_rows_and_new_ones_start_at_the_mean(old: Names, new: Names) -> None:
    table = torch.arange(3 * len(old), dtype=torch.float32).view(-1, 3) ** 1.5
    rows, known = carry_over(naming(old), table, naming(new))
    expected = torch.stack([table[old.index(name)] if name in old else table.mean(0) for name in new])
    assert torch.equal(rows, expected)
    assert known == len(set(old) & set(new))


@given(names_strategy)
def test_a_naming_survives_a_checkpoint(names: Names) -> None:
    before = naming(names)
    after = PuzzleNaming.from_tensors(before.tensors(), list(before.groups))
    assert after.groups == before.groups
    for name in ("puzzle_groups", "dihedrals", "permutations"):
        one, two = getattr(before, name), getattr(after, name)
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)


def test_the_naming_of_a_store_is_that_of_its_puzzles() -> None:
    store = mixed_store()
    named = PuzzleNaming.of(store)
    keys = named.keys(named.groups)
    assert len(np.unique(keys)) == len(keys) == len(store.puzzle_groups)
    for puzzle, name in enumerate(puzzle_names(store)):
        augmentation = Augmentation(int(named.dihedrals[puzzle]), tuple(map(int, named.permutations[puzzle])))
        assert augmentation.to_name(named.groups[named.puzzle_groups[puzzle]]) == name


def test_more_augmentations_keep_what_was_known() -> None:
    few, many = mixed_store(5), mixed_store(11)
    table = torch.randn(len(few.puzzle_groups), 3, generator=torch.Generator().manual_seed(1))
    rows, known = carry_over(PuzzleNaming.of(few), table, PuzzleNaming.of(many))
    old, new = map(puzzle_names, (few, many))
    assert known == len(set(old) & set(new)) >= len(few.groups)
    for name, row in zip(new, rows, strict=True):
        assert torch.equal(row, table[old.index(name)] if name in old else table.mean(0))
