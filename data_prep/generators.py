"""Sudokus and mazes made here: every Sudoku has one solution by proof, every maze a long shortest path.

A generator draws from the random numbers that it is given and nothing else. Its loops are machine code; this module
is imported only to generate, because importing numba takes a second and reading datasets does without it.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows, Kind
from data_prep.files import InputError
from data_prep.maze import FREE, GOAL, HARD_SIDE, PATH, START, WALL, solve
from data_prep.progress import Progress
from data_prep.sudoku import BLANK, DIGIT_OFFSET, units

F = TypeVar("F", bound=Callable[..., Any])
Numbers: TypeAlias = NDArray[np.int64]
# Makes boards from a generator of random numbers: (tries, the boards they gave).
Make: TypeAlias = Callable[[np.random.Generator], tuple[int, BoardRows]]


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
# Most givens beyond a minimal puzzle: there are only a few dozen minimal 4×4 puzzles up to symmetry.
EXTRA_GIVENS = {4: 4, 6: 0, 9: 0}


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
def _narrowest(mask: Masks) -> int:
    """The first open cell with the fewest candidates, -1 when none is open."""
    best, fewest = -1, 99
    for cell in range(mask.size):
        left, count = mask[cell], 0
        while left:
            left &= left - 1
            count += 1
        if 1 < count < fewest:
            best, fewest = cell, count
            if count == 2:
                break
    return best


@compiled
def search(puzzle: Masks, units: Numbers, first: Numbers, limit: int, found: Masks) -> tuple[int, int]:
    """(solutions up to `limit`, guesses over the whole search) of a puzzle; `found` keeps the last solution.

    Guesses are a puzzle's rating where the limit is 2: then the search also proves that there is no second solution. A
    guess in a cell begins with the value first[cell]; for ratings this is 0, so that they repeat.
    """
    mask = puzzle.copy()
    if not _settle(mask, units):
        return 0, 0
    cell = _narrowest(mask)
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
def _shuffled(count: int, rng: np.random.Generator) -> Numbers:
    """0 … count - 1 in a random order."""
    values = np.arange(count)
    for i in range(count - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        values[i], values[j] = values[j], values[i]
    return values


@compiled
def _make_sudokus(
    puzzles: Masks, solutions: Masks, guesses: Numbers, extra_givens: int, units: Numbers, rng: np.random.Generator
) -> None:
    """Fill puzzles and their solutions, each uint16[n, L], and the guesses that each puzzle needs, int64[n].

    A solution is a first row in random order, the rest searched with random first values. Its puzzle is minimal: every
    given, in a random order, whose loss leaves the solution unique is blanked (one pass is enough, because a given that
    was needed is still needed when others have gone after it). Then up to `extra_givens` return.
    """
    side = units.shape[1]
    blank = (1 << side) - 1
    first, none = np.zeros(side * side, np.int64), np.zeros(side * side, np.int64)
    for number in range(len(puzzles)):
        puzzle, solution = puzzles[number], solutions[number]
        row = _shuffled(side, rng)
        for cell in range(puzzle.size):
            puzzle[cell] = 1 << row[cell] if cell < side else blank
            first[cell] = int(rng.random() * side)
        search(puzzle, units, first, 1, solution)
        for cell in range(puzzle.size):
            puzzle[cell] = solution[cell]
        other = solution.copy()
        for cell in _shuffled(puzzle.size, rng):
            puzzle[cell] = blank ^ solution[cell]  # a solution with another digit here would be a second one
            puzzle[cell] = solution[cell] if search(puzzle, units, none, 1, other)[0] else blank
        adds = int(rng.random() * (extra_givens + 1))
        for cell in _shuffled(puzzle.size, rng):
            if puzzle[cell] == blank and adds:
                puzzle[cell] = solution[cell]
                adds -= 1
        guesses[number] = search(puzzle, units, none, 2, other)[1]


def sudoku_maker(side: int = 9, guesses: int = 0) -> Make:
    """Makes Sudokus with one solution that need at least so many guesses, and are rated by them.

    They are minimal or, at side 4, given some cells more. One minimal 9×9 puzzle of 33 needs 20 guesses, one of 220
    needs 40.
    """

    def make(rng: np.random.Generator) -> tuple[int, BoardRows]:
        puzzles, solutions = np.zeros((2, ATTEMPTS_PER_CHUNK, side * side), dtype=np.uint16)
        ratings = np.zeros(ATTEMPTS_PER_CHUNK, dtype=np.int64)
        _make_sudokus(puzzles, solutions, ratings, EXTRA_GIVENS[side], units(side), rng)
        questions, answers = (np.log2(masks).astype(np.uint8) + 1 + DIGIT_OFFSET for masks in (puzzles, solutions))
        questions[puzzles == (1 << side) - 1] = BLANK
        return ATTEMPTS_PER_CHUNK, BoardRows(questions, answers, ratings.astype(np.float32))[ratings >= guesses]

    return make


# Mazes --------------------------------------------------------------------------------------------------------------
#
# After Lehnert et al. (Beyond A*, 2024): uniform walls, and a long shortest path from S to G. Theirs draw S and G
# uniformly and reject short paths; ours are the ends of a double sweep, which finds long paths hundreds of times as
# often, but prefers remote corners.

TRIES_PER_CHUNK = 2048
WALLS = (0.37, 0.40)  # the share of walls at which long paths are most frequent
HARD_LENGTH = 110
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


def maze_maker(side: int = HARD_SIDE) -> Make:
    """Makes mazes whose shortest path exceeds the `least_length` of the side, solved and rated by it."""
    least = least_length(side)
    inside = np.arange((side + 2) ** 2).reshape(side + 2, side + 2)[1:-1, 1:-1].ravel()

    def make(rng: np.random.Generator) -> tuple[int, BoardRows]:
        questions = np.zeros((TRIES_PER_CHUNK, side * side), dtype=np.uint8)
        questions = questions[: _make_mazes(questions, least, inside, rng)]
        answers = solve(questions)
        lengths = (answers == PATH).sum(axis=1) + 1
        return TRIES_PER_CHUNK, BoardRows(questions, answers, lengths.astype(np.float32))

    return make


# Both ---------------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[..., Make]] = {"sudoku": sudoku_maker, "maze": maze_maker}
CHUNKS_AT_ONCE = 8  # a thread; the next are begun when all are done
# Tries without a new board after which there seem to be no more: about half a minute.
PATIENCE = {"sudoku": 30_000, "maze": 5_000_000}


def generate(make: Make, seed: int, workers: int) -> Iterator[tuple[int, BoardRows]]:
    """What make(generator) gives for chunk 0, 1, 2, … without end, in order, on `workers` threads.

    Chunk i draws from its own counter-based generator of (seed, i), so the number of workers changes nothing but the
    time.
    """

    def chunk(number: int) -> tuple[int, BoardRows]:
        return make(np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64))))

    with ThreadPoolExecutor(workers) as pool:
        for first in itertools.count(0, CHUNKS_AT_ONCE * workers):
            yield from pool.map(chunk, range(first, first + CHUNKS_AT_ONCE * workers))


def make_boards(kind: Kind, wish: Mapping[str, int], count: int, seed: int) -> BoardRows:
    """The first `count` boards as wished that differ up to symmetry.

    Raises InputError when they do not seem to exist.
    """
    seen: set[int] = set()
    kept: list[BoardRows] = []
    fruitless = 0
    with Progress("making puzzles", count, unit="puzzles") as progress:
        for tries, rows in generate(MAKERS[kind.name](**wish), seed, os.cpu_count() or 1):
            new = []
            for index, digest in enumerate(kind.class_digests(rows).tolist()):
                if digest not in seen and len(seen) < count:
                    seen.add(digest)
                    new.append(index)
            kept.append(rows[np.array(new, dtype=np.int64)])
            progress.update(len(new))
            fruitless = 0 if new else fruitless + tries
            if len(seen) == count:
                break
            if fruitless >= PATIENCE[kind.name]:
                raise InputError(
                    f"found {len(seen)} of {count} puzzles that differ up to symmetry, "
                    f"then none in {fruitless} tries: ask for fewer or easier ones"
                )
    return BoardRows.concatenate(kept)
