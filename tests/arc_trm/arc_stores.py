"""Small stores of random tasks for the tests of sampling and batches."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data_prep.augment import Augmentations
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Pair, Task
from tests.data_prep.material import Augmentation, puzzle_name

Shape = tuple[int, int]
Shapes = tuple[Shape, Shape | None]  # of input and output; None: hidden


def random_task(rng: np.random.Generator, name: str, demonstrations: Sequence[Shapes], tests: Sequence[Shapes]) -> Task:
    def pair(shapes: Shapes) -> Pair:
        given, asked = (None if shape is None else rng.integers(0, 10, shape, dtype=np.uint8) for shape in shapes)
        assert given is not None
        return Pair(given, asked)

    return Task(name, "own", tuple(map(pair, demonstrations)), tuple(map(pair, tests)))


def puzzle_names(store: ArcStore) -> list[str]:
    """`corpus/task_id|||t3|||0123456789` for each puzzle, `corpus/task_id` for the unaugmented one."""
    groups = store.puzzle_groups.tolist()
    return [
        puzzle_name(store.groups[group].name, Augmentation.of(store, puzzle)) for puzzle, group in enumerate(groups)
    ]


def mixed_store(augmentations: int = 7) -> ArcStore:
    """Five groups with 3, 1, 0, 5 and 2 training pairs and sides 11, 30, 11, 21, 16; groups 1, 2 and 4 are scored."""
    rng = np.random.default_rng(3)
    a = random_task(rng, "a", [((3, 5), (2, 7)), ((5, 3), (1, 1))], [((7, 2), (3, 3))])
    b = random_task(rng, "b", [((23, 29), (13, 11))], [((2, 3), None), ((5, 5), (17, 7)), ((3, 2), None)])
    c = random_task(rng, "c", [((3, 3), (2, 2))], [((5, 7), (2, 3))])
    d = random_task(rng, "d", [((17, 3), (3, 17))] * 4, [((19, 19), (19, 13))])
    e = random_task(rng, "e", [((13, 2), (2, 13)), ((11, 11), (11, 11))], [((3, 13), (13, 13))])
    entries = [
        TaskEntry.all_pairs(a),
        TaskEntry.demonstrations_only(b),
        TaskEntry(c, (False, False), scored=True),
        TaskEntry.all_pairs(d),
        TaskEntry.demonstrations_only(e),
    ]
    return build_store(entries, augmentations, seed=11)


def every_dihedral(store: ArcStore, permutation: Sequence[int]) -> ArcStore:
    """The store with eight puzzles a group: every dihedral element with one colour permutation."""
    groups = np.arange(len(store.groups), dtype=np.int32)
    return replace(
        store,
        group_puzzles=np.arange(0, 8 * len(groups) + 1, 8, dtype=np.int32),
        puzzle_groups=np.repeat(groups, 8),
        puzzle_augmentations=Augmentations(
            np.tile(np.arange(8, dtype=np.uint8), len(groups)),
            np.tile(np.array(permutation, np.uint8), (8 * len(groups), 1)),
        ),
    )


def augmented_shapes(store: ArcStore, puzzle: int, pair: int) -> NDArray[np.int64]:
    """[input or output, height or width] of a pair as the puzzle shows it; 0, 0 for a hidden output."""
    shapes = [
        (0, 0) if grid is None else Augmentation.of(store, puzzle).apply(grid).shape
        for grid in (store.input(pair), store.output(pair))
    ]
    return np.array(shapes, np.int64)
