"""What does a task get that a trunk has seen nothing of? Ways to adapt to it, at equal cost, on the frozen ruler.

    python -m tests.experiments.hidden --trunk runs/trunk --out runs/hidden
    python -m tests.experiments.hidden --trunk runs/trunk --out runs/hidden solving:held-out-11:0 rows:unseen-11:1

A cell is WAY:LIST:SEED. The trunk must have been trained with `--exclude` of every list, and on none of their
generators; the program refuses another one. It adapts to the demonstrations of all tasks of the list together and is
measured after some minutes of processor time of the steps on one thread (the ruler's exact answers, and the votes of 64
views). OUT/CELL.json holds what was found; a cell that is there is not run again. --table prints all of them.

Ways: `solving` does what `submission.solve` does by default; `training` has the settings of the preset `arc1-tiny` (a
rate that falls to 0 over the minutes, own colours 0.3, mixed); `rows` is `training` from the known row that fits each
task's demonstrations best; `replay` is `training` with trunk tasks among the examples, for three in ten.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from arc_trm.batches import arc_data
from arc_trm.checkpoint import Export, RowNames, read_export
from arc_trm.presets import PRESETS, override
from arc_trm.sampler import Rows
from arc_trm.trainer import Trainer
from data_prep.corpus import pinned_corpus, ruler, ruler_corpus, without
from data_prep.files import InputError, write_atomic
from data_prep.overlap import trained_on
from data_prep.store import ArcStore, TaskEntry, build_store
from submission.adapt import make_trainer
from submission.settings import Settings
from tests.experiments.ruler import answers, measure, predictor, summary, votes

WAYS = ("solving", "training", "rows", "replay")
LISTS = ("held-out-11", "unseen-11")
MINUTES = (5.0, 15.0, 45.0)
REPLAY = 0.3
RECIPE: dict[str, Any] = {
    "lr": 1.5e-3, "lr_min_ratio": 0.0, "warmup_steps": 50, "own_colours": 0.3, "sampling": "mixed", "compile": False,
    "precision": "fp32",
}  # fmt: skip


def store_of(name: str, replay: bool) -> ArcStore:
    """The tasks of a list, with training tasks of ARC-AGI-1 beside them for a share of REPLAY."""
    asked = ruler_corpus(name)
    entries = [TaskEntry.demonstrations_only(task) for task in asked.tasks]
    if replay:
        listed = [task for other in ruler() for task in ruler_corpus(other).tasks]
        known = [TaskEntry.all_pairs(task) for task in without(pinned_corpus("arc1-training"), listed).tasks]
        small = [entry for entry in known if entry.side == 11]
        entries += small[:: len(small) // round(len(entries) * REPLAY / (1 - REPLAY))]
    return build_store(entries, 15, seed=0)


def best_rows(export: Export, store: ArcStore) -> list[int]:
    """For every task the known row under which its demonstrations have the least loss, by forward passes only."""
    assert export.puzzle_table is not None
    pairs = np.flatnonzero((store.pair_tests < 0) & store.pair_training)
    puzzles, zeros = store.group_puzzles[store.pair_groups[pairs]].astype(np.int64), np.zeros(len(pairs), np.int64)
    rows = Rows.of_puzzles(store, puzzles, pairs, zeros, zeros)
    loaded, losses = predictor(export, store), []
    for row in export.puzzle_table.float():
        loaded.embedding.table[:] = row
        each = answers(loaded, store, rows, [loaded.halting.max_supervision_steps])[:, 0, 0]
        losses.append([each[store.pair_groups[pairs] == task].mean() for task in range(len(store.groups))])
    return [int(best) for best in np.argmin(losses, axis=0)]


def trainer_of(way: str, export: Export, store: ArcStore, seed: int) -> Trainer:
    """A trainer that stands at the trunk."""
    accelerator = Accelerator(cpu=True)
    if way == "solving":
        return make_trainer(Settings(precision="fp32", seed=seed, forget=True), export, store, accelerator)
    config = replace(override(PRESETS["arc1-tiny"], {"train": RECIPE}), model=export.model, halting=export.halting)
    config = replace(config, seed=seed)
    data = arc_data(store, config, accelerator.device)
    trainer = Trainer(config, data.parts, accelerator, 10**6, names=data.names)
    trainer.load_export(export)
    if way == "rows":
        assert export.puzzle_table is not None
        trainer.embedding.table[: len(store.groups)] = export.puzzle_table.float()[best_rows(export, store)]
    return trainer


def found(trainer: Trainer, export: Export, store: ArcStore) -> dict[str, Any]:
    """What the moving average answers: the ruler's figures, and what 64 views solve."""
    with trainer.averaged():
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    names = RowNames.of_owners(store.demonstration_digests()).owners
    table = trainer.embedding.table[: len(names)].clone()
    now = predictor(replace(export, weights=weights, puzzle_table=table, puzzle_names=names), store)
    exactness = measure(now, store)[:, 0]
    return summary(store, exactness) | {"votes": list(votes(now, store, 64, 64))[-1], "pairs": exactness.tolist()}


def run_cell(cell: str, export: Export, minutes: Sequence[float]) -> Iterator[dict[str, Any]]:
    """What is found after each of `minutes`, and before the first step."""
    way, name, seed = cell.split(":")
    store = store_of(name, way == "replay")
    trainer, used, steps = trainer_of(way, export, store, int(seed)), 0.0, []
    yield {"minutes": 0.0, "step": 0} | found(trainer, export, store)
    for mark in minutes:
        while used < 60 * mark:
            began = time.process_time()
            trainer.train_step()
            steps.append(time.process_time() - began)
            used += steps[-1]
            if way != "solving" and trainer.step % 50 == 0:
                left = 60 * minutes[-1] - used
                trainer.planned_steps = trainer.step + max(1, int(left / np.median(steps[-200:])))
        metrics = trainer.read_metrics()
        shown = {key: metrics[key] for key in ("token_loss", "exact_accuracy") if key in metrics}
        yield {"minutes": used / 60, "step": trainer.step, "shown": shown} | found(trainer, export, store)


def check_unseen(export: Export) -> None:
    """Raise InputError if the trunk was trained on a pair of the ruler."""
    tasks = [task for name in ruler() for task in ruler_corpus(name).tasks]
    seen = trained_on(tasks, export.training_tasks)
    if not export.training_known or seen.tests or seen.demonstrations:
        raise InputError(f"the trunk has seen tasks of the ruler, such as {(*seen.tests, *seen.demonstrations)[:1]}")


def table(out: Path) -> str:
    """What was found, a row a cell and mark."""
    rows = [
        "| way, list, seed | minutes | steps | exact own, random | exact demonstrations | votes |",
        "|---" * 6 + "|",
    ]
    for path in sorted(out.glob("*.json")):
        for mark in json.loads(path.read_bytes()):
            shown = mark.get("shown", {}).get("exact_accuracy", float("nan"))
            rows.append(
                f"| {path.stem} | {mark['minutes']:.0f} | {mark['step']} | {mark['exact_own']:.1%}, "
                f"{mark['exact_random']:.1%} | {shown:.1%} | {mark['votes']} |"
            )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help=f"WAY:LIST:SEED with WAY of {', '.join(WAYS)}")
    parser.add_argument("--trunk", type=Path, help="an export, or a run folder")
    parser.add_argument("--out", type=Path, default=Path("runs/hidden"))
    parser.add_argument("--minutes", type=float, nargs="+", default=MINUTES)
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        export = read_export(arguments.trunk)
        check_unseen(export)
        for cell in arguments.cells or [f"{way}:{name}:{seed}" for seed in (0, 1) for way in WAYS for name in LISTS]:
            path, marks = arguments.out / f"{cell}.json", []
            for mark in () if path.exists() else run_cell(cell, export, arguments.minutes):
                marks.append(mark)
                print(cell, {key: value for key, value in mark.items() if key != "pairs"}, flush=True)
            if marks:
                write_atomic(path, json.dumps(marks).encode())
    print(table(arguments.out))


if __name__ == "__main__":
    main()
