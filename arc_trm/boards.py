"""Examples of Sudokus and mazes, shuffled or turned on the training device while a run goes on."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from arc_trm.batches import Batch, Device, upload
from arc_trm.sampler import Integers, RandomBits, check_stream, slot_range
from data_prep.boards import BoardRows, BoardStore
from data_prep.maze import is_valid_shortest, views
from data_prep.sudoku import bits_per_shuffle, is_valid, shuffles

Tokens = NDArray[np.uint8]
# Streams of random numbers of one seed: which puzzles an epoch visits in which order, how a step changes them.
ORDERS, CHANGES = 0, 1
KEPT_EPOCHS = 2


class BoardSampler:
    """Which puzzle a batch slot is offered at a step, and the random bits that change it.

    The published rule: every epoch visits all puzzles in shuffled order, each changed once at random. Epochs follow
    each other without end and are cut into batches; slot s sees element s of each. All is a pure function of
    (seed, step, slot), from raw Philox output, which numpy promises to keep.
    """

    def __init__(self, puzzles: int, bits: int, *, seed: int, batch_size: int) -> None:
        """Sample `puzzles` puzzles, with `bits` 64-bit numbers for each change; raises ValueError for bad sizes."""
        check_stream(seed, batch_size)
        if puzzles < 1:
            raise ValueError(f"expected at least one puzzle, found {puzzles}")
        self.puzzles, self.bits, self.seed, self.batch_size = puzzles, bits, seed, batch_size
        self._orders: dict[int, Integers] = {}

    def draw(self, step: int, slots: slice) -> tuple[Integers, RandomBits]:
        """Puzzles int64[b] and random bits uint64[b, bits] of `slots` (within 0..batch_size) at `step`."""
        first, last = slot_range(step, slots, self.batch_size)
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


class StoredBatches:
    """Puzzles each of which has several views that live on the device: the bits choose one."""

    bits = 1

    def __init__(self, questions: Tokens, answers: Tokens, device: Device) -> None:
        """Tokens uint8[puzzles, views, L], with 1, 2, 4 or 8 views."""
        self.device, self.views = torch.device(device), questions.shape[1]
        self._tokens = torch.from_numpy(np.stack([questions, answers])).flatten(1, 2).to(self.device)

    @classmethod
    def of_mazes(cls, rows: BoardRows, device: Device) -> "StoredBatches":
        """Turned and mirrored mazes, solved again in each of eight views (half a millisecond a maze)."""
        questions, answers = views(np.asarray(rows.questions))
        answers[:, 0] = rows.answers  # a published label stays as it is, whatever order it follows
        return cls(questions, answers, device)

    @classmethod
    def as_they_are(cls, rows: BoardRows, device: Device) -> "StoredBatches":
        """Puzzles in one view."""
        return cls(np.asarray(rows.questions)[:, None], np.asarray(rows.answers)[:, None], device)

    def make(self, puzzles: Integers, bits: RandomBits) -> Batch:
        """The examples of these puzzles int64[b] in the views that the top bits name."""
        chosen = upload(puzzles * self.views + (bits[:, 0] >> np.uint64(61)).astype(np.int64) % self.views, self.device)
        inputs, labels = self._tokens[:, chosen].int()
        return Batch(inputs, labels, torch.zeros_like(chosen))


class BoardSource:
    """The training examples of a dataset of Sudokus or mazes, one puzzle id for all."""

    num_puzzles = 1

    def __init__(self, store: BoardStore, *, seed: int, batch_size: int, device: Device, augment: bool = True) -> None:
        """See BoardSampler; raises ValueError as it does. Without `augment` puzzles are offered as they are."""
        self.batches: Changer = (
            MAKERS[store.kind](store, device) if augment else StoredBatches.as_they_are(store.train, device)
        )
        self.sampler = BoardSampler(len(store.train), self.batches.bits, seed=seed, batch_size=batch_size)
        self.vocab_size, self.seq_len, self.batch_size = store.vocab_size, store.seq_len, batch_size

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to `slots` (within 0..batch_size) at `step`."""
        return self.batches.make(*self.sampler.draw(step, slots))


def board_batch(rows: BoardRows, device: Device) -> Batch:
    """Puzzles as they are, as one batch."""
    inputs, labels = (torch.from_numpy(cells.astype(np.int32)).to(device) for cells in (rows.questions, rows.answers))
    return Batch(inputs, labels, torch.zeros(len(rows), dtype=torch.int64, device=device))


def evaluation_batches(rows: BoardRows, size: int, device: Device) -> Iterator[tuple[Batch, int]]:
    """All puzzles as they are, in order, `size` at a time, and how many count; the end repeats the last puzzle."""
    for start in range(0, len(rows), size):
        index = np.minimum(np.arange(start, start + size), len(rows) - 1)
        yield board_batch(rows[index], device), min(size, len(rows) - start)


MAKERS: dict[str, Callable[[BoardStore, Device], Changer]] = {
    "sudoku": lambda store, device: SudokuBatches(store.train, store.side, device),
    "maze": lambda store, device: StoredBatches.of_mazes(store.train, device),
}
# (questions, answers), each uint8[n, L] -> bool[n]: right by the rules, whatever the label says.
CHECKS: dict[str, Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.bool_]]] = {
    "sudoku": is_valid,
    "maze": is_valid_shortest,
}
