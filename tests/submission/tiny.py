"""A tiny export and tiny tasks, on which the whole of solving takes a moment."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import torch

from arc_trm.checkpoint import Export, write_export
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import RecursiveModel
from data_prep.store import TaskEntry, build_store
from data_prep.tasks import Pair, Task
from submission.submission_file import check_complete, read_submission
from tests.data_prep.material import as_json

MODEL = ModelConfig(
    hidden=16, heads=2, puzzle_width=16, layers=1, latent_steps=1, deep_steps=1, prefix=2, expansion=1.0
)
# An untrained model closes no grid: without `strict` almost every answer would be repeated on the full canvas.
QUICK = ["--augmentations", "10", "--train.batch-size", "4", "--predict-batch", "2", "--canvas", "strict"]


def tiny_task(name: str, rng: np.random.Generator, tests: int = 1, side: int = 3, corpus: str = "own") -> Task:
    """The output is the input turned upside down."""

    def pair() -> Pair:
        grid = rng.integers(0, 4, (side, side + 2), dtype=np.uint8)
        return Pair(grid, grid[::-1].copy())

    return Task(name, corpus, tuple(pair() for _ in range(3)), tuple(pair() for _ in range(tests)))


def tiny_tasks(count: int = 3, seed: int = 0) -> list[Task]:
    """Tasks a, b, c, …; the second one asks for two outputs."""
    rng = np.random.default_rng(seed)
    return [tiny_task(chr(ord("a") + i), rng, tests=1 + (i == 1)) for i in range(count)]


def make_export(folder: Path, trained: Sequence[Task] = (), model: ModelConfig = MODEL, leak: bool = False) -> Path:
    """An untrained model that says it was trained on `trained`."""
    torch.manual_seed(0)
    digests = build_store([TaskEntry.all_pairs(t) for t in trained], 0, 0).training_digests() if trained else ()
    weights = RecursiveModel(model).state_dict()
    mean = torch.linspace(-1, 1, model.puzzle_width)
    facts = {"leak": [{"training": "x", "pair": 0, "scored": "y"}] if leak else []}
    write_export(folder, Export(model, HaltingConfig(max_supervision_steps=2), weights, mean, digests, facts=facts))
    return folder


def write_challenges(path: Path, tasks: Sequence[Task], hidden: bool = True) -> Path:
    path.write_bytes(orjson.dumps({task.task_id: as_json(task, hidden) for task in tasks}))
    return path


def write_solutions(path: Path, tasks: Sequence[Task]) -> Path:
    grids = {task.task_id: [p.output.tolist() for p in task.tests if p.output is not None] for task in tasks}
    path.write_bytes(orjson.dumps(grids))
    return path


def assert_valid(path: Path, tasks: Sequence[Task]) -> None:
    """The submission is valid and answers just these tasks."""
    expected = {task.task_id: len(task.tests) for task in tasks}
    check_complete(path, read_submission(path), expected, "the tasks")
