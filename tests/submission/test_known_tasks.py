"""Exports that know tasks: rows found by the demonstrations, and what the summary says about it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from arc_trm.checkpoint import Export, read_export, write_export
from arc_trm.config import HaltingConfig
from arc_trm.model import RecursiveModel
from data_prep.store import TaskEntry, build_store
from data_prep.tasks import Task, pairs_digest
from submission import solve
from submission.adapt import make_trainer
from submission.settings import Settings
from submission.submission_file import read_summary, remarks
from tests.submission.tiny import MODEL, QUICK, assert_valid, tiny_tasks, write_challenges

KNOWING = replace(MODEL, embedding_rows="task", prefix=12)


def knowing_export(folder: Path, known: list[Task]) -> Path:
    """An untrained export with a row for each known task, in another order of their demonstrations."""
    torch.manual_seed(0)
    table = torch.arange(len(known) * MODEL.puzzle_width).view(len(known), -1) / 7
    names = tuple(pairs_digest(task.demonstrations[::-1]) for task in known)
    weights = RecursiveModel(KNOWING).state_dict()
    mean = torch.full((MODEL.puzzle_width,), 0.5)
    halting = HaltingConfig(max_supervision_steps=2)
    facts = {"leak": []}
    write_export(folder, Export(KNOWING, halting, weights, mean, (), table.half(), names, facts))
    return folder


@pytest.mark.parametrize("forget", [False, True])
def test_a_known_task_starts_from_its_row_and_another_from_the_mean(tmp_path: Path, forget: bool) -> None:
    tasks = tiny_tasks(3)
    export = read_export(knowing_export(tmp_path / "export", [tasks[2], tasks[0]]))
    store = build_store([TaskEntry.demonstrations_only(task) for task in tasks], 5, 0)
    trainer = make_trainer(Settings(forget=forget, precision="fp32"), export, store, Accelerator(cpu=True))
    assert export.puzzle_table is not None
    mean, (last, first) = export.puzzle_mean, export.puzzle_table.float()
    expected = [mean, mean, mean] if forget else [first, mean, last]
    assert torch.equal(trainer.embedding.table, torch.stack(expected))


def test_the_summary_says_which_tasks_were_known(tmp_path: Path) -> None:
    tasks = tiny_tasks(3)
    export = knowing_export(tmp_path / "export", [tasks[2], tasks[0]])
    challenges, out = write_challenges(tmp_path / "challenges.json", tasks), tmp_path / "submission.json"
    words = [
        "--challenges",
        str(challenges),
        "--checkpoint",
        str(export),
        "--out",
        str(out),
        *QUICK,
        "--train.steps",
        "2",
    ]
    said = "the checkpoint was trained on the demonstrations of 2 of its tasks (the paper's protocol)"
    for extra, known in (([], ["a", "c"]), (["--forget"], [])):
        assert solve.main([*words, *extra, "--time-budget", "10m"]) == 0
        assert_valid(out, tasks)
        summary = read_summary(out)
        assert summary is not None
        assert summary["known"] == known
        assert (said in remarks(summary)) == bool(known)
        assert summary["votes"] > 0
