"""Kill a training run at many moments and resume it: `python -m tests.arc_trm.kill_runs FOLDER events|moments SEED`.

One process does everything once and then forks a child for every life of a run, so that a life costs a fraction of a
second. `events` kills a run before and after every single call that changes a file; `moments` kills it by chance
between such calls, steps and evaluations. Whatever a run leaves at its end must equal, bit by bit, what the run that
nobody killed leaves.
"""

import os
import random
import shutil
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import orjson
import torch

from arc_trm import checkpoint, run
from arc_trm.config import RunConfig
from arc_trm.device import make_accelerator
from arc_trm.metrics import MetricLog
from arc_trm.trainer import Trainer
from tests import kills
from tests.arc_trm.training import TINY, step_clock, tiny_trainer, trained_on, with_settings

SHORT = with_settings(
    TINY, train={"steps": 5}, log={"every": 2, "checkpoint_minutes": 2.0, "evaluate_every": 3, "keep_checkpoints": 1}
)
LONG = with_settings(
    TINY, train={"steps": 60}, log={"every": 4, "checkpoint_minutes": 3.0, "evaluate_every": 7, "keep_checkpoints": 2}
)
SIDES = (3, 5)
# What a clock or the memory has to say differs from run to run.
UNEQUAL = ("train/examples_per_second", "train/peak_memory_gb")
# Every call with which a run changes files.
CHANGES = ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"), (checkpoint, "save_file"))
# Every call of which a run consists, all but a few instructions between them.
WORK = (*CHANGES, (Trainer, "train_step"), (sys.modules[__name__], "evaluate"))


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Scores that depend on every weight of the average."""
    with trainer.averaged():
        total = sum(float(parameter.detach().double().abs().sum()) for parameter in trainer.model.parameters())
    return {"evaluation/outputs": total}


def life(out: Path, config: RunConfig) -> None:
    """One life of a run, from wherever the last one was killed."""
    accelerator = make_accelerator("none", out)
    trainer = tiny_trainer(config, SIDES, accelerator=accelerator)
    facts = {"data_digest": "data"}
    run.begin(trainer, run.Start(out, resume=True), facts)
    log = MetricLog(accelerator, out, config, trainer.step)
    trainer.train(out, facts, evaluate, log, now=step_clock(trainer))
    run.export(trainer, out / "export", trained_on(()), facts)


def remains(out: Path) -> dict[str, Any]:
    """Everything that a run leaves, for comparison."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        found[name] = path.read_bytes()
        if path.suffix == ".jsonl":
            lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
            found[name] = [{key: value for key, value in line.items() if key not in UNEQUAL} for line in lines]
    return found


def compare(out: Path, whole: dict[str, Any], what: str) -> None:
    """Say what differs from the run that nobody killed, and stop."""
    mine = remains(out)
    different = [name for name in sorted(mine.keys() | whole.keys()) if mine.get(name) != whole.get(name)]
    if different:
        print(f"{what}: {', '.join(different)} differ")
        raise SystemExit(1)


def finish(out: Path, config: RunConfig, what: str) -> None:
    status = kills.wait(kills.fork(lambda: life(out, config)))
    if status:
        print(f"{what}: a resumed run ended with status {status}")
        raise SystemExit(1)


def kill_at_every_event(folder: Path) -> int:
    """Kill before and after each change of a file in a short run; returns the number of kills."""
    life(folder / "whole", SHORT)
    whole = remains(folder / "whole")
    killed = 0
    for event in range(1, 1000):
        for when in ("before", "after"):
            out = folder / f"{when}{event}"

            def doomed(out: Path = out, event: int = event, when: str = when) -> None:
                with kills.events(CHANGES, **{when: lambda number: kills.die() if number == event else None}):
                    life(out, SHORT)

            status = kills.wait(kills.fork(doomed))
            if status not in kills.KILLED:
                print(f"killed at {killed} events, each run went on to the same end")
                return status
            killed += 1
            finish(out, SHORT, f"killed {when} event {event}")
            compare(out, whole, f"killed {when} event {event}")
            shutil.rmtree(out)
    return 1


def kill_at_random_moments(folder: Path, seed: int) -> int:
    """Kill longer runs again and again; returns an exit status."""
    total = 0

    def count(number: int) -> None:
        nonlocal total
        total = number

    life(folder / "warm-up", LONG)
    began = time.monotonic()
    with kills.events(WORK, after=count):
        life(folder / "whole", LONG)
    gap = (time.monotonic() - began) / total  # seconds from event to event, over which chance is spread
    whole = remains(folder / "whole")
    draws, killed = random.Random(seed), 0
    for number in range(3):
        out = folder / f"run{number}"
        for _ in range(8):
            # At most two fifths of the work are done in a life, so the first two of every run are cut short.
            moment = kills.dying_between(WORK, draws.randint(1, total * 2 // 5), draws.uniform(1e-6, 2 * gap))

            def doomed(out: Path = out, moment: AbstractContextManager[None] = moment) -> None:
                with moment:
                    life(out, LONG)

            killed += kills.wait(kills.fork(doomed)) in kills.KILLED
        finish(out, LONG, f"run {number}")
        compare(out, whole, f"run {number}")
    print(f"killed {killed} times, each run went on to the same end")
    return 0 if killed >= 6 else 1


def main() -> int:
    torch.set_num_threads(1)
    folder, how, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    return kill_at_every_event(folder) if how == "events" else kill_at_random_moments(folder, seed)


if __name__ == "__main__":
    sys.exit(main())
