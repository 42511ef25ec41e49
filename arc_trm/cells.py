"""Examples of Sudokus and mazes, shuffled or turned on the training device while a run goes on."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from arc_trm.batches import Batch, Device, upload
from data_prep.boards import BoardRows, BoardStore
from data_prep.grid import DIHEDRALS
from data_prep.maze import is_valid_shortest, views
from data_prep.sudoku import bits_per_shuffle, is_valid, shuffles

Integers = NDArray[np.int64]
RandomBits = NDArray[np.uint64]
# Streams of random numbers of one seed: which puzzles an epoch visits in which order, how a step changes them.
ORDERS, CHANGES = 0, 1
KEPT_EPOCHS = 2


class CellSampler:
    """Which puzzle a batch slot is offered at a step, and the random bits that change it.

    The published rule: every epoch visits all puzzles in shuffled order, each changed once at random. Epochs follow
    each other without end and are cut into batches; slot s sees element s of each. All is a pure function of
    (seed, step, slot), from raw Philox output, which numpy promises to keep.
    """

    def __init__(self, puzzles: int, bits: int, *, seed: int, batch_size: int) -> None:
        """Sample `puzzles` puzzles, with `bits` 64-bit numbers for each change; raises ValueError for bad sizes."""
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be within 0..2**64-1, found {seed}")
        if batch_size < 1 or puzzles < 1:
            raise ValueError(f"expected at least one puzzle and one slot, found {puzzles} and {batch_size}")
        self.puzzles, self.bits, self.seed, self.batch_size = puzzles, bits, seed, batch_size
        self._orders: dict[int, Integers] = {}

    def epoch(self, step: int) -> float:
        """Passes over the puzzles completed before `step`."""
        return step * self.batch_size / self.puzzles

    def draw(self, step: int, slots: slice) -> tuple[Integers, RandomBits]:
        """Puzzles int64[b] and random bits uint64[b, bits] of `slots` (within 0..batch_size) at `step`."""
        first = 0 if slots.start is None else slots.start
        last = self.batch_size if slots.stop is None else slots.stop
        if not 0 <= first <= last <= self.batch_size or slots.step not in (None, 1) or step < 0:
            raise ValueError(f"expected step >= 0 and slots within 0..{self.batch_size}, found {step} and {slots}")
        epochs, places = np.divmod(step * self.batch_size + np.arange(first, last), self.puzzles)
        puzzles = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs).tolist():
            puzzles[epochs == epoch] = self._order(epoch)[places[epochs == epoch]]
        return puzzles, self._random(CHANGES, step, self.batch_size * self.bits).reshape(-1, self.bits)[first:last]

    def _order(self, epoch: int) -> Integers:
        if epoch not in self._orders:
            self._orders[epoch] = np.argsort(self._random(ORDERS, epoch, self.puzzles), kind="stable")
            if len(self._orders) > KEPT_EPOCHS:
                del self._orders[next(iter(self._orders))]
        return self._orders[epoch]

    def _random(self, stream: int, number: int, count: int) -> RandomBits:
        # The counter's lowest word counts draws, so that streams and numbers in the others never meet.
        counter = np.array([0, number, stream, 0], np.uint64)
        source = np.random.Philox(key=np.array([self.seed, 0], np.uint64), counter=counter)
        return np.asarray(source.random_raw(count), np.uint64)


class Changer(Protocol):
    """Makes changed questions and answers of training puzzles on a device."""

    bits: int

    def make(self, puzzles: Integers, bits: RandomBits) -> Batch:
        """The examples of these puzzles int64[b], each changed by its bits uint64[b, self.bits]."""


class SudokuBatches:
    """Shuffled Sudokus: index arithmetic on tokens that live on the device."""

    def __init__(self, rows: BoardRows, side: int, device: Device) -> None:
        self.side, self.device = side, torch.device(device)
        self.bits = bits_per_shuffle(side)
        self._tokens = torch.from_numpy(np.stack([rows.questions, rows.answers])).to(self.device)

    def make(self, puzzles: Integers, bits: RandomBits) -> Batch:
        """The examples of these puzzles int64[b], shuffled as data_prep.sudoku.shuffles reads the bits."""
        drawn = shuffles(bits, self.side)
        rows, columns, transposed, tokens, chosen = (
            upload(array, self.device) for array in (drawn.rows, drawn.columns, drawn.transposed, drawn.tokens, puzzles)
        )
        cells = rows[:, :, None] * self.side + columns[:, None, :]
        cells = torch.where(transposed[:, None, None], cells.mT, cells).flatten(1)
        both = self._tokens[:, chosen]
        moved = both.gather(2, cells.expand(both.shape))
        inputs, labels = tokens.int().expand(2, -1, -1).gather(2, moved.long())
        return Batch(inputs, labels, torch.zeros_like(chosen))


class MazeBatches:
    """Turned and mirrored mazes: the eight views of every maze, solved again in each, live on the device."""

    bits = 1

    def __init__(self, rows: BoardRows, device: Device) -> None:
        """Solve the views: about half a millisecond a maze, 16 bytes a cell."""
        questions, answers = views(np.asarray(rows.questions))
        answers[:, 0] = rows.answers  # a published label stays as it is, whatever order it follows
        self.device = torch.device(device)
        self._tokens = torch.from_numpy(np.stack([questions, answers])).flatten(1, 2).to(self.device)

    def make(self, puzzles: Integers, bits: RandomBits) -> Batch:
        """The examples of these puzzles int64[b] under the dihedral elements that the top bits name."""
        elements = (bits[:, 0] >> np.uint64(61)).astype(np.int64)
        chosen = upload(puzzles * len(DIHEDRALS) + elements, self.device)
        inputs, labels = self._tokens[:, chosen].int()
        return Batch(inputs, labels, torch.zeros_like(chosen))


class PlainBatches:
    """Puzzles as they are, tokens living on the device."""

    bits = 1

    def __init__(self, rows: BoardRows, device: Device) -> None:
        self.device = torch.device(device)
        self._tokens = torch.from_numpy(np.stack([rows.questions, rows.answers])).to(self.device)

    def make(self, puzzles: Integers, bits: RandomBits) -> Batch:
        """The examples of these puzzles int64[b], whatever the bits."""
        chosen = upload(puzzles, self.device)
        inputs, labels = self._tokens[:, chosen].int()
        return Batch(inputs, labels, torch.zeros_like(chosen))


class CellSource:
    """The training examples of a dataset of Sudokus or mazes, one puzzle id for all."""

    num_puzzles = 1

    def __init__(self, store: BoardStore, *, seed: int, batch_size: int, device: Device, augment: bool = True) -> None:
        """See CellSampler; raises ValueError as it does. Without `augment` puzzles are offered as they are."""
        self.batches: Changer = MAKERS[store.kind](store, device) if augment else PlainBatches(store.train, device)
        self.sampler = CellSampler(len(store.train), self.batches.bits, seed=seed, batch_size=batch_size)
        self.vocab_size, self.seq_len, self.batch_size = store.vocab_size, store.seq_len, batch_size

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to `slots` (within 0..batch_size) at `step`."""
        return self.batches.make(*self.sampler.draw(step, slots))


def cell_batch(rows: BoardRows, device: Device) -> Batch:
    """Puzzles as they are, as one batch."""
    inputs, labels = (torch.from_numpy(cells.astype(np.int32)).to(device) for cells in (rows.questions, rows.answers))
    return Batch(inputs, labels, torch.zeros(len(rows), dtype=torch.int64, device=device))


def evaluation_batches(rows: BoardRows, size: int, device: Device) -> Iterator[tuple[Batch, int]]:
    """All puzzles as they are, in order, `size` at a time, and how many count; the end repeats the last puzzle."""
    for start in range(0, len(rows), size):
        index = np.minimum(np.arange(start, start + size), len(rows) - 1)
        yield cell_batch(rows[index], device), min(size, len(rows) - start)


MAKERS: dict[str, Callable[[BoardStore, Device], Changer]] = {
    "sudoku": lambda store, device: SudokuBatches(store.train, store.side, device),
    "maze": lambda store, device: MazeBatches(store.train, device),
}
# (questions, answers), each uint8[n, L] -> bool[n]: right by the rules, whatever the label says.
CHECKS: dict[str, Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.bool_]]] = {
    "sudoku": is_valid,
    "maze": is_valid_shortest,
}
