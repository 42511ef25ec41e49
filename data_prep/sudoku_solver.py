"""A compiled Sudoku solver that counts solutions and the guesses it needs; only for building, needs numba.

It fills naked and hidden singles until none is left, then guesses at a cell with the fewest candidates.
A puzzle's rating is the number of guessed values over the whole search, the one that also proves that
there is no second solution.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.compiled import compiled
from data_prep.sudoku_rules import DIGIT_OFFSET, side_of, units

Bits = NDArray[np.uint16]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
# Digits 1 … side, 0 for a blank.
Digits = NDArray[np.int8]
# For constants as arguments: numba compiles a function once more for each literal number it is called with.
INTEGER: Callable[[int], int] = np.int64  # type: ignore[assignment]


class Board(NamedTuple):
    """What the loops need to know of one size: peers int16[L, p] of a cell, units int16[3 * side, side]."""

    side: int
    peers: NDArray[np.int16]
    units: NDArray[np.int16]
    # How many low values a guess skips at first: none, so that ratings repeat.
    in_order: Ints


class Workspace(NamedTuple):
    """Memory of one search, reused by the next: a level for each guess held at a time, found solutions."""

    masks: Bits
    settled: Flags
    branch_cells: Ints
    branch_masks: Bits
    queue: Ints
    found: Digits


def board(side: int) -> Board:
    """The tables of a side in BOXES."""
    table = units(side)
    together = np.zeros((side * side, side * side), dtype=bool)
    for unit in table:
        together[np.ix_(unit, unit)] = True
    np.fill_diagonal(together, False)
    peers = np.stack([np.flatnonzero(row) for row in together]).astype(np.int16)
    return Board(side, peers, table.astype(np.int16), np.zeros(side * side, dtype=np.int64))


def workspace(side: int) -> Workspace:
    """Fresh memory for searches of this side; one per thread."""
    cells = side * side
    return Workspace(
        masks=np.zeros((cells + 1, cells), dtype=np.uint16),
        settled=np.zeros((cells + 1, cells), dtype=np.bool_),
        branch_cells=np.zeros(cells + 1, dtype=np.int64),
        branch_masks=np.zeros(cells + 1, dtype=np.uint16),
        queue=np.zeros(4 * cells, dtype=np.int64),
        found=np.zeros((2, cells), dtype=np.int8),
    )


def rate(questions: NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Solutions (counted up to 2) and guesses of question tokens uint8[n, L], each int64[n]."""
    side = side_of(questions.shape[1])
    return _rate_all((questions - DIGIT_OFFSET).astype(np.int8), workspace(side), board(side))


@compiled
def settle(space: Workspace, level: int, board: Board) -> bool:
    """Fill singles on a level until there are none; False on a contradiction."""
    mask, settled, queue = space.masks[level], space.settled[level], space.queue
    waiting = 0
    for cell in range(mask.size):
        if not settled[cell] and mask[cell] & (mask[cell] - 1) == 0:
            queue[waiting] = cell
            waiting += 1
    while True:
        while waiting > 0:
            waiting -= 1
            cell = queue[waiting]
            if settled[cell]:
                continue
            settled[cell] = True
            bit = mask[cell]
            for peer in board.peers[cell]:
                left = mask[peer]
                if left & bit:
                    left ^= bit
                    if left == 0:
                        return False
                    mask[peer] = left
                    if left & (left - 1) == 0:
                        queue[waiting] = peer
                        waiting += 1
        waiting = queue_hidden_singles(space, level, board)
        if waiting <= 0:
            return waiting == 0


@compiled
def queue_hidden_singles(space: Workspace, level: int, board: Board) -> int:
    """Queue cells that alone can hold a digit of a unit; how many, or -1 on a contradiction."""
    mask, settled = space.masks[level], space.settled[level]
    full = (1 << board.side) - 1
    waiting = 0
    for unit in board.units:
        once = np.uint16(0)
        twice = np.uint16(0)
        for cell in unit:
            twice |= once & mask[cell]
            once |= mask[cell]
        if once != full:
            return -1
        single = once & ~twice
        for cell in unit:
            bit = mask[cell] & single
            if bit and not settled[cell]:
                if bit & (bit - 1):
                    return -1
                mask[cell] = bit
                space.queue[waiting] = cell
                waiting += 1
    return waiting


@compiled
def narrowest(space: Workspace, level: int) -> int:
    """The first open cell with the fewest candidates, -1 when none is open."""
    mask, settled = space.masks[level], space.settled[level]
    best, fewest = -1, 99
    for cell in range(mask.size):
        if not settled[cell]:
            count = 0
            left = mask[cell]
            while left:
                left &= left - 1
                count += 1
            if count < fewest:
                best, fewest = cell, count
                if count == 2:
                    break
    return best


@compiled
def guess(space: Workspace, level: int, board: Board, start: Ints) -> bool:
    """Try the next value of a level's branching cell on the level below; False on a contradiction."""
    cell = space.branch_cells[level]
    left = space.branch_masks[level]
    value = start[cell]
    while not (left >> value) & 1:
        value = value + 1 if value + 1 < board.side else 0
    bit = np.uint16(1 << value)
    space.branch_masks[level] = left ^ bit
    # Loops here and elsewhere: numba takes seconds to compile an assignment to a slice.
    for i in range(space.masks.shape[1]):
        space.masks[level + 1, i] = space.masks[level, i]
        space.settled[level + 1, i] = space.settled[level, i]
    space.masks[level + 1, cell] = bit
    return settle(space, level + 1, board)


@compiled
def record(space: Workspace, level: int, solution: int) -> None:
    """Write a level on which every cell is settled to space.found[solution]."""
    for cell in range(space.masks.shape[1]):
        left, digit = space.masks[level][cell], 1
        while left > 1:
            left >>= 1
            digit += 1
        space.found[solution, cell] = digit


@compiled
def search(space: Workspace, board: Board, limit: int, start: Ints) -> tuple[int, int]:
    """(solutions, guesses) of what level 0 poses, up to `limit` solutions, which space.found keeps.

    Values of a cell are tried from start[cell] + 1 upwards, then around.
    """
    solutions, guesses, level = 0, 0, INTEGER(0)
    for cell in range(board.side * board.side):
        space.settled[level, cell] = False
    if not settle(space, level, board):
        return solutions, guesses
    while level >= 0:
        cell = narrowest(space, level)
        if cell >= 0:
            space.branch_cells[level] = cell
            space.branch_masks[level] = space.masks[level][cell]
        else:
            record(space, level, INTEGER(solutions))
            solutions += 1
            if solutions == limit:
                break
            level -= 1
        deeper = False
        while level >= 0 and not deeper:
            if space.branch_masks[level] == 0:
                level -= 1
            else:
                guesses += 1
                deeper = guess(space, level, board, start)
        level += deeper
    return solutions, guesses


@compiled
def pose(puzzle: Digits, space: Workspace, side: int) -> None:
    """Put a puzzle on level 0 of the search."""
    for cell in range(puzzle.size):
        digit = puzzle[cell]
        space.masks[0][cell] = 1 << (digit - 1) if digit else (1 << side) - 1


@compiled
def rate_one(puzzle: Digits, space: Workspace, board: Board) -> tuple[int, int]:
    """(solutions up to 2, guesses) of a puzzle."""
    pose(puzzle, space, board.side)
    return search(space, board, INTEGER(2), board.in_order)


@compiled
def _rate_all(puzzles: Digits, space: Workspace, board: Board) -> tuple[Ints, Ints]:
    solutions = np.zeros(puzzles.shape[0], np.int64)
    guesses = np.zeros(puzzles.shape[0], np.int64)
    for i in range(puzzles.shape[0]):
        solutions[i], guesses[i] = rate_one(puzzles[i], space, board)
    return solutions, guesses
