"""Grids from JSON values: what is accepted, what is refused, digests."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.files import InputError
from data_prep.grid import Grid, grid_digest, parse_grid
from tests.data_prep.material import grids, refused


@given(grids())
def test_parse_grid_returns_the_grid_that_was_written(drawn: Grid) -> None:
    parsed = parse_grid(json.loads(json.dumps(drawn.tolist())), "here")
    assert parsed.dtype == np.uint8
    assert np.array_equal(parsed, drawn)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "here: found nothing, expected a grid"),
        ("12", "here: found a text, expected a grid"),
        ([], "here: found an empty list, expected a grid"),
        ([[]], "here: row 0 is an empty list"),
        ([[1], 2], "here: row 1 is 2, expected a list of colours"),
        ([[1, 2], [3]], "here: row 1 has 1 cells, expected 2 as in row 0"),
        ([[1, 2], [3, 12]], "here: found 12 at row 1, column 1, expected a colour 0-9"),
        ([[-1]], "here: found -1 at row 0, column 0"),
        ([[0, 1.0]], "here: found 1.0 at row 0, column 1"),
        ([[0, True]], "here: found True at row 0, column 1"),
        ([[0, "1"]], "here: found '1' at row 0, column 1"),
        ([[0, None]], "here: found None at row 0, column 1"),
        ([[0]] * 31, "here: 31 x 1 cells, expected at most 30 x 30"),
        ([[0] * 31], "here: 1 x 31 cells, expected at most 30 x 30"),
    ],
)
def test_parse_grid_refuses_what_is_no_grid(value: object, message: str) -> None:
    with refused(message):
        parse_grid(value, "here")


@given(st.recursive(st.integers() | st.text() | st.none() | st.booleans(), st.lists))
def test_parse_grid_returns_a_grid_or_raises_one_line_for_any_json(value: object) -> None:
    try:
        parsed = parse_grid(value, "here")
    except InputError as error:
        outcome = str(error).startswith("here: ")
    else:
        outcome = parsed.tolist() == value
    assert outcome


def test_grid_digest_of_a_view_is_that_of_its_content() -> None:
    drawn = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert grid_digest(drawn.T) == grid_digest(np.ascontiguousarray(drawn.T)) != grid_digest(drawn)
