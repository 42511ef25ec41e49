"""Several rehearsals: which tasks, seeds and files each has, and what they say together."""

import re
from pathlib import Path
from typing import Any

import pytest

from data_prep.files import InputError, read_json
from submission import folds, solve
from submission.folds import fold_lines, wilson
from submission.inputs import RERUN_VARIABLE
from submission.settings import read_solve_arguments
from tests.conftest import ENDLESS
from tests.submission.kaggle_layout import make_layout
from tests.submission.tiny import QUICK, assert_valid, tiny_tasks


def summary(solved: int, total: int = 8) -> dict[str, Any]:
    share = {"score": solved / total}
    return {"scores": {"outputs": {"solved": solved, "total": total, **share}, "task_mean": share, "tasks": share}}


def test_mean_and_interval_over_folds() -> None:
    lines = fold_lines([{**summary(solved), "checkpoint": "c0ffee"} for solved in (1, 3, 2)])
    assert lines[0] == "checkpoint c0ffee"
    # 0.25 and 4.30 times 0.125 / sqrt(3) to either side, cut off at 0.
    assert lines[1] == "outputs     25.00%  mean over 3 folds, 95 % interval 0.0% to 56.0%"
    assert [line.split()[0] for line in lines[2:4]] == ["task_mean", "tasks"]
    assert lines[4] == "all folds: 6 of 24 outputs solved, 95 % interval 12.0% to 44.9%"
    assert fold_lines([summary(0)] * 2)[0].endswith(
        "mean over 2 folds, the same in each: that says nothing of an interval"
    )
    with pytest.raises(InputError, match="1 of 2 folds have scores, expected at least 2"):
        fold_lines([summary(1), {}])


@pytest.mark.parametrize(("solved", "total"), [(0, 7), (3, 7), (7, 7), (6, 88)])
def test_the_interval_of_a_count_is_where_it_would_not_surprise(solved: int, total: int) -> None:
    """Wilson's bounds are the shares p for which solved / total lies 1.96 standard errors of p away."""
    share = solved / total
    for bound, side in zip(wilson(solved, total), (1, -1), strict=True):
        away = side * 1.96 * (bound * (1 - bound) / total) ** 0.5
        assert bound + away == pytest.approx(share, abs=1e-9)
        assert -1e-9 <= bound <= 1 + 1e-9


def test_folds_share_no_task_and_are_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(RERUN_VARIABLE, raising=False)
    make_layout(tmp_path, "2026", tiny_tasks())
    names, outs = set(), []
    for fold, count in (("1/2", 2), ("2/2", 1)):  # the checkpoint has seen all but three
        out = tmp_path / f"fold{fold[0]}" / "submission.json"
        words = ["--input", str(tmp_path / "input"), "--out", str(out), *QUICK, "--train.steps", "1", "--seed", "3"]
        words += ["--train.precision", "fp32", "--time-budget", ENDLESS, "--rehearse", "2", "--fold", fold]
        assert solve.main(words, watched=False) == 0
        solutions = read_json(out.with_name("submission.solutions.json"))
        assert len(solutions) == count
        names |= set(solutions)
        outs.append(str(out))
    assert names == {"e0", "e1", "e2"}
    said = capsys.readouterr().out
    assert re.search(r"; scale: 1/120 of the rerun's tasks and puzzles, 1/0.49 of its time; a task has 12h00m, ", said)
    assert folds.main(outs) == 0
    assert re.search(r"^task_mean .*  mean over 2 folds, ", capsys.readouterr().out, re.MULTILINE)


def test_the_number_of_tasks_follows_from_the_time() -> None:
    said = (["--rehearse"], ["--rehearse", "--fold", "2/5"], ["--rehearse", "11"])
    read = [read_solve_arguments([*words, "--time-budget", "5h"]) for words in said]
    assert [(arguments.rehearse, arguments.fold) for arguments in read] == [(102, None), (102, (2, 5)), (11, None)]


def test_the_rerun_has_no_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tiny_tasks()
    make_layout(tmp_path, "2025", tasks)
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    words = ["--input", str(tmp_path / "input"), "--out", str(tmp_path / "s.json"), *QUICK, "--train.precision", "fp32"]
    words += ["--train.steps", "0", "--votes", "1", "--time-budget", ENDLESS]
    assert solve.main([*words, "--rehearse", "--fold", "3/3"], watched=False) == 0
    assert_valid(tmp_path / "s.json", tasks)
