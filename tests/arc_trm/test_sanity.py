"""The sanity check: its verdict is about learning alone, and what was cut short has none."""

from pathlib import Path

import pytest

from arc_trm import sanity
from arc_trm.sanity import CHECKS, Check, Outcome, verdict

SMALL = ("sudoku", "--side", "4", "--train-rows", "50", "--test-rows", "10")


@pytest.mark.parametrize(
    ("scores", "line", "status"),
    [
        ((0.95, 0.80), "the model learns: sound", 0),
        ((0.94, 1.0), "not sound: sudoku6: exact_accuracy 94.0% of held-out puzzles after 7 steps, goal 95%", 1),
        ((1.0, None), "not finished: maze6: 5 of 7 steps", 3),
        ((0.0, None), "not sound: sudoku6: exact_accuracy 0.0% of held-out puzzles after 7 steps, goal 95%", 1),
        ((None,), "not finished: sudoku6: 5 of 7 steps", 3),
    ],
)
def test_the_verdict(scores: tuple[float | None, ...], line: str, status: int) -> None:
    checks = zip(CHECKS, scores, strict=False)
    assert verdict([Outcome(check, 5 if score is None else 7, 7, score) for check, score in checks]) == (line, status)


@pytest.mark.parametrize(
    ("goal", "words", "last", "status"),
    [
        (0.9, ["--train.steps", "1"], "not sound: sudoku4: valid 0.0% of held-out puzzles after 1 steps, goal 90%", 1),
        (0.0, ["--train.steps", "1"], "the model learns: sound", 0),
        (0.0, ["--train.steps", "2", "--minutes", "0"], "not finished: sudoku4: 1 of 2 steps", 3),
    ],
)
def test_the_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    goal: float,
    words: list[str],
    last: str,
    status: int,
) -> None:
    monkeypatch.setattr(sanity, "CHECKS", (Check("sudoku4", SMALL, "valid", goal),))
    assert sanity.main(["--out", str(tmp_path), *words]) == status
    assert capsys.readouterr().out.splitlines()[-1] == last
