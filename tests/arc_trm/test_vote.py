"""Predictions become candidates as the plain path would make them; votes add up in any order, rank, and are kept."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arc_trm import vote
from arc_trm.vote import (
    HALT_UNITS,
    AskedOutput,
    Candidate,
    Predictions,
    Tally,
    candidate_keys,
    outputs_of,
    score_ranked,
)
from data_prep.canvas import EOS, PAD
from data_prep.files import InputError, read_json
from data_prep.grid import Grid, grid_digest
from data_prep.tasks import Pair, Task
from tests.arc_trm.plain_vote import (
    plain_consensus,
    plain_grid,
    plain_ranking,
    plain_votes,
    random_predictions,
    select,
    sure,
    votes_for,
    weird_predictions,
)
from tests.data_prep.material import Augmentation, named_augmentation, together

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.sampled_from([7, 11, 16, 21, 30])
OUTPUTS = tuple(AskedOutput(f"task{i // 2}", i % 2) for i in range(5))
GRIDS = [np.full((2, 3), colour, dtype=np.uint8) for colour in range(7)]


def votes(*ballots: tuple[int, int, float]) -> Predictions:
    """Votes as (output, number of the grid, halting probability)."""
    return votes_for([(output, GRIDS[number], halting) for output, number, halting in ballots])


def tally(*passes: Predictions) -> Tally:
    result = Tally(OUTPUTS)
    for predictions in passes:
        result.add(predictions)
    return result


def ranking(tallied: Tally) -> list[list[Candidate]]:
    """Everything that is known of every candidate."""
    return [tallied.candidates(i) for i in range(len(tallied.outputs))]


def consensuses(tallied: Tally) -> list[list[list[int]] | None]:
    grids = [tallied.consensus(i) for i in range(len(tallied.outputs))]
    return [None if grid is None else grid.tolist() for grid in grids]


def colours(candidates: list[Candidate]) -> list[int]:
    return [int(candidate.grid[0, 0]) for candidate in candidates]


# Predictions ------------------------------------------------------------------------------------------------


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
            assert np.array_equal(Candidate(found[i], 1, 0).grid, expected)
    assert len(found) == len(rows)


@given(st.integers(0, 7), st.permutations(range(1, 10)), st.integers(1, 30), st.integers(1, 30), SEEDS)
def test_a_prediction_of_the_augmented_grid_gives_the_grid_back(
    element: int, colours: list[int], height: int, width: int, seed: int
) -> None:
    grid = np.random.default_rng(seed).integers(0, 10, (height, width), dtype=np.uint8)
    augmentation = Augmentation(element, (0, *colours))
    _, [key] = candidate_keys(votes_for([(0, grid, 0.5)], [augmentation]))
    assert np.array_equal(Candidate(key, 1, 0).grid, grid)


@given(SEEDS, SIDES)
def test_counts_equal_the_plain_path(seed: int, side: int) -> None:
    predictions = weird_predictions(97, 5, side, np.random.default_rng(seed))
    expected = plain_votes(predictions)
    tallied = tally(predictions)
    found = {(output, c.digest): c for output in range(5) for c in tallied.candidates(output)}
    assert set(found) == set(expected)
    for name, candidate in found.items():
        assert candidate.votes == len(expected[name])
        assert candidate.halting / HALT_UNITS == pytest.approx(sum(expected[name]), abs=1e-9)


def test_groups_larger_than_a_chunk_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = random_predictions(2, 113, np.random.default_rng(5))
    whole = tally(predictions)
    monkeypatch.setattr(vote, "CHUNK", 7)
    assert ranking(tally(predictions)) == ranking(whole)
    assert whole.total(0) + whole.total(1) == 226


@pytest.mark.parametrize("token", [PAD, EOS])
def test_an_empty_cut_never_votes(token: int) -> None:
    predictions = votes((0, 1, 0.5), (0, 1, 0.5))
    predictions.tokens[1] = token
    assert tally(predictions).total(0) == 1
    predictions.tokens[0] = token
    assert tally(predictions).candidates(0) == []


def test_no_predictions_are_no_votes() -> None:
    assert ranking(tally(select(votes((0, 1, 0.5)), np.arange(0)))) == [[]] * 5


def test_what_is_no_augmentation_is_refused() -> None:
    predictions = votes((0, 1, 0.5))
    with pytest.raises(ValueError, match="dihedral element 8, expected 0-7"):
        candidate_keys(replace(predictions, augmentations=together([Augmentation(8, tuple(range(10)))])))
    with pytest.raises(ValueError, match=r"colours \[0, 0, 2, .*\], expected a permutation"):
        candidate_keys(replace(predictions, augmentations=together([Augmentation(0, (0, 0, *range(2, 10)))])))


# Votes ------------------------------------------------------------------------------------------------------


def test_count_goes_first_then_mean_halting_then_digest() -> None:
    counted = votes((0, 1, 0.9), (0, 2, 0.1), (0, 2, 0.2), (0, 3, 0.3), (0, 3, 0.4), (0, 4, 0.9), (0, 5, 0.5))
    best_ties = sorted([1, 4], key=lambda i: grid_digest(GRIDS[i]))
    assert colours(tally(counted).candidates(0)) == [3, 2, *best_ties, 5]


def test_a_candidate_tells_what_speaks_for_it() -> None:
    [candidate] = tally(votes((2, 6, 0.25), (2, 6, 0.75)), votes((2, 6, 0.5))).candidates(2)
    assert (candidate.votes, candidate.mean_halt) == (3, 0.5)
    assert candidate.digest == grid_digest(GRIDS[6])
    assert np.array_equal(candidate.grid, GRIDS[6])


def test_an_output_without_votes_has_no_candidates() -> None:
    tallied = tally(votes((2, 6, 0.25)))
    assert [tallied.total(i) for i in range(5)] == [0, 0, 1, 0, 0]
    assert tallied.candidates(0) == []


@given(SEEDS)
def test_feeding_in_any_order_and_in_any_pieces_gives_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = weird_predictions(61, 5, 7, rng)
    order = np.split(rng.permutation(61), np.sort(rng.integers(0, 62, 3)))
    pieces = tally(*(select(predictions, rows) for rows in order))
    assert ranking(tally(predictions)) == ranking(pieces)
    assert consensuses(tally(predictions)) == consensuses(pieces)


@given(SEEDS)
def test_the_order_equals_the_plain_ranking(seed: int) -> None:
    predictions = weird_predictions(61, 5, 7, np.random.default_rng(seed))
    predictions.halting[:] = np.round(predictions.halting * 4) / 4  # means tie often, and are exact
    expected = plain_votes(predictions)
    tallied = tally(predictions)
    for output in range(5):
        assert [c.digest for c in tallied.candidates(output)] == plain_ranking(expected, output)


@given(SEEDS, st.integers(0, 9))
def test_a_limit_gives_the_head_of_the_whole_ranking(seed: int, limit: int) -> None:
    predictions = weird_predictions(61, 5, 7, np.random.default_rng(seed))
    predictions.halting[:] = 0.5
    tallied = tally(predictions)
    for output in range(5):
        assert tallied.candidates(output, limit=limit) == tallied.candidates(output)[:limit]


# The consensus ----------------------------------------------------------------------------------------------


@given(SEEDS, SIDES)
def test_the_consensus_equals_the_plain_path(seed: int, side: int) -> None:
    predictions = weird_predictions(17, 3, side, np.random.default_rng(seed))
    expected = [plain_consensus(predictions, output) for output in range(5)]
    assert consensuses(tally(predictions)) == [None if grid is None else grid.tolist() for grid in expected]


def test_grids_that_err_in_different_cells_make_the_right_one() -> None:
    right = np.arange(6, dtype=np.uint8).reshape(2, 3)
    wrong = [right.copy() for _ in range(6)]
    for place, grid in enumerate(wrong):
        grid.flat[place] = 9
    tallied = tally(sure(votes_for([(0, grid, 0.5) for grid in wrong])))
    assert max(candidate.votes for candidate in tallied.candidates(0)) == 1
    assert tallied.consensus(0).tolist() == right.tolist()  # type: ignore[union-attr]
    attempts = tallied.attempts(0)
    assert [grid.tolist() for grid in attempts] == [right.tolist(), tallied.candidates(0)[0].grid.tolist()]


def test_attempts_are_different_grids_and_candidates_where_no_probabilities_are_known() -> None:
    ballots = votes((0, 1, 0.5), (0, 1, 0.5), (0, 2, 0.5), (1, 3, 0.5))
    for tallied in (tally(ballots), tally(sure(ballots))):
        found = [[int(grid[0, 0]) for grid in tallied.attempts(output)] for output in range(3)]
        assert found == [[1, 2], [3], []]
    assert consensuses(tally(ballots)) == [None] * 5


def test_of_sizes_with_as_many_votes_that_of_the_best_candidate_counts() -> None:
    small, large = np.full((1, 2), 4, np.uint8), np.full((2, 2), 5, np.uint8)
    for small_halts, chosen in ((0.9, small), (0.1, large)):
        tallied = tally(sure(votes_for([(0, small, small_halts), (0, large, 0.5)])))
        assert tallied.consensus(0).tolist() == chosen.tolist()  # type: ignore[union-attr]


def test_votes_without_probabilities_count_for_the_size_alone() -> None:
    wide, tall = np.full((1, 2), 4, np.uint8), np.full((2, 1), 5, np.uint8)
    tallied = tally(sure(votes_for([(0, wide, 0.5)])), votes_for([(0, wide, 0.5), (0, tall, 0.5)]))
    assert consensuses(tallied)[0] == wide.tolist()
    tallied.add(votes_for([(0, tall, 0.5)] * 2))
    assert consensuses(tallied)[0] is None


def test_the_next_vote_discards_provisional_costs_too() -> None:
    tallied = tally(sure(votes((0, 1, 0.5)), wrong=9))
    tallied.make_provisional()
    tallied.add(sure(votes((0, 2, 0.5)), wrong=1))
    assert tallied.consensus(0).tolist() == np.full((2, 3), 2).tolist()  # type: ignore[union-attr]


def test_a_probability_that_is_no_number_counts_as_zero() -> None:
    [candidate] = tally(votes((0, 1, math.nan), (0, 1, 0.5))).candidates(0)
    assert (candidate.votes, candidate.mean_halt) == (2, 0.25)


@pytest.mark.parametrize("logit", [-0.5, 1.5])
def test_logits_are_refused(logit: float) -> None:
    tallied = tally()
    with pytest.raises(ValueError, match=r"halting probabilities from .* expected 0 to 1"):
        tallied.add(votes((0, 1, 0.5), (0, 1, logit)))
    assert tallied.total(0) == 0


def test_votes_for_an_output_that_is_not_ours_are_refused() -> None:
    tallied = Tally(OUTPUTS[:2])
    with pytest.raises(ValueError, match="output 4 of a tally with 2 outputs"):
        tallied.add(votes((0, 1, 0.5), (4, 1, 0.5)))
    assert tallied.total(0) == 0


def test_outputs_are_listed_in_order_of_tasks_and_tests() -> None:
    pair = Pair(GRIDS[0], None)
    tasks = [Task("b", "own", (pair,), (pair, pair)), Task("a", "own", (pair,), (pair,))]
    assert outputs_of(tasks) == (("b", 0), ("b", 1), ("a", 0))


# Files ------------------------------------------------------------------------------------------------------


@given(seed=SEEDS)
def test_a_tally_survives_the_disk_and_goes_on_adding(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    first, second = (weird_predictions(23, 5, 7, rng) for _ in range(2))
    path = tmp_path_factory.mktemp("tally") / "candidates.npz"
    saved = tally(first)
    saved.save(path)
    loaded = Tally.load(path)
    assert loaded.outputs == OUTPUTS
    assert (ranking(loaded), consensuses(loaded)) == (ranking(saved), consensuses(saved))
    saved.add(second)
    loaded.add(second)
    assert (ranking(loaded), consensuses(loaded)) == (ranking(saved), consensuses(saved))


def test_equal_tallies_make_equal_files(tmp_path: Path) -> None:
    one, other = votes((0, 1, 0.5), (0, 2, 0.25)), votes((0, 3, 0.5), (3, 2, 0.25))
    tally(one, other).save(tmp_path / "one.npz")
    tally(other, one).save(tmp_path / "other.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()


def test_columns_of_before_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    tally(votes((0, 1, 0.5))).save(path)
    with np.load(path) as columns:
        np.savez(path, **columns, augmentations=np.array([0, 7]), augmentation_counts=np.array([2]))
    assert ranking(Tally.load(path)) == ranking(tally(votes((0, 1, 0.5))))


def test_an_empty_tally_survives_the_disk(tmp_path: Path) -> None:
    Tally(OUTPUTS).save(tmp_path / "x.npz")
    assert ranking(Tally.load(tmp_path / "x.npz")) == [[]] * 5


def test_a_file_that_is_no_tally_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "candidates.npz"
    with pytest.raises(InputError, match="cannot read"):
        Tally.load(path)
    tally(votes((0, 1, 0.5))).save(path)
    good = path.read_bytes()
    for bad in (b"", b"{}", good[: len(good) // 2]):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=r"candidates.npz: no candidates file .*, expected") as caught:
            Tally.load(path)
        assert "\n" not in str(caught.value)
    tally(sure(votes((0, 1, 0.5), (1, 2, 0.5)))).save(path)
    with np.load(path) as file:
        columns = dict(file)
    for name in ("cell_outputs", "cell_shapes", "cell_costs"):
        np.savez(path, **(columns | {name: columns[name][:1]}))
        with pytest.raises(InputError, match=r"candidates.npz: no candidates file .*, expected"):
            Tally.load(path)
    np.savez(path, format=np.array("arc-trm candidates 0"))
    with pytest.raises(InputError, match="candidates of format 'arc-trm candidates 0', expected"):
        Tally.load(path)
    np.savez(path, format=np.array("arc-trm candidates 3"), votes=np.zeros(3))
    with pytest.raises(InputError, match="no candidates file"):
        Tally.load(path)


# The published vote -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(shared_dir: Path) -> dict[str, Any]:
    return read_json(shared_dir / "golden" / "arc_data.json")["vote"]


@pytest.fixture(scope="module")
def own(published: dict[str, Any]) -> Tally:
    """Our tally of the published predictions; those whose input is not the task's belong to no output."""
    outputs = [AskedOutput(result["task"], i) for result in published["results"] for i in range(len(result["tests"]))]
    rows = [row for row in published["predictions"] if row["matches_test_input"]]
    result = Tally(outputs)
    result.add(
        Predictions(
            np.array([[int(token, 16) for token in row["pred_seq"]] for row in rows], dtype=np.uint8),
            np.array([1 / (1 + math.exp(-row["q_halt_logit"])) for row in rows], dtype=np.float32),
            np.array([outputs.index((row["task"], row["test"])) for row in rows], dtype=np.int32),
            together([named_augmentation(row["aug_name"])[1] for row in rows]),
        )
    )
    return result


def published_lists(published: dict[str, Any]) -> dict[str, list[list[Grid]]]:
    """task -> outputs -> ranked grids, each once; the list of an output without predictions is empty."""
    lists: dict[str, list[list[Grid]]] = {}
    for result in published["results"]:
        outputs = [list(attempts.values()) for attempts in result["attempts_K9"]]
        outputs += [[] for _ in range(len(result["tests"]) - len(outputs))]
        lists[result["task"]] = [_distinct(grids) for grids in outputs]
    return lists


def _distinct(grids: list[Any]) -> list[Grid]:
    kept = [grid for i, grid in enumerate(grids) if grid not in grids[:i]]
    return [np.array(grid, dtype=np.uint8).reshape(len(grid), -1 if grid else 0) for grid in kept]


def solutions(published: dict[str, Any]) -> dict[str, list[Grid]]:
    results = published["results"]
    return {r["task"]: [np.array(test["output"], dtype=np.uint8) for test in r["tests"]] for r in results}


def test_the_published_votes_are_ours(published: dict[str, Any], own: Tally) -> None:
    expected = sorted(
        (digest, len(probabilities), pytest.approx(sum(probabilities) / len(probabilities), abs=1e-7))
        for state in published["state"]
        for digest, probabilities in _by_digest(state["preds"]).items()
    )
    found = sorted((c.digest, c.votes, c.mean_halt) for i in range(len(own.outputs)) for c in own.candidates(i))
    stray = {e[0] for e in expected} - {f[0] for f in found}
    assert [e for e in expected if e[0] not in stray] == found
    # Theirs keeps the empty grid and a prediction for an input that no task asks; ours has neither.
    assert len(stray) == 2


def _by_digest(predictions: list[tuple[str, float]]) -> dict[str, list[float]]:
    result: dict[str, list[float]] = {}
    for digest, probability in predictions:
        result.setdefault(digest, []).append(probability)
    return result


def test_pass_at_k_of_the_published_lists_is_the_published_one(published: dict[str, Any]) -> None:
    lists, known = published_lists(published), solutions(published)
    metrics = published["metrics"]
    assert len(metrics) == 6
    for name, value in metrics.items():
        k = int(name.split("@")[1])
        assert score_ranked(lists, known, k).task_mean == pytest.approx(value, abs=1e-12)


def test_pass_at_k_of_our_lists_is_no_lower(published: dict[str, Any], own: Tally) -> None:
    ours: dict[str, list[list[Grid]]] = {}
    for i, (task_id, _) in enumerate(own.outputs):
        ours.setdefault(task_id, []).append([candidate.grid for candidate in own.candidates(i)])
    known = solutions(published)
    values = [score_ranked(ours, known, k).task_mean for k in (1, 2, 5, 10, 100, 1000)]
    assert all(low <= high for low, high in pairwise(values))
    # The empty grid is not in the way of the right one.
    assert values[0] >= published["metrics"]["ARC/pass@1"] + 1 / 11 - 1e-12
    assert values[2:] == pytest.approx([published["metrics"]["ARC/pass@5"]] * 4, abs=1e-12)
