"""The demo: its rules, the export that ships, a fixed amount of work, and a run of the real programs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arc_trm.checkpoint import read_export
from arc_trm.model import RecursiveModel
from arc_trm.presets import PRESETS
from data_prep.canvas import CANVAS_SIDES, implied_shapes
from data_prep.corpus import Corpus, pinned_corpus, ruler_corpus
from data_prep.overlap import PairDigest, pair_digest, trained_on
from data_prep.store import TaskEntry
from data_prep.tasks import Pair, pairs_digest
from submission import demo


def test_the_rule_never_looks_at_test_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [task.task_id for task in demo.demo_tasks()]
    real = pinned_corpus("arc1-evaluation")
    huge = np.zeros((30, 30), np.uint8)
    blind = tuple(replace(task, tests=tuple(Pair(pair.input, huge) for pair in task.tests)) for task in real.tasks)
    monkeypatch.setattr(demo, "pinned_corpus", lambda name: Corpus(name, "blind", blind))
    assert [task.task_id for task in demo.demo_tasks()] == chosen


def test_the_rule_takes_all_tasks_that_fit() -> None:
    def visible(task):  # type: ignore[no-untyped-def]
        return [pair.input for pair in task.pairs] + [pair.output for pair in task.demonstrations]

    evaluation, chosen = pinned_corpus("arc1-evaluation").tasks, demo.demo_tasks()
    assert sum(len(task.tests) for task in evaluation) == demo.ALL_OUTPUTS
    names = {task.task_id for task in chosen}
    assert (len(names), sum(len(task.tests) for task in chosen)) == (77, 88)
    for task in evaluation:
        implied = implied_shapes(TaskEntry.demonstrations_only(task).visible)
        longest = max(map(max, [*(grid.shape for grid in visible(task)), *implied]))
        assert (longest < CANVAS_SIDES[0]) == (task.task_id in names)


def test_the_unseen_task_shares_no_pair_with_the_training_tasks() -> None:
    training = read_export(demo.SHIPPED).training_tasks
    seen = {PairDigest(*text.split(":")).pair for line in training for text in line.split()[1:]}
    first = next(demo.unseen_tasks(training))
    assert not seen & {pair_digest(pair).pair for pair in first.pairs}
    assert first.task_id not in {task.task_id for task in demo.demo_tasks()}
    # One pair of it among the labels, and the next task is taken.
    line = f"{'0' * 64} {pair_digest(first.demonstrations[1])}"
    assert next(demo.unseen_tasks([*training, line])).task_id > first.task_id


def test_the_shipped_export_knows_the_tasks_and_has_seen_no_pair_that_is_scored() -> None:
    export = read_export(demo.SHIPPED)
    evaluation = pinned_corpus("arc1-evaluation").tasks
    assert trained_on(evaluation, export.training_tasks).tests == ()
    assert export.facts["leak"] == []
    assert export.puzzle_names is not None
    assert {pairs_digest(task.demonstrations) for task in demo.demo_tasks()} <= set(export.puzzle_names)
    # What it did see is known, so the check above can fail; and the tests of forty tasks were held out.
    seen = trained_on(pinned_corpus("arc1-training").tasks, export.training_tasks).tests
    assert len(seen) > 100
    held_out = ruler_corpus("held-out-11").tasks
    assert not set(seen) & {task.name for task in held_out}
    assert export.model == PRESETS["arc1-tiny"].model
    assert sum(file.stat().st_size for file in demo.SHIPPED.iterdir()) < 4_000_000


def test_the_answers_take_less_than_15_tflop() -> None:
    export = read_export(demo.SHIPPED)
    model, side = RecursiveModel(export.model), CANVAS_SIDES[0]
    state = model.initial_state(1, side**2, torch.float32)
    question = torch.zeros(1, side**2, dtype=torch.int32), torch.zeros(1, export.model.puzzle_width)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(state, *question, torch.zeros(1, 11, dtype=torch.int32))
    answer = counter.get_total_flops() * export.halting.max_supervision_steps
    outputs = sum(len(task.tests) for task in demo.demo_tasks())
    # One vote more comes first, from the weights as they are, and is replaced.
    assert 1e12 < outputs * (demo.VOTES + 1) * answer < 15e12


@pytest.mark.slow
def test_the_demo_runs_with_the_shipped_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = demo.demo_tasks()[:3]
    monkeypatch.setattr(demo, "demo_tasks", lambda: tasks)
    monkeypatch.setattr(demo, "FIXED_WORK", ("--canvas=strict", "--train.precision=fp32", "--augmentations=2"))
    monkeypatch.setattr(demo, "STEPS", 2)
    assert demo.main(["--out", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr().out
    assert "CONTAMINATED" not in said
    last = said.splitlines()
    outputs = sum(len(task.tests) for task in tasks)
    assert f"of {outputs} test outputs by the model's votes" in last[-2]
    assert "of all 419 of ARC-AGI-1 evaluation" in last[-2]
    assert "1 supervision step on a canvas of side 11" in said
    assert "puzzle embedding: the task's own" in said
    assert len((tmp_path / "demo/score.txt").read_text().splitlines()) == 3 + 3
    files = {"candidates.npz", "challenges.json", "solutions.json"}
    files |= {"submission.json", "submission.summary.json", "submission.metrics.jsonl"}
    assert {path.name for path in (tmp_path / "demo").iterdir()} == files | {"report.html", "score.txt", "unseen"}
    assert {path.name for path in (tmp_path / "demo/unseen").iterdir()} == files
