"""Sudokus in tokens: rules, symmetries, published files.

Tokens as published: 0 PAD (never used, all cells are there), 1 blank, 2 … side + 1 the digits 1 … side.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows, RowError, parse_tokens, require
from data_prep.grid import mix

BLANK = 1
DIGIT_OFFSET = 1
# side -> (rows, columns) of a box
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def vocab_size(side: int) -> int:
    """Number of tokens: PAD, blank and the digits; 11 at side 9, as published."""
    return side + 1 + DIGIT_OFFSET


def units(side: int) -> NDArray[np.int64]:
    """Cell numbers of the rows, columns and boxes, int64[3 * side, side]."""
    cells = np.arange(side * side).reshape(side, side)
    rows, columns = BOXES[side]
    boxes = cells.reshape(side // rows, rows, side // columns, columns).swapaxes(1, 2).reshape(side, side)
    return np.concatenate([cells, cells.T, boxes])


def is_valid(questions: NDArray[np.uint8], answers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether answers[..., L] keep the givens of questions[..., L] and obey all rules, bool[...]."""
    side = math.isqrt(answers.shape[-1])
    digits = np.zeros(256, dtype=np.uint16)
    digits[1 + DIGIT_OFFSET : side + 1 + DIGIT_OFFSET] = 1 << np.arange(side)
    # A unit of `side` cells shows all `side` digits exactly when it shows each of them once.
    shown = np.bitwise_or.reduce(digits[answers][..., units(side)], axis=-1)
    kept = ((questions == BLANK) | (questions == answers)).all(axis=-1)
    return kept & (shown == (1 << side) - 1).all(axis=-1)


# Symmetries ---------------------------------------------------------------------------------------------------------
#
# Shuffles renumber digits, exchange bands, stacks, rows within a band and columns within a stack and, where a box is
# square, transpose. All of them map valid puzzles with one solution to valid puzzles with one solution.


def bits_per_shuffle(side: int) -> int:
    """How many random 64-bit numbers `shuffles` needs for one puzzle."""
    rows, columns = BOXES[side]
    return 3 * side + side // rows + side // columns + 1


def shuffles(bits: NDArray[np.uint64], side: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """One uniformly distributed shuffle for each row of random bits[b, bits_per_shuffle(side)].

    (cells int64[b, L]: which old cell each new cell shows; tokens uint8[b, side + 2]: what every token becomes, PAD
    and blank themselves).
    """
    rows, columns = BOXES[side]
    lengths = [side, side, side, side // rows, side // columns, 1]
    digits, row_bits, column_bits, bands, stacks, coin = np.split(bits, np.cumsum(lengths)[:-1], axis=1)
    tokens = np.tile(np.arange(vocab_size(side), dtype=np.uint8), (len(bits), 1))
    tokens[:, 1 + DIGIT_OFFSET :] = _orders(digits) + 1 + DIGIT_OFFSET
    cells = _lines(row_bits, bands)[:, :, None] * side + _lines(column_bits, stacks)[:, None, :]
    if rows == columns:
        transposed = (coin >> np.uint64(63)).astype(np.bool_)
        cells = np.where(transposed[:, :, None], cells.swapaxes(1, 2), cells)
    return cells.reshape(-1, side * side), tokens


def _orders(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A random order of 0 … k - 1 in every row of bits[..., k]."""
    return np.argsort(bits, axis=-1, kind="stable")


def _lines(line_bits: NDArray[np.uint64], block_bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Orders of the lines of a square that keep blocks together, int64[b, side]."""
    count, blocks = block_bits.shape
    within = _orders(line_bits.reshape(count, blocks, line_bits.shape[1] // blocks))
    return (_orders(block_bits)[:, :, None] * within.shape[2] + within).reshape(line_bits.shape)


# Rounds of refinement: two let every cell know of every other, the rest separates what then still looks alike.
ROUNDS = 5
CHUNK = 2048


def class_digests(rows: BoardRows) -> NDArray[np.uint64]:
    """A number for every puzzle, uint64[n], the same for all its shuffles.

    The canonical form under the 3,359,232 · 9! symmetries of the 9×9 square would take seconds a puzzle. Instead
    every cell gets a colour (given or not), which is refined by the colours of its row, column and box and of the
    cells with the same digit of the solution; the digest sums up the last colours. Equal up to symmetry implies equal
    digests, so that nothing shared is missed; different puzzles that no such refinement tells apart are taken for the
    same, which costs a puzzle or two and no honesty.
    """
    parts = [_digests(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _digests(rows: BoardRows) -> NDArray[np.uint64]:
    count, cells = rows.questions.shape
    side = math.isqrt(cells)
    tables = units(side).reshape(3, side, side)
    # Cells in the order of the tables, divided by the side, are the numbers of their row, column or box.
    lines = [np.argsort(table, axis=None) // side for table in tables]
    digits = rows.answers.astype(np.int64) - (1 + DIGIT_OFFSET)
    by_digit = np.argsort(digits, axis=1, kind="stable")
    colours = mix((rows.questions != BLANK).astype(np.uint64))
    for _ in range(ROUNDS):
        row, column, box = (
            mix(colours[:, table].sum(axis=2))[:, line] for table, line in zip(tables, lines, strict=True)
        )
        same = np.take_along_axis(colours, by_digit, axis=1).reshape(count, side, side).sum(axis=2)
        digit = np.take_along_axis(mix(same), digits, axis=1)
        # Odd factors keep the three kinds of neighbours apart; rows and columns may be exchanged.
        colours = mix(colours + (row + column) * np.uint64(3) + box * np.uint64(5) + digit * np.uint64(7))
    return mix(colours.sum(axis=1))


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Puzzles from texts, blanks as `.` or `0`; raises RowError for what is no Sudoku with its solution."""
    side = round(len(questions[0]) ** 0.5)
    digits = {str(digit): digit + DIGIT_OFFSET for digit in range(1, (side if side in BOXES else 9) + 1)}
    sizes = [side * side for side in BOXES]
    question = parse_tokens(questions, {".": BLANK, "0": BLANK} | digits, sizes, "question")
    answer = parse_tokens(answers, digits, [question.shape[1]], "answer")
    require(((question == BLANK) | (question == answer)).all(axis=1), "the answer changes a given digit")
    require(is_valid(question, answer), "the answer repeats a digit in a row, column or box")
    for index, rating in enumerate(ratings):
        try:
            float(rating)
        except ValueError as error:
            raise RowError(index, f"rating {rating!r}, expected a number") from error
    return BoardRows(question, answer, np.array(ratings, dtype=np.float32))
