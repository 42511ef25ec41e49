"""Predictions become the candidates that the plain path, one prediction at a time, would make of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.canvas import EOS, PAD, encode
from data_prep.grid import Augmentation, Grid, grid_digest
from submission import candidates
from submission.candidates import Predictions, candidate_keys, count_candidates
from submission.ranking import HALT_UNITS, key_grid
from tests.submission.plain import plain_grid, plain_votes, random_predictions, select, weird_predictions

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.sampled_from([7, 11, 16, 21, 30])


def predict(*grids: Grid, side: int = 30) -> Predictions:
    """Predictions of these grids by the identity puzzle, all for output 0."""
    n = len(grids)
    return Predictions(
        np.stack([encode(grid, side=side) for grid in grids]),
        np.full(n, 0.5, dtype=np.float32),
        np.zeros(n, dtype=np.int32),
        np.zeros(n, dtype=np.uint8),
        np.tile(np.arange(10, dtype=np.uint8), (n, 1)),
    )


@given(SEEDS, SIDES)
def test_every_grid_equals_the_plain_inverse(seed: int, side: int) -> None:
    predictions = weird_predictions(53, 3, side, np.random.default_rng(seed))
    rows, keys = candidate_keys(predictions)
    found = dict(zip(rows.tolist(), keys, strict=True))
    for i in range(53):
        expected = plain_grid(predictions, i)
        if expected is None:
            assert i not in found
        else:
            assert np.array_equal(key_grid(found[i]), expected)
    assert len(found) == len(rows)


@given(st.integers(0, 7), st.permutations(range(1, 10)), st.integers(1, 30), st.integers(1, 30), SEEDS)
def test_a_prediction_of_the_augmented_grid_gives_the_grid_back(
    element: int, colours: list[int], height: int, width: int, seed: int
) -> None:
    grid = np.random.default_rng(seed).integers(0, 10, (height, width), dtype=np.uint8)
    augmentation = Augmentation(element, (0, *colours))
    predictions = replace(
        predict(augmentation.apply(grid)),
        dihedrals=np.array([element], dtype=np.uint8),
        permutations=np.array([augmentation.permutation], dtype=np.uint8),
    )
    _, [key] = candidate_keys(predictions)
    assert np.array_equal(key_grid(key), grid)


@given(SEEDS, SIDES)
def test_counts_equal_the_plain_path(seed: int, side: int) -> None:
    predictions = weird_predictions(97, 5, side, np.random.default_rng(seed))
    counted = count_candidates(predictions)
    expected = plain_votes(predictions)
    found = [(output, grid_digest(key_grid(key))) for output, key in zip(counted.outputs, counted.keys, strict=True)]
    assert set(found) == set(expected)
    assert len(found) == len(expected)
    for name, votes, halting in zip(found, counted.votes, counted.halting, strict=True):
        assert votes == len(expected[name])
        assert halting / HALT_UNITS == pytest.approx(sum(expected[name]), abs=1e-9)


def test_groups_larger_than_a_chunk_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = random_predictions(2, 113, np.random.default_rng(5))
    whole = count_candidates(predictions)
    monkeypatch.setattr(candidates, "CHUNK", 7)
    pieces = count_candidates(predictions)
    assert pieces.keys == whole.keys
    assert pieces.votes.tolist() == whole.votes.tolist()
    assert whole.votes.sum() == 226


def test_wrong_variants_leave_the_right_grid_in_front() -> None:
    counted = count_candidates(random_predictions(3, 101, np.random.default_rng(7)))
    for output in range(3):
        assert counted.votes[counted.outputs == output].max() > 55


@pytest.mark.parametrize("token", [PAD, EOS])
def test_an_empty_cut_never_votes(token: int) -> None:
    predictions = predict(np.ones((2, 3), dtype=np.uint8), np.ones((2, 3), dtype=np.uint8))
    predictions.tokens[1] = token
    assert count_candidates(predictions).votes.tolist() == [1]


def test_nothing_predicted_is_no_candidate() -> None:
    predictions = predict(np.ones((2, 3), dtype=np.uint8))
    assert len(count_candidates(select(predictions, np.arange(0))).keys) == 0
    predictions.tokens[:] = PAD
    assert len(count_candidates(predictions).keys) == 0


def test_predictions_that_are_not_closed_get_no_vote() -> None:
    one, two = np.full((2, 3), 1, dtype=np.uint8), np.full((3, 2), 2, dtype=np.uint8)
    predictions = replace(predict(one, two, one), closed=np.array([True, False, True]))
    counted = count_candidates(predictions)
    assert counted.votes.tolist() == [2]
    assert np.array_equal(key_grid(counted.keys[0]), one)


def test_the_puzzles_that_agreed_are_remembered() -> None:
    one, two = np.full((2, 3), 1, dtype=np.uint8), np.full((3, 2), 2, dtype=np.uint8)
    counted = count_candidates(replace(predict(one, two, one), puzzles=np.array([11, 13, 17])))
    voters = {key_grid(key)[0, 0]: ids for key, ids in zip(counted.keys, counted.puzzles or (), strict=True)}
    assert voters == {1: (11, 17), 2: (13,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros((2, 899), dtype=np.uint8)}, r"tokens uint8\[2, 899\], expected uint8\[n, side \* side\]"),
        ({"tokens": np.zeros((2, 900), dtype=np.int64)}, r"tokens int64\[2, 900\]"),
        ({"halting": np.zeros(3, dtype=np.float32)}, r"halting \[3\], expected \[2\]"),
        ({"permutations": np.zeros((2, 9), dtype=np.uint8)}, r"permutations \[2, 9\], expected \[2, 10\]"),
        ({"closed": np.ones((2, 1), dtype=bool)}, r"closed \[2, 1\], expected \[2\]"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    grid = np.ones((2, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=message):
        replace(predict(grid, grid), **change)


def test_what_is_no_augmentation_is_refused() -> None:
    predictions = predict(np.ones((2, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="dihedral element 8, expected 0-7"):
        candidate_keys(replace(predictions, dihedrals=np.array([8], dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"colours \[0, 0, 2, .*\], expected a permutation"):
        candidate_keys(replace(predictions, permutations=np.array([[0, 0, *range(2, 10)]], dtype=np.uint8)))
