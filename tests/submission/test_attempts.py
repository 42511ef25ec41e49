"""Every output gets two different attempts, in order, and the file holds exactly these."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.vote import Tally, outputs_of, score_ranked
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.tasks import Pair, Task
from submission.attempts import Attempts, draft_submission, predictions
from submission.score import score
from submission.submission_file import write_submission
from tests.arc_trm.plain_vote import sure, votes_for

GRIDS = [np.full((2, 3), colour, dtype=np.uint8) for colour in range(10)]
QUESTION = np.array([[1, 2, 3, 4, 5]], dtype=np.uint8)
DEMONSTRATIONS = (Pair(QUESTION, QUESTION),)


def task(task_id: str, tests: int) -> Task:
    return Task(task_id, "own", DEMONSTRATIONS, tuple(Pair(QUESTION, None) for _ in range(tests)))


TASKS = [task("zeta", 2), task("alpha", 1), task("mu", 3)]


def tally(*votes: tuple[int, int, float], tasks: list[Task] = TASKS) -> Tally:
    """Votes as (output, number of the grid, halting probability)."""
    result = Tally(outputs_of(tasks))
    for output, grid, halting in votes:
        result.add(votes_for([(output, GRIDS[grid], halting)]))
    return result


def same(attempts: Attempts, *grids: Grid) -> bool:
    return len(grids) == 2 and all(map(np.array_equal, attempts, grids))


def test_a_single_candidate_is_followed_by_a_fallback() -> None:
    draft = draft_submission(TASKS, tally((2, 7, 0.5)))
    assert same(draft.submission["alpha"][0], GRIDS[7], QUESTION)
    assert (draft.fallback_attempts, draft.outputs_without_candidates) == (11, 5)


def test_a_consensus_of_several_candidates_goes_first_and_is_predicted() -> None:
    mistaken = [GRIDS[7].copy() for _ in range(4)]
    for place, shown in enumerate(mistaken):
        shown.flat[place] = 1
    tallied = tally()
    tallied.add(sure(votes_for([(2, shown, 0.5) for shown in [*mistaken, mistaken[1]]])))
    draft = draft_submission(TASKS, tallied)
    assert same(draft.submission["alpha"][0], GRIDS[7], mistaken[1])
    assert draft.predicted_attempts["alpha"] == (2,)


def test_a_fallback_that_repeats_the_candidate_is_passed_over() -> None:
    tallied = tally()
    tallied.add(votes_for([(2, QUESTION, 0.5)]))
    attempts = draft_submission(TASKS, tallied).submission["alpha"][0]
    assert np.array_equal(attempts.attempt_1, QUESTION)
    assert not np.array_equal(attempts.attempt_2, QUESTION)


def test_without_any_candidate_everything_is_fallback_and_nothing_is_left_out() -> None:
    draft = draft_submission(TASKS, tally())
    assert list(draft.submission) == ["zeta", "alpha", "mu"]
    assert [len(outputs) for outputs in draft.submission.values()] == [2, 1, 3]
    assert draft.outputs_without_candidates == 6
    assert draft.summary == "3 tasks, 6 outputs, 12 fallback attempts"
    for outputs in draft.submission.values():
        for attempts in outputs:
            assert attempts.attempt_1.shape == QUESTION.shape
            assert not np.array_equal(*attempts)


def test_an_output_without_candidates_does_not_shift_the_others() -> None:
    votes = [(i, i, 0.5) for i in (0, 2, 3, 5)]
    draft = draft_submission(TASKS, tally(*votes))
    assert same(draft.submission["zeta"][0], GRIDS[0], QUESTION)
    assert np.array_equal(draft.submission["zeta"][1].attempt_1, QUESTION)
    assert [outputs.attempt_1[0, 0] for outputs in draft.submission["mu"]] == [3, 1, 5]
    assert draft.fallback_attempts == 4 + 2 * 2


def test_the_model_alone_is_scored_without_fallbacks() -> None:
    draft = draft_submission(TASKS, tally((0, 0, 0.5), (3, 7, 0.5), (3, 8, 0.4)))
    predicted = predictions(draft.submission, draft.predicted_attempts)
    assert [[len(grids) for grids in outputs] for outputs in predicted.values()] == [[1, 0], [0], [2, 0, 0]]
    solutions = {"zeta": [GRIDS[0], QUESTION], "alpha": [QUESTION], "mu": [GRIDS[8], QUESTION, GRIDS[1]]}
    assert score(draft.submission, solutions).outputs_solved == 5
    assert score_ranked(predicted, solutions, k=2).outputs_solved == 2


VOTES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.floats(0, 1)), max_size=17)


@given(VOTES)
def test_attempts_differ_and_only_missing_candidates_are_replaced(votes: list[tuple[int, int, float]]) -> None:
    tallied = tally(*votes)
    draft = draft_submission(TASKS, tallied)
    flat = [attempts for outputs in draft.submission.values() for attempts in outputs]
    assert len(flat) == len(tallied.outputs)
    for i, attempts in enumerate(flat):
        best = tallied.candidates(i, limit=2)
        assert not np.array_equal(*attempts)
        assert all(np.array_equal(candidate.grid, grid) for candidate, grid in zip(best, attempts, strict=False))
    assert draft.fallback_attempts == sum(2 - len(tallied.candidates(i, limit=2)) for i in range(6))


def test_a_tally_of_other_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="a tally of 6 outputs, expected 3 of these tasks"):
        draft_submission(TASKS[:2], tally())
    twice = [task("a", 1), task("a", 1)]
    with pytest.raises(ValueError, match="2 tasks with 1 different ids"):
        draft_submission(twice, tally(tasks=twice))


# The file ---------------------------------------------------------------------------------------------------


def test_the_file_is_what_the_competition_asks_for(tmp_path: Path) -> None:
    write_submission(tmp_path / "s.json", {"t": (Attempts(GRIDS[1], QUESTION),)})
    expected = {"t": [{"attempt_1": [[1, 1, 1], [1, 1, 1]], "attempt_2": [[1, 2, 3, 4, 5]]}]}
    assert orjson.loads((tmp_path / "s.json").read_bytes()) == expected


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "submission.json"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(InputError, match="cannot write"):
        write_submission(path, {"t": (Attempts(GRIDS[1], QUESTION),)})
    assert [p.name for p in tmp_path.iterdir()] == ["submission.json"]
    with pytest.raises(InputError, match="cannot write"):
        write_submission(tmp_path / "missing" / "submission.json", {"t": (Attempts(GRIDS[1], QUESTION),)})
