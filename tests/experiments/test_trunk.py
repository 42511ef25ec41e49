"""The export of the long training's trunk loads as it was written, and has seen what it may see."""

from pathlib import Path

from accelerate import Accelerator

from arc_trm.batches import arc_data
from arc_trm.checkpoint import read_export
from arc_trm.presets import PRESETS, override
from arc_trm.trainer import Trainer
from data_prep.corpus import pinned_corpus, ruler, ruler_corpus
from data_prep.overlap import trained_on
from data_prep.store import TaskEntry, build_store

TRUNK = Path(__file__).parent / "trunk"


def test_a_training_starts_from_the_trunk_and_knows_its_rows() -> None:
    export = read_export(TRUNK)
    config = override(PRESETS["arc1-tiny"], {"model": {"patch": 2}, "train": {"sampling": "mixed"}})
    assert (export.model, export.halting) == (config.model, config.halting)
    tasks = pinned_corpus("arc1-training").tasks
    known = next(task for task in tasks if TaskEntry.all_pairs(task).side == 11 and task.task_id not in listed())
    accelerator = Accelerator(cpu=True)
    data = arc_data(build_store([TaskEntry.all_pairs(known)], 0, seed=0), config, accelerator.device)
    trainer = Trainer(config, data.parts, accelerator, 1, names=data.names)
    assert trainer.load_export(export) == 1


def listed() -> set[str]:
    return {task_id for name in ruler() for task_id in ruler()[name]["tasks"]}


def test_the_trunk_has_seen_nothing_of_the_ruler_or_of_evaluation() -> None:
    export = read_export(TRUNK)
    assert export.training_known
    assert export.facts["leak"] == []
    unseen = [task for name in ruler() for task in ruler_corpus(name).tasks]
    unseen += pinned_corpus("arc1-evaluation").tasks
    seen = trained_on(unseen, export.training_tasks)
    # Training task 40853293 shows the demonstrations of this one; its test pair was left out.
    assert (seen.tests, seen.demonstrations) == ((), ("arc1-evaluation/070dd51e",))
    # What it did see is known, so that the line above can fail.
    assert len(trained_on(pinned_corpus("arc1-training").tasks, export.training_tasks).tests) > 300
