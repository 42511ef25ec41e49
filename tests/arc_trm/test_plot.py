"""Curves of runs: reading the log, and the picture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from arc_trm.plot import main, read_run, running_mean
from data_prep.files import InputError

COLOURS = ((31, 119, 180), (255, 127, 14))  # matplotlib's first two


def report(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, **{name.replace("__", "/"): value for name, value in values.items()}}


def write_run(folder: Path, reports: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reports))
    return folder


def trained(folder: Path, points: int = 7, scale: float = 3.0) -> Path:
    reports = [report(10 * i, train__loss=scale / i, train__lr=0.0) for i in range(1, points + 1)]
    return write_run(folder, [*reports, report(10 * points, evaluation__tasks=0.25)])


def test_every_metric_becomes_a_curve(tmp_path: Path) -> None:
    curves = read_run(trained(tmp_path / "a"))
    assert list(curves) == ["evaluation/tasks", "train/loss", "train/lr"]
    np.testing.assert_allclose(curves["train/loss"], [np.arange(10, 71, 10), 3.0 / np.arange(1, 8)])
    assert curves["evaluation/tasks"].tolist() == [[70.0], [0.25]]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    folder = trained(tmp_path / "a")
    whole = read_run(folder)["train/loss"]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 80, "train/lo')
    np.testing.assert_array_equal(read_run(folder)["train/loss"], whole)


def test_reports_may_lack_metrics_and_hold_none(tmp_path: Path) -> None:
    reports = [report(5, train__loss=1.0), report(6, train__loss=2.0, train__exact_accuracy=0.5)]
    curves = read_run(write_run(tmp_path / "a", [*reports, report(7, train__loss=None)]))
    assert curves["train/exact_accuracy"].tolist() == [[6.0], [0.5]]
    assert curves["train/loss"][0].tolist() == [5.0, 6.0]


def test_a_running_mean_keeps_level_and_ends() -> None:
    np.testing.assert_allclose(running_mean(np.full(127, 0.3)), 0.3)
    ramp = np.arange(127.0)
    np.testing.assert_allclose(running_mean(ramp)[2:-2], ramp[2:-2])
    assert running_mean(ramp)[0] == pytest.approx(1.0)  # the mean of 0, 1, 2
    assert running_mean(np.array([0.5])).tolist() == [0.5]


def test_two_runs_make_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = trained(tmp_path / "a"), trained(tmp_path / "b", points=11, scale=5.0)
    assert main([str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert said == f"wrote {first / 'curves.png'}: {first} with 3 metrics, {second} with 3 metrics\n"
    assert all(pixels_of(first / "curves.png", colour) > 100 for colour in COLOURS)
    alone = tmp_path / "other.png"
    assert main([str(first), "--out", str(alone)]) == 0
    assert pixels_of(alone, COLOURS[0]) > 100
    assert pixels_of(alone, COLOURS[1]) == 0


def pixels_of(picture: Path, colour: tuple[int, int, int]) -> int:
    pixels = (image.imread(picture)[..., :3] * 255).round().astype(int)
    return int((pixels == colour).all(axis=-1).sum())


def test_a_folder_without_a_log_of_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"metrics\.jsonl: not the log of a run \(.*No such file"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="holds no report yet"):
        read_run(write_run(tmp_path / "a", []))
    for text in ("no log\n", "[1, 2]\n", '{"loss": 1.0}\n'):
        (tmp_path / "a" / "metrics.jsonl").write_text(text)
        with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: not the log of a run \(found '.*', expected"):
            read_run(tmp_path / "a")
