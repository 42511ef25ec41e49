"""Generated pairs: making them, and building and opening a dataset of 200,000 of them.

python -m tests.benchmarks generated
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from data_prep.corpus import pinned_corpus
from data_prep.files import InputError
from data_prep.generate import REARC, load_generators
from data_prep.store import load
from tests.benchmarks.table import Row
from tests.conftest import REPOSITORY

PAIRS = 200_000
LARGEST = 15  # cells a side, on a canvas of 16
# Runs a program and prints the peak memory of its processes in GB.
MEASURED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def measured(*words: str) -> tuple[float, list[str]]:
    """Seconds of a program, start of Python included, and the lines it prints; the last is its peak memory."""
    start = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True
    )
    return time.perf_counter() - start, ended.stdout.splitlines()


def write_pairs(folder: Path) -> None:
    """Random pairs in the names of all training tasks of ARC-AGI-1, as a generator might write them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    tasks = pinned_corpus("arc1-training").tasks
    for task in tasks:
        pairs = [
            {role: rng.integers(0, 10, rng.integers(1, LARGEST + 1, 2)).tolist() for role in ("input", "output")}
            for _ in range(PAIRS // len(tasks))
        ]
        (folder / f"{task.task_id}.json").write_bytes(orjson.dumps({"train": pairs[:-1], "test": pairs[-1:]}))


def building(folder: Path) -> list[Row]:
    """Time and memory of the build command with these pairs, and time of opening what it wrote."""
    out, size = folder / "dataset", f"{PAIRS} pairs up to {LARGEST}x{LARGEST}"
    write_pairs(folder / "pairs")
    words = ["data_prep.build", "arc", "--recipe", "arc1-train", "--canvas", "16", "--augmentations", "8"]
    seconds, lines = measured(*words, "--generated", str(folder / "pairs"), "--out", str(out))
    start = time.perf_counter()
    store = load(out)
    store.training_digests(), store.demonstration_digests()
    opening = time.perf_counter() - start
    note = f"{store.manifest['counts']['generated_pairs']} taken"
    return [
        Row("build generated, time", size, seconds, "s", None, f"target <= 20 with opening, {note}"),
        Row("build generated, peak memory", size, float(lines[-1]), "GB", None, "target <= 2"),
        Row("open generated", size, opening, "s"),
    ]


def generating(folder: Path) -> list[Row]:
    """Pairs a second of data_prep.generate, all tasks; none where the generators are not installed."""
    try:
        load_generators(REARC)
    except InputError:
        return []
    words = ["data_prep.generate", "--pairs", "300", "--canvas", "11", "--out", str(folder / "made")]
    seconds, lines = measured(*words)
    pairs = int(lines[-2].split(", ")[1].split()[0])
    note = f"{os.cpu_count()} cores, {seconds:.0f} s, target <= 60"
    return [Row("generate pairs", f"{pairs} pairs up to 10x10", pairs / seconds, "pairs/s", None, note)]


def run() -> list[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        return [*generating(Path(folder)), *building(Path(folder))]
