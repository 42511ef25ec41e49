"""Generate new pairs for ARC tasks and write them as ordinary task files, one for each task.

make generators
python -m data_prep.generate --pairs 300 --canvas 11 --seed 0 --out data/generated
python -m data_prep.build arc --recipe arc1-train --generated data/generated --out data/arc1-generated

The generators are those of RE-ARC, one for each training task of ARC-AGI-1. --source names another module with
functions generate_ID(rng, low, high) that return {"input": grid, "output": grid}.
"""

import importlib
import multiprocessing
import os
import queue
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from data_prep.canvas import CANVAS_SIDE, CANVAS_SIDES, smallest_side
from data_prep.files import (
    InputError,
    make_folder,
    megabytes,
    read_json,
    refuse_other_files,
    sha256_hex,
    write_atomic,
    write_json,
)
from data_prep.generated import FORMAT, SOURCE
from data_prep.grid import parse_grid
from data_prep.program import command_line, run_program, whole
from data_prep.progress import Progress

# `make generators` installs the package here, without what it depends on. Of it only this part is ever imported, which
# needs nothing but the standard library.
INSTALLED = Path(__file__).resolve().parents[1] / ".generators"
REARC, REARC_FOLDER = "rearc_utils.generators", INSTALLED / "reasoning_gym" / "arc"
PREFIX = "generate_"

# A task gets this many attempts, and so many more for each pair that it already has.
PATIENCE, ATTEMPTS_PER_PAIR = 100, 20
AT_ONCE = 50  # attempts in one request; they are made one by one if their process ends
WAITING = 20  # limit of an attempt by the clock, in limits of processor time: it may wait for other processes

Generator: TypeAlias = Callable[[random.Random, float, float], Mapping[str, Sequence[Sequence[int]]]]
Answer: TypeAlias = bytes | str | None  # a pair as JSON, why the attempt failed, or None if it does not fit


@dataclass(frozen=True)
class Settings:
    """Settings that decide which pairs a task gets: a module's name, numbers, and seconds of processor time."""

    source: str
    seed: int
    pairs: int
    canvas: int
    difficulty: Sequence[float]
    time_limit: int


def load_generators(source: str) -> dict[str, Generator]:
    """Import the generators of a module, by task id; raises InputError if it is missing or has none."""
    if source == REARC and str(REARC_FOLDER) not in sys.path:
        sys.path.append(str(REARC_FOLDER))
    try:
        module = importlib.import_module(source)
    except ModuleNotFoundError as error:
        missing = "not installed: run `make generators`" if source == REARC else f"no module {error.name}"
        raise InputError(f"generators {source}: {missing}") from error
    found = {name.removeprefix(PREFIX): value for name, value in vars(module).items() if name.startswith(PREFIX)}
    if not found:
        raise InputError(f"generators {source}: no function {PREFIX}ID, expected one for each task")
    return found


# Attempts, in processes of their own ----------------------------------------------------------------------------------


def attempt(generator: Generator, task_id: str, number: int, settings: Settings) -> Answer:
    """Make one pair, which depends only on (seed, task, number); returns why if that fails."""
    rng = random.Random(int(sha256_hex(f"{settings.seed} {task_id} {number}".encode()), 16))
    try:
        made = generator(rng, *settings.difficulty)
        pair = {role: [list(row) for row in made[role]] for role in ("input", "output")}
        longest = max(max(parse_grid(grid, role).shape) for role, grid in pair.items())
    except Exception as error:  # whatever a generator raises, the other attempts go on
        return f"{type(error).__name__}: {error}"
    return orjson.dumps(pair) if smallest_side(longest) <= settings.canvas else None


def attempts(task_id: str, numbers: range, settings: Settings) -> list[Answer]:
    """Make several attempts; the kernel ends this process, whatever code it runs, if one takes too long."""
    generator, answers = load_generators(settings.source)[task_id], []
    for number in numbers:
        signal.setitimer(signal.ITIMER_PROF, settings.time_limit)
        signal.setitimer(signal.ITIMER_REAL, WAITING * settings.time_limit)
        answers.append(attempt(generator, task_id, number, settings))
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return answers


class Worker:
    """A process that makes attempts, replaced by a new one if an attempt ends it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._pool = settings, _new_process()

    def attempts(self, task_id: str, numbers: range) -> list[Answer]:
        """Make the attempts with these numbers."""
        try:
            return self._pool.submit(attempts, task_id, numbers, self._settings).result()
        except BrokenProcessPool:
            self.close()
            self._pool = _new_process()
        if len(numbers) == 1:
            return ["time limit, or the end of its process"]
        return [answer for number in numbers for answer in self.attempts(task_id, range(number, number + 1))]

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()


def _new_process() -> ProcessPoolExecutor:
    # Not forked, which would copy locks that other threads hold; deaf to Ctrl-C, which the main process hears.
    spawning = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawning, signal.signal, (signal.SIGINT, signal.SIG_IGN))


# Tasks, whole files ---------------------------------------------------------------------------------------------------


def make_task(worker: Worker, task_id: str, settings: Settings) -> dict[str, Any]:
    """Make the distinct pairs of one task that fit, as the JSON object of a task; the last pair is its test.

    An attempt depends only on its number, so one that fails changes no other pair: `failed` of the object gives its
    number and the reason. There are fewer than `settings.pairs` if attempts rarely give a new pair that fits.
    """
    kept: dict[bytes, None] = {}
    failed: dict[str, str] = {}
    number = 0
    while (missing := settings.pairs - len(kept)) and (left := PATIENCE + ATTEMPTS_PER_PAIR * len(kept) - number):
        answers = worker.attempts(task_id, range(number, number + min(missing, left, AT_ONCE)))
        kept |= dict.fromkeys(answer for answer in answers if isinstance(answer, bytes))
        failed |= {str(number + i): answer for i, answer in enumerate(answers) if isinstance(answer, str)}
        number += len(answers)
    pairs = list(map(orjson.Fragment, kept))
    return {"train": pairs[:-1], "test": pairs[-1:], "failed": failed}


def generate(out: Path, tasks: Sequence[str] | None, settings: Settings) -> None:
    """Write a task file into the folder `out` for each of `tasks` (None: all that have a generator), on all cores.

    Keeps files that exist. Raises InputError if a task has no generator, or if `out` holds other files
    or pairs of other settings.
    """
    known = load_generators(settings.source)
    files = {task_id: out / f"{task_id}.json" for task_id in sorted(known if tasks is None else tasks)}
    if unknown := files.keys() - known.keys():
        raise InputError(f"--tasks: no generator for {', '.join(sorted(unknown))} in {settings.source}")
    refuse_other_files(out, "folder of generated pairs", {SOURCE, *(f"{task_id}.json" for task_id in known)})
    version = next(INSTALLED.glob("*.dist-info")).stem if settings.source == REARC else None
    _describe(out, {"format": FORMAT, "version": version, **asdict(settings)})
    made = {task_id: read_json(file) for task_id, file in files.items() if file.is_file()}
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def make(task_id: str) -> dict[str, Any]:
        worker = idle.get()
        try:
            task = make_task(worker, task_id, settings)
        finally:
            idle.put(worker)
        if task["train"]:
            write_atomic(files[task_id], orjson.dumps(task))
        return task

    missing = [task_id for task_id in files if task_id not in made]
    workers = [Worker(settings) for _ in range(os.cpu_count() or 1)]
    pool = ThreadPoolExecutor(len(workers))
    try:
        for worker in workers:
            idle.put(worker)
        with Progress("generating", len(files), done=len(made), unit="tasks") as progress:
            for task_id, task in zip(missing, pool.map(make, missing), strict=True):
                made[task_id] = task
                progress.update()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()
    failed = [
        f"{task_id} {number} ({why})" for task_id in files for number, why in made[task_id].get("failed", {}).items()
    ]
    if failed:
        print(f"failed attempts: {', '.join(failed)}")
    counts = [len(task["train"]) + len(task["test"]) for task in made.values() if task["train"]]
    print(
        f"wrote {out}: {len(counts)} tasks, {sum(counts)} pairs, {len(made) - len(counts)} tasks without any that fit, "
        f"{len(failed)} failed attempts, {megabytes(out)}"
    )


def _describe(out: Path, facts: dict[str, Any]) -> None:
    """Record the source and settings of the folder's files; raises InputError if it has others on record."""
    before = read_json(out / SOURCE) if (out / SOURCE).is_file() else facts
    for name, value in facts.items():
        if before.get(name) != value:
            raise InputError(f"{out}: holds pairs of {name} {before.get(name)}, expected {value} or another --out")
    make_folder(out)
    write_json(out / SOURCE, facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Generate a folder of task files; returns the exit status."""
    parser = command_line("data_prep.generate", __doc__)
    add = parser.add_argument
    sides = ", ".join(map(str, CANVAS_SIDES))
    add("--tasks", metavar="ID", nargs="+", help="task ids (all that have a generator)")
    add("--pairs", metavar="N", type=whole(2), required=True, help="distinct pairs a task, at most")
    add("--canvas", metavar="SIDE", type=int, choices=CANVAS_SIDES, default=CANVAS_SIDE, help=f"that they fit: {sides}")
    add("--seed", metavar="N", type=whole(), default=0, help="pairs depend on seed, task and number only (0)")
    add("--difficulty", metavar="D", nargs=2, type=float, default=[0.0, 0.2], help="range within 0 to 1 (0 0.2)")
    add("--time-limit", metavar="SECONDS", type=whole(1), default=10, help="of processor time an attempt (10)")
    add("--source", metavar="MODULE", default=REARC, help="a module with generators (those of RE-ARC)")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder, new or to be completed")
    options = vars(parser.parse_args(argv))
    low, high = options["difficulty"]
    if not 0 <= low <= high <= 1:
        parser.error(f"--difficulty: found {low} {high}, expected two numbers in order within 0 to 1")
    generate(options.pop("out"), options.pop("tasks"), Settings(**options))
    return 0


if __name__ == "__main__":
    run_program(main)
