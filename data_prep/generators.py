"""Sudokus and mazes made here: every Sudoku has one solution by proof, every maze a long shortest path.

A generator draws from the random numbers that it is given and nothing else. Its loops are machine code; this module
is imported only to generate, because importing numba takes a second and reading datasets does without it.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows
from data_prep.files import InputError
from data_prep.maze import FREE, GOAL, PATH, START, WALL, solve
from data_prep.progress import Progress
from data_prep.sudoku import BLANK, DIGIT_OFFSET, units

F = TypeVar("F", bound=Callable[..., Any])
Numbers: TypeAlias = NDArray[np.int64]
Make: TypeAlias = Callable[[np.random.Generator], BoardRows]


def compiled(function: F) -> F:
    """The function as machine code, made at its first call; it runs without the interpreter lock.

    The code is not cached on disk: numba puts it beside the source, which may be read-only, and it misses changes in
    functions of other files. Where numba is slow to compile an assignment to a slice, loops copy arrays.
    """
    return cast(F, numba.njit(nogil=True)(function))


# Sudokus ------------------------------------------------------------------------------------------------------------
#
# A puzzle is uint16[L] here: bit d - 1 of a cell says that digit d may stand there, so that a blank has all bits.

Masks: TypeAlias = NDArray[np.uint16]
ATTEMPTS_PER_CHUNK = 32
# Up to so many cells stay given, whether needed or not: there are only a few dozen minimal 4×4 puzzles up to symmetry.
KEPT_CELLS = {4: 7, 6: 0, 9: 0}
CANDIDATES = np.array([mask.bit_count() for mask in range(1 << 9)])  # digits that a cell of this mask may hold


@compiled
def _settle(mask: Masks, units: Numbers) -> bool:
    """Fill naked and hidden singles until none is left; False on a contradiction."""
    full = (1 << units.shape[1]) - 1
    changed = True
    while changed:
        changed = False
        for unit in units:
            settled, once, twice = 0, 0, 0
            for cell in unit:
                left = mask[cell]
                if left & (left - 1) == 0:
                    if left == 0 or left & settled:
                        return False
                    settled |= left
                twice |= once & left
                once |= left
            if once != full:
                return False
            hidden = once & ~twice & ~settled
            if hidden or twice & settled:
                changed = True
                for cell in unit:
                    left = mask[cell]
                    if left & (left - 1):
                        single = left & hidden
                        if single & (single - 1):
                            return False
                        mask[cell] = single if single else left & ~settled
    return True


@compiled
def search(puzzle: Masks, units: Numbers, first: Numbers, limit: int, found: Masks) -> tuple[int, int]:
    """(solutions up to `limit`, guesses over the whole search) of a puzzle; `found` keeps the last solution.

    Guesses are a puzzle's rating where the limit is 2: then the search also proves that there is no second solution. A
    guess in a cell begins with the value first[cell]; for ratings this is 0, so that they repeat.
    """
    mask = puzzle.copy()
    if not _settle(mask, units):
        return 0, 0
    cell, fewest = -1, 99
    for i in range(mask.size):
        if 1 < CANDIDATES[mask[i]] < fewest:
            cell, fewest = i, CANDIDATES[mask[i]]
    if cell < 0:
        for i in range(mask.size):
            found[i] = mask[i]
        return 1, 0
    side = units.shape[1]
    candidates = mask[cell]
    solutions, guesses = 0, 0
    for i in range(side):
        mask[cell] = 1 << (first[cell] + i) % side
        if mask[cell] & candidates and solutions < limit:
            more, deeper = search(mask, units, first, limit - solutions, found)
            solutions, guesses = solutions + more, guesses + 1 + deeper
    return solutions, guesses


@compiled
def _make_sudoku(row: Numbers, first: Numbers, order: Numbers, units: Numbers) -> tuple[Masks, Masks, int]:
    """(a puzzle, its solution, the guesses that it needs).

    The solution is the first row with the rest searched, first[cell] tried first in each cell. For the puzzle each cell
    of `order` is blanked whose loss leaves the solution unique: where the order has all cells, the puzzle is minimal,
    because a given that was needed is still needed when others have gone after it.
    """
    blank = (1 << row.size) - 1
    puzzle = np.full(first.size, blank, np.uint16)
    for cell in range(row.size):
        puzzle[cell] = 1 << row[cell]
    solution, other, none = puzzle.copy(), puzzle.copy(), np.zeros_like(first)
    search(puzzle, units, first, 1, solution)
    puzzle = solution.copy()
    for cell in order:
        puzzle[cell] = blank ^ solution[cell]  # a solution with another digit here would be a second one
        puzzle[cell] = solution[cell] if search(puzzle, units, none, 1, other)[0] else blank
    return puzzle, solution, search(puzzle, units, none, 2, other)[1]


def make_sudokus(rng: np.random.Generator, side: int = 9, guesses: int = 0) -> BoardRows:
    """Sudokus with one solution that need at least so many guesses, and are rated by them.

    They are minimal, but for KEPT_CELLS. One 9×9 puzzle of 33 needs 20 guesses, one of 220 needs 40.
    """
    tables, firsts = units(side), rng.integers(0, side, (ATTEMPTS_PER_CHUNK, side * side))
    rows, orders = (rng.permuted(np.tile(np.arange(n), (len(firsts), 1)), axis=1) for n in (side, side * side))
    orders = orders[:, rng.integers(KEPT_CELLS[side] + 1) :]
    made = [_make_sudoku(*drawn, tables) for drawn in zip(rows, firsts, orders, strict=True)]
    puzzles, solutions, needed = map(np.array, zip(*made, strict=True))
    questions, answers = (np.log2(masks).astype(np.uint8) + 1 + DIGIT_OFFSET for masks in (puzzles, solutions))
    questions[puzzles == (1 << side) - 1] = BLANK
    return BoardRows(questions, answers, needed.astype(np.float32))[needed >= guesses]


# Mazes --------------------------------------------------------------------------------------------------------------
#
# After Lehnert et al. (Beyond A*, 2024): uniform walls, and a long shortest path from S to G. Theirs draw S and G
# uniformly and reject short paths; ours are the ends of a double sweep, which finds long paths hundreds of times as
# often, but prefers remote corners.

TRIES_PER_CHUNK = 2048
WALLS = (0.37, 0.40)  # the share of walls at which long paths are most frequent
HARD_SIDE, HARD_LENGTH = 30, 110
# Measured from side 6 to 30: with this exponent 1.4 to 3 % of the tries find a long enough path.
LENGTH_EXPONENT = 1.25


def least_length(side: int) -> int:
    """What the shortest path must exceed at this side: 110 at 30, elsewhere about as rare."""
    return round(HARD_LENGTH * (side / HARD_SIDE) ** LENGTH_EXPONENT)


@compiled
def _farthest(start: int, free: NDArray[np.bool_], width: int) -> tuple[int, int]:
    """(cell, steps to it): the cell that breadth-first search from `start` through free cells reaches last."""
    distances, queue = np.full(free.size, -1), np.empty(free.size, np.int64)
    distances[start], queue[0] = 0, start
    done, known = 0, 1
    while done < known:
        cell = queue[done]
        done += 1
        for step in (width, -1, 1, -width):
            near = cell + step
            if free[near] and distances[near] < 0:
                distances[near] = distances[cell] + 1
                queue[known] = near
                known += 1
    return queue[known - 1], distances[queue[known - 1]]


@compiled
def _make_mazes(questions: NDArray[np.uint8], least: int, inside: Numbers, rng: np.random.Generator) -> int:
    """Fill questions uint8[n, L] from n tries; how many had a path of more than `least` steps.

    inside int64[L] are the cells of a maze within the larger square that has a wall around it.
    """
    width = int(np.sqrt(inside.size)) + 2
    free = np.zeros(width * width, np.bool_)
    order = inside.copy()  # walls first; any order may follow, because the walls are drawn from all of it
    made = 0
    for _ in range(questions.shape[0]):
        walls = int((WALLS[0] + (WALLS[1] - WALLS[0]) * rng.random()) * order.size + 0.5)
        for i in range(order.size):
            if i < walls:
                j = i + int(rng.random() * (order.size - i))
                order[i], order[j] = order[j], order[i]
            free[order[i]] = i >= walls
        start, _ = _farthest(order[walls + int(rng.random() * (order.size - walls))], free, width)
        goal, steps = _farthest(start, free, width)
        if rng.random() < 0.5:
            start, goal = goal, start
        if steps > least:
            for i in range(inside.size):
                token = FREE if free[inside[i]] else WALL
                questions[made, i] = START if inside[i] == start else GOAL if inside[i] == goal else token
            made += 1
    return made


def make_mazes(rng: np.random.Generator, side: int = HARD_SIDE) -> BoardRows:
    """Mazes whose shortest path exceeds the `least_length` of the side, solved and rated by it."""
    inside = np.arange((side + 2) ** 2).reshape(side + 2, side + 2)[1:-1, 1:-1].ravel()
    questions = np.zeros((TRIES_PER_CHUNK, side * side), dtype=np.uint8)
    questions = questions[: _make_mazes(questions, least_length(side), inside, rng)]
    answers = solve(questions)
    lengths = (answers == PATH).sum(axis=1) + 1
    return BoardRows(questions, answers, lengths.astype(np.float32))


# Both ---------------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[..., BoardRows]] = {"sudoku": make_sudokus, "maze": make_mazes}
CHUNKS_AT_ONCE = 8  # a thread; the next are begun when all are done
PATIENCE = 1000  # chunks without a new board, some twenty seconds, after which there seem to be no more


def generate(make: Make, seed: int, workers: int) -> Iterator[BoardRows]:
    """What make(generator) gives for chunk 0, 1, 2, … without end, in order, on `workers` threads.

    Chunk i draws from its own counter-based generator of (seed, i), so the number of workers changes nothing but the
    time.
    """

    def chunk(number: int) -> BoardRows:
        return make(np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64))))

    with ThreadPoolExecutor(workers) as pool:
        for first in itertools.count(0, CHUNKS_AT_ONCE * workers):
            yield from pool.map(chunk, range(first, first + CHUNKS_AT_ONCE * workers))


def make_boards(
    make: Make, class_digests: Callable[[BoardRows], NDArray[np.uint64]], count: int, seed: int
) -> BoardRows:
    """The first `count` boards that differ up to symmetry.

    Raises InputError when they do not seem to exist.
    """
    seen: set[int] = set()
    kept: list[BoardRows] = []
    fruitless = 0
    with Progress("making puzzles", count, unit="puzzles") as progress:
        for rows in generate(make, seed, os.cpu_count() or 1):
            new = []
            for index, digest in enumerate(class_digests(rows).tolist()):
                if digest not in seen and len(seen) < count:
                    seen.add(digest)
                    new.append(index)
            kept.append(rows[np.array(new, dtype=np.int64)])
            progress.update(len(new))
            fruitless = 0 if new else fruitless + 1
            if len(seen) == count:
                break
            if fruitless == PATIENCE:
                raise InputError(
                    f"found {len(seen)} of {count} puzzles that differ up to symmetry, "
                    "then none in a long search: ask for fewer or easier ones"
                )
    return BoardRows.concatenate(kept)
