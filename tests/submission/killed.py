"""Kill solving at chance moments and look at the file: python -m tests.submission.killed FOLDER TIMES SEED

Imports everything once and forks a child per run, so that a kill costs a second and not the import of torch. A run that
nobody kills is counted out first: every write, step and answer. Then TIMES runs are killed by chance between two of
these, a quarter of them before the first votes are kept. Prints, per run, when it was killed and what was found.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import orjson
import torch

from arc_trm.predict import Predictor
from arc_trm.trainer import Trainer
from submission import budget, solve
from tests import kills
from tests.conftest import ENDLESS
from tests.submission.tiny import QUICK, assert_valid, make_export, tiny_tasks, write_challenges

WORK = ((os, "fsync"), (os, "replace"), (Trainer, "train_step"), (Predictor, "answer"))
TASKS = tiny_tasks(5)
OPTIONS = ["--augmentations", "16", "--train.steps", "10"]


def run(folder: Path, out: Path, options: Sequence[str], watched: AbstractContextManager[None]) -> int:
    """Solve in a forked process, in that context, until steps and votes are there, not by the clock; its status."""
    paths = {"--challenges": folder / "challenges.json", "--checkpoint": folder / "export", "--out": out}
    paths["--candidates"] = out.with_name("votes.npz")
    words = [*(str(word) for pair in paths.items() for word in pair), *QUICK, *options]

    def solving() -> None:
        with watched:
            assert solve.main([*words, "--train.precision", "fp32", "--time-budget", ENDLESS]) == 0

    return kills.wait(kills.fork(solving, folder / f"{out.parent.name}.log"))


def counted_out(folder: Path) -> tuple[int, int, int]:
    """Of a run that nobody kills: the events after which the file is there, votes are kept, and all is done."""
    out = folder / "whole" / "submission.json"
    found: dict[str, int] = {}

    def look(number: int) -> None:
        found["last"] = number
        for path in (out, out.with_name("votes.npz")):
            if path.name not in found and path.exists():
                found[path.name] = number
        out.with_name("events").write_bytes(orjson.dumps(found))

    assert run(folder, out, OPTIONS, kills.events(WORK, after=look)) == 0
    found = orjson.loads(out.with_name("events").read_bytes())
    return found[out.name], found["votes.npz"], found["last"]


def main() -> None:
    folder, times, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = np.random.default_rng(seed)
    write_challenges(folder / "challenges.json", TASKS)
    make_export(folder / "export")
    torch.set_num_threads(1)
    # A pass per puzzle: the file is written all the time, so that some kills fall into a write.
    budget.LARGEST_PASS = 1
    began = time.monotonic()
    there, voted, last = counted_out(folder)
    gap = (time.monotonic() - began) / last  # seconds from event to event, over which chance is spread
    for number in range(times):
        out = folder / str(number) / "submission.json"
        event = int(rng.integers(there, voted - 1) if number < times // 4 else rng.integers(voted, last))
        status = run(folder, out, OPTIONS, kills.dying_between(WORK, event, rng.uniform(1e-6, 2 * gap)))
        assert_valid(out, TASKS)
        died = "killed" if status in kills.KILLED else f"had ended with status {status}"
        votes = "with" if out.with_name("votes.npz").exists() else "without"
        print(f"run {number}: {died} after event {event} of {last}, a valid file {votes} votes")


if __name__ == "__main__":
    main()
