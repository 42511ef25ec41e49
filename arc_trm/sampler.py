"""Which example a batch slot is offered: a pure function of (seed, step, slot), nothing to replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep.augment import Augmentations
from data_prep.boards import BoardRows
from data_prep.canvas import CANVAS_SIDE, placement_limits
from data_prep.grid import COLOURS, DIHEDRALS
from data_prep.store import ArcStore

Integers = NDArray[np.int64]
RandomBits = NDArray[np.uint64]

# Examples are planned together, about this many at a time (whole epochs of the published rule): the fixed cost of some
# twenty array operations then costs a handful of tasks no more per example than a thousand tasks.
PLANNED_EXAMPLES = 8192
# Neighbouring batches touch at most two plans (or epochs), the one that ends and the one that begins.
KEPT_PLANS = 2
# Share of the mixed examples that are placed at (0, 0), where answers are asked for: about that of the published rule.
ORIGIN_SHARE = 0.2
# Streams of random numbers of one seed: which puzzles an epoch visits in which order, how a step changes them.
ORDERS, CHANGES = 0, 1
# Sets the random numbers of exploration, and of views that vote, apart from the sampler's, which has the same seed.
EXPLORATION_KEY, VIEWS_KEY = 0x5E7, 0x71E5


@dataclass(frozen=True)
class Rows:
    """Examples to make: puzzle, pair, the canvas cell of the grids' top left cell, and the augmentation.

    The augmentation is that of the puzzle or, if one is drawn for every example, the puzzle is the task itself.
    """

    puzzles: Integers  # [b]
    pairs: Integers  # [b]
    top: Integers  # [b]
    left: Integers  # [b]
    augmentations: Augmentations  # [b]

    def __len__(self) -> int:
        return len(self.puzzles)

    def __getitem__(self, index: slice | NDArray[Any]) -> "Rows":
        return Rows(*(column[index] for column in vars(self).values()))

    @classmethod
    def of_puzzles(cls, store: ArcStore, puzzles: Integers, pairs: Integers, top: Integers, left: Integers) -> "Rows":
        """Examples under the augmentations of their puzzles."""
        return cls(puzzles, pairs, top, left, store.puzzle_augmentations[puzzles])

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """The examples of all parts, of which there is at least one, one after the other."""
        names = ("puzzles", "pairs", "top", "left")
        columns: dict[str, Any] = {name: np.concatenate([vars(part)[name] for part in parts]) for name in names}
        return cls(**columns, augmentations=Augmentations.joined([part.augmentations for part in parts]))


Indexed = TypeVar("Indexed", Rows, BoardRows)


class Sampler:
    """The endless stream of training examples of some groups, cut into batches; slot s sees element s of each.

    The published sampling rule: an epoch visits every group once in shuffled order; a visit draws one puzzle
    of the group and gives its training pairs in random order, one of them at (0, 0), the others at random
    placements that fit input and output alike. It differs in two points. Placements are drawn anew at every
    visit (published: once, when the dataset is built). And a puzzle cut by the end of a batch goes on in the
    next (published: its remaining examples are lost).

    If `mixed`, passes over the groups in shuffled order follow each other, and a group gives one example at a time, so
    that a batch holds as many groups as it can: with probability `generated` a random one of its generated pairs, if it
    has any, else of its own. A share of ORIGIN_SHARE is placed at (0, 0), the others at random.

    With `fresh_views` no puzzle is drawn: every example gets a dihedral element of its own and, but for a share of
    `own_colours`, a colour permutation (0 stays 0).

    Random numbers are raw Philox output keyed by (seed, plan): numpy promises these alone for every version.
    """

    def __init__(
        self,
        store: ArcStore,
        *,
        seed: int,
        batch_size: int,
        groups: Integers | None = None,
        side: int = CANVAS_SIDE,
        fresh_views: bool = False,
        own_colours: float = 0.0,
        mixed: bool = False,
        generated: float = 0.0,
    ) -> None:
        """Sample `groups` (indices into store.groups, None: all), skipping those without training pairs.

        Raises ValueError if none has any, if a training pair does not fit a window of `side` cells, or if there are
        generated pairs and the sampler is not `mixed`: one task after the other would fill batch after batch.
        """
        trains = store.pair_training if groups is None else store.pair_training & np.isin(store.pair_groups, groups)
        self._pairs = np.flatnonzero(trains)
        self.examples_per_epoch = len(self._pairs)  # of one pass over the groups
        if not len(self._pairs):
            raise ValueError(f"no training pair in {len(store.groups if groups is None else groups)} groups")
        made = store.pair_generated[self._pairs]
        if made.any() and not mixed:
            raise ValueError("generated pairs need train.sampling mixed")
        visited, places, self._sizes = np.unique(
            store.pair_groups[self._pairs], return_inverse=True, return_counts=True
        )
        self._own_sizes, self._generated = np.bincount(places[~made], minlength=len(visited)), generated
        self._first_puzzles = store.group_puzzles[visited].astype(np.int64)
        self._puzzle_counts = store.group_puzzles[visited + 1].astype(np.int64) - self._first_puzzles
        self._limits = self._placement_limits(store, side)
        self._store, self.fresh_views, self.own_colours = store, fresh_views, own_colours
        self._epochs_per_plan = max(1, PLANNED_EXAMPLES // len(self._pairs))
        self._plan_length = PLANNED_EXAMPLES if mixed else self._epochs_per_plan * len(self._pairs)
        self._kept_plan = lru_cache(KEPT_PLANS)(self._mixed_plan if mixed else self._plan)
        self.seed, self.batch_size = seed, batch_size

    def _placement_limits(self, store: ArcStore, side: int) -> Integers:
        """Exclusive bounds of row and column of every training pair without augmentation, int64[E, 2]."""
        shapes = store.pair_shapes[self._pairs].astype(np.int64).reshape(-1, 2, 2)
        limits: Integers = placement_limits((0, 0), (0, 0), side) - shapes.max(axis=1)
        if (limits < 1).any():
            first = int(np.argmax((limits < 1).any(axis=1)))
            given, asked = (tuple(shape) for shape in shapes[first].tolist())
            name = store.groups[store.pair_groups[self._pairs[first]]].name
            raise ValueError(f"task {name}: grids of {given} and {asked} do not fit into a canvas of side {side}")
        return limits

    def rows(self, step: int, slots: slice) -> Rows:
        """The examples offered to `slots` (within 0..batch_size) at `step`."""
        first, last, _ = slots.indices(self.batch_size)
        position, end = step * self.batch_size + first, step * self.batch_size + last
        length = self._plan_length
        parts = [self._kept_plan(position // length)[:0]]
        while position < end:
            plan, offset = divmod(position, length)
            parts.append(self._kept_plan(plan)[offset : offset + end - position])
            position += len(parts[-1])
        return Rows.joined(parts)

    def _plan(self, number: int) -> Rows:
        """Some whole epochs of examples; arrays hold an epoch a row until they are flat, in visiting order."""
        source, shape = self._source(number), (self._epochs_per_plan, len(self._sizes))
        order = np.argsort(_bits(source, shape), axis=1, kind="stable")
        sizes = self._sizes[order].ravel()
        puzzles = self._first_puzzles[order]
        if not self.fresh_views:
            puzzles = puzzles + _below(_bits(source, shape), self._puzzle_counts[order])
        puzzles = np.repeat(puzzles.ravel(), sizes)
        members = self._arrange(order, _bits(source, (shape[0], len(self._pairs))))
        rows = self._examples(source, puzzles, members)
        kept = np.cumsum(sizes) - sizes + _below(_bits(source, sizes.shape), sizes)
        rows.top[kept] = rows.left[kept] = 0
        return rows

    def _mixed_plan(self, number: int) -> Rows:
        """As many examples as a plan holds, one of a group at a time."""
        source, groups = self._source(number), len(self._sizes)
        passes = np.argsort(_bits(source, (-(-self._plan_length // groups), groups)), axis=1, kind="stable")
        order = passes.ravel()[: self._plan_length]
        # A group's own pairs come first.
        own, sizes, firsts = self._own_sizes[order], self._sizes[order], (np.cumsum(self._sizes) - self._sizes)[order]
        made = (own < sizes) & ((own == 0) | _chance(_bits(source, order.shape), self._generated))
        members = firsts + np.where(made, own, 0) + _below(_bits(source, order.shape), np.where(made, sizes - own, own))
        puzzles = self._first_puzzles[order]
        if not self.fresh_views:
            puzzles = puzzles + _below(_bits(source, order.shape), self._puzzle_counts[order])
        rows = self._examples(source, puzzles, members)
        kept = _chance(_bits(source, order.shape), ORIGIN_SHARE)
        rows.top[kept] = rows.left[kept] = 0
        return rows

    def _source(self, number: int) -> np.random.Philox:
        return np.random.Philox(key=np.array([self.seed, number], np.uint64))

    def _examples(self, source: np.random.Philox, puzzles: Integers, members: Integers) -> Rows:
        """Training pairs of these puzzles at random placements, under the puzzles' views or fresh ones."""
        if self.fresh_views:
            augmentations = _views(_bits(source, (len(puzzles), COLOURS)), self.own_colours)
        else:
            augmentations = self._store.puzzle_augmentations[puzzles]
        limits = augmentations.turned(self._limits[members])
        top, left = _below(_bits(source, limits.shape), limits).T
        return Rows(puzzles, self._pairs[members], top, left, augmentations)

    def _arrange(self, order: Integers, bits: RandomBits) -> Integers:
        """Indices of training pairs, group after group in `order` and in random order within each group."""
        epochs, groups = order.shape
        visits = np.argsort(order, axis=1, kind="stable") + groups * np.arange(epochs)[:, None]
        visit = np.repeat(visits.astype(np.uint64), self._sizes, axis=1)
        keys = visit << np.uint64(32) | bits >> np.uint64(32)
        return np.argsort(keys, axis=None, kind="stable") % len(self._pairs)


def _bits(source: np.random.Philox, shape: tuple[int, ...]) -> RandomBits:
    """Uniform 64-bit numbers."""
    return np.asarray(source.random_raw(int(np.prod(shape))), np.uint64).reshape(shape)


def _below(bits: RandomBits, bounds: Integers) -> Integers:
    """Uniform integers in [0, bounds), by multiplying 32 random bits (bounds are far below 2**32)."""
    scaled = (bits >> np.uint64(32)) * bounds.astype(np.uint64) >> np.uint64(32)
    return scaled.astype(np.int64)


def _chance(bits: RandomBits, probability: float) -> NDArray[np.bool_]:
    """True with this probability."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53 < probability)


def _views(bits: RandomBits, own_colours: float) -> Augmentations:
    """Augmentations [n] that keep colour 0, from random bits [n, 10].

    The permutation of a share of `own_colours` changes nothing.
    """
    permutations = np.zeros(bits.shape, np.uint8)
    permutations[:, 1:] = np.argsort(bits[:, 1:], axis=1, kind="stable") + 1
    # The highest three bits of the first number are the dihedral element, the next 53 decide about the colours.
    permutations[(bits[:, 0] << np.uint64(3) >> np.uint64(11)) * 2.0**-53 < own_colours] = np.arange(COLOURS)
    return Augmentations((bits[:, 0] >> np.uint64(61)).astype(np.uint8), permutations)


# Sudokus and mazes ----------------------------------------------------------------------------------------------------


class BoardSampler:
    """Which puzzle a batch slot is offered at a step, and the random bits that change it.

    The published rule: every epoch visits all puzzles in shuffled order, each changed once at random. Epochs follow
    each other without end and are cut into batches; slot s sees element s of each. All is a pure function of
    (seed, step, slot), from raw Philox output, which numpy promises to keep.
    """

    def __init__(self, puzzles: int, bits: int, *, seed: int, batch_size: int) -> None:
        """Sample `puzzles` puzzles (at least one), with `bits` 64-bit numbers for each change."""
        self.puzzles, self.bits, self.seed, self.batch_size = puzzles, bits, seed, batch_size
        self._order = lru_cache(KEPT_PLANS)(self._draw_order)

    def draw(self, step: int, slots: slice) -> tuple[Integers, RandomBits]:
        """Puzzles int64[b] and random bits uint64[b, bits] of `slots` (within 0..batch_size) at `step`."""
        first, last, _ = slots.indices(self.batch_size)
        epochs, places = np.divmod(step * self.batch_size + np.arange(first, last), self.puzzles)
        puzzles = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs).tolist():
            puzzles[epochs == epoch] = self._order(epoch)[places[epochs == epoch]]
        return puzzles, self._random(CHANGES, step, self.batch_size * self.bits).reshape(-1, self.bits)[first:last]

    def _draw_order(self, epoch: int) -> Integers:
        return np.argsort(self._random(ORDERS, epoch, self.puzzles), kind="stable")

    def _random(self, stream: int, number: int, count: int) -> RandomBits:
        # The counter's lowest word counts draws, so that streams and numbers in the others never meet.
        counter = np.array([0, number, stream, 0], np.uint64)
        source = np.random.Philox(key=np.array([self.seed, 0], np.uint64), counter=counter)
        return np.asarray(source.random_raw(count), np.uint64)


# Rows for evaluation, and exploration ---------------------------------------------------------------------------------


def evaluation_rows(store: ArcStore, *, augmentations: int | None = None) -> Rows:
    """Every test pair of the scored groups under the first `augmentations` puzzles, the first of which is the identity.

    None takes all puzzles, and so does a group that has fewer. Placed at (0, 0), ordered by (group, test, puzzle).
    """
    scored = np.array([group.scored for group in store.groups])
    tests = np.flatnonzero((store.pair_tests >= 0) & scored[store.pair_groups])
    tests = tests[np.lexsort((store.pair_tests[tests], store.pair_groups[tests]))]
    owners = store.pair_groups[tests]
    first = store.group_puzzles[owners].astype(np.int64)
    counts = store.group_puzzles[owners + 1] - first
    if augmentations is not None:
        counts = np.minimum(counts, augmentations)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    zeros = np.zeros(len(within), np.int64)
    return Rows.of_puzzles(store, np.repeat(first, counts) + within, np.repeat(tests, counts), zeros, zeros)


def voting_views(store: ArcStore, count: int, *, own_colours: float, seed: int) -> tuple[Rows, Integers]:
    """Every test pair of the scored groups under `count` views, and the number of each row's view.

    For models that are told the view and so need no puzzle for it. The first eight are the dihedral elements in the
    task's own colours at (0, 0); the others are drawn as training draws them, at placements where grids as large as
    the task's largest visible one keep their border inside its canvas. A larger count begins with the same views.
    Ordered by (group, test, view).
    """
    tests = evaluation_rows(store, augmentations=1)
    source = np.random.Philox(key=np.array([seed, VIEWS_KEY], np.uint64))
    bits = _bits(source, (count, len(tests), COLOURS + 2)).swapaxes(0, 1).reshape(-1, COLOURS + 2)
    augmentations = _views(bits[:, :COLOURS], own_colours)
    numbers = np.tile(np.arange(count), len(tests))
    plain = numbers < len(DIHEDRALS)
    augmentations.dihedrals[plain], augmentations.permutations[plain] = numbers[plain], np.arange(COLOURS)
    owners = np.repeat(store.pair_groups[tests.pairs], count)
    limits = augmentations.turned(_voting_limits(store)[owners])
    top, left = np.where(plain[:, None], 0, _below(bits[:, COLOURS:], limits)).T
    repeated = tests[np.repeat(np.arange(len(tests)), count)]
    return Rows(repeated.puzzles, repeated.pairs, top, left, augmentations), numbers


def _voting_limits(store: ArcStore) -> Integers:
    """Exclusive bounds of row and column, int64[groups, 2], for the largest grid that is visible in each group."""
    shapes = store.pair_shapes.astype(np.int64).reshape(-1, 2, 2)
    shapes[store.pair_tests >= 0, 1] = 0  # outputs that are asked for
    largest = np.zeros((len(store.groups), 2), np.int64)
    np.maximum.at(largest, store.pair_groups, shapes.max(axis=1))
    sides = np.array([group.side for group in store.groups], np.int64)
    return np.maximum(sides[:, None] - largest, 1)


def fixed_batches(rows: Indexed, size: int) -> Iterator[tuple[Indexed, int]]:
    """`rows` (or boards) in order, `size` at a time, and how many of them count; the end repeats the last row."""
    for start in range(0, len(rows), size):
        index = np.arange(start, start + size)
        yield rows[np.minimum(index, len(rows) - 1)], min(size, len(rows) - start)


def exploration(seed: int, step: int, slots: int, probability: float, max_steps: int) -> NDArray[np.int32]:
    """Least supervision steps int32 [slots] before halting counts at `step`: 0, or with `probability` 2..max_steps."""
    # The low word of the counter counts the draws of a step, so steps must differ in a higher one. Raw bits are all
    # that numpy promises for every version.
    philox = np.random.Philox(key=np.array([seed, EXPLORATION_KEY], np.uint64), counter=[0, step, 0, 0])
    bits = philox.random_raw(2 * slots).reshape(2, slots)
    explores = _chance(bits[0], probability)
    spread = _below(bits[1], np.array(max(max_steps - 1, 1)))
    return np.where(explores, np.minimum(spread + 2, max_steps), 0).astype(np.int32)
