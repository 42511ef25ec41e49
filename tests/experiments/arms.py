"""Compare ways of training at equal cost, on tasks whose test outputs are held out.

    python -m tests.experiments.arms --minutes 15 --out runs/arms shared muon-2e-3
    python -m tests.experiments.arms --list

Every arm is the preset `arc1-tiny` with some settings changed. It trains on the demonstrations of the ARC-AGI-1
*training* tasks that fit the smallest canvas, and is measured on their test pairs: token loss and exact accuracy under
eight views, and outputs solved by votes of all views of the dataset. The evaluation tasks are never looked at.

Cost is processor time of the training steps on one thread, which other work on the machine hardly changes; compiling,
set-up and evaluation do not count. Each arm gets `--minutes` of it. Results are appended to OUT/results.jsonl, a line
an arm, and printed as a table.
"""

import argparse
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator

from arc_trm.batches import ArcBatches, arc_data
from arc_trm.config import RunConfig
from arc_trm.predict import Voter, outputs_of_store
from arc_trm.presets import PRESETS, Overrides, merged, override
from arc_trm.sampler import evaluation_rows, fixed_batches
from arc_trm.scoring import solutions_of, tally_scores
from arc_trm.trainer import Trainer
from arc_trm.vote import Tally
from data_prep import build
from data_prep.canvas import IGNORE_LABEL
from data_prep.grid import COLOURS
from data_prep.store import ArcStore, load

# The paper's way at a size for two cores, from which the arms depart.
BASE: Overrides = {
    "model": {"embedding_rows": "puzzle", "prefix": 1, "latent_steps": 2, "deep_steps": 2, "convolution": False},
    "halting": {"max_supervision_steps": 4},
    "train": {
        "batch_size": 64,
        "optimiser": "adam_atan2",
        "lr": 4e-4,
        "warmup_steps": 50,
        "own_colours": 0.0,
    },
    "log": {"track": "none"},
}
SCREENING: Overrides = {"model": {"hidden": 64, "heads": 2, "puzzle_width": 64}}
SHARED: Overrides = {"model": {"embedding_rows": "task", "prefix": 12}}


def shared(**train: Any) -> Overrides:
    """One row a task, with some training settings changed."""
    return merged(SHARED, {"train": train})


FRESH = merged(shared(optimiser="muon", lr=2e-3), {"model": {"deep_steps": 1}})
ONE_STEP = merged(FRESH, {"model": {"latent_steps": 1}, "halting": {"max_supervision_steps": 1}})
ARMS: dict[str, Overrides] = {
    "paper-rows": {},
    "paper-rows-1e-3": {"train": {"lr": 1e-3}},
    "paper-rows-2e-4": {"train": {"lr": 2e-4}},
    "shared": shared(),
    "shared-1e-3": shared(lr=1e-3),
    "shared-rows-3e-3": shared(puzzle_lr=3e-3),
    "shared-rows-3e-2": shared(puzzle_lr=3e-2),
    "muon-1e-3": shared(optimiser="muon", lr=1e-3),
    "muon-2e-3": shared(optimiser="muon", lr=2e-3),
    "muon-4e-3": shared(optimiser="muon", lr=4e-3),
    "muon-own-colours": shared(optimiser="muon", lr=2e-3, own_colours=0.7),
    "muon-no-colours": shared(optimiser="muon", lr=2e-3, own_colours=1.0),
    "muon-rows-3e-3": shared(optimiser="muon", lr=2e-3, puzzle_lr=3e-3),
    "tiny": merged(shared(optimiser="muon", lr=2e-3, own_colours=0.7), {"model": {"deep_steps": 1}}),
    "tiny-fresh": FRESH,
    "tiny-fresh-4e-3": merged(FRESH, {"train": {"lr": 4e-3, "lr_min_ratio": 0.0}}),
    "tiny-fresh-rows-3e-3": merged(FRESH, {"train": {"puzzle_lr": 3e-3}}),
    "tiny-fresh-n1": merged(FRESH, {"model": {"latent_steps": 1}}),
    "tiny-fresh-two-steps": merged(FRESH, {"halting": {"max_supervision_steps": 2}}),
    "tiny-fresh-n1-two-steps": merged(FRESH, {"model": {"latent_steps": 1}, "halting": {"max_supervision_steps": 2}}),
    "tiny-fresh-n1-one-step": ONE_STEP,
    "one-step-convolution": merged(ONE_STEP, {"model": {"convolution": True}}),
    "one-step-two-networks": merged(ONE_STEP, {"model": {"answer_layers": 2}}),
    "one-step-batch-32": merged(ONE_STEP, {"train": {"batch_size": 32}}),
    "muon-four-vectors": merged(shared(optimiser="muon", lr=2e-3), {"model": {"prefix": 15, "puzzle_width": 256}}),
}
VIEWS = 8  # of every held-out pair


def proxy(folder: Path, views: int) -> ArcStore:
    """The dataset that arms are compared on, built once."""
    if not (folder / "manifest.json").exists():
        arguments = ["arc", "--scored", "arc1-training", "--canvas", "11", "--augmentations", str(views - 1)]
        build.main([*arguments, "--out", str(folder)])
    return load(folder)


@torch.no_grad()
def held_out(trainer: Trainer, store: ArcStore, batch_size: int = 64) -> dict[str, float]:
    """Mean token loss (soft-max) and exact accuracy of the averaged weights on the test pairs.

    Under VIEWS views, nearly all recoloured, and in own colours: as the tasks are, with which every dataset begins.
    """
    rows = evaluation_rows(store, augmentations=VIEWS)
    own = (rows.permutations == np.arange(COLOURS)).all(1)
    batches = ArcBatches(store, "cpu", 11, None, trainer.config.model.embedding_rows == "task")
    losses, exact = [], []
    with trainer.averaged():
        for chunk, valid in fixed_batches(rows, batch_size):
            batch = batches.make(chunk)
            state = tuple(part.contiguous() for part in trainer.model.initial_state(batch_size, 121, trainer.dtype))
            puzzle = trainer.embedding.table[batch.puzzle_ids]
            for _ in range(trainer.config.halting.max_supervision_steps):
                output = trainer.model(state, batch.inputs, puzzle, batch.views)
                state = output.state
            asked = batch.labels != IGNORE_LABEL
            tokens = F.cross_entropy(
                output.logits.float().flatten(0, 1), batch.labels.flatten().long(), reduction="none"
            ).view(asked.shape)
            losses += (tokens.sum(1) / asked.sum(1).clamp(min=1))[:valid].tolist()
            right = (asked & (output.logits.argmax(-1) == batch.labels)).sum(1) == asked.sum(1)
            exact += (right & asked.any(1))[:valid].tolist()
    found = {"held_out_loss": losses, "held_out_exact": exact}
    means = {name: float(np.mean(values)) for name, values in found.items()}
    return means | {f"{name}_own": float(np.mean(np.array(values)[own])) for name, values in found.items()}


def voted(trainer: Trainer, store: ArcStore, views: int) -> Tally:
    """The averaged weights' votes over the first `views` puzzles of every task."""
    outputs, asked = outputs_of_store(store)
    tally = Tally(outputs)
    task_rows = trainer.config.model.embedding_rows == "task"
    voter = Voter(store, asked, 8, trainer.accelerator, windows=True, repeats=False, task_rows=task_rows)
    with trainer.averaged():
        voter.vote(trainer.predictor(), evaluation_rows(store, augmentations=views), tally, lambda done: None)
    return tally


def run_arm(name: str, config: RunConfig, store: ArcStore, minutes: float, views: int) -> dict[str, Any]:
    """Train one arm for `minutes` of processor time and measure it."""
    accelerator = Accelerator(cpu=True)
    data = arc_data(store, config, accelerator.device)
    trainer = Trainer(config, data.parts, accelerator, 10**6)
    if config.train.compile:
        trainer.compile()
    step_seconds, curve = [], []
    budget, used, mark = 60 * minutes, 0.0, 0
    while used < budget:
        began = time.process_time()
        trainer.train_step()
        seconds = time.process_time() - began
        if trainer.step <= 3:
            continue
        step_seconds.append(seconds)
        used += seconds
        if trainer.step in (10, 30, 100) or trainer.step % 200 == 0:
            trainer.planned_steps = trainer.step + int((budget - used) / np.median(step_seconds[-200:]))
        if used >= (mark + 1) * budget / 6:
            mark += 1
            metrics = trainer.read_metrics()
            point: dict[str, float | None] = {"minutes": used / 60, "step": trainer.step}
            point |= held_out(trainer, store)
            point |= {key: metrics.get(key) for key in ("token_loss", "exact_accuracy", "supervision_steps", "lr")}
            curve.append(point)
            print(
                name, {key: round(value, 4) if value is not None else None for key, value in point.items()}, flush=True
            )
    scores = tally_scores(voted(trainer, store, views), solutions_of(store))
    return {
        "arm": name, "seed": config.seed, "minutes": minutes, "steps": trainer.step,
        "step_seconds": float(np.median(step_seconds)), "views": views, "hidden": config.model.hidden, "curve": curve,
        "solved": round(190 * scores["evaluation/outputs"]), "pass@100": round(190 * scores["evaluation/pass@100"]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", help="names, see --list; NAME:SEED for another seed")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--views", type=int, default=16, help="puzzles of a task in the dataset and in the votes")
    parser.add_argument("--screening", action="store_true", help="hidden 64 in place of 128")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name}: {changes}" for name, changes in ARMS.items()))
        return
    if unknown := [word for word in arguments.arms if word.partition(":")[0] not in ARMS]:
        parser.error(f"found {', '.join(unknown)}, expected arms of --list")
    torch.set_num_threads(1)
    store = proxy(arguments.out / "proxy", arguments.views)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    for word in arguments.arms:
        name, _, seed = word.partition(":")
        changes = merged(merged(BASE, SCREENING if arguments.screening else {}), ARMS[name])
        changes = merged(changes, {"train": {"precision": arguments.precision}})
        config = replace(override(PRESETS["arc1-tiny"], changes), seed=int(seed or 0))
        result = run_arm(word, config, store, arguments.minutes, arguments.views) | {"commit": commit}
        with (arguments.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        print({key: value for key, value in result.items() if key != "curve"}, flush=True)


if __name__ == "__main__":
    main()
