"""What turns a Sudoku into another with the same solution path: shuffles, and digests that ignore them.

Shuffles renumber digits, exchange bands, stacks, rows within a band and columns within a stack and, where a box is
square, transpose. All of them map valid puzzles with one solution to valid puzzles with one solution.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import mix
from data_prep.sudoku_rules import BLANK, BOXES, DIGIT_OFFSET, side_of

# Rounds of refinement: two let every cell know of every other, the rest separates what then still looks alike.
ROUNDS = 5
CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Shuffles:
    """One shuffle for each of b puzzles of a side s.

    rows, columns int64[b, s]: which old row (column) is shown at each new place; transposed bool[b]: rows and
    columns are exchanged afterwards; tokens int64[b, s + 2]: what every token becomes (PAD and blank: themselves).
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    transposed: NDArray[np.bool_]
    tokens: NDArray[np.int64]

    def apply(self, cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The shuffled squares of tokens uint8[b, L]: the plain reference for batches on the device."""
        count, side = self.rows.shape
        squares = cells.reshape(count, side, side)
        pick = np.arange(count)[:, None, None]
        moved = squares[pick, self.rows[:, :, None], self.columns[:, None, :]]
        moved = np.where(self.transposed[:, None, None], moved.swapaxes(1, 2), moved).reshape(cells.shape)
        return np.take_along_axis(self.tokens, moved.astype(np.int64), axis=1).astype(np.uint8)


def bits_per_shuffle(side: int) -> int:
    """How many random 64-bit numbers `shuffles` needs for one puzzle."""
    rows, columns = BOXES[side]
    return 3 * side + side // rows + side // columns + 1


def shuffles(bits: NDArray[np.uint64], side: int) -> Shuffles:
    """The uniformly distributed shuffles that random bits[b, bits_per_shuffle(side)] stand for."""
    box_rows, box_columns = BOXES[side]
    bands, stacks = side // box_rows, side // box_columns
    lengths = [side, side, side, bands, stacks, 1]
    digits, rows, columns, band_bits, stack_bits, coin = np.split(bits, np.cumsum(lengths)[:-1], axis=1)
    tokens = np.tile(np.arange(side + 1 + DIGIT_OFFSET), (len(bits), 1))
    tokens[:, 1 + DIGIT_OFFSET :] = _orders(digits) + 1 + DIGIT_OFFSET
    square = box_rows == box_columns
    return Shuffles(
        _lines(rows, band_bits),
        _lines(columns, stack_bits),
        (coin[:, 0] >> np.uint64(63)).astype(np.bool_) & square,
        tokens,
    )


def _orders(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A random order of 0 … k - 1 in every row of bits[..., k]."""
    return np.argsort(bits, axis=-1, kind="stable")


def _lines(line_bits: NDArray[np.uint64], block_bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Orders of the lines of a square that keep blocks together, int64[b, side]."""
    count, blocks = block_bits.shape
    within = _orders(line_bits.reshape(count, blocks, line_bits.shape[1] // blocks))
    return (_orders(block_bits)[:, :, None] * within.shape[2] + within).reshape(line_bits.shape)


def class_digests(questions: NDArray[np.uint8], answers: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A number for every puzzle, uint64[n], the same for all its shuffles.

    The canonical form under the 3,359,232 · 9! symmetries of the 9×9 square would take seconds a puzzle. Instead
    every cell gets a colour (given or not), which is refined by the colours of its row, band, column, stack, box and
    of the cells with the same digit of the solution; the digest sums up the last colours. Equal up to symmetry
    implies equal digests, so that nothing shared is missed; different puzzles that no such refinement tells apart
    are taken for the same, which costs a puzzle or two and no honesty.
    """
    parts = [_digests(questions[i : i + CHUNK], answers[i : i + CHUNK]) for i in range(0, len(questions), CHUNK)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _digests(questions: NDArray[np.uint8], answers: NDArray[np.uint8]) -> NDArray[np.uint64]:
    count, cells = questions.shape
    side = side_of(cells)
    box_rows, box_columns = BOXES[side]
    boxes = (count, side // box_rows, box_rows, side // box_columns, box_columns)
    digits = answers.astype(np.int64) - (1 + DIGIT_OFFSET)
    by_digit = np.argsort(digits, axis=1, kind="stable")
    colours = mix((questions != BLANK).astype(np.uint64)).reshape(count, side, side)
    for _ in range(ROUNDS):
        lines = (
            _line_colours(colours, box_rows)[:, :, None] + _line_colours(colours.swapaxes(1, 2), box_columns)[:, None]
        )
        box = mix(colours.reshape(boxes).sum(axis=(2, 4), keepdims=True))
        box = np.broadcast_to(box, boxes).reshape(colours.shape)
        same = (
            np.take_along_axis(colours.reshape(count, cells), by_digit, axis=1).reshape(count, side, side).sum(axis=2)
        )
        digit = np.take_along_axis(mix(same), digits, axis=1).reshape(colours.shape)
        # Odd factors keep the three kinds of neighbours apart; lines and columns may be exchanged.
        colours = mix(colours + lines * np.uint64(3) + box * np.uint64(5) + digit * np.uint64(7))
    return mix(colours.sum(axis=(1, 2)))


def _line_colours(colours: NDArray[np.uint64], block: int) -> NDArray[np.uint64]:
    """A colour for each row of squares[n, s, s], made of its cells and of the rows of its band, uint64[n, s]."""
    lines = mix(colours.sum(axis=2))
    bands = mix(lines.reshape(len(lines), -1, block).sum(axis=2))
    return mix(lines + np.repeat(bands, block, axis=1) * np.uint64(3))
