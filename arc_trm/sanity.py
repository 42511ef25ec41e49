"""Train small Sudoku and maze models from scratch, and say whether they learned.

    python -m arc_trm.sanity --out runs/sanity

Generates 6×6 Sudokus and 6×6 mazes, trains a small model on each for a fixed number of steps, and scores held-out
puzzles: at least 95 % of the Sudokus exact, and 80 % of the mazes valid and shortest. How fast the machine is changes
how long that takes and nothing else. Exit status 0: sound; 1: not sound; 3: cut short by --minutes or a signal, so that
nothing is known.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arc_trm import train
from arc_trm.checkpoint import read_export
from arc_trm.metrics import read_reports
from data_prep import build
from data_prep.files import command_line, run_program

NOT_SOUND, NOT_FINISHED = 1, 3  # exit statuses; 2 is that of wrong input


@dataclass(frozen=True)
class Check:
    """A dataset to generate, the preset to train on it, and the share of held-out puzzles to reach."""

    preset: str
    generate: tuple[str, ...]
    score: str  # which figure of arc_trm.scoring
    goal: float


CHECKS = (
    Check("sudoku6", ("sudoku", "--side", "6", "--train-rows", "3000", "--test-rows", "500"), "exact_accuracy", 0.95),
    Check("maze6", ("maze", "--side", "6", "--train-rows", "20000", "--test-rows", "500"), "valid", 0.80),
)


def perform(check: Check, out: Path, extra: Sequence[str], deadline: float) -> tuple[str, int]:
    """Generate, train and score; a line about it and the exit status. `deadline` is in time.monotonic seconds."""
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
    """The same of a run that is finished, by the last score in its log; one without had its evaluation cut short."""
    name = f"evaluation/{check.score}"
    scores = [report[name] for report in read_reports(folder / "metrics.jsonl") if name in report]
    if not scores:
        return f"{check.preset}: {steps} steps, not scored", NOT_FINISHED
    figure = f"{check.score} {scores[-1]:.1%} of held-out puzzles"
    line = f"{check.preset}: {figure} after {steps} steps, goal {check.goal:.0%}"
    return line, 0 if scores[-1] >= check.goal else NOT_SOUND


def main(argv: Sequence[str] | None = None) -> int:
    """Perform the checks; other words go to the training program as they are."""
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
