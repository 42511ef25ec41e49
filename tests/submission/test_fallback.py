"""Fallback grids have the size and the colours that the demonstrations suggest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.grid import Grid, grid_digest
from data_prep.tasks import Pair, Task
from submission.attempts import fallback_grids, likely_shape

RNG = np.random.default_rng(3)


def grid(height: int, width: int, colours: int = 10) -> Grid:
    return RNG.integers(0, colours, (height, width), dtype=np.uint8)


def task(*demonstrations: tuple[Grid, Grid], question: Grid) -> Task:
    pairs = tuple(Pair(given, shown) for given, shown in demonstrations)
    return Task("t", "own", pairs, (Pair(question, None),))


def first(asked: Task) -> Grid:
    return next(fallback_grids(asked, 0))


def test_the_size_of_the_input_when_the_demonstrations_keep_it() -> None:
    asked = task((grid(3, 5), grid(3, 5)), (grid(3, 5), grid(3, 5)), question=grid(7, 11))
    assert likely_shape(asked, asked.tests[0].input) == (7, 11)


def test_the_constant_size_of_the_outputs() -> None:
    asked = task((grid(7, 5), grid(2, 3)), (grid(11, 13), grid(2, 3)), question=grid(5, 7))
    assert first(asked).shape == (2, 3)


def test_the_ratio_of_the_sizes() -> None:
    asked = task((grid(2, 3), grid(6, 6)), (grid(3, 5), grid(9, 10)), question=grid(5, 7))
    assert first(asked).shape == (15, 14)


def test_the_most_common_size_when_no_rule_holds() -> None:
    shown = [(grid(2, 3), grid(5, 7)), (grid(3, 5), grid(3, 2)), (grid(5, 11), grid(5, 7))]
    assert first(task(*shown, question=grid(7, 2))).shape == (5, 7)


def test_a_size_beyond_a_grid_is_not_offered() -> None:
    asked = task((grid(7, 7), grid(2, 2)), (grid(11, 11), grid(6, 6)), question=grid(3, 3))  # five less: nothing
    assert all(side >= 1 for side in first(asked).shape)


def test_a_task_that_keeps_its_input_gets_a_copy() -> None:
    grids, question = [grid(3, 5), grid(5, 2), grid(7, 7)], grid(5, 5)
    assert np.array_equal(first(task(*((g, g) for g in grids), question=question)), question)


def test_the_most_common_colour_fills_when_nothing_fits() -> None:
    asked = task((grid(2, 3), np.full((5, 7), 6, np.uint8)), question=grid(3, 5))
    assert (first(asked) == 6).mean() > 0.5


SHAPES = st.tuples(st.integers(1, 30), st.integers(1, 30))


@given(st.lists(st.tuples(SHAPES, SHAPES), min_size=0, max_size=3), SHAPES, st.integers(1, 10))
def test_there_are_always_two_distinct_valid_grids(
    shapes: list[tuple[tuple[int, int], tuple[int, int]]], asked: tuple[int, int], colours: int
) -> None:
    shown = [(grid(*given, colours), grid(*output, colours)) for given, output in shapes]
    grids = list(fallback_grids(task(*shown, question=grid(*asked, colours)), 0))
    assert len({grid_digest(g) for g in grids}) >= 2
    for g in grids:
        assert g.dtype == np.uint8
        assert all(1 <= side <= 30 for side in g.shape)
        assert g.max() <= 9


@pytest.mark.parametrize("test", [0, 1])
def test_it_answers_the_test_that_is_asked(test: int) -> None:
    g = grid(3, 5)
    asked = Task("t", "own", (Pair(g, g), Pair(g.T, g.T)), (Pair(grid(2, 7), None), Pair(grid(5, 3), None)))
    assert np.array_equal(next(fallback_grids(asked, test)), asked.tests[test].input)


def test_the_hidden_output_is_never_looked_at() -> None:
    shown, question = (grid(3, 5), grid(3, 5)), grid(2, 7)
    hidden = task(shown, question=question)
    known = Task("t", "own", hidden.demonstrations, (Pair(question, grid(11, 13)),))
    for one, other in zip(fallback_grids(hidden, 0), fallback_grids(known, 0), strict=True):
        assert np.array_equal(one, other)
