"""Augmentations as a value, and the distinct ones of a task.

An augmentation gives a cell of colour c the colour permutation[c], and then applies one of the 8 dihedral elements of
data_prep.grid. Where a grid sits on the canvas (data_prep.canvas.Placement) is another matter.

Two augmentations of a task count as one if they give the same set of pairs. Instead of augmenting and comparing every
grid, each pair gets a 64-bit fingerprint that is linear in the colours: the sum over cells of
value[colour] * weight[position]. For each task the weights are summed once for each (dihedral, pair, colour); the
fingerprint of any augmentation then takes ten multiplications a pair. Unequal tasks share a fingerprint with a
probability of about 2**-60, which would cost one puzzle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import COLOURS, DIHEDRAL_KEEPS_SHAPE, DIHEDRALS, INVERSE_DIHEDRAL, MAX_SIDE, Grid, dihedral, mix
from data_prep.tasks import Pair


@dataclass(frozen=True, eq=False)
class Augmentations:
    """Augmentations of b rows; the arrays may be memory maps."""

    dihedrals: NDArray[np.uint8]  # [b]
    permutations: NDArray[np.uint8]  # [b, 10] old colour -> new colour

    @classmethod
    def identity(cls, count: int) -> "Augmentations":
        """Return `count` augmentations that change nothing."""
        return cls(np.zeros(count, np.uint8), np.tile(np.arange(COLOURS, dtype=np.uint8), (count, 1)))

    @classmethod
    def joined(cls, parts: Sequence["Augmentations"]) -> "Augmentations":
        """Return the rows of all parts, of which there is at least one, one part after the other."""
        return cls(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("dihedrals", "permutations")))

    def __len__(self) -> int:
        return len(self.dihedrals)

    def __getitem__(self, index: slice | NDArray[Any]) -> "Augmentations":
        return Augmentations(self.dihedrals[index], self.permutations[index])

    def turned(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the heights and widths [b, 2] that grids of `sizes` [b, 2] have after augmentation."""
        keep = np.array(DIHEDRAL_KEEPS_SHAPE)[self.dihedrals]
        return np.where(keep[:, None], sizes, sizes[:, ::-1])

    def apply(self, grids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the augmented grids [b, h', w'] of `grids` [b, h, w], with b of at least 1.

        Fast if all dihedral elements are equal; raises ValueError if they give grids of different shapes.
        """
        first = np.arange(0, self.permutations.size, COLOURS)[:, None, None]
        recoloured = self.permutations.reshape(-1).take(np.add(grids, first, dtype=np.intp))
        elements = self.dihedrals.tolist()
        if len(set(elements)) == 1:  # turn all grids at once
            return np.moveaxis(dihedral(recoloured.transpose(1, 2, 0), elements[0]), -1, 0)
        return np.stack([dihedral(grid, element) for grid, element in zip(recoloured, elements, strict=True)])

    def inverse(self) -> "Augmentations":
        """Return the augmentations that undo these; recolouring and turning commute.

        Raises ValueError if a row is no augmentation.
        """
        if len(self) and self.dihedrals.max() >= len(DIHEDRALS):
            raise ValueError(f"dihedral element {self.dihedrals.max()}, expected 0-{len(DIHEDRALS) - 1}")
        colours = np.arange(COLOURS, dtype=np.uint8)
        wrong = (np.sort(self.permutations, axis=1) != colours).any(axis=1)
        if wrong.any():
            raise ValueError(f"colours {self.permutations[wrong][0].tolist()}, expected a permutation of 0-9")
        original = np.empty_like(self.permutations)
        np.put_along_axis(original, self.permutations.astype(np.intp), colours[None], axis=1)
        return Augmentations(np.array(INVERSE_DIHEDRAL, np.uint8)[self.dihedrals], original)


# Distinct augmentations -----------------------------------------------------------------------------------------------

_CONSTANTS = np.random.Generator(np.random.Philox(key=20250716))
_WEIGHTS = _CONSTANTS.integers(0, 2**64, size=(2, MAX_SIDE, MAX_SIDE), dtype=np.uint64)  # input, output
_VALUES = _CONSTANTS.integers(0, 2**64, size=COLOURS, dtype=np.uint64)


@lru_cache(maxsize=256)
def _turned_weights(role: int, shape: tuple[int, int]) -> NDArray[np.uint64]:
    """Return uint64[8, cells]: for each dihedral element the weights of the places where the cells of a grid land."""
    shapes = [shape if keeps else shape[::-1] for keeps in DIHEDRAL_KEEPS_SHAPE]
    # Undoing the transform on the weights leaves them in the order of the untransformed cells.
    turned = (dihedral(_WEIGHTS[role, :h, :w], back) for (h, w), back in zip(shapes, INVERSE_DIHEDRAL, strict=True))
    return np.stack([weights.reshape(-1) for weights in turned])


def _colour_weights(grid: Grid, role: int) -> NDArray[np.uint64]:
    """Return uint64[8, 10]: for each dihedral element the summed weights of the places where a colour lands."""
    order = np.argsort(grid, axis=None, kind="stable")
    colours, starts = np.unique(grid.reshape(-1)[order], return_index=True)
    sums = np.zeros((8, COLOURS), dtype=np.uint64)
    sums[:, colours] = np.add.reduceat(_turned_weights(role, grid.shape)[:, order], starts, axis=1)
    return sums


def _task_weights(pairs: Sequence[Pair]) -> NDArray[np.uint64]:
    """Return uint64[8, 10, pairs]: for every pair and dihedral element the summed weights of each colour."""
    weights = np.zeros((8, COLOURS, len(pairs)), dtype=np.uint64)
    for i, pair in enumerate(pairs):
        weights[:, :, i] = _colour_weights(pair.input, 0)
        if pair.output is not None:
            weights[:, :, i] += _colour_weights(pair.output, 1)
    return weights


def _fingerprints(weights: NDArray[np.uint64], drawn: Augmentations) -> NDArray[np.uint64]:
    """Return uint64[k], one number per augmented task, which does not depend on the order of its pairs."""
    result = np.empty(len(drawn), dtype=np.uint64)
    for element in range(8):
        chosen = drawn.dihedrals == element
        result[chosen] = mix(_VALUES[drawn.permutations[chosen]] @ weights[element]).sum(axis=1, dtype=np.uint64)
    return result


def distinct_augmentations(pairs: Sequence[Pair], count: int, rng: np.random.Generator) -> Augmentations:
    """Draw the identity and up to `count` other augmentations, in random order.

    No two turn the pairs (as a set) into the same pairs. There are fewer than 1 + count only if no more exist (but for
    a chance of 10**-10). A larger count begins with the same augmentations, so that what a model learned of them stays
    of use.
    """
    weights = _task_weights(pairs)
    # Permutations that differ only in colours that the task lacks are equal.
    most = 8 * math.perm(COLOURS - 1, int(weights[:, 1:].any(axis=(0, 2)).sum()))
    drawn = Augmentations.joined([Augmentations.identity(1), _random_augmentations(count + count // 8, rng)])
    kept = _first_distinct(weights, drawn, count)
    # All are equally likely: 9 draws for each that exists nearly always find all of them, 32 always do.
    for draws in (9, 32):
        while len(kept) < min(most, count + 1) and (missing := draws * (len(kept) + 1) - len(drawn)) > 0:
            mostly_distinct = 4 * len(kept) > 3 * len(drawn)
            more = min(missing, len(drawn)) if mostly_distinct else missing
            drawn = Augmentations.joined([drawn, _random_augmentations(more, rng)])
            kept = _first_distinct(weights, drawn, count)
    return drawn[kept]


def _first_distinct(weights: NDArray[np.uint64], drawn: Augmentations, count: int) -> NDArray[np.int64]:
    """Return the indices of the first count + 1 that differ from all before them."""
    _, first = np.unique(_fingerprints(weights, drawn), return_index=True)
    return np.sort(first)[: count + 1]


def _random_augmentations(n: int, rng: np.random.Generator) -> Augmentations:
    """Draw n independent uniform elements of the group that keep colour 0; a larger n begins with the same ones."""
    draws = rng.random((n, COLOURS))
    permutations = np.zeros((n, COLOURS), np.uint8)
    permutations[:, 1:] = np.argsort(draws[:, 1:], axis=1, kind="stable") + 1
    return Augmentations((8 * draws[:, 0]).astype(np.uint8), permutations)
