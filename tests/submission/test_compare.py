"""Rankings are compared on stored candidates; every one obeys the interface, and priors speak softly."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.tasks import Pair, Task
from submission import compare
from submission.attempts import draft_submission
from submission.compare import default_names, evaluate, gains, lines
from submission.priors import OTHER_COLOUR, OTHER_SIZE, Question, questions_of
from submission.ranking import RANKINGS, WANT_LIKELIHOOD, grid_key, rank
from submission.vote import Tally, count_votes, outputs_of


def full(colour: int, height: int = 2, width: int = 3) -> Grid:
    return np.full((height, width), colour, dtype=np.uint8)


# Outputs are as large as inputs, and of colours 1 and 2; the input of the tests adds colour 3.
DEMONSTRATIONS = (Pair(full(1), full(2)), Pair(full(2, 5, 7), full(1, 5, 7)))


def task(name: str, *solutions: Grid) -> Task:
    return Task(name, "own", DEMONSTRATIONS, tuple(Pair(full(3), solution) for solution in solutions))


TASKS = [task("b", full(1), full(2)), task("a", full(3))]


def tally(*votes: tuple[int, Grid, int, float]) -> Tally:
    """(output, grid, votes, halting probability)."""
    made = Tally(outputs_of(TASKS))
    for output, grid, count, halting in votes:
        made.add(count_votes(np.full(count, output), [grid_key(grid)] * count, np.full(count, halting)))
    return made


# Output 0: the solution has most votes. 1: a grid of a wrong size leads. 2: a wrong colour and then a wrong grid lead.
VOTES = (
    (0, full(1), 5, 0.5),
    (0, full(2), 2, 0.6),
    (1, full(1, 3, 3), 4, 0.5),
    (1, full(2), 3, 0.9),
    (2, full(7), 6, 0.2),
    (2, full(1), 4, 0.3),
    (2, full(3), 3, 0.4),
)


def test_pass_at_k_and_scores_of_the_count() -> None:
    result = evaluate(TASKS, tally(*VOTES), "count")
    assert (result.pass_1, result.pass_2) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (result.scores.outputs_solved, result.scores.tasks_solved) == (2, 1)
    assert result.solved == (True, True, False)


def test_priors_put_an_implausible_leader_behind() -> None:
    result = evaluate(TASKS, tally(*VOTES), "priors")
    assert (result.pass_1, result.pass_2) == (pytest.approx(2 / 3), 1.0)
    assert gains(evaluate(TASKS, tally(*VOTES), "count"), result) == (1, 0)


def test_two_rankings_choose_an_attempt_each() -> None:
    result = evaluate(TASKS, tally(*VOTES), "count/halting")
    assert result.solved == (True, True, True)
    draft = draft_submission(TASKS, tally(*VOTES), "count", "halting")
    assert np.array_equal(draft.submission["a"][0].attempt_1, full(7))
    assert np.array_equal(draft.submission["a"][0].attempt_2, full(3))


def test_the_likelihood_decides_where_it_was_measured() -> None:
    made = tally(*VOTES)
    assert set(default_names(made)) & WANT_LIKELIHOOD == set()
    made.set_likelihood(2, [grid_key(full(3)), grid_key(full(7))], [-2.0, -30.0])
    assert set(default_names(made)) >= WANT_LIKELIHOOD
    assert [c.votes for c in made.candidates(2, "likelihood")] == [3, 6, 4]
    # Where nothing was measured it is the count.
    assert [c.votes for c in made.candidates(1, "likelihood")] == [4, 3]


def test_log_probabilities_survive_the_disk(tmp_path: Path) -> None:
    made = tally(*VOTES)
    made.set_likelihood(1, [grid_key(full(2))], [-1.25])
    made.save(tmp_path / "x.npz")
    assert Tally.load(tmp_path / "x.npz").candidates(1, "likelihood") == made.candidates(1, "likelihood")
    fresh = tally(*VOTES)
    fresh.merge(made)
    assert fresh.candidates(1, "likelihood")[0].votes == 6
    with pytest.raises(KeyError):
        made.set_likelihood(0, [grid_key(full(9))], [0.0])


@pytest.mark.parametrize("name", RANKINGS)
def test_every_ranking_orders_every_candidate(name: str) -> None:
    made = tally(*VOTES)
    for output, question in enumerate(questions_of(TASKS)):
        ballot = made.ballot(output, question)
        assert sorted(c.digest for c in rank(ballot, name)) == sorted(c.digest for c in made.candidates(output))
        assert rank(ballot, name, limit=1) == rank(ballot, name)[:1]
        assert all(np.isfinite(column).all() for column in RANKINGS[name](ballot))


def test_a_prior_knows_size_and_palette() -> None:
    question = Question(TASKS[0], 0)
    assert question.shapes == {(2, 3)}
    assert np.flatnonzero(question.palette).tolist() == [1, 2, 3]
    keys = [grid_key(grid) for grid in (full(1), full(3, 3, 2), full(4), full(9, 1, 1))]
    assert question.log_prior(keys).tolist() == [0, OTHER_SIZE, OTHER_COLOUR, OTHER_SIZE + OTHER_COLOUR]


def test_without_a_size_rule_no_size_is_implausible() -> None:
    odd = Task("x", "own", (Pair(full(1), full(2, 5, 5)), Pair(full(1, 5, 5), full(2))), (Pair(full(3), None),))
    assert Question(odd, 0).log_prior([grid_key(full(2, 9, 4))]).tolist() == [0]


def test_a_hidden_output_plays_no_part() -> None:
    shown, hidden = Question(task("x", full(9, 7, 7)), 0), Question(task("x", full(2)), 0)
    assert shown.shapes == hidden.shapes
    assert np.array_equal(shown.palette, hidden.palette)


# The command ------------------------------------------------------------------------------------------------


def write_files(folder: Path, votes: Tally) -> list[str]:
    challenges = {
        t.task_id: {
            "train": [{"input": p.input.tolist(), "output": p.output.tolist()} for p in DEMONSTRATIONS],
            "test": [{"input": p.input.tolist()} for p in t.tests],
        }
        for t in TASKS
    }
    solutions = {t.task_id: [p.output.tolist() for p in t.tests if p.output is not None] for t in TASKS}
    (folder / "challenges.json").write_bytes(orjson.dumps(challenges))
    (folder / "solutions.json").write_bytes(orjson.dumps(solutions))
    votes.save(folder / "candidates.npz")
    return [str(folder / "candidates.npz"), "--challenges", str(folder / "challenges.json")]


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = write_files(tmp_path, tally(*VOTES))
    assert compare.main([*words, "--solutions", str(tmp_path / "solutions.json")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["ranking", "pass@1", "pass@2", "outputs", "task_mean", "tasks", "against"]
    assert printed[1].split() == ["count", "33.33%", "66.67%", "66.67%", "50.00%", "50.00%", "+0", "-0"]
    assert "without all, likelihood: these candidates have no log-probabilities" in printed
    assert printed[-1] == "compared 5 rankings on 2 tasks, 3 outputs"


def test_chosen_rankings_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = write_files(tmp_path, tally(*VOTES))
    compare.main([*words, "--solutions", str(tmp_path / "solutions.json"), "--rankings", "halting/count", "priors"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == ["halting/count", "priors"]


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    words = write_files(tmp_path, tally(*VOTES))
    solutions = ["--solutions", str(tmp_path / "solutions.json")]
    with pytest.raises(InputError, match="task b: its output is not known, expected --solutions"):
        compare.main(words)
    with pytest.raises(InputError, match="unknown ranking 'luck', expected one of: count"):
        compare.main([*words, *solutions, "--rankings", "count/luck"])
    Tally(outputs_of(TASKS[:1])).save(tmp_path / "candidates.npz")
    with pytest.raises(InputError, match="candidates for 2 outputs, expected the 3 of"):
        compare.main([*words, *solutions])


def test_the_table_has_a_line_for_each_result() -> None:
    results = [evaluate(TASKS, tally(*VOTES), name) for name in ("count", "priors/count")]
    assert len(lines(results)) == 3
