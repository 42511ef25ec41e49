"""Sudokus made here: unique by proof, minimal unless asked otherwise, hardened by hill climbing.

Used by `python -m data_prep.build sudoku --generate`; needs numba.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.cell_store import CellRows
from data_prep.compiled import compiled, in_parallel
from data_prep.sudoku_rules import DIGIT_OFFSET
from data_prep.sudoku_solver import (
    INTEGER,
    Board,
    Digits,
    Ints,
    Workspace,
    board,
    pose,
    rate_one,
    search,
    workspace,
)

ATTEMPTS_PER_CHUNK = 32
# A climb that has not met its target after so many moves starts over from another grid.
CLIMB_MOVES = 400
LARGEST_DROP = 4


@dataclass(frozen=True)
class SudokuWish:
    """What to generate: the side, at least so many guesses, up to so many givens beyond a minimal puzzle."""

    side: int = 9
    guesses: int = 0
    extra_givens: int = 0


def generate(wish: SudokuWish, *, seed: int, workers: int) -> Iterator[tuple[int, CellRows]]:
    """Without end: (attempts, the puzzles they gave); a pure function of (wish, seed).

    Every puzzle has one solution (the search for a second one ran to its end) and is rated by its guesses.
    """
    tables = board(wish.side)

    def chunk(rng: np.random.Generator) -> tuple[int, CellRows]:
        puzzles = np.zeros((ATTEMPTS_PER_CHUNK, wish.side**2), dtype=np.int8)
        solutions, ratings = puzzles.copy(), np.zeros(ATTEMPTS_PER_CHUNK, dtype=np.int64)
        asked = (wish.extra_givens, wish.guesses)
        made = _make(puzzles, solutions, ratings, asked, rng, workspace(wish.side), tables)
        rows = CellRows(_tokens(puzzles[:made]), _tokens(solutions[:made]), ratings[:made].astype(np.float32))
        return ATTEMPTS_PER_CHUNK, rows

    return in_parallel(chunk, seed=seed, workers=workers)


def _tokens(digits: Digits) -> NDArray[np.uint8]:
    return digits.astype(np.uint8) + np.uint8(DIGIT_OFFSET)


@compiled
def _shuffled(count: int, rng: np.random.Generator) -> Ints:
    """0 … count - 1 in a random order."""
    values = np.arange(count)
    for i in range(count - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        values[i], values[j] = values[j], values[i]
    return values


@compiled
def _copy(source: Digits, target: Digits) -> None:
    for cell in range(target.size):
        target[cell] = source[cell]


@compiled
def _fill(solution: Digits, rng: np.random.Generator, space: Workspace, board: Board) -> None:
    """A random full grid: a first row in random order, the rest searched with random first values."""
    row = _shuffled(board.side, rng)
    start = np.zeros(solution.size, np.int64)
    for cell in range(solution.size):
        solution[cell] = row[cell] + 1 if cell < board.side else 0
        start[cell] = int(rng.random() * board.side)
    pose(solution, space, board.side)
    search(space, board, INTEGER(1), start)
    _copy(space.found[0], solution)


@compiled
def _minimise(puzzle: Digits, rng: np.random.Generator, space: Workspace, board: Board) -> None:
    """Blank every given, in a random order, whose loss leaves the solution unique.

    One pass is enough: a given that was needed is still needed when others have gone after it.
    """
    for cell in _shuffled(puzzle.size, rng):
        digit = puzzle[cell]
        if digit == 0:
            continue
        puzzle[cell] = 0
        others = ((1 << board.side) - 1) ^ (1 << (digit - 1))
        for peer in board.peers[cell]:
            if puzzle[peer]:
                others &= ~(1 << (puzzle[peer] - 1))
        if others == 0:
            continue
        # A solution with another digit here would be a second one.
        pose(puzzle, space, board.side)
        space.masks[0, cell] = others
        if search(space, board, INTEGER(1), board.in_order)[0]:
            puzzle[cell] = digit


@compiled
def _complete(puzzle: Digits, solution: Digits, rng: np.random.Generator, space: Workspace, board: Board) -> None:
    """Add givens of the solution until it is the only one."""
    while True:
        # A given where another solution differs excludes it; which of these places is drawn.
        chosen, places = -1, 0
        for i in range(rate_one(puzzle, space, board)[0]):
            for cell in range(puzzle.size):
                if space.found[i, cell] != solution[cell]:
                    places += 1
                    if rng.random() * places < 1:
                        chosen = cell
        if chosen < 0:
            return
        puzzle[chosen] = solution[chosen]


@compiled
def _climb(
    puzzle: Digits,
    solution: Digits,
    target: int,
    rng: np.random.Generator,
    space: Workspace,
    board: Board,
) -> None:
    """Drop a few givens, complete, minimise; keep what needs no fewer guesses, until the target is met."""
    rating = rate_one(puzzle, space, board)[1]
    trial = np.zeros_like(puzzle)
    for _ in range(CLIMB_MOVES):
        if rating >= target:
            return
        _copy(puzzle, trial)
        drops = 1 + int(rng.random() * LARGEST_DROP)
        for cell in _shuffled(puzzle.size, rng):
            if trial[cell] and drops:
                trial[cell] = 0
                drops -= 1
        _complete(trial, solution, rng, space, board)
        _minimise(trial, rng, space, board)
        found = rate_one(trial, space, board)[1]
        if found >= rating:
            rating = found
            _copy(trial, puzzle)


@compiled
def _add_givens(puzzle: Digits, solution: Digits, most: int, rng: np.random.Generator) -> None:
    """Reveal 0 … `most` more cells, how many and which drawn."""
    adds = int(rng.random() * (most + 1))
    for cell in _shuffled(puzzle.size, rng):
        if puzzle[cell] == 0 and adds:
            puzzle[cell] = solution[cell]
            adds -= 1


@compiled
def _make(
    puzzles: Digits,
    solutions: Digits,
    ratings: Ints,
    wish: tuple[int, int],
    rng: np.random.Generator,
    space: Workspace,
    board: Board,
) -> int:
    """Fill the arrays int8[n, L], int8[n, L], int64[n] from n attempts; how many met the wished guesses."""
    extra_givens, target = wish
    made = 0
    for _ in range(ratings.size):
        puzzle, solution = puzzles[made], solutions[made]
        _fill(solution, rng, space, board)
        _copy(solution, puzzle)
        _minimise(puzzle, rng, space, board)
        _climb(puzzle, solution, target, rng, space, board)
        _add_givens(puzzle, solution, extra_givens, rng)
        found, rating = rate_one(puzzle, space, board)
        if found == 1 and rating >= target:
            ratings[made] = rating
            made += 1
    return made
