"""Attempts in the terminal."""

from pathlib import Path

import orjson
import pytest

from arc_trm.vote import Tally, outputs_of
from data_prep.files import InputError
from submission.attempts import Attempts
from submission.show import main, show_attempts
from submission.submission_file import write_submission
from tests.arc_trm.plain_vote import votes_for
from tests.data_prep.material import as_json, grid, pair, task

TRUTH, NEAR, FAR = ["345", "678"], ["345", "679"], ["34", "67"]
TASK = task("abc", [pair(["12"], ["3"])], [pair(["1", "2"], TRUTH), pair(["7"], TRUTH)])
ANSWERS = (Attempts(grid(NEAR), grid(TRUTH)), Attempts(grid(FAR), grid(NEAR)))


def test_attempts_are_compared_with_the_truth() -> None:
    assert show_attempts([TASK], {"abc": ANSWERS}).split("\n") == [
        "abc, test 0",
        "attempt 1: 1 of 6 cells differ",
        "attempt 2: right",
        "input    attempt 1    attempt 2    truth",
        "1        3 4 5        3 4 5        3 4 5",
        "2        6 7 9        6 7 8        6 7 8",
        "",
        "abc, test 1",
        "attempt 1: 2 × 2 instead of 2 × 3",
        "attempt 2: 1 of 6 cells differ",
        "input    attempt 1    attempt 2    truth",
        "7        3 4          3 4 5        3 4 5",
        "         6 7          6 7 9        6 7 8",
    ]


def test_votes_are_said_where_they_are_known() -> None:
    tally = Tally(outputs_of([TASK]))
    tally.add(votes_for([(0, grid(rows), 0.5) for rows in (NEAR, NEAR, TRUTH)]))
    shown = show_attempts([TASK], {"abc": ANSWERS}, tally.ranked()).split("\n")
    assert shown[1:3] == ["attempt 1: 67% of 3 votes, 1 of 6 cells differ", "attempt 2: 33% of 3 votes, right"]
    assert shown[8] == "attempt 1: a guess, 2 × 2 instead of 2 × 3"


def test_a_consensus_that_nobody_voted_for_is_said() -> None:
    tally = Tally(outputs_of([TASK]))
    tally.add(votes_for([(0, grid(TRUTH), 0.5)]))
    shown = show_attempts([TASK], {"abc": ANSWERS}, tally.ranked()).split("\n")
    assert shown[1] == "attempt 1: put together from 1 of 1 votes, 1 of 6 cells differ"


def test_the_command_shows_chosen_tasks_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    challenges, answers = tmp_path / "c.json", tmp_path / "submission.json"
    challenges.write_bytes(orjson.dumps({name: as_json(TASK, hide=True) for name in ("abc", "abd")}))
    write_submission(answers, {"abc": ANSWERS, "abd": ANSWERS})
    assert main([str(answers), "abd", "--challenges", str(challenges)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("abd, test 0\ninput    attempt 1    attempt 2\n1        3 4 5        3 4 5\n")
    assert main([str(answers), "--challenges", str(challenges)]) == 0
    assert capsys.readouterr().out.count("test 1") == 2
    (tmp_path / "s.json").write_bytes(orjson.dumps({name: [grid(TRUTH).tolist()] * 2 for name in ("abc", "abd")}))
    assert main([str(answers), "abc", "--challenges", str(challenges), "--solutions", str(tmp_path / "s.json")]) == 0
    assert "attempt 2: right" in capsys.readouterr().out
    with pytest.raises(InputError, match="no task abx among its 2 tasks; near it: abd, abc"):
        main([str(answers), "abx", "--challenges", str(challenges)])
