"""Gather what a machine with a GPU and without network needs: python -m tests.gpu.kit [--out gpu-kit]

Writes datasets, a few tasks, the golden numbers if there are any, and wheels of the packages that such a machine tends
to lack. Git ignores the folder; it may be carried wherever the licences of the tasks allow it.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep import build
from data_prep.canvas import CANVAS_SIDES, choose_side
from data_prep.corpus import pinned_corpus
from data_prep.files import InputError
from data_prep.program import run_program
from data_prep.store import TaskEntry
from data_prep.tasks import Task, write_tasks
from tests.gpu.__main__ import KIT

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY.parent / "shared" / "golden"
# What the programs import and an image with PyTorch tends to lack, in the versions of constraints.txt.
PACKAGES = ("orjson", "tyro", "docstring_parser", "typeguard")
# What the published code imports beside those, for the stage that times it.
PUBLISHED = ("einops", "pydantic")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TASKS = 3  # of every canvas size


def write_data(out: Path) -> None:
    """Write datasets for training and killing, and tasks for solving."""
    build.main(["arc", "--source", "arc1-training", "--augmentations", "100", "--out", str(out / "arc1")])
    sizes = ["--side", "4", "--train-rows", "200", "--test-rows", "20"]
    build.main(["sudoku", "--generate", *sizes, "--out", str(out / "sudoku4")])
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    write_tasks(few_tasks(), out / "tasks")


def few_tasks() -> list[Task]:
    """The first TASKS tasks of every canvas size."""
    by_side: dict[int, list[Task]] = {side: [] for side in CANVAS_SIDES}
    for task in pinned_corpus("arc1-evaluation").tasks:
        by_side[choose_side(TaskEntry.demonstrations_only(task).visible)].append(task)
    return [task for tasks in by_side.values() for task in tasks[:TASKS]]


def copy_golden(named: Path | None, out: Path) -> None:
    """Copy the golden numbers; print a note if no folder was named and none is beside the repository.

    Raises InputError if a folder was named and has none.
    """
    golden = named or GOLDEN
    if (golden / "models.json").is_file():
        shutil.copytree(golden, out / "golden", dirs_exist_ok=True)
    elif named:
        raise InputError(f"--golden {named}: no models.json there, expected a folder of golden numbers")
    else:
        print("note: no golden numbers (--golden): nothing will be compared with the published code's")


def fetch_wheels(out: Path, python: str) -> None:
    """Download wheels, with their requirements, for Linux on x86-64 and that version of Python."""
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [pin for pin in pins if pin.split("==")[0] in PACKAGES]
    wanted += PUBLISHED
    words = ["download", "-q", "--only-binary=:all:", "--python-version", python, "-d", str(out)]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    if subprocess.run([sys.executable, "-m", "pip", *words, *platforms, *wanted], check=False).returncode:
        raise InputError(f"pip found no wheels of {', '.join(wanted)} for Python {python}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.kit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=KIT, help=f"the folder ({KIT})")
    parser.add_argument(
        "--golden", type=Path, metavar="DIR", help="golden numbers (shared/golden beside the repository)"
    )
    parser.add_argument("--python", default="3.12", help="the version there (3.12)")
    options = parser.parse_args(argv)
    copy_golden(options.golden, options.out)
    write_data(options.out)
    fetch_wheels(options.out / "wheels", options.python)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"wrote {options.out}: {size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    run_program(main)
