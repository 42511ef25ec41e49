"""Sudokus in tokens: rules, symmetries, published files, and a generator that proves that each has one solution.

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
    """Cell numbers of the rows, then of the columns and the boxes, int64[3 * side, side]."""
    cells = np.arange(side * side).reshape(side, side)
    rows, columns = BOXES[side]
    boxes = cells.reshape(side // rows, rows, side // columns, columns).swapaxes(1, 2).reshape(side, side)
    return np.concatenate([cells, cells.T, boxes])


def units_of_cells(side: int) -> NDArray[np.int64]:
    """Numbers in `units` of the row, the column and the box of each cell, int64[3, L]."""
    return np.argsort(units(side).reshape(3, -1), axis=1) // side + side * np.arange(3)[:, None]


def is_valid(questions: NDArray[np.uint8], answers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether answers[..., L] keep the givens of questions[..., L] and obey all rules, bool[...]."""
    side = math.isqrt(answers.shape[-1])
    digits = np.zeros(256, dtype=np.uint16)
    digits[1 + DIGIT_OFFSET : side + 1 + DIGIT_OFFSET] = 1 << np.arange(side)
    # A unit of `side` cells shows all `side` digits exactly when it shows each of them once.
    shown = np.bitwise_or.reduce(digits[answers][..., units(side)], axis=-1)
    kept = ((questions == BLANK) | (questions == answers)).all(axis=-1)
    return kept & (shown == (1 << side) - 1).all(axis=-1)


# Symmetries ---------------------------------------------------------------------------------------------------------
#
# Shuffles renumber digits, exchange bands, stacks, rows within a band and columns within a stack and, if boxes are
# square, transpose. All of them map valid puzzles with one solution to valid puzzles with one solution.


def bits_per_shuffle(side: int) -> int:
    """Number of random 64-bit numbers that `shuffles` needs for one puzzle."""
    rows, columns = BOXES[side]
    return 3 * side + side // rows + side // columns + 1


def shuffles(bits: NDArray[np.uint64], side: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return one uniformly distributed shuffle for each row of random bits[b, bits_per_shuffle(side)].

    A shuffle is (cells int64[b, L], the old cell that each new cell shows; tokens uint8[b, side + 2], the new token of
    each token, PAD and blank unchanged).
    """
    rows, columns = BOXES[side]
    lengths = [side, side, side, side // rows, side // columns, 1]
    digits, row_bits, column_bits, bands, stacks, coin = np.split(bits, np.cumsum(lengths)[:-1], axis=1)
    tokens = np.tile(np.arange(vocab_size(side), dtype=np.uint8), (len(bits), 1))
    tokens[:, 1 + DIGIT_OFFSET :] = np.argsort(digits, axis=1) + 1 + DIGIT_OFFSET
    # Lines in the order of their block's number, within a block in the order of their own.
    row_order = np.lexsort((row_bits, bands.repeat(rows, axis=1)))
    column_order = np.lexsort((column_bits, stacks.repeat(columns, axis=1)))
    cells = row_order[:, :, None] * side + column_order[:, None, :]
    if rows == columns:
        cells = np.where(coin[:, :, None] >> np.uint64(63), cells.swapaxes(1, 2), cells)
    return cells.reshape(-1, side * side), tokens


# After two rounds of refinement every cell depends on every other; more rounds separate what still looks alike.
ROUNDS = 5


def class_digests(rows: BoardRows) -> NDArray[np.uint64]:
    """Return a digest of every puzzle, uint64[n], that is the same for all its shuffles.

    A canonical form under the 3,359,232 · 9! symmetries of the 9×9 square would take seconds a puzzle. Instead every
    cell has a colour (given or not), which is refined by the colours in its row, column and box and of the cells with
    the same digit in the solution; the digest sums up the last colours. Puzzles that are equal up to symmetry always
    have equal digests. Two different puzzles rarely share a digest, and then count as one.
    """
    side = math.isqrt(rows.questions.shape[1])
    digests = np.zeros(len(rows), np.uint64)
    for first in range(0, len(rows), 2048):  # bounds the memory
        part = slice(first, first + 2048)
        digits = rows.answers[part].astype(np.int64) - (1 + DIGIT_OFFSET)
        by_digit = np.argsort(digits, axis=1)
        colours = mix((rows.questions[part] != BLANK).astype(np.uint64))
        for _ in range(ROUNDS):
            row, column, box = np.moveaxis(mix(colours[:, units(side)].sum(axis=2))[:, units_of_cells(side)], 1, 0)
            same = np.take_along_axis(colours, by_digit, axis=1).reshape(-1, side, side).sum(axis=2)
            digit = np.take_along_axis(mix(same), digits, axis=1)
            # Odd factors keep the three kinds of neighbours apart; rows and columns may be exchanged.
            colours = mix(colours + (row + column) * np.uint64(3) + box * np.uint64(5) + digit * np.uint64(7))
        digests[part] = mix(colours.sum(axis=1))
    return digests


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Parse puzzles from texts, blanks as `.` or `0`; raises RowError if one is no Sudoku with its solution."""
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


# Solving and making -------------------------------------------------------------------------------------------------
#
# Many boards go through every operation together, as candidates uint16[L, n]: bit d - 1 of a cell says that digit d may
# stand there, so that a blank has all bits.

Candidates = NDArray[np.uint16]
COUNTS = np.array([mask.bit_count() for mask in range(1 << 9)])  # digits in a mask
ATTEMPTS = 512  # Sudokus begun together
# Up to this many cells stay given, needed or not: there are only a few dozen minimal 4×4 puzzles up to symmetry.
KEPT_CELLS = {4: 7, 6: 0, 9: 0}


def _settle(boards: Candidates) -> Candidates:
    """Fill naked and hidden singles until none is left; a board with a contradiction loses all candidates."""
    side = math.isqrt(len(boards))
    left = np.arange(boards.shape[1])
    while len(left):
        before = boards.take(left, axis=1)
        single = before * (before & (before - 1) == 0)
        # Digits that a unit has in one cell, in two cells; those that are settled in one cell, in two cells.
        once, twice, settled, clash = np.zeros((4, 3 * side, len(left)), np.uint16)
        for cells in units(side).T:  # one of every unit
            twice |= once & before[cells]
            once |= before[cells]
            clash |= settled & single[cells]
            settled |= single[cells]
        taken, hidden = (np.bitwise_or.reduce(of[units_of_cells(side)]) for of in (settled, once & ~twice))
        after = np.where(single, single, before & ~taken)
        after = np.where(after & hidden, after & hidden, after)
        after *= ((clash == 0) & (once == (1 << side) - 1)).all(axis=0)
        boards[:, left] = after
        left = left[(after != before).any(axis=0)]
    return boards


def _branch(boards: Candidates) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the open cell with the fewest candidates, int64[n], and these: 1 or 0 for each digit, int64[n, side]."""
    counts = COUNTS[boards]
    cells = np.where(counts > 1, counts, 99).argmin(axis=0)
    masks = boards[cells, np.arange(len(cells))]
    return cells, masks[:, None] >> np.arange(math.isqrt(len(boards))) & 1


def search(boards: Candidates, limit: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count solutions, up to `limit`, and guesses until then, both int64[n], by breadth-first search.

    One solution with a limit of 2 proves that there is no other; the guesses then do not depend on any order. The
    search is for boards with few solutions: it keeps all partial ones of a depth.
    """
    solutions, guesses = np.zeros((2, boards.shape[1]), np.int64)
    owners = np.arange(boards.shape[1])
    while len(owners):
        boards = _settle(boards.copy())
        solved = (COUNTS[boards] == 1).all(axis=0)
        solutions += np.bincount(owners[solved], minlength=len(solutions))
        unsolved = (boards[0] > 0) & ~solved & (solutions[owners] < limit)
        boards, owners = boards.compress(unsolved, axis=1), owners[unsolved]
        cells, options = _branch(boards)
        parents, digits = np.nonzero(options)
        boards, owners = boards.take(parents, axis=1), owners[parents]
        boards[cells[parents], np.arange(len(parents))] = 1 << digits
        guesses += np.bincount(owners, minlength=len(guesses))
    return np.minimum(solutions, limit), guesses


def _full_grids(rng: np.random.Generator, side: int) -> Candidates:
    """Fill ATTEMPTS empty grids by random guesses; drop those that run into a contradiction."""
    grids = np.full((side * side, ATTEMPTS), (1 << side) - 1, np.uint16)
    while (COUNTS[grids] > 1).any():
        cells, options = _branch(grids)
        grids[cells, np.arange(len(cells))] = 1 << (options * rng.random(options.shape)).argmax(axis=1)
        grids = _settle(grids)
        grids = grids.compress(grids[0] > 0, axis=1)
    return grids


def make(rng: np.random.Generator, side: int = 9, guesses: int = 0) -> BoardRows:
    """Make Sudokus with one solution that need at least `guesses` guesses; their rating is the guesses they need.

    They are minimal, except for KEPT_CELLS. Of the 9×9 puzzles one in 33 needs 20 guesses, one in 220 needs 40.
    """
    blank, solutions = (1 << side) - 1, _full_grids(rng, side)
    puzzles, numbers = solutions.copy(), np.arange(solutions.shape[1])
    orders = rng.permuted(np.tile(np.arange(side * side), (len(numbers), 1)), axis=1)
    kept = rng.integers(KEPT_CELLS[side] + 1, size=len(numbers))
    # A given goes if no other digit in its place leads to a solution. Once is enough for each: what is needed now is
    # needed still when other givens are gone.
    for turn, cells in enumerate(orders.T):
        given = solutions[cells, numbers]
        puzzles[cells, numbers] = blank ^ given
        needed = (search(puzzles, limit=1)[0] > 0) | (turn < kept)
        puzzles[cells, numbers] = np.where(needed, given, blank)
    _, ratings = search(puzzles)
    questions, answers = (np.log2(boards.T).astype(np.uint8) + 1 + DIGIT_OFFSET for boards in (puzzles, solutions))
    questions[COUNTS[puzzles.T] > 1] = BLANK
    return BoardRows(questions, answers, ratings.astype(np.float32))[ratings >= guesses]
