"""Which augmented task each row of an embedding table belongs to, so that rows survive a growing dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_prep.grid import COLOURS
from data_prep.store import ArcStore


@dataclass(frozen=True)
class PuzzleNaming:
    """The names of N puzzles, 15 bytes each: group, dihedral element, colour permutation."""

    groups: tuple[str, ...]  # `corpus/task_id`
    puzzle_groups: NDArray[np.int32]  # [N]
    dihedrals: NDArray[np.uint8]  # [N]
    permutations: NDArray[np.uint8]  # [N, 10]

    @classmethod
    def of(cls, store: ArcStore) -> "PuzzleNaming":
        """The naming of a store's puzzles."""
        names = tuple(group.name for group in store.groups)
        return cls(names, store.puzzle_groups, store.puzzle_dihedrals, store.puzzle_permutations)

    @classmethod
    def of_tasks(cls, store: ArcStore) -> "PuzzleNaming":
        """The naming of the tasks of a store, each by its unaugmented puzzle."""
        names, count = tuple(group.name for group in store.groups), len(store.groups)
        colours = np.tile(np.arange(COLOURS, dtype=np.uint8), (count, 1))
        return cls(names, np.arange(count, dtype=np.int32), np.zeros(count, np.uint8), colours)

    def tensors(self) -> dict[str, Tensor]:
        """The arrays as tensors of their own, for a checkpoint; the names of the groups go beside them."""
        arrays = {"groups": self.puzzle_groups, "dihedrals": self.dihedrals, "permutations": self.permutations}
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], groups: Sequence[str]) -> "PuzzleNaming":
        """What `tensors` gave."""
        return cls(tuple(groups), *(tensors[name].numpy() for name in ("groups", "dihedrals", "permutations")))

    def keys(self, groups: tuple[str, ...]) -> NDArray[np.int64]:
        """One number a puzzle [N], equal for equal names; `groups` numbers the groups, -1 for one not among them."""
        numbers = {name: number for number, name in enumerate(groups)}
        group = np.array([numbers.get(name, -1) for name in self.groups], np.int64)[self.puzzle_groups]
        permutation = self.permutations.astype(np.int64) @ (10 ** np.arange(9, -1, -1, dtype=np.int64))
        return np.where(group < 0, -1, (group * 8 + self.dihedrals) * 10**10 + permutation)


def carry_over(old: PuzzleNaming, table: Tensor, new: PuzzleNaming) -> tuple[Tensor, int]:
    """The embedding table [N, w] of `new`: rows of `table` where the puzzle was known, their mean elsewhere.

    Also returns how many rows were known.
    """
    known, wanted = old.keys(new.groups), new.keys(new.groups)
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], wanted), len(order) - 1)
    source = order[place]
    found = known[source] == wanted
    rows = table.mean(0).repeat(len(wanted), 1)
    rows[torch.from_numpy(found)] = table[torch.from_numpy(source[found])]
    return rows, int(found.sum())
