"""Fitting the adaptation to a device and to several processes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arc_trm.checkpoint import read_export
from arc_trm.device import make_accelerator
from arc_trm.trainer import Trainer
from data_prep.store import TaskEntry, build_store
from submission.adapt import make_trainer, run_config, shared_size, step_work
from submission.settings import Settings
from tests.submission.tiny import MODEL, make_export, tiny_tasks


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
