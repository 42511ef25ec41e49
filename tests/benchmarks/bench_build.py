"""Building ARC-1 with a thousand augmentations: time, memory and disk of the whole command.

python -m tests.benchmarks build
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from data_prep.augment import distinct_augmentations
from data_prep.corpus import pinned_corpus
from data_prep.store import load
from data_prep.tasks import Pair, Task, task_digest
from tests.benchmarks.table import Row, median_seconds
from tests.conftest import REPOSITORY
from tests.data_prep.material import Augmentation

AUGMENTATIONS = 1000
CONCEPTARC = REPOSITORY.parent / "shared" / "data" / "ConceptARC" / "corpus"
REPEATS = 5


def build(out: Path) -> float:
    """Seconds of one run of the build command, start of Python included."""
    command = [sys.executable, "-m", "data_prep.build", "arc", "--recipe", "arc1", "--out", str(out)]
    command += ["--augmentations", str(AUGMENTATIONS)]
    if CONCEPTARC.is_dir():
        command += ["--conceptarc", str(CONCEPTARC)]
    start = time.perf_counter()
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def plain_draw(task: Task, rng: np.random.Generator) -> int:
    """Puzzles found in the obvious way: augment every grid, hash the task, keep it when the hash is new."""
    seen = {task_digest(task)}
    for _ in range(AUGMENTATIONS):
        colours = tuple(map(int, rng.permutation(np.arange(1, 10))))
        augmentation = Augmentation(int(rng.integers(8)), (0, *colours))
        demonstrations, tests = (
            tuple(
                Pair(augmentation.apply(p.input), None if p.output is None else augmentation.apply(p.output))
                for p in pairs
            )
            for pairs in (task.demonstrations, task.tests)
        )
        seen.add(task_digest(Task(task.task_id, task.corpus, demonstrations, tests)))
    return len(seen)


def drawing(tasks: tuple[Task, ...]) -> Row:
    """Distinct puzzles drawn a second, and how many times faster that is than the obvious way."""

    def draw() -> int:
        rng = np.random.default_rng(0)
        return sum(len(distinct_augmentations(task.pairs, AUGMENTATIONS, rng)) for task in tasks)

    rng = np.random.default_rng(0)
    plain = [plain_draw(task, rng) for task in tasks]
    plain_rate = sum(plain) / median_seconds(lambda: [plain_draw(task, rng) for task in tasks], repeats=1, warmups=0)
    rate = draw() / median_seconds(draw)
    size = f"{len(tasks)} tasks x {AUGMENTATIONS}"
    return Row("draw distinct puzzles", size, rate, "puzzles/s", rate / plain_rate, "plain: augment, hash, compare")


def run() -> list[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "arc1"
        seconds = statistics.median(build(out) for _ in range(REPEATS))
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # kilobytes on Linux
        disk = sum(file.stat().st_size for file in out.iterdir()) / 1e6
        puzzles = load(out).manifest["counts"]["puzzles"]
    size = f"{puzzles} puzzles"
    note = "" if CONCEPTARC.is_dir() else "without ConceptARC"
    return [
        Row("build arc1, time", size, seconds, "s", None, note or "target <= 10, published code 407"),
        Row("build arc1, peak memory", size, memory, "GB", None, note or "target <= 1.5, published code 15.5"),
        Row("build arc1, on disk", size, disk, "MB", None, note or "target <= 64, published code 7270"),
        drawing(pinned_corpus("arc1-training").tasks[:8]),
    ]
