"""The ARC dataset: base pairs once, and a puzzle table of 15 bytes a puzzle; in memory or in a folder.

A puzzle is a group and an augmentation. Batches apply augmentation, placement and EOS. Generated pairs follow the own
pairs of their task. A folder holds manifest.json, groups.json and one .npy file per array (see data_prep.files).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from data_prep import boards
from data_prep.augment import Augmentations, distinct_augmentations
from data_prep.canvas import CANVAS_SIDE, VOCAB_SIZE, choose_side, smallest_side
from data_prep.files import (
    VERSION,
    ArrayTable,
    InputError,
    Manifest,
    load_arrays,
    new_manifest,
    read_json,
    read_manifest,
    save_arrays,
)
from data_prep.grid import Grid
from data_prep.overlap import GENERATED, pair_digest
from data_prep.tasks import Pair, Task, pairs_digest, task_digest


@dataclass(frozen=True)
class TaskEntry:
    """A task on its way into a store; `training` says for each pair, demonstrations first, whether it trains.

    All `generated` pairs train. If there are some, and no own pair trains or is scored, the own pairs are not stored.
    """

    task: Task
    training: tuple[bool, ...]
    scored: bool
    generated: tuple[Pair, ...] = ()

    @classmethod
    def all_pairs(cls, task: Task) -> "TaskEntry":
        """Make an entry in which every pair with a known output trains and nothing is scored."""
        return cls(task, tuple(pair.output is not None for pair in task.pairs), scored=False)

    @classmethod
    def demonstrations_only(cls, task: Task) -> "TaskEntry":
        """Make an entry in which the demonstrations train and the test outputs are predicted and scored."""
        return cls(task, (True,) * len(task.demonstrations) + (False,) * len(task.tests), scored=True)

    @property
    def visible(self) -> Task:
        """Return the task, with the pairs that train as demonstrations and all other outputs hidden."""
        pairs = list(zip(self.task.pairs, self.training, strict=True))
        shown = tuple(pair for pair, trains in pairs if trains)
        asked = tuple(Pair(pair.input, None) for pair, trains in pairs if not trains)
        return Task(self.task.task_id, self.task.corpus, shown, asked)

    @property
    def own(self) -> tuple[Pair, ...]:
        """Return the task's own pairs that the store holds: all or none."""
        return self.task.pairs if self.scored or any(self.training) or not self.generated else ()

    @property
    def side(self) -> int:
        """Return the smallest canvas for the visible own grids and the output sizes that they imply.

        Without own pairs it is the smallest canvas for all generated pairs.
        """
        return choose_side(self.visible) if self.own else max(map(_pair_side, self.generated))

    def on_canvas(self, side: int) -> "TaskEntry | None":
        """Return the entry with those generated pairs that fit its canvas.

        A task too large for `side` keeps only generated pairs that fit `side`; None if there are none.
        """
        own_side = self.side
        generated = tuple(pair for pair in self.generated if _pair_side(pair) <= min(side, own_side))
        if own_side <= side:
            return replace(self, generated=generated)
        return replace(self, training=(False,) * len(self.training), generated=generated) if generated else None

    def stored(self) -> Iterator[tuple[Pair, int, bool, bool]]:
        """Yield each pair that the store holds: (pair, index of the test input or -1, trains, is generated)."""
        tests = (*(-1 for _ in self.task.demonstrations), *range(len(self.task.tests)))
        yield from zip(self.own, tests, self.training, repeat(False))
        yield from ((pair, -1, True, True) for pair in self.generated)


def _pair_side(pair: Pair) -> int:
    """Return the smallest canvas for a pair whose output is known."""
    assert pair.output is not None
    return smallest_side(max(*pair.input.shape, *pair.output.shape))


@dataclass(frozen=True)
class Group:
    """The puzzles of one task.

    `digest` is that of its content, `demonstrations` that of its demonstrations in any order. `side` is the smallest
    canvas for what is visible. `labels` are the digests up to symmetry of the pairs that train
    (data_prep.overlap.PairDigest as text). Generated pairs change only the side of a task without own pairs.
    """

    task_id: str
    corpus: str
    digest: str
    demonstrations: str
    scored: bool
    side: int
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """`corpus/task_id`, unique in a store."""
        return f"{self.corpus}/{self.task_id}"


GROUPS = "groups.json"
ARC_ARRAYS: ArrayTable = {  # G1 is one more than the number of groups
    "cells": (np.uint8, ("C",)),
    "pair_offsets": (np.int64, ("P", 2)),
    "pair_shapes": (np.uint8, ("P", 4)),
    "pair_groups": (np.int32, ("P",)),
    "pair_tests": (np.int16, ("P",)),
    "pair_training": (np.bool_, ("P",)),
    "pair_generated": (np.bool_, ("P",)),
    "group_pairs": (np.int32, ("G1",)),
    "group_puzzles": (np.int32, ("G1",)),
    "puzzle_groups": (np.int32, ("N",)),
    "puzzle_dihedrals": (np.uint8, ("N",)),
    "puzzle_permutations": (np.uint8, ("N", 10)),
}


@dataclass(frozen=True, eq=False)
class ArcStore:
    """Base pairs, groups and puzzles of an ARC dataset; the arrays may be memory maps."""

    manifest: Manifest
    groups: tuple[Group, ...]
    cells: NDArray[np.uint8]  # [C] colours of all grids, row major, one grid after the other
    pair_offsets: NDArray[np.int64]  # [P, 2] start of input and output in `cells`; output -1: hidden
    pair_shapes: NDArray[np.uint8]  # [P, 4] height and width of input and output; 0, 0: hidden
    pair_groups: NDArray[np.int32]  # [P] ascending
    pair_tests: NDArray[np.int16]  # [P] index of the test input, -1 for a demonstration or a generated pair
    pair_training: NDArray[np.bool_]  # [P] may be a training label
    pair_generated: NDArray[np.bool_]  # [P] made by a generator; follow the own pairs of their group
    group_pairs: NDArray[np.int32]  # [G + 1] pairs of group g are group_pairs[g]:group_pairs[g + 1]
    group_puzzles: NDArray[np.int32]  # [G + 1] likewise puzzles; the first is the unaugmented one
    puzzle_groups: NDArray[np.int32]  # [N] ascending
    puzzle_augmentations: Augmentations  # [N] on disk two arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by their names in ARC_ARRAYS, which are those of their files."""
        arrays = vars(self) | {f"puzzle_{name}": array for name, array in vars(self.puzzle_augmentations).items()}
        return {name: arrays[name] for name in ARC_ARRAYS}

    def input(self, pair: int) -> Grid:
        """Return the input grid of a pair, a view."""
        return self._grid(pair, 0)

    def output(self, pair: int) -> Grid | None:
        """Return the output grid of a pair, a view; None if it is hidden."""
        return None if self.pair_offsets[pair, 1] < 0 else self._grid(pair, 1)

    def _grid(self, pair: int, which: int) -> Grid:
        start = int(self.pair_offsets[pair, which])
        height, width = map(int, self.pair_shapes[pair, 2 * which : 2 * which + 2])
        return self.cells[start : start + height * width].reshape(height, width)

    def tasks(self) -> list[Task]:
        """Return the unaugmented tasks without generated pairs, in order; their grids are views."""
        tasks = []
        for group, (first, end) in zip(self.groups, pairwise(self.group_pairs.tolist()), strict=True):
            own = np.flatnonzero(~self.pair_generated[first:end]) + first
            pairs = tuple(Pair(self.input(pair), self.output(pair)) for pair in own.tolist())
            tests = int((self.pair_tests[own] < 0).sum())  # demonstrations come first
            tasks.append(Task(group.task_id, group.corpus, pairs[:tests], pairs[tests:]))
        return tasks

    def demonstration_digests(self) -> tuple[str, ...]:
        """Return for every group the digest of its demonstrations, which does not depend on their order."""
        return tuple(group.demonstrations for group in self.groups)

    def training_digests(self) -> tuple[str, ...]:
        """Return a line for each training task, content digest and label digests, which exports keep for `trained_on`.

        Generated pairs add one line for all: the word GENERATED and the manifest's facts about their source.
        """
        lines = [" ".join((group.digest, *group.labels)) for group in self.groups if group.labels]
        if source := self.manifest.get("generated"):
            lines.append(f"{GENERATED} {orjson.dumps(source).decode()}")
        return tuple(lines)


def build_store(
    entries: Sequence[TaskEntry],
    augmentations: int,
    seed: int,
    manifest: Mapping[str, Any] | None = None,
) -> ArcStore:
    """Build the store of these tasks, in memory, each with up to `augmentations` puzzles beside the task itself.

    The puzzles of a task depend only on its name, its visible grids and the seed, not on the other tasks.
    `manifest` adds fields (recipe, corpora, leak ...). Raises InputError if there is no task or one is repeated, and
    ValueError if a pair without output is to train.
    """
    _check_entries(entries)
    drawn = [_draw_puzzles(entry.visible, augmentations, seed) for entry in entries]
    stored = [list(entry.stored()) for entry in entries]
    pairs, tests, training, generated = zip(*chain.from_iterable(stored), strict=True)
    groups = tuple(_make_group(entry) for entry in entries)
    group_pairs, group_puzzles = (np.cumsum([0, *map(len, parts)], dtype=np.int32) for parts in (stored, drawn))
    pair_groups, puzzle_groups = (
        np.repeat(np.arange(len(groups), dtype=np.int32), np.diff(starts)) for starts in (group_pairs, group_puzzles)
    )
    shapes = [(*pair.input.shape, *((0, 0) if pair.output is None else pair.output.shape)) for pair in pairs]
    cells, offsets = _concatenate_grids(pairs)
    arrays: dict[str, Any] = {
        "cells": cells,
        "pair_offsets": offsets,
        "pair_shapes": np.array(shapes, np.uint8),
        "pair_groups": pair_groups,
        "pair_tests": np.array(tests, np.int16),
        "pair_training": np.array(training, np.bool_),
        "pair_generated": np.array(generated, np.bool_),
        "group_pairs": group_pairs,
        "group_puzzles": group_puzzles,
        "puzzle_groups": puzzle_groups,
        "puzzle_augmentations": Augmentations.joined(drawn),
    }
    scored = np.array([group.scored for group in groups])[pair_groups]
    counts = {
        "groups": len(groups),
        "pairs": len(pairs),
        "puzzles": len(puzzle_groups),
        "training_pairs": sum(training),
        "generated_pairs": sum(generated),
        "scored_outputs": int((scored & (arrays["pair_tests"] >= 0)).sum()),
    }
    facts = {
        "vocabulary": VOCAB_SIZE,
        "canvas_side": CANVAS_SIDE,
        "seed": seed,
        "augmentations": augmentations,
        "counts": counts,
        "leak": [],
        **(manifest or {}),
    }
    return ArcStore(manifest=new_manifest("arc", facts), groups=groups, **arrays)


def _check_entries(entries: Sequence[TaskEntry]) -> None:
    if not entries:
        raise InputError("no task to build a dataset from, expected at least one")
    seen: set[str] = set()
    for entry in entries:
        if entry.task.name in seen:
            raise InputError(f"task {entry.task.name} occurs twice, expected names unique within a corpus")
        seen.add(entry.task.name)
        hidden = [pair.output is None for pair in entry.task.pairs]
        if any(trains and hides for trains, hides in zip(entry.training, hidden, strict=True)):
            raise ValueError(f"task {entry.task.name}: a pair without output cannot train")


def _make_group(entry: TaskEntry) -> Group:
    return Group(
        task_id=entry.task.task_id,
        corpus=entry.task.corpus,
        digest=task_digest(entry.task),
        demonstrations=pairs_digest(entry.task.demonstrations),
        scored=entry.scored,
        side=entry.side,
        labels=tuple(str(pair_digest(pair)) for pair in entry.visible.demonstrations),
    )


def _draw_puzzles(task: Task, augmentations: int, seed: int) -> Augmentations:
    # A generator for each task, so that the puzzles do not depend on the other tasks.
    key = hashlib.sha256(f"{seed} {task.name}".encode()).digest()[:16]
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
    return distinct_augmentations(task.pairs, augmentations, rng)


def _concatenate_grids(pairs: Sequence[Pair]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the cells of all grids, and where those of each input and output begin, int64[P, 2]; -1 if hidden."""
    grids = [grid for pair in pairs for grid in (pair.input, pair.output)]
    sizes = np.array([0 if grid is None else grid.size for grid in grids])
    offsets = np.where(sizes > 0, np.cumsum(sizes) - sizes, -1).reshape(-1, 2)
    return np.concatenate([grid.reshape(-1) for grid in grids if grid is not None]), offsets


# On disk ------------------------------------------------------------------------------------------------


def save(store: ArcStore, folder: Path | str) -> None:
    """Write the store so that `folder` holds either what it held before or the whole new dataset.

    Replaces an older dataset; raises InputError if `folder` holds something else or cannot be written.
    """
    files = {GROUPS: orjson.dumps([asdict(group) for group in store.groups])}
    save_arrays(folder, store.manifest, store.arrays(), files)


def load(folder: Path | str) -> ArcStore:
    """Open an ARC dataset without copying it; raises InputError if a file is missing or of another shape or type."""
    folder = Path(folder)
    manifest = read_manifest(folder, ["arc"])
    groups = _read_groups(folder / GROUPS)
    arrays = load_arrays(folder, ARC_ARRAYS, {"G1": len(groups) + 1})
    augmentations = Augmentations(arrays.pop("puzzle_dihedrals"), arrays.pop("puzzle_permutations"))
    return ArcStore(manifest=manifest, groups=groups, puzzle_augmentations=augmentations, **arrays)


def _read_groups(path: Path) -> tuple[Group, ...]:
    try:
        return tuple(Group(**{**group, "labels": tuple(group["labels"])}) for group in read_json(path))
    except (TypeError, KeyError) as error:
        raise InputError(f"{path}: not the groups of a dataset of version {VERSION}") from error


def open_store(folder: Path | str) -> ArcStore | boards.BoardStore:
    """Open a dataset of any kind; raises InputError if it is none."""
    if read_manifest(folder)["kind"] == "arc":
        return load(folder)
    return boards.load(folder)
