"""Generate new pairs for ARC tasks and write them as ordinary task files, one for each task.

make generators
python -m data_prep.generate --pairs 300 --canvas 11 --seed 0 --out data/generated
python -m data_prep.build arc --recipe arc1-train --generated data/generated --out data/arc1-generated

The generators are those of RE-ARC, one for each training task of ARC-AGI-1. --generators names another module with
functions generate_ID(rng, low, high) that return {"input": grid, "output": grid}.
"""

import importlib
import importlib.metadata
import multiprocessing
import os
import queue
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from data_prep.canvas import CANVAS_SIDE, CANVAS_SIDES, smallest_side
from data_prep.files import (
    InputError,
    command_line,
    make_folder,
    megabytes,
    read_json,
    refuse_other_files,
    run_program,
    sha256_hex,
    whole,
    write_atomic,
    write_json,
)
from data_prep.generated import FORMAT, SOURCE
from data_prep.grid import parse_grid
from data_prep.progress import Progress

# `make generators` installs the package here, without what it depends on. Only this part of it is ever imported: the
# package itself wants a dozen others, the part needs the standard library only.
INSTALLED = Path(__file__).resolve().parents[1] / ".generators"
REARC, REARC_FOLDER = "rearc_utils.generators", INSTALLED / "reasoning_gym" / "arc"
PREFIX = "generate_"

# A task gets this many attempts, and so many more for each pair that it already has.
PATIENCE, ATTEMPTS_PER_PAIR = 100, 20
DIFFICULTY = (0.0, 0.2)
TIME_LIMIT = 10
WAITING = 20  # an attempt may wait for other processes: its time limit by the clock, in limits of processor time

Generator: TypeAlias = Callable[[random.Random, float, float], Mapping[str, Sequence[Sequence[int]]]]
Answer: TypeAlias = bytes | str | None  # a pair as JSON, why the attempt failed, or None if it does not fit


@dataclass(frozen=True)
class Settings:
    """Settings that decide which pairs a task gets: sizes in cells, times in seconds of processor time."""

    generators: str
    seed: int
    pairs: int
    canvas: int
    difficulty: tuple[float, float]
    time_limit: int


def load_generators(name: str) -> dict[str, Generator]:
    """The generators of the module `name` by task id; raises InputError if it is missing or has none."""
    if name == REARC and str(REARC_FOLDER) not in sys.path:
        sys.path.append(str(REARC_FOLDER))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            missing = "not installed: run `make generators`" if name == REARC else "no such module"
            raise InputError(f"generators {name}: {missing}") from error
        raise
    found = {key.removeprefix(PREFIX): value for key, value in vars(module).items() if key.startswith(PREFIX)}
    if not found:
        raise InputError(f"generators {name}: no function {PREFIX}ID, expected one for each task")
    return found


def _version(name: str) -> str:
    """The version of the generators: of the installed package, or the module's own."""
    if name != REARC:
        return str(getattr(sys.modules[name], "__version__", "unknown"))
    [package] = importlib.metadata.distributions(name="reasoning-gym", path=[str(INSTALLED)])
    return f"reasoning-gym {package.version}"


# Attempts, in processes of their own ----------------------------------------------------------------------------------


def attempt(generator: Generator, task_id: str, number: int, settings: Settings) -> Answer:
    """The pair of one attempt, a function of (seed, task, number) only, or the reason why there is none."""
    rng = random.Random(int(sha256_hex(f"{settings.seed} {task_id} {number}".encode()), 16))
    try:
        made = generator(rng, *settings.difficulty)
        pair = {role: [list(row) for row in made[role]] for role in ("input", "output")}
        longest = max(max(parse_grid(grid, role).shape) for role, grid in pair.items())
    except Exception as error:  # whatever a generator raises, the other attempts go on
        return f"{type(error).__name__}: {error}"
    return orjson.dumps(pair) if smallest_side(longest) <= settings.canvas else None


def _serve(connection: Connection, settings: Settings) -> None:
    """Answer requests (task id, first attempt, end) with an Answer for each attempt, until the connection ends.

    The kernel ends this process when an attempt takes too long, whatever code is running then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the connection
    for timeout in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timeout, signal.SIG_DFL)
    generators = load_generators(settings.generators)
    while True:
        try:
            task_id, first, end = connection.recv()
        except EOFError:
            return
        for number in range(first, end):
            _limit(settings.time_limit)
            answer = attempt(generators[task_id], task_id, number, settings)
            _limit(0)
            connection.send(answer)


def _limit(seconds: int) -> None:
    """End this process after so many seconds of processor time, or WAITING times as many by the clock; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING * seconds)


class Worker:
    """A process that makes attempts; one that ends during an attempt is replaced."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: BaseProcess | None = None

    def attempts(self, task_id: str, first: int, count: int) -> list[Answer]:
        """The answers to `count` attempts from number `first` on.

        Raises InputError if the process ends with an exit status, not by a signal.
        """
        answers: list[Answer] = []
        while len(answers) < count:
            process = self._process or self._start()
            try:
                self._connection.send((task_id, first + len(answers), first + count))
                while len(answers) < count:
                    answers.append(self._connection.recv())
            except (EOFError, ConnectionError):
                answers.append(self._reason(process, f"task {task_id}, attempt {first + len(answers)}"))
        return answers

    def _start(self) -> BaseProcess:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._settings), daemon=True)
        self._process.start()
        theirs.close()
        return self._process

    def _reason(self, process: BaseProcess, where: str) -> str:
        """Why the process ended during an attempt."""
        self.close()
        status = process.exitcode or 0
        if status >= 0:
            raise InputError(f"{where}: the generator's process ended with status {status}")
        timed_out = -status in (signal.SIGPROF, signal.SIGALRM)
        return "time limit" if timed_out else f"ended by signal {-status}"

    def close(self) -> None:
        """End the process when its present attempt is done."""
        if self._process is not None:
            self._connection.close()
            self._process.join()
            self._process = None


# Tasks, whole files ---------------------------------------------------------------------------------------------------


def make_task(worker: Worker, task_id: str, settings: Settings) -> dict[str, Any]:
    """The distinct pairs of one task that fit, as the JSON object of a task; the last of them is its test.

    Attempts are numbered, and each depends on its number only, so one that fails changes no other pair: `failed` of
    the object gives its number and the reason. The task has fewer than `settings.pairs` pairs if attempts rarely give
    a new one that fits.
    """
    kept: dict[bytes, None] = {}
    failed: dict[str, str] = {}
    number = 0
    while (missing := settings.pairs - len(kept)) and (left := PATIENCE + ATTEMPTS_PER_PAIR * len(kept) - number):
        answers = worker.attempts(task_id, number, min(missing, left))
        kept |= dict.fromkeys(answer for answer in answers if isinstance(answer, bytes))
        failed |= {str(number + i): answer for i, answer in enumerate(answers) if isinstance(answer, str)}
        number += len(answers)
    pairs = list(map(orjson.Fragment, kept))
    return {"train": pairs[:-1], "test": pairs[-1:], "failed": failed}


def generate(out: Path, tasks: Sequence[str] | None, settings: Settings) -> None:
    """Write a task file into the folder `out` for each of `tasks` (None: all that have a generator), on all cores.

    A file that is there already is kept. Raises InputError if a task has no generator, or if `out` holds other files
    or pairs of other settings.
    """
    known = load_generators(settings.generators)
    chosen = sorted(set(known if tasks is None else tasks))
    if unknown := [task_id for task_id in chosen if task_id not in known]:
        raise InputError(f"--tasks: no generator for {', '.join(unknown)} in {settings.generators}")
    _claim(out, known, {"format": FORMAT, "version": _version(settings.generators), **asdict(settings)})
    files = {task_id: out / f"{task_id}.json" for task_id in chosen}
    made = {task_id: read_json(file) for task_id, file in files.items() if file.is_file()}
    workers = [Worker(settings) for _ in range(os.cpu_count() or 1)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def make(task_id: str) -> tuple[str, dict[str, Any]]:
        worker = idle.get()
        try:
            task = make_task(worker, task_id, settings)
        finally:
            idle.put(worker)
        if task["train"]:
            write_atomic(files[task_id], orjson.dumps(task))
        return task_id, task

    pool = ThreadPoolExecutor(len(workers))
    try:
        missing = [task_id for task_id in chosen if task_id not in made]
        with Progress("generating", len(chosen), done=len(made), unit="tasks") as progress:
            for task_id, task in pool.map(make, missing):
                made[task_id] = task
                progress.update()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()
    print(_summary(out, made))


def _claim(out: Path, known: Mapping[str, Generator], facts: dict[str, Any]) -> None:
    """Record in the folder which generators and settings made its files; raises InputError if it holds others."""
    refuse_other_files(out, "folder of generated pairs", {SOURCE, *(f"{task_id}.json" for task_id in known)})
    facts = orjson.loads(orjson.dumps(facts))
    if (out / SOURCE).is_file():
        before = read_json(out / SOURCE)
        for name, value in facts.items():
            if before.get(name) != value:
                raise InputError(
                    f"{out}: holds pairs made with {name} {before.get(name)}, expected {value} or another --out"
                )
    make_folder(out)
    write_json(out / SOURCE, facts)


def _summary(out: Path, made: Mapping[str, dict[str, Any]]) -> str:
    """The closing line, after one about failed attempts if there are any."""
    failed = [
        f"{task_id} {number} ({reason})"
        for task_id in sorted(made)
        for number, reason in made[task_id].get("failed", {}).items()
    ]
    listed = ", ".join(failed[:10]) + (f" and {len(failed) - 10} more" if len(failed) > 10 else "")
    counts = [len(task["train"]) + len(task["test"]) for task in made.values() if task["train"]]
    return (f"failed attempts: {listed}\n" if failed else "") + (
        f"wrote {out}: {len(counts)} tasks, {sum(counts)} pairs, {len(made) - len(counts)} tasks without any that fit, "
        f"{len(failed)} failed attempts, {megabytes(out)}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Generate a folder of task files; the exit status."""
    parser = command_line("data_prep.generate", __doc__)
    add = parser.add_argument
    add("--tasks", metavar="ID", nargs="+", help="task ids (all that have a generator)")
    add("--pairs", metavar="N", type=whole(2), required=True, help="distinct pairs a task, at most")
    canvas_help = f"pairs must fit this canvas: {', '.join(map(str, CANVAS_SIDES))} ({CANVAS_SIDE})"
    add("--canvas", metavar="SIDE", type=int, choices=CANVAS_SIDES, default=CANVAS_SIDE, help=canvas_help)
    add("--seed", metavar="N", type=whole(), default=0, help="pairs depend on the seed, task and number only (0)")
    difficulty_help = "range of difficulty within 0 to 1 (0 0.2); larger: larger grids"
    add("--difficulty", metavar=("LOW", "HIGH"), nargs=2, type=float, default=DIFFICULTY, help=difficulty_help)
    limit_help = f"processor time of one attempt, after which it is skipped and listed ({TIME_LIMIT})"
    add("--time-limit", metavar="SECONDS", type=whole(1), default=TIME_LIMIT, help=limit_help)
    add("--generators", metavar="MODULE", default=REARC, help="a module with other generators (those of RE-ARC)")
    add("--out", metavar="DIR", type=Path, required=True, help="the folder, new or to be completed")
    options = vars(parser.parse_args(argv))
    low, high = options["difficulty"] = tuple(options["difficulty"])
    if not 0 <= low <= high <= 1:
        parser.error(f"--difficulty: found {low} {high}, expected 0 <= LOW <= HIGH <= 1")
    generate(options.pop("out"), options.pop("tasks"), Settings(**options))
    return 0


if __name__ == "__main__":
    run_program(main)
