"""The sanity check judges only learning, and gives no verdict on a run that was cut short."""

from pathlib import Path

import orjson
import pytest

from arc_trm import sanity
from arc_trm.sanity import CHECKS, Check

SMALL = ("sudoku", "--side", "4", "--train-rows", "50", "--test-rows", "10")


@pytest.mark.parametrize(
    ("statuses", "line", "status"),
    [
        ((0, 0), "the model learns: sound", 0),
        ((1, 0), "not sound: sudoku6 went so", 1),
        ((1, 1), "not sound: sudoku6 went so; maze6 went so", 1),
        ((0, 3), "not finished: maze6 went so", 3),
        ((1, 3), "not sound: sudoku6 went so", 1),
        ((3,), "not finished: sudoku6 went so", 3),
    ],
)
def test_the_exit_status_is_the_worst_of_all_checks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: tuple[int, ...],
    line: str,
    status: int,
) -> None:
    left = list(statuses)
    monkeypatch.setattr(sanity, "perform", lambda check, *_: (f"{check.preset} went so", left.pop(0)))
    assert sanity.main(["--out", "nowhere"]) == status
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert not left


@pytest.mark.parametrize(
    ("score", "line", "status"),
    [
        (0.95, "sudoku6: exact_accuracy 95.0% of held-out puzzles after 7 steps, goal 95%", 0),
        (0.94, "sudoku6: exact_accuracy 94.0% of held-out puzzles after 7 steps, goal 95%", 1),
        (None, "sudoku6: 7 steps, not scored", 3),
    ],
)
def test_the_last_score_in_the_log_decides(tmp_path: Path, score: float | None, line: str, status: int) -> None:
    scores = [] if score is None else [{"step": 3, "evaluation/exact_accuracy": 0.1}]
    scores += [] if score is None else [{"step": 7, "evaluation/exact_accuracy": score}]
    lines = [orjson.dumps(line) + b"\n" for line in ({"step": 1, "train/loss": 1.0}, *scores)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    assert sanity.judged(CHECKS[0], tmp_path, 7) == (line, status)


@pytest.mark.parametrize(
    ("goal", "words", "last", "status"),
    [
        (0.9, ["--train.steps", "1"], "not sound: sudoku4: valid 0.0% of held-out puzzles after 1 steps, goal 90%", 1),
        (0.0, ["--train.steps", "1"], "the model learns: sound", 0),
        (0.0, ["--train.steps", "2", "--minutes", "0"], "not finished: sudoku4: 1 of 2 steps", 3),
    ],
)
def test_main_trains_scores_and_stops_in_time(
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


def test_a_finished_check_shows_a_film_and_the_score_after_every_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanity, "CHECKS", (Check("sudoku4", SMALL, "cell_accuracy", 0.0),))
    assert sanity.main(["--out", str(tmp_path), "--train.steps", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("sudoku test/0, rating") for line in said)
    assert any(line.startswith("step 16 of 16: ") for line in said)
    first = said.index("sudoku4: cell_accuracy of held-out puzzles after so many supervision steps of the same weights")
    scored = dict(line.split() for line in said[first + 1 : first + 6])
    assert list(scored) == ["1", "2", "4", "8", "16"]
    # Training ended with a score after 16 steps.
    assert f"sudoku4: cell_accuracy {scored['16']} of held-out puzzles after 1 steps, goal 0%" in said
