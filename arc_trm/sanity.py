"""Train small Sudoku and maze models from scratch and check that they learn.

    python -m arc_trm.sanity --out runs/sanity

Generates 6×6 Sudokus and 6×6 mazes, trains a small model on each for a fixed number of steps, and scores held-out
puzzles: at least 95 % of the Sudokus must be exact, and 80 % of the mazes valid and shortest. A slower machine only
takes longer. Exit status 0: sound; 1: not sound; 3: cut short by --minutes or a signal, so without a verdict.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arc_trm import train
from arc_trm.checkpoint import read_export
from arc_trm.plot import read_run
from data_prep import build
from data_prep.program import command_line, run_program

NOT_SOUND, NOT_FINISHED = 1, 3  # exit statuses; 2 means wrong input


@dataclass(frozen=True)
class Check:
    """A dataset to generate, the preset to train on it, and the share of held-out puzzles to reach."""

    preset: str
    generate: tuple[str, ...]
    score: str  # a metric of arc_trm.scoring
    goal: float


CHECKS = (
    Check("sudoku6", ("sudoku", "--side", "6", "--train-rows", "3000", "--test-rows", "500"), "exact_accuracy", 0.95),
    Check("maze6", ("maze", "--side", "6", "--train-rows", "20000", "--test-rows", "500"), "valid", 0.80),
)


def perform(check: Check, out: Path, extra: Sequence[str], deadline: float) -> tuple[str, int]:
    """Generate, train and score; return a line about it and the exit status. `deadline`: time.monotonic seconds."""
    data, folder = out / f"{check.preset}-data", out / check.preset
    kind, *options = check.generate
    build.main([kind, "--generate", *options, "--out", str(data)])
    words = [check.preset, "--data", str(data), "--out", str(folder), "--log.track", "none", *extra]
    minutes = max(1e-9, (deadline - time.monotonic()) / 60)  # 0 would mean no limit
    train.main([*words, "--minutes", str(minutes)])
    planned, steps = train.parse(words).config.train.steps, read_export(folder).facts["steps"]
    if steps < planned:
        return f"{check.preset}: {steps} of {planned} steps", NOT_FINISHED
    return judged(check, folder, steps)


def judged(check: Check, folder: Path, steps: int) -> tuple[str, int]:
    """Return the same for a finished run by the last score in its log; without one, its evaluation was cut short."""
    scores = read_run(folder).get(f"evaluation/{check.score}")
    if scores is None:
        return f"{check.preset}: {steps} steps, not scored", NOT_FINISHED
    figure = f"{check.score} {scores[1, -1]:.1%} of held-out puzzles"
    line = f"{check.preset}: {figure} after {steps} steps, goal {check.goal:.0%}"
    return line, 0 if scores[1, -1] >= check.goal else NOT_SOUND


def main(argv: Sequence[str] | None = None) -> int:
    """Perform the checks and return the exit status; unknown options are passed to training."""
    parser = command_line("arc_trm.sanity", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for datasets and runs; must not hold a run yet")
    parser.add_argument("--only", choices=[check.preset for check in CHECKS], help="perform one of the two")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long, without a verdict")
    arguments, extra = parser.parse_known_args(argv)
    deadline = time.monotonic() + 60 * arguments.minutes
    found: list[tuple[str, int]] = []
    for check in CHECKS:
        if arguments.only in (None, check.preset) and NOT_FINISHED not in dict(found).values():
            found.append(perform(check, arguments.out, extra, deadline))
            print(found[-1][0], flush=True)
    for status, words in ((NOT_SOUND, "not sound"), (NOT_FINISHED, "not finished")):
        if lines := [line for line, own in found if own == status]:
            print(f"{words}: {'; '.join(lines)}")
            return status
    print("the model learns: sound")
    return 0


if __name__ == "__main__":
    run_program(main)
