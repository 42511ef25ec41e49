"""The demo's promises: its rule, and that it is the real road."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arc_trm.checkpoint import read_export
from arc_trm.presets import PRESETS
from data_prep.canvas import CANVAS_SIDES
from data_prep.corpus import Corpus, pinned_corpus
from data_prep.overlap import trained_on
from data_prep.tasks import Pair
from submission import demo


def test_the_rule_never_looks_at_test_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [task.task_id for task in demo.demo_tasks()]
    real = pinned_corpus("arc1-evaluation")
    huge = np.zeros((30, 30), np.uint8)
    blind = tuple(replace(task, tests=tuple(Pair(pair.input, huge) for pair in task.tests)) for task in real.tasks)
    monkeypatch.setattr(demo, "pinned_corpus", lambda name: Corpus(name, "blind", blind))
    assert [task.task_id for task in demo.demo_tasks()] == chosen


def test_the_rule_takes_the_first_tasks_that_fit() -> None:
    chosen = demo.demo_tasks()
    assert len(chosen) == demo.TASKS == 20
    assert [task.task_id for task in chosen] == sorted(task.task_id for task in chosen)
    assert chosen[0].task_id == "00576224"
    for task in chosen:
        grids = [pair.input for pair in task.pairs]
        grids += [pair.output for pair in task.demonstrations if pair.output is not None]
        assert max(max(grid.shape) for grid in grids) < CANVAS_SIDES[0]


def test_nothing_that_is_scored_is_trained_on() -> None:
    store = demo.training_store(augmentations=0)
    assert len(store.groups) > 150
    assert trained_on(pinned_corpus("arc1-evaluation").tasks, store.training_digests()).tests == ()


def test_the_shipped_export_has_seen_no_pair_that_is_scored() -> None:
    export = read_export(demo.SHIPPED)
    evaluation = pinned_corpus("arc1-evaluation").tasks
    seen = trained_on(evaluation, export.training_tasks)
    assert seen.tests == ()
    assert export.facts["recipe"] == "arc1-train"
    assert export.facts["leak"] == []
    # What it did see is known: the check above can fail.
    assert len(trained_on(pinned_corpus("arc1-training").tasks, export.training_tasks).tests) > 100
    assert export.model == PRESETS["arc1-tiny"].model
    assert sum(file.stat().st_size for file in demo.SHIPPED.iterdir()) < 4_000_000


@pytest.mark.slow
def test_the_demo_runs_with_the_shipped_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--time", "8s", "--out", str(tmp_path / "demo")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"every task: {tmp_path}/demo/score.txt; scored file: {tmp_path}/demo/submission.json"
    assert "CONTAMINATED" not in "\n".join(lines)


@pytest.mark.slow
def test_the_demo_runs_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = replace(demo.CONFIG.model, hidden=16, heads=2, puzzle_width=16, latent_steps=1, deep_steps=1)
    monkeypatch.setattr(demo, "CONFIG", replace(demo.CONFIG, model=model))
    monkeypatch.setattr(demo, "SOLVE_OPTIONS", ("--augmentations", "3", "--precision", "fp32"))
    assert demo.main(["--time", "8s", "--from-scratch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "every task: demo/score.txt; scored file: demo/submission.json"
    assert "test outputs, " in lines[-2]
    assert "of them by the model" in lines[-2]
    assert len(Path("demo/score.txt").read_text().splitlines()) == 20 + 3
    assert {path.name for path in Path("demo").iterdir()} == {
        "candidates.npz", "challenges.json", "report.html", "score.txt", "solutions.json",
        "submission.json", "submission.summary.json",
    }  # fmt: skip
