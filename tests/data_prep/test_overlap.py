"""Tasks and pairs that are the same up to symmetry; leaks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.grid import dihedral
from data_prep.overlap import PairDigest, find_leaks, pair_digest, trained_on, training_labels
from data_prep.store import TaskEntry, build_store
from data_prep.tasks import Pair, Task
from tests.data_prep.material import Augmentation, augmentations, grids, pair, random_task


def recolour(value: Pair, element: int, colours: list[int]) -> Pair:
    """A pair under a dihedral element and any permutation of the ten colours."""
    table = np.array(colours, dtype=np.uint8)
    return Pair(
        dihedral(table[value.input], element),
        None if value.output is None else dihedral(table[value.output], element),
    )


def recolour_task(made: Task, element: int, colours: list[int], **changes: object) -> Task:
    demonstrations, tests = (
        tuple(recolour(value, element, colours) for value in pairs) for pairs in (made.demonstrations, made.tests)
    )
    return replace(made, demonstrations=demonstrations, tests=tests, **changes)  # type: ignore[arg-type]


COLOURS = st.permutations(range(10)).map(list)


@given(st.builds(Pair, grids(6), st.none() | grids(6)), st.integers(0, 7), COLOURS)
def test_pair_digests_do_not_see_symmetry(value: Pair, element: int, colours: list[int]) -> None:
    digest = pair_digest(recolour(value, element, colours))
    assert digest == pair_digest(value)
    assert digest.input == pair_digest(Pair(value.input, None)).input
    assert (digest.pair == "") == (value.output is None)
    assert training_labels(f"task {digest} {digest}") == [digest] * 2


def symmetric(a: Pair, b: Pair) -> bool:
    """Whether one dihedral element and one renaming of colours turn `a` into `b`, by trying."""
    assert a.output is not None
    assert b.output is not None
    for element in range(8):
        grids = [(dihedral(old, element), new) for old, new in ((a.input, b.input), (a.output, b.output))]
        if all(old.shape == new.shape for old, new in grids):
            renamed = {
                pair for old, new in grids for pair in zip(old.ravel().tolist(), new.ravel().tolist(), strict=True)
            }
            if len(renamed) == len({old for old, _ in renamed}) == len({new for _, new in renamed}):
                return True
    return False


@given(st.builds(Pair, grids(3, 3), grids(3, 3)), st.builds(Pair, grids(3, 3), grids(3, 3)))
@settings(max_examples=300)
def test_pair_digests_are_equal_only_for_symmetric_pairs(a: Pair, b: Pair) -> None:
    assert (pair_digest(a) == pair_digest(b)) == symmetric(a, b)


def test_input_and_output_are_not_interchangeable() -> None:
    assert pair_digest(pair(["12"], ["11"])) != pair_digest(pair(["11"], ["12"]))
    assert pair_digest(pair(["12"], ["34"])) != pair_digest(pair(["12"], ["12"]))
    # Cells of the output must not be read as cells of the input, nor two rows as one.
    assert pair_digest(pair(["123"], ["4"])) != pair_digest(pair(["12"], ["34"]))
    assert pair_digest(pair(["1", "2"], ["1122"])) != pair_digest(pair(["1", "2"], ["11", "22"]))


def labels(made: Task, only: slice = slice(None)) -> tuple[str, list[tuple[int, PairDigest]]]:
    return made.name, list(enumerate(map(pair_digest, made.pairs)))[only]


def hide(made: Task) -> Task:
    return replace(made, tests=tuple(Pair(value.input, None) for value in made.tests))


@pytest.mark.parametrize("hidden", [False, True])
@given(element=st.integers(0, 7), colours=COLOURS)
@settings(max_examples=10)
def test_a_label_that_is_a_scored_test_leaks(hidden: bool, element: int, colours: list[int]) -> None:
    scored = random_task(5, "asked")
    copy = recolour_task(scored, element, colours, task_id="copy")
    found = find_leaks([labels(copy), labels(random_task(6))], [hide(scored) if hidden else scored])
    assert [(leak.training, leak.pair, leak.scored) for leak in found] == [
        ("own/copy", 3, "own/asked"),
        ("own/copy", 4, "own/asked"),
    ]


def test_a_test_pair_among_the_demonstrations_of_another_task_leaks() -> None:
    scored, other = random_task(5, "asked"), random_task(6, "other")
    mixed = replace(other, demonstrations=(*other.demonstrations, scored.tests[1]))
    assert [(leak.pair, leak.scored) for leak in find_leaks([labels(mixed)], [scored])] == [(3, "own/asked")]
    # With the output hidden, an equal input alone may be chance: a shared demonstration must confirm it.
    assert find_leaks([labels(mixed)], [hide(scored)]) == []
    confirmed = replace(mixed, tests=scored.demonstrations[:1])
    assert [leak.pair for leak in find_leaks([labels(confirmed)], [hide(scored)])] == [3]


def test_what_the_task_shows_itself_is_no_leak() -> None:
    scored = random_task(5, "asked")
    turned = replace(scored, tests=(recolour(scored.demonstrations[0], 3, [1, 0, *range(2, 10)]), scored.tests[1]))
    for asked in (turned, hide(turned)):
        assert find_leaks([labels(asked, slice(3))], [asked]) == []
        # A copy with the tests holds the pair once more, and what does not hold the whole task has no excuse.
        assert [leak.pair for leak in find_leaks([labels(turned)], [asked])] == [0, 3, 4]
        assert [leak.pair for leak in find_leaks([labels(turned, slice(2))], [asked])] == [0]


def test_an_equal_input_with_another_output_is_no_leak() -> None:
    scored = random_task(5, "asked")
    other = replace(scored, task_id="other", tests=tuple(Pair(t.input, t.input) for t in scored.tests))
    assert find_leaks([labels(other)], [scored]) == []


@pytest.mark.parametrize("hidden", [False, True])
@given(augmentation=augmentations())
@settings(max_examples=5)
def test_a_checkpoint_knows_what_it_was_trained_on(hidden: bool, augmentation: Augmentation) -> None:
    whole, shown, unseen = random_task(1, "whole"), random_task(2, "shown"), random_task(3, "unseen")
    store = build_store([TaskEntry.all_pairs(whole), TaskEntry.demonstrations_only(shown)], 0, 0)
    kept = store.training_digests()
    asked = [
        recolour_task(made, augmentation.dihedral, list(augmentation.permutation)) for made in (unseen, shown, whole)
    ]
    overlap = trained_on([hide(made) for made in asked] if hidden else asked, kept)
    assert overlap.tests == ("own/whole",)
    assert overlap.demonstrations == ("own/shown", "own/whole")
    assert trained_on(asked, ()).tests == ()


def test_malformed_training_digests_are_refused() -> None:
    with pytest.raises(TypeError, match="missing 1 required"):
        trained_on([random_task(0)], ["digest without-colon"])
