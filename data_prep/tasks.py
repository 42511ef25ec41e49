"""Pairs and tasks, and the readers of every file layout in which ARC tasks are handed around."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from data_prep.files import InputError, read_json, sha256_hex, write_atomic
from data_prep.grid import Grid, describe, grid_digest, parse_grid


@dataclass(frozen=True, eq=False)
class Pair:
    """An input grid and its output grid; the output is None if it is hidden."""

    input: Grid
    output: Grid | None


@dataclass(frozen=True, eq=False)
class Task:
    """One ARC task; `task_id` is unique within `corpus` only."""

    task_id: str
    corpus: str
    demonstrations: tuple[Pair, ...]
    tests: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Return the demonstration pairs, then the test pairs."""
        return self.demonstrations + self.tests

    @property
    def name(self) -> str:
        """`corpus/task_id`, unique in a dataset."""
        return f"{self.corpus}/{self.task_id}"


def task_digest(task: Task) -> str:
    """Return the SHA-256 of all pairs in sorted order, which does not depend on their order and roles.

    Equals the published puzzle hash if no output is hidden.
    """
    return pairs_digest(task.pairs)


def pairs_digest(pairs: Sequence[Pair]) -> str:
    """Return the SHA-256 of pairs in sorted order; that of a task's demonstrations identifies the task."""
    outputs = ("" if pair.output is None else grid_digest(pair.output) for pair in pairs)
    lines = sorted(f"{grid_digest(pair.input)}|{output}" for pair, output in zip(pairs, outputs, strict=True))
    return sha256_hex("|".join(lines).encode())


def parse_task(value: object, task_id: str, corpus: str, where: str) -> Task:
    """Parse a JSON object {"train": [...], "test": [...]}; raises InputError, naming `where`, if it is no task."""
    if not task_id or not task_id.isprintable():  # names become file names, lines of reports and arguments
        raise InputError(f"{where}: found the task name {task_id!a}, expected printable letters")
    if not isinstance(value, dict) or not {"train", "test"} <= value.keys():
        found = describe(value) if not isinstance(value, dict) else f"fields {sorted(value)[:5]}"
        raise InputError(f"{where}: found {found}, expected a task with 'train' and 'test'")
    return Task(
        task_id,
        corpus,
        _parse_pairs(value["train"], f"{where}, train", hidden=False),
        _parse_pairs(value["test"], f"{where}, test", hidden=True),
    )


def _parse_pairs(value: object, where: str, hidden: bool) -> tuple[Pair, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: found {describe(value)}, expected a list of at least one pair")
    return tuple(_parse_pair(item, f"{where} {i}", hidden) for i, item in enumerate(value))


def _parse_pair(value: object, where: str, hidden: bool) -> Pair:
    if not isinstance(value, dict) or "input" not in value:
        raise InputError(f"{where}: found {describe(value)} without 'input', expected a pair of grids")
    output = value.get("output")
    if output is None and not hidden:
        raise InputError(f"{where}: a demonstration without 'output', expected a pair of grids")
    return Pair(
        parse_grid(value["input"], f"{where} input"),
        None if output is None else parse_grid(output, f"{where} output"),
    )


def read_tasks(path: Path | str, solutions: Path | str | None = None, corpus: str = "own") -> list[Task]:
    """Read one task file, a combined challenges file, an ARC folder or ConceptARC's folders.

    `solutions` names Kaggle's file of hidden outputs, {task_id: [grid, ...]}. Tasks keep the order of the file, or of
    sorted file names. Raises InputError that names file, task and field.
    """
    path = Path(path)
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    tasks = [task for file in files for task in _read_file(file, corpus, alone=not path.is_dir())]
    if not tasks:
        raise InputError(f"{path}: no task found, expected JSON task files")
    for name, count in Counter(task.task_id for task in tasks).items():
        if count > 1:
            raise InputError(f"{path}: task {name} occurs twice, expected unique names")
    return tasks if solutions is None else _add_outputs(tasks, read_solutions(solutions), path, solutions)


def _read_file(file: Path, corpus: str, alone: bool) -> Iterator[Task]:
    """Parse the task of a file in a folder; a file that is read `alone` may also be a table of tasks."""
    value = read_json(file)
    if not alone or (isinstance(value, dict) and isinstance(value.get("train"), list)):
        yield parse_task(value, file.stem, corpus, str(file))
    elif isinstance(value, dict):
        yield from parse_table(value, corpus, str(file))
    else:
        raise InputError(f"{file}: found {describe(value)}, expected one task or {{task_id: task, ...}}")


def parse_table(table: dict[str, Any], corpus: str, where: str) -> Iterator[Task]:
    """Parse a JSON object {task_id: task, ...}; keeps its order."""
    for task_id, value in table.items():
        yield parse_task(value, task_id, corpus, f"{where}: task {task_id}")


def read_solutions(path: Path | str) -> dict[str, list[Grid]]:
    """Read Kaggle's solutions file: for each task id the output grids of its tests, in order."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path}: found {describe(value)}, expected {{task_id: [grid, ...], ...}}")
    for task_id, grids in value.items():
        if not isinstance(grids, list) or not grids:
            raise InputError(f"{path}: task {task_id}: found {describe(grids)}, expected a list of output grids")
    return {
        task_id: [parse_grid(grid, f"{path}: task {task_id}, output {i}") for i, grid in enumerate(grids)]
        for task_id, grids in value.items()
    }


def _add_outputs(
    tasks: Sequence[Task], solutions: dict[str, list[Grid]], path: Path, solutions_path: Path | str
) -> list[Task]:
    """Fill in hidden outputs; raises InputError if the two files do not hold the same tasks."""
    names = {task.task_id for task in tasks}
    for missing, where, other in (
        (sorted(names - solutions.keys()), solutions_path, path),
        (sorted(solutions.keys() - names), path, solutions_path),
    ):
        if missing:
            listed = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
            raise InputError(f"{where}: lacks {listed}, expected the same tasks as in {other}")
    return [_add_task_outputs(task, solutions[task.task_id], str(solutions_path)) for task in tasks]


def _add_task_outputs(task: Task, outputs: Sequence[Grid], where: str) -> Task:
    if len(outputs) != len(task.tests):
        raise InputError(f"{where}: task {task.task_id} has {len(outputs)} outputs, expected {len(task.tests)}")
    for i, (pair, output) in enumerate(zip(task.tests, outputs, strict=True)):
        if pair.output is not None and grid_digest(pair.output) != grid_digest(output):
            raise InputError(f"{where}: task {task.task_id}, output {i} differs from the task's own output")
    tests = tuple(Pair(pair.input, output) for pair, output in zip(task.tests, outputs, strict=True))
    return replace(task, tests=tests)


def write_tasks(tasks: Sequence[Task], folder: Path, prefix: str = "") -> tuple[Path, Path]:
    """Write challenges.json, as the competition publishes tasks, and solutions.json; returns both paths.

    Both names begin with `prefix`. Raises InputError if a task hides an output or a file cannot be written.
    """
    challenges, solutions = folder / f"{prefix}challenges.json", folder / f"{prefix}solutions.json"
    asked = {
        task.task_id: {
            "train": [{"input": pair.input.tolist(), "output": _cells(task, pair)} for pair in task.demonstrations],
            "test": [{"input": pair.input.tolist()} for pair in task.tests],
        }
        for task in tasks
    }
    known = {task.task_id: [_cells(task, pair) for pair in task.tests] for task in tasks}
    write_atomic(challenges, orjson.dumps(asked))
    write_atomic(solutions, orjson.dumps(known))
    return challenges, solutions


def _cells(task: Task, pair: Pair) -> list[list[int]]:
    if pair.output is None:
        raise InputError(f"task {task.name}: hides an output, expected tasks whose outputs are known")
    return pair.output.tolist()
