"""Generated pairs on their way into a dataset: read from a folder, guarded, and joined to the tasks they belong to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.corpus import Corpus
from data_prep.files import InputError, read_json
from data_prep.grid import COLOURS, Grid
from data_prep.overlap import pair_digest
from data_prep.store import TaskEntry
from data_prep.tasks import Pair, Task, read_tasks

FORMAT = "arc-trm-generated"
# Says who made the task files of a folder. Not named .json, so that these alone are read as tasks.
SOURCE = "source.manifest"


@dataclass(frozen=True)
class Generated:
    """Tasks of generated pairs, named by the tasks they are like, and facts about their source for a manifest."""

    tasks: tuple[Task, ...]
    facts: dict[str, Any]


def read_generated(folder: Path) -> Generated:
    """The task files of a folder, and who made them if the folder has a file SOURCE.

    The facts hold `source`, `version`, `seed`, `settings` and the content `digest`. Raises InputError for wrong files.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected task files with generated pairs")
    said = read_json(folder / SOURCE) if (folder / SOURCE).is_file() else {"generators": folder.resolve().name}
    if not isinstance(said, dict) or said.get("format", FORMAT) != FORMAT:
        raise InputError(f"{folder / SOURCE}: not the description of generated pairs, expected format {FORMAT}")
    facts = {
        "source": said.pop("generators", None),
        "version": said.pop("version", None),
        "seed": said.pop("seed", None),
    }
    settings = {name: value for name, value in said.items() if name != "format"}
    tasks = tuple(read_tasks(folder, corpus="generated"))
    digest = Corpus("generated", "", tasks).digest
    return Generated(tasks, {**facts, "settings": settings, "digest": digest})


@dataclass(frozen=True)
class Joined:
    """Entries with the generated pairs of their tasks, and what the guard left out: task names, pairs a task."""

    entries: tuple[TaskEntry, ...]
    twins: dict[str, str]  # tasks that share a pair with one to stay unseen, and that one
    dropped: dict[str, int]  # how many pairs of a task equal one to stay unseen
    strangers: int  # generated tasks whose namesake does not train


def join(
    entries: Sequence[TaskEntry], generated: Sequence[Task], unseen: Sequence[Task], held_out: Collection[str]
) -> Joined:
    """Give every entry that trains the generated pairs of its namesake, with the leakage guard applied.

    A task is the namesake of the first training entry with its id. A generated pair that equals a pair of an `unseen`
    task up to symmetry is dropped; if that task hides the output, an equal input is enough. A generated task leaves
    if its namesake shares a pair with an unseen task, or is held out. Raises InputError for a task that is scored but
    not in `held_out` (names).
    """
    guard = _Guard(unseen)
    scored = {entry.task.task_id: entry.task.name for entry in entries if entry.scored}
    training = {entry.task.task_id: entry.task for entry in reversed(entries) if not entry.scored}
    kept: dict[str, tuple[Pair, ...]] = {}
    twins, dropped, strangers = {}, {}, 0
    for task in generated:
        name = scored.get(task.task_id)
        if name is not None and name not in held_out:
            raise InputError(f"generated pairs for task {task.task_id}, which is scored ({name}): remove its file")
        namesake = training.get(task.task_id)
        if namesake is None:
            strangers += 1
        elif twin := next(filter(None, map(guard.find, namesake.pairs)), None):
            twins[namesake.name] = twin
        else:
            pairs = tuple(pair for pair in task.pairs if pair.output is not None)
            kept[namesake.name] = tuple(pair for pair in pairs if not guard.find(pair))
            if count := len(pairs) - len(kept[namesake.name]):
                dropped[namesake.name] = count
    joined = (replace(entry, generated=kept.get(entry.task.name, ())) for entry in entries)
    return Joined(tuple(joined), twins, dropped, strangers)


class _Guard:
    """The pairs of unseen tasks, to compare others with; a digest is made only of pairs whose kinds agree."""

    def __init__(self, unseen: Sequence[Task]) -> None:
        self._owners: dict[str, str] = {}
        for task in unseen:
            for pair in task.pairs:
                digest = pair_digest(pair)
                self._owners.setdefault(digest.pair or digest.input, task.name)
        self._kinds = {_kinds(pair) for task in unseen for pair in task.pairs}

    def find(self, pair: Pair) -> str | None:
        """The name of an unseen task that has this pair up to symmetry."""
        kinds = _kinds(pair)
        if self._kinds.isdisjoint((kinds, (kinds[0], None))):
            return None
        digest = pair_digest(pair)
        return self._owners.get(digest.pair) or self._owners.get(digest.input)


def _kinds(pair: Pair) -> tuple[bytes, bytes | None]:
    """Of input and output what no symmetry changes and is soon found: lengths of sides, how often colours occur."""
    return _kind(pair.input), None if pair.output is None else _kind(pair.output)


def _kind(grid: Grid) -> bytes:
    counts = np.bincount(grid.reshape(-1), minlength=COLOURS)
    counts.sort()
    return bytes(sorted(grid.shape)) + counts.tobytes()
