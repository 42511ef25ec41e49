"""Fitting the adaptation to a device and to several processes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arc_trm.checkpoint import read_export
from arc_trm.device import make_accelerator
from arc_trm.trainer import Supervised, Trainer
from data_prep.store import ArcStore, TaskEntry, build_store
from submission import adapt
from submission.adapt import BATCH_SIZES, TaskFigures, make_trainer, run_config, shared_size, step_work
from submission.settings import Settings
from tests.submission.tiny import MODEL, make_export, tiny_task, tiny_tasks


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    store = build_store([TaskEntry.demonstrations_only(task) for task in tiny_tasks()], 5, 0)
    export = read_export(make_export(tmp_path))
    return make_trainer(Settings(batch_size=12, precision="fp32"), export, store, make_accelerator("none", tmp_path))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_every_process_gets_a_slot_of_every_canvas_size(processes: int) -> None:
    for wanted in (1, 7, 32, 257):
        size = shared_size(wanted, processes)
        assert size % processes == 0
        assert size >= max(wanted, 4 * processes)
        assert size < max(wanted, 4 * processes) + processes


def test_the_token_mlp_keeps_the_full_canvas(tmp_path: Path) -> None:
    export = read_export(make_export(tmp_path, model=replace(MODEL, mixer="mlp")))
    assert run_config(Settings(), export, torch.device("cpu"), 1).train.canvas == "full"


def test_a_step_is_judged_by_the_answers(trainer: Trainer) -> None:
    # 12 slots of 121 tokens; an answer takes 2 supervision steps, a third of the price of a training step each.
    assert step_work(trainer) == pytest.approx(12 * 121 * 3 / 2)


def many_tasks() -> ArcStore:
    """Seven tasks for the smallest canvas, five for the next."""
    rng = np.random.default_rng(3)
    tasks = [tiny_task(f"{i:x}", rng, side=3 if i < 7 else 12) for i in range(12)]
    return build_store([TaskEntry.demonstrations_only(task) for task in tasks], 5, 0)


def adapted(folder: Path, steps: int, **model: str | int) -> tuple[ArcStore, Trainer, TaskFigures, list[Supervised]]:
    """Some steps of what a CPU does when nothing is said, and all that they led to."""
    store, export = many_tasks(), read_export(make_export(folder, model=replace(MODEL, **model)))
    trainer = make_trainer(Settings(precision="fp32", steps=steps), export, store, make_accelerator("none", folder))
    figures, seen = TaskFigures(store, trainer), []
    for _ in range(steps):
        results = trainer.train_step()
        seen.extend(results)
        figures.add(results)
    return store, trainer, figures, seen


@pytest.mark.parametrize("owner", ["puzzle", "task"])
def test_every_task_has_its_own_loss_and_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    monkeypatch.setattr(adapt, "RECENT", 1e12)
    model = {"embedding_rows": "task", "prefix": 12} if owner == "task" else {}
    store, trainer, figures, seen = adapted(tmp_path, 4, **model)
    sums = Counter[tuple[str, str]]()
    for result in seen:
        for i, row in enumerate(result.puzzle_ids.tolist()):
            task = store.groups[row if owner == "task" else store.puzzle_groups[row]].task_id
            for name in ("loss", "count", "exact_accuracy"):
                sums[task, name] += result.rows[name][i].item()
            sums[task, "rows"] += 1
    means = figures.means()
    assert set(means) == {task for task, _ in sums}
    for task, found in means.items():
        assert found["loss"] == pytest.approx(sums[task, "loss"] / sums[task, "rows"], abs=1e-4)
        assert ("exact_accuracy" in found) == (sums[task, "count"] > 0)
        exact = sums[task, "exact_accuracy"] / max(sums[task, "count"], 1)
        assert found.get("exact_accuracy", 0) == pytest.approx(exact, abs=1e-4)
    loss, rows, exact, ended = figures.sums().sum(0).tolist()
    whole = trainer.read_metrics()
    assert (loss / rows, exact / ended) == pytest.approx((whole["loss"], whole["exact_accuracy"]))
    restored = TaskFigures(store, trainer)
    restored.restore(figures.sums())
    assert restored.means() == means


def test_figures_are_of_the_newest_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapt, "RECENT", 2)
    _, _, figures, _ = adapted(tmp_path, 6)
    batch = BATCH_SIZES["cpu"]
    assert figures.sums()[:, 1].sum().item() == pytest.approx(sum(batch / 2**age for age in range(6)))


def test_batches_visit_tasks_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of different canvas sizes, each of which has slots of its own."""
    monkeypatch.setattr(adapt, "RECENT", 1e12)
    store, trainer, figures, _ = adapted(tmp_path, 45)
    assert len(trainer.parts) == 2
    offered = Counter[int]()
    for step in range(45):
        for part in trainer.parts:
            rows = part.source.offer(step, slice(0, part.slots)).puzzle_ids
            offered.update(store.puzzle_groups[rows].tolist())
    # A slot takes an offer when its sequence has ended, which is chance: more so, the fewer steps there are.
    for visits, spread in ((torch.tensor(list(offered.values())), 0.05), (figures.sums()[:, 1], 0.2)):
        assert len(visits) == 12
        assert (visits / visits.double().mean() - 1).abs().max() < spread
