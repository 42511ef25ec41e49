"""Curves of runs: what is read from the log, which panels show it, and the picture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from arc_trm.plot import PANELS, main, panels_of, read_run, smoothed
from data_prep.files import InputError


def report(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, **{name.replace("__", "/"): value for name, value in values.items()}}


def write_run(folder: Path, reports: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reports))
    return folder


def trained(folder: Path, points: int = 7) -> Path:
    reports = [
        report(10 * i, train__loss=3.0 / i, train__exact_accuracy=0.1, train__supervision_steps=16.0, train__lr=1e-3)
        for i in range(1, points + 1)
    ]
    return write_run(folder, [*reports, report(10 * points, evaluation__tasks=0.25, evaluation__cells_right=0.5)])


def test_every_metric_becomes_a_curve(tmp_path: Path) -> None:
    run = read_run(trained(tmp_path / "a"))
    steps, values = run.curves["train/loss"]
    np.testing.assert_array_equal(steps, np.arange(10, 71, 10))
    np.testing.assert_allclose(values, 3.0 / np.arange(1, 8))
    assert run.last_step == 70
    assert [column.tolist() for column in run.curves["evaluation/tasks"]] == [[70.0], [0.25]]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a")
    whole = read_run(folder).curves["train/loss"][0]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 80, "train/lo')
    np.testing.assert_array_equal(read_run(folder).curves["train/loss"][0], whole)


def test_reports_may_lack_metrics_and_hold_none(tmp_path: Path) -> None:
    reports = [report(5, train__loss=1.0), report(6, train__loss=2.0, train__exact_accuracy=0.5)]
    run = read_run(write_run(tmp_path / "a", [*reports, report(7, train__loss=None)]))
    assert run.curves["train/exact_accuracy"][0].tolist() == [6]
    assert run.curves["train/loss"][0].tolist() == [5, 6]


def test_panels_show_all_that_was_logged_and_nothing_else(tmp_path: Path) -> None:
    panels = panels_of([read_run(trained(tmp_path / "a"))])
    known = [panel for panel in panels if panel in PANELS]
    assert [panel.title for panel in known] == [
        "loss",
        "accuracy of halted sequences",
        "supervision steps until halting",
        "learning rate",
        "score on the evaluation tasks",
    ]
    assert [panel.metrics for panel in panels if panel not in PANELS] == [("evaluation/cells_right",)]


def test_smoothing_keeps_level_and_ends() -> None:
    np.testing.assert_allclose(smoothed(np.full(127, 0.3)), 0.3)
    ramp = np.arange(127.0)
    np.testing.assert_allclose(smoothed(ramp)[2:-2], ramp[2:-2])
    assert smoothed(ramp)[0] == pytest.approx(1.0)  # the mean of 0, 1, 2


def test_two_runs_make_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = trained(tmp_path / "a"), trained(tmp_path / "b", points=71)
    train = {"canvas": "sizes", "batch_size": 32, "precision": "fp32"}
    (second / "config.json").write_text(json.dumps({"train": train}))
    assert read_run(second).name == "b (canvas sizes, batch 32, fp32)"
    assert main([str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"wrote {first / 'curves.png'}: 6 panels, up to step 710\n"
    picture = image.imread(first / "curves.png")
    assert picture.shape[0] > 600
    assert picture.shape[1] > 1500
    assert len(np.unique((picture[..., :3] * 255).astype(int).reshape(-1, 3), axis=0)) > 20
    assert main([str(first), "--out", str(tmp_path / "other.png")]) == 0
    assert (tmp_path / "other.png").stat().st_size > 10_000


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"metrics\.jsonl: cannot read .*expected the folder of a training run"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="holds no report yet"):
        read_run(write_run(tmp_path / "a", []))
