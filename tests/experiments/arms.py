"""Compare ways of training at equal cost on the frozen ruler (tests/experiments/ruler.py).

    python -m tests.experiments.arms --data data/ruler30 --minutes 15 --out runs/arms patch=2 patch=2,hidden=192
    python -m tests.experiments.arms --data data/ruler30 --table --out runs/arms

An arm is `arc1-tiny` with the settings that its word names, by their last names, and perhaps `seed`. It trains on what
the dataset lets train (built with `--hold-out` and lists of the ruler, whose demonstrations train) and is measured
on the test pairs of the lists. The evaluation tasks are never looked at.

Cost is processor time of the training steps on one thread, which other work on the machine hardly changes; set-up and
measuring do not count. OUT/NAME.json holds an arm's curve and figures, OUT/NAME its export.
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
from accelerate import Accelerator

from arc_trm import run
from arc_trm.batches import arc_data
from arc_trm.checkpoint import read_export
from arc_trm.config import RunConfig, settings
from arc_trm.presets import PRESETS, Overrides, merged, override
from arc_trm.trainer import Trainer
from data_prep.files import write_atomic
from data_prep.store import ArcStore, load
from tests.experiments import ruler

MARKS = 6  # readings of a curve
SIZES = {"heads": 32, "puzzle_width": 1}  # what follows `hidden`: numbers of a head, share of the width


def overrides(word: str) -> tuple[Overrides, int]:
    """`name=value,…` as overrides and the seed; a value is JSON, or a bare word."""
    known = {name.rpartition(".")[2]: name for name, _, _ in settings(RunConfig())}
    found: Overrides = {}
    seed = 0
    for part in word.split(","):
        name, _, text = part.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name == "seed":
            seed = value
            continue
        section, _, setting = known[name].partition(".")
        found = merged(found, {section: {setting: value}})
        if name == "hidden":
            found = merged(found, {"model": {"heads": value // SIZES["heads"], "puzzle_width": value}})
    return found, seed


def run_arm(config: RunConfig, store: ArcStore, minutes: float, init_from: Path | None, out: Path) -> dict[str, Any]:
    """Train one arm for `minutes` of processor time, measure it, and export it to `out`."""
    accelerator = Accelerator(cpu=True)
    data = arc_data(store, config, accelerator.device)
    trainer = Trainer(config, data.parts, accelerator, 10**6)
    if config.train.compile:
        trainer.compile()
    trainer.names = data.names
    if init_from is not None:
        trainer.load_export(read_export(init_from))
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
        if used >= (mark + 1) * budget / MARKS:
            mark += 1
            metrics = trainer.read_metrics()
            with trainer.averaged():
                found = ruler.measure(trainer.predictor(), store)[:, 0]
            point = {"minutes": used / 60, "step": trainer.step} | ruler.summary(store, found)
            point |= {key: metrics[key] for key in ("token_loss", "exact_accuracy", "lr") if key in metrics}
            curve.append(point)
            print({key: round(value, 4) for key, value in point.items()}, flush=True)
    run.export(
        trainer,
        out,
        {"training_tasks": data.training_tasks, "training_known": True, "leak": [], "stages": []},
        data.facts,
    )
    return {
        "seed": config.seed, "minutes": minutes, "steps": trainer.step, "found": found.tolist(),
        "step_seconds": float(np.median(step_seconds)), "curve": curve,
    }  # fmt: skip


def table(out: Path, store: ArcStore) -> str:
    """All arms in `out`, their last figures, and each one's exactness minus that of the first, with its interval."""
    rows = ["| arm | steps | s a step | loss own, random | exact own, random | minus the first |", "|---" * 6 + "|"]
    first = None
    for path in sorted(out.glob("*.json"), key=lambda path: path.stat().st_mtime):
        arm = json.loads(path.read_bytes())
        found, last = np.array(arm["found"]), arm["curve"][-1]
        first = found if first is None else first
        mean, low, high = ruler.difference(store, found, first)
        rows.append(
            f"| {path.stem} | {arm['steps']} | {arm['step_seconds']:.2f} | {last['loss_own']:.3f}, "
            f"{last['loss_random']:.3f} | {last['exact_own']:.1%}, {last['exact_random']:.1%} | "
            f"{mean:+.1%} ({low:+.1%} to {high:+.1%}) |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", help="such as patch=2,hidden=192,sampling=mixed,seed=1")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--init-from", type=Path, help="an export whose weights and rows all arms start from")
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = load(arguments.data)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for word in arguments.arms:
        print(word, flush=True)
        changes, seed = overrides(word)
        config = replace(override(PRESETS["arc1-tiny"], changes), seed=seed)
        result = run_arm(config, store, arguments.minutes, arguments.init_from, arguments.out / word)
        write_atomic(arguments.out / f"{word}.json", json.dumps(result | {"arm": word, "commit": commit}).encode())
    if arguments.table:
        print(table(arguments.out, store))


if __name__ == "__main__":
    main()
