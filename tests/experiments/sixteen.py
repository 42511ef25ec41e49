"""Does a model learn sixteen tasks by heart? The first question to a way of training, answered in minutes.

    python -m tests.experiments.sixteen --data data/small
    python -m tests.experiments.sixteen --data data/small --minutes 10 --change train.lr=4e-3 model.hidden=192

The preset `arc1-tiny` trains on the demonstrations of every n-th task of a dataset on the smallest canvas, sixteen in
all, in rotations and reflections alone, at a flat rate (`train.lr_min_ratio=0` lets it fall over the minutes). The
exact accuracy on what it trains on should reach 95 %. Minutes are processor time of the steps on one thread; compiling
does not count.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from arc_trm.batches import ArcSource, Part
from arc_trm.presets import PRESETS, Overrides, merged, override
from arc_trm.trainer import Trainer
from data_prep.store import load

TASKS = 16
BASE: Overrides = {
    "model": {"latent_steps": 2, "convolution": False},
    "halting": {"max_supervision_steps": 4},
    "train": {"precision": "bf16", "warmup_steps": 50, "lr_min_ratio": 1.0, "own_colours": 1.0},
}


def overrides(words: list[str]) -> Overrides:
    """`section.name=value` words as overrides; a value is JSON."""
    found: Overrides = {}
    for word in words:
        name, _, text = word.partition("=")
        section, _, field = name.partition(".")
        found = merged(found, {section: {field: json.loads(text)}})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--change", nargs="*", default=[], metavar="SECTION.NAME=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = override(PRESETS["arc1-tiny"], merged(BASE, overrides(arguments.change)))
    store, accelerator = load(arguments.data), Accelerator(cpu=True)
    small = np.flatnonzero([group.side == min(each.side for each in store.groups) for group in store.groups])
    source = ArcSource(
        store,
        seed=config.seed,
        batch_size=config.train.batch_size,
        device="cpu",
        groups=small[:: len(small) // TASKS][:TASKS],
        side=store.groups[small[0]].side,
        task_rows=config.model.embedding_rows == "task",
        own_colours=config.train.own_colours,
    )
    parts = [Part(source, source.batch_size)]
    trainer = Trainer(config, parts, accelerator, 10**6)
    if config.train.compile:
        trainer.compile()
    used = 0.0
    while used < 60 * arguments.minutes:
        began = time.process_time()
        trainer.train_step()
        used += (time.process_time() - began) if trainer.step > 3 else 0.0
        if trainer.step % 40 == 0:
            trainer.planned_steps = int(trainer.step * 60 * arguments.minutes / used)
            metrics = trainer.read_metrics()
            loss, exact = metrics["token_loss"], metrics.get("exact_accuracy") or 0.0
            print(f"{trainer.step} steps, {used / 60:.1f} minutes: loss {loss:.3f}, exact {exact:.1%}", flush=True)
            if exact >= 0.95:
                break


if __name__ == "__main__":
    main()
