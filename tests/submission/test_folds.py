"""Several rehearsals: which tasks, seeds and files each has, and what they say together."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from data_prep.files import InputError, read_json
from submission import folds, solve
from submission.folds import fold_lines, wilson
from submission.inputs import RERUN_VARIABLE
from submission.launch import Launch
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


def test_folds_are_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Sequence[str]] = []

    def run(words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
        started.append(words[3:])
        if len(started) == 1:
            return 1  # is started again
        return solve.main(words[3:], watched=False)

    monkeypatch.delenv(RERUN_VARIABLE, raising=False)
    monkeypatch.setattr(folds, "working_gpus", lambda: ())
    monkeypatch.setattr(folds, "Launch", lambda gpus, words: Launch(gpus, words, run, lambda: ()))
    make_layout(tmp_path, "2026", tiny_tasks())
    out = tmp_path / "rehearsal" / "submission.json"
    words = ["--input", str(tmp_path / "input"), "--out", str(out), "--candidates", str(out.with_name("votes.npz"))]
    words += [*QUICK, "--steps", "1", "--precision", "fp32", "--time-budget", ENDLESS, "--rehearse", "2", "--seed", "3"]
    with pytest.raises(InputError, match="expected neither --plan nor a launcher"):
        solve.main([*words, "--folds", "2", "--plan"])
    assert solve.main([*words, "--folds", "2"]) == 0
    first, again, second = map(read_solve_arguments, started)
    assert (first.seed, again.seed, second.seed) == (3, 3, 4)
    assert (first.rehearse, first.time_budget) == (2, 12 * 3600)
    assert again.resume
    names = set()
    for folder, count in (("fold1", 2), ("fold2", 1)):  # the checkpoint has seen all but three
        submission = out.parent / folder / "submission.json"
        solutions = read_json(submission.with_name("submission.solutions.json"))
        assert len(solutions) == count
        assert submission.with_name("votes.npz").is_file()
        names |= set(solutions)
    assert names == {"e0", "e1", "e2"}
    said = capsys.readouterr().out
    assert re.search(r"^task_mean .*  mean over 2 folds, ", said, re.MULTILINE)
    assert re.search(r"; scale: 1/120 of the rerun's tasks and puzzles, 1/0.979 of its time; a task has 6h00m, ", said)


def test_folds_share_the_time_and_so_the_tasks() -> None:
    said = (["--rehearse"], ["--rehearse", "--folds", "5"], ["--rehearse", "--folds", "5", "--fold", "2"])
    read = [read_solve_arguments([*words, "--time-budget", "5h"]) for words in (*said, ["--rehearse", "11"])]
    assert [arguments.rehearse for arguments in read] == [102, 20, 102, 11]


def test_the_rerun_has_no_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tiny_tasks()
    make_layout(tmp_path, "2025", tasks)
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    words = ["--input", str(tmp_path / "input"), "--out", str(tmp_path / "s.json"), *QUICK, "--precision", "fp32"]
    words += ["--steps", "0", "--votes", "1", "--time-budget", ENDLESS]
    assert solve.main([*words, "--rehearse", "--folds", "3"], watched=False) == 0
    assert_valid(tmp_path / "s.json", tasks)
