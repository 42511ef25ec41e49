"""Distinct augmentations of a task.

Two augmentations count as one when they turn the task into the same set of pairs. Instead of augmenting and comparing
every grid, each pair gets a 64-bit fingerprint that is linear in the colours: the sum over cells of
value[colour] * weight[position]. Per task the weights are summed once for each (dihedral, pair, colour); the
fingerprint of any augmentation is then ten multiplications a pair. Unequal tasks share a fingerprint with a chance of
about 2**-60, and the price would be one puzzle less.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import COLOURS, DIHEDRAL_KEEPS_SHAPE, INVERSE_DIHEDRAL, MAX_SIDE, Grid, dihedral, mix
from data_prep.tasks import Pair

_CONSTANTS = np.random.Generator(np.random.Philox(key=20250716))
_WEIGHTS = _CONSTANTS.integers(0, 2**64, size=(2, MAX_SIDE, MAX_SIDE), dtype=np.uint64)  # input, output
_VALUES = _CONSTANTS.integers(0, 2**64, size=COLOURS, dtype=np.uint64)


@lru_cache(maxsize=256)
def _turned_weights(role: int, shape: tuple[int, int]) -> NDArray[np.uint64]:
    """uint64[8, cells]: for each dihedral element the weights of the places where the cells of a grid land."""
    shapes = [shape if keeps else shape[::-1] for keeps in DIHEDRAL_KEEPS_SHAPE]
    # Undoing the transform on the weights leaves them in the order of the untransformed cells.
    turned = (dihedral(_WEIGHTS[role, :h, :w], back) for (h, w), back in zip(shapes, INVERSE_DIHEDRAL, strict=True))
    return np.stack([weights.reshape(-1) for weights in turned])


def _colour_weights(grid: Grid, role: int) -> NDArray[np.uint64]:
    """uint64[8, 10]: for each dihedral element the summed weights of the places where a colour lands."""
    order = np.argsort(grid, axis=None, kind="stable")
    colours, starts = np.unique(grid.reshape(-1)[order], return_index=True)
    sums = np.zeros((8, COLOURS), dtype=np.uint64)
    sums[:, colours] = np.add.reduceat(_turned_weights(role, grid.shape)[:, order], starts, axis=1)
    return sums


def _task_weights(pairs: Sequence[Pair]) -> NDArray[np.uint64]:
    """uint64[8, 10, pairs]: the linear fingerprint of every pair under every dihedral element."""
    weights = np.zeros((8, COLOURS, len(pairs)), dtype=np.uint64)
    for i, pair in enumerate(pairs):
        weights[:, :, i] = _colour_weights(pair.input, 0)
        if pair.output is not None:
            weights[:, :, i] += _colour_weights(pair.output, 1)
    return weights


def _fingerprints(
    weights: NDArray[np.uint64], elements: NDArray[np.uint8], colours: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    """uint64[k]: one number per augmented task, the same whatever the order of its pairs."""
    result = np.empty(len(elements), dtype=np.uint64)
    for element in range(8):
        chosen = elements == element
        result[chosen] = mix(_VALUES[colours[chosen]] @ weights[element]).sum(axis=1, dtype=np.uint64)
    return result


def distinct_augmentations(
    pairs: Sequence[Pair], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(dihedral uint8[k], permutation uint8[k, 10]): the identity and up to `count` others, in random order.

    No two turn the pairs (as a set) into the same pairs; k is smaller than 1 + count only where no more exist (but for
    a chance of 10**-10). A larger count gives the same ones and more: what a model learned of the first stays of use.
    """
    weights = _task_weights(pairs)
    # What becomes of colours that are not shown makes no difference, so more than these there are not.
    most = 8 * math.perm(COLOURS - 1, int(weights[:, 1:].any(axis=(0, 2)).sum()))
    elements, colours = _random_elements(count + count // 8, rng)
    kept = _first_distinct(weights, elements, colours, count)
    # All are equally likely: 9 draws for each that is there nearly always find all of them, 32 always do.
    for draws in (9, 32):
        while len(kept) < min(most, count + 1) and (missing := draws * (len(kept) + 1) - len(elements)) > 0:
            many = 4 * len(kept) > 3 * len(elements)  # where most draws differ
            more = _random_elements(min(missing, len(elements)) if many else missing, rng)
            elements, colours = np.concatenate((elements, more[0])), np.concatenate((colours, more[1]))
            kept = _first_distinct(weights, elements, colours, count)
    return elements[kept], colours[kept]


def _first_distinct(
    weights: NDArray[np.uint64], elements: NDArray[np.uint8], colours: NDArray[np.uint8], count: int
) -> NDArray[np.int64]:
    """Where the first count + 1 stand that differ from those before."""
    _, first = np.unique(_fingerprints(weights, elements, colours), return_index=True)
    return np.sort(first)[: count + 1]


def _random_elements(n: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The identity, then n independent uniform elements of the group; a larger n begins with the same ones."""
    draws = rng.random((n, COLOURS))
    elements = np.concatenate([np.zeros(1, np.uint8), (8 * draws[:, 0]).astype(np.uint8)])
    colours = np.tile(np.arange(COLOURS, dtype=np.uint8), (n + 1, 1))
    colours[1:, 1:] = np.argsort(draws[:, 1:], axis=1, kind="stable") + 1
    return elements, colours
