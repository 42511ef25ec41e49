"""Train for a long time and watch the memory: python -m tests.benchmarks.soak --minutes 30

A narrow model on real tasks, with reports, checkpoints and evaluations far more often than usual, so that minutes do
what days of training do. Ends with status 1 when memory grew in the second half.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from arc_trm import train
from data_prep.canvas import CANVAS_SIDES, choose_side
from data_prep.corpus import pinned_corpus
from data_prep.program import run_program
from data_prep.store import TaskEntry, build_store, save
from data_prep.tasks import Task

PAGE = os.sysconf("SC_PAGE_SIZE")
LIMIT_MB = 16.0
SETTINGS = (
    "--model.hidden", "16", "--model.heads", "2", "--model.puzzle-width", "16", "--model.layers", "1",
    "--model.latent-steps", "1", "--model.deep-steps", "2", "--halting.max-supervision-steps", "4",
    "--train.batch-size", "16", "--train.steps", "100000000", "--log.every", "5", "--log.checkpoint-minutes", "0.02",
    "--log.evaluate-every", "100", "--log.evaluation-augmentations", "2",
)  # fmt: skip


def resident() -> float:
    """Memory of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def small_tasks(corpus: str, count: int) -> list[Task]:
    """The first tasks that fit the smallest canvas."""
    return [task for task in pinned_corpus(corpus).tasks if choose_side(task) == CANVAS_SIDES[0]][:count]


def build(folder: Path) -> None:
    """Small tasks of ARC-AGI-1, a few of them scored."""
    entries = [TaskEntry.all_pairs(task) for task in small_tasks("arc1-training", 24)]
    entries += [TaskEntry.demonstrations_only(task) for task in small_tasks("arc1-evaluation", 6)]
    save(build_store(entries, 20, seed=0), folder)


def watch(samples: list[tuple[float, float]], every: float, out: Path, done: threading.Event) -> None:
    """Note (seconds, MB) again and again, and say so."""
    start = time.monotonic()
    while not done.wait(every):
        samples.append((time.monotonic() - start, resident()))
        lines = (out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []
        step = orjson.loads(lines[-1])["step"] if lines else 0
        print(f"{samples[-1][0] / 60:6.1f} min  step {step:7}  {samples[-1][1]:8.1f} MB", flush=True)


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """By how many MB the last quarter's median lies above that of the second."""
    quarter = len(samples) // 4
    medians = [
        sorted(memory for _, memory in part)[quarter // 2]
        for part in (samples[quarter : 2 * quarter], samples[-quarter:])
    ]
    return medians[1] - medians[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Train and watch."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to train (30)")
    options = parser.parse_args(argv)
    samples: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data, out, done = Path(folder) / "data", Path(folder) / "run", threading.Event()
        build(data)
        watcher = threading.Thread(target=watch, args=(samples, options.minutes * 60 / 40, out, done))
        watcher.start()
        try:
            where = ["--data", str(data), "--out", str(out), "--minutes", str(options.minutes)]
            train.main(["arc1-small", *where, *SETTINGS])
        finally:
            done.set()
            watcher.join()
    grown = growth(samples)
    print(
        f"{options.minutes:g} minutes: {samples[-1][1]:.0f} MB, {grown:+.1f} MB over the second half "
        f"(limit {LIMIT_MB:g})"
    )
    return 1 if grown > LIMIT_MB else 0


if __name__ == "__main__":
    run_program(main)
