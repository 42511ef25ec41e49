"""Generated pairs: read from a folder, checked against pairs to stay unseen, and joined to their tasks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.corpus import Corpus
from data_prep.files import InputError, read_json
from data_prep.grid import COLOURS
from data_prep.overlap import pair_digest
from data_prep.store import TaskEntry
from data_prep.tasks import Pair, Task, read_tasks

FORMAT = "arc-trm-generated"
# Describes the source of a folder's task files. Not named .json, so that it is not read as a task.
SOURCE = "source.manifest"


def read_generated(folder: Path) -> tuple[list[Task], dict[str, Any]]:
    """Read the task files of a folder; also returns facts for a manifest, their digest and the content of file SOURCE.

    Without that file the fact `source` is the folder's name. Raises InputError for wrong files.
    """
    tasks = read_tasks(folder, corpus="generated")
    said = read_json(folder / SOURCE) if (folder / SOURCE).is_file() else {"format": FORMAT}
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT:
        raise InputError(f"{folder / SOURCE}: not the description of generated pairs, expected format {FORMAT}")
    return tasks, {"source": folder.resolve().name, **said, "digest": Corpus("generated", "", tuple(tasks)).digest}


@dataclass(frozen=True)
class Joined:
    """Entries with the generated pairs of their tasks, and the pairs and tasks that were left out."""

    entries: list[TaskEntry]
    twins: dict[str, str]  # task that shares a pair with one to stay unseen -> the latter
    dropped: dict[str, int]  # task -> how many of its pairs equal one to stay unseen
    strangers: int  # generated tasks without a training task of their name

    def findings(self) -> list[str]:
        """Return a line for each kind of generated pairs that was left out."""
        twins = ", ".join(f"{name} (= {unseen})" for name, unseen in self.twins.items())
        lines = {
            f"dropped {sum(self.dropped.values())} generated pairs that equal pairs to stay unseen: "
            + ", ".join(self.dropped): self.dropped,
            f"left out the generated pairs of tasks that share a pair with one to stay unseen: {twins}": self.twins,
            f"left out {self.strangers} generated tasks: no task of their name trains here": self.strangers,
        }
        return [line for line, found in lines.items() if found]


def join(
    entries: Sequence[TaskEntry], generated: Sequence[Task], unseen: Sequence[Task], held_out: Collection[str]
) -> Joined:
    """Give the generated pairs of each task to the first training entry with its id.

    Drops a generated pair that equals a pair of an `unseen` task up to symmetry; if that task hides the output, an
    equal input is enough. Drops all pairs of a task if the entry's own task shares a pair with an unseen task, or if
    the task is held out. Raises InputError for a task that is scored but not in `held_out` (names).
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
            pairs = [pair for pair in task.pairs if pair.output is not None]
            kept[namesake.name] = tuple(pair for pair in pairs if not guard.find(pair))
            if count := len(pairs) - len(kept[namesake.name]):
                dropped[namesake.name] = count
    joined = [replace(entry, generated=kept.get(entry.task.name, ())) for entry in entries]
    return Joined(joined, twins, dropped, strangers)


class _Guard:
    """The pairs of unseen tasks; compares digests, which are slow, only of pairs whose `_kinds` agree."""

    def __init__(self, unseen: Sequence[Task]) -> None:
        digests = ((pair_digest(pair), task.name) for task in unseen for pair in task.pairs)
        self._owners = {digest.pair or digest.input: name for digest, name in digests}
        self._kinds = {_kinds(pair) for task in unseen for pair in task.pairs}

    def find(self, pair: Pair) -> str | None:
        """Return the name of an unseen task that has this pair up to symmetry, or None."""
        kinds = _kinds(pair)
        if self._kinds.isdisjoint((kinds, kinds[:1])):
            return None
        digest = pair_digest(pair)
        return self._owners.get(digest.pair) or self._owners.get(digest.input)


def _kinds(pair: Pair) -> tuple[bytes, ...]:
    """Return for each known grid its side lengths and colour counts, sorted, which no symmetry changes."""
    grids = [grid for grid in (pair.input, pair.output) if grid is not None]
    counts = [np.sort(np.bincount(grid.reshape(-1), minlength=COLOURS)) for grid in grids]
    return tuple(bytes(sorted(grid.shape)) + count.tobytes() for grid, count in zip(grids, counts, strict=True))
