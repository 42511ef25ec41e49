"""Ten minutes that tell whether an installation, a machine or a change to the model is sound.

    python -m arc_trm.sanity --out runs/sanity

Generates 6×6 Sudokus and 6×6 mazes, trains a small model on each from scratch, and scores held-out puzzles: at least
95 % of the Sudokus exact and 80 % of the mazes valid and shortest, or exit status 1.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from arc_trm import train
from arc_trm.cell_score import score_export
from data_prep import build
from data_prep.files import run_program


@dataclass(frozen=True)
class Check:
    """A dataset to generate, the preset to train on it, and the share of held-out puzzles to reach."""

    preset: str
    generate: tuple[str, ...]
    score: str  # which figure of arc_trm.cell_score
    goal: float
    minutes: float


CHECKS = (
    Check(
        "sudoku6", ("sudoku", "--side", "6", "--train-rows", "3000", "--test-rows", "500"), "exact_accuracy", 0.95, 4
    ),
    Check("maze6", ("maze", "--side", "6", "--train-rows", "20000", "--test-rows", "500"), "valid", 0.80, 5.5),
)


def bf16_is_native() -> bool:
    """Whether this CPU multiplies bf16 in hardware, which makes it about twice as fast as float32; unknown is no."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def run(check: Check, out: Path, extra: Sequence[str]) -> str | None:
    """Generate, train, score; returns what fell short, None when nothing did."""
    started = time.monotonic()
    data, folder = out / f"{check.preset}-data", out / check.preset
    kind, *options = check.generate
    build.main([kind, "--generate", *options, "--out", str(data)])
    words = [check.preset, "--data", str(data), "--out", str(folder), "--minutes", str(check.minutes)]
    if not torch.accelerator.is_available() and bf16_is_native():
        words += ["--train.precision", "bf16"]
    train.main([*words, "--log.track", "none", *extra])
    score = score_export(folder, data, batch_size=256, precision="fp32")[check.score]
    minutes = (time.monotonic() - started) / 60
    print(
        f"{check.preset}: {check.score} {score:.1%} of held-out puzzles in {minutes:.1f} minutes, goal {check.goal:.0%}"
    )
    return None if score >= check.goal else f"{check.preset} reached {score:.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; other words go to the training program as they are."""
    parser = argparse.ArgumentParser(
        prog="python -m arc_trm.sanity", description="Train small Sudoku and maze models and say whether they learned."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for datasets and runs; must not hold a run yet")
    parser.add_argument("--only", choices=[check.preset for check in CHECKS], help="run one of the two")
    arguments, extra = parser.parse_known_args(argv)
    chosen = [check for check in CHECKS if arguments.only in (None, check.preset)]
    short = [line for line in (run(check, arguments.out, extra) for check in chosen) if line]
    print("the model learns: sound" if not short else f"not sound: {'; '.join(short)}")
    return 1 if short else 0


if __name__ == "__main__":
    run_program(main)
