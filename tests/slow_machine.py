"""Run the tests, the sanity check and a small solve as on a machine about ten times slower, and report.

    python -m tests.slow_machine                           everything, which takes hours
    python -m tests.slow_machine suite tests/submission    one part; further words go to its program
    python -m tests.slow_machine sanity --minutes 5
    python -m tests.slow_machine solve

All of it runs on one core with one thread, without kernels beyond AVX2 (so that bf16 is only emulated), beside four
processes that keep that core busy. How much slower that is, a training step tells, timed before and then. What the
programs say is kept below --log; the exit status is 1 when any of them failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.files import read_json
from data_prep.progress import duration_text
from data_prep.tasks import write_tasks
from submission.demo import SHIPPED, demo_tasks
from tests.conftest import REPOSITORY

PARTS = ("suite", "sanity", "solve")
SLOW = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
BUSY = 4
# Prints the seconds of the fastest of some training steps, in the better of two precisions, and which that is.
STEP = """
import time
from accelerate import Accelerator
from arc_trm.presets import PRESETS, override
from arc_trm.trainer import Part, Trainer
from tests.arc_trm.training import ToySource

best = []
for precision in ("fp32", "bf16"):
    config = override(PRESETS["sudoku6"], {"train": {"precision": precision}})
    part = Part(ToySource(0, side=6, vocab_size=8), config.train.batch_size)
    trainer = Trainer(config, [part], Accelerator(cpu=True), 100)
    trainer.train_step()
    for _ in range(5):
        began = time.perf_counter()
        trainer.train_step()
        best.append((time.perf_counter() - began, precision))
print(*min(best))
"""


def step_time() -> tuple[float, str]:
    """Seconds of a training step with what this process may use, and its precision."""
    words = [sys.executable, "-W", "ignore", "-c", STEP]
    said = subprocess.run(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return float(said[0]), said[1]


@contextmanager
def slowed_down(busy: int) -> Iterator[None]:
    """Within this context this process, and what it starts, shares one core with so many busy processes."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    before = dict(os.environ)
    os.environ.update(SLOW)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, cores)


def part_command(part: str, folder: Path, words: Sequence[str]) -> list[str]:
    """The program of a part, with what it needs written below `folder`."""
    python = [sys.executable, "-u", "-m"]
    if part == "suite":
        return [*python, "pytest", "-q", "-n", "0", "--durations", "10", *words]
    if part == "sanity":
        return [*python, "arc_trm.sanity", "--out", str(folder / "sanity"), *words]
    challenges, _ = write_tasks(demo_tasks()[:3], folder)
    files = ["--challenges", str(challenges), "--checkpoint", str(SHIPPED), "--out", str(folder / "submission.json")]
    return [
        *python,
        "submission.solve",
        *files,
        "--augmentations",
        "8",
        "--time-budget",
        "3m",
        *words,
    ]


def perform(part: str, folder: Path, words: Sequence[str]) -> bool:
    """Run a part, keep what it says, and print its verdict; whether it passed."""
    command, log = part_command(part, folder, words), folder / f"{part}.log"
    print(f"{part}: {' '.join(command[2:])}", flush=True)
    began = time.monotonic()
    with log.open("wb") as file:
        status = subprocess.run(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = log.read_text(errors="replace").splitlines()
    passed, facts = status == 0, [f"status {status}", lines[-1] if lines else "nothing said"]
    if part == "solve" and passed:
        summary = read_json(folder / "submission.summary.json")
        without = summary["outputs_without_candidates"]
        facts.append(f"{summary['votes']} votes, {without} outputs without any")
        passed = without == 0
    verdict = "passed" if passed else "FAILED"
    print(f"{part}: {verdict} after {duration_text(time.monotonic() - began)}: {'; '.join(facts)}", flush=True)
    return passed


def main(argv: Sequence[str] | None = None) -> int:
    """Time a step, slow down, time it again, run the parts."""
    made = argparse.ArgumentParser(
        prog="python -m tests.slow_machine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("part", nargs="?", choices=PARTS, help="one part; further words go to its program")
    made.add_argument("--log", metavar="DIR", type=Path, help="where output is kept (a new temporary folder)")
    made.add_argument("--busy", metavar="N", type=int, default=BUSY, help=f"busy processes on the core ({BUSY})")
    arguments, words = made.parse_known_args(argv)
    if words and arguments.part is None:
        made.error(f"found {' '.join(words)!r}, expected a part before words for its program")
    folder = Path(arguments.log or tempfile.mkdtemp(prefix="slow-machine.")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"what the programs say: {folder}", flush=True)
    before, precision = step_time()
    with slowed_down(arguments.busy):
        slow, slow_precision = step_time()
        print(
            f"a training step takes {before * 1e3:.0f} ms here in {precision}, {slow * 1e3:.0f} ms slowed down in "
            f"{slow_precision}: {slow / before:.1f} times as long",
            flush=True,
        )
        results = [perform(part, folder, words) for part in PARTS if arguments.part in (None, part)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
