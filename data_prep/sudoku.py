"""Sudokus in tokens: rules, symmetries, published files, and a generator whose puzzles have one solution by proof.

Tokens as published: 0 PAD (never used, all cells are there), 1 blank, 2 … side + 1 the digits 1 … side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows, Kind, Make, RowError, compiled, encode, require
from data_prep.grid import mix

BLANK = 1
DIGIT_OFFSET = 1
# side -> (rows, columns) of a box
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def side_of(cells: int) -> int:
    """The side of a sudoku with this many cells; raises ValueError for a size that is not in BOXES."""
    side = math.isqrt(cells)
    if side not in BOXES or side * side != cells:
        raise ValueError(f"{cells} cells: expected one of {[s * s for s in BOXES]}")
    return side


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
    side = side_of(answers.shape[-1])
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
    transposed = (coin[:, 0] >> np.uint64(63)).astype(np.bool_) & (box_rows == box_columns)
    return Shuffles(_lines(rows, band_bits), _lines(columns, stack_bits), transposed, tokens)


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
    every cell gets a colour (given or not), which is refined by the colours of its row, band, column, stack, box and
    of the cells with the same digit of the solution; the digest sums up the last colours. Equal up to symmetry
    implies equal digests, so that nothing shared is missed; different puzzles that no such refinement tells apart
    are taken for the same, which costs a puzzle or two and no honesty.
    """
    parts = [_digests(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _digests(rows: BoardRows) -> NDArray[np.uint64]:
    count, cells = rows.questions.shape
    side = side_of(cells)
    box_rows, box_columns = BOXES[side]
    boxes = (count, side // box_rows, box_rows, side // box_columns, box_columns)
    digits = rows.answers.astype(np.int64) - (1 + DIGIT_OFFSET)
    by_digit = np.argsort(digits, axis=1, kind="stable")
    colours = mix((rows.questions != BLANK).astype(np.uint64)).reshape(count, side, side)
    for _ in range(ROUNDS):
        rows_and_bands, columns_and_stacks = (
            _line_colours(colours, box_rows),
            _line_colours(colours.swapaxes(1, 2), box_columns),
        )
        lines = rows_and_bands[:, :, None] + columns_and_stacks[:, None]
        box = mix(colours.reshape(boxes).sum(axis=(2, 4), keepdims=True))
        box = np.broadcast_to(box, boxes).reshape(colours.shape)
        same = np.take_along_axis(colours.reshape(count, cells), by_digit, axis=1).reshape(colours.shape).sum(axis=2)
        digit = np.take_along_axis(mix(same), digits, axis=1).reshape(colours.shape)
        # Odd factors keep the three kinds of neighbours apart; lines and columns may be exchanged.
        colours = mix(colours + lines * np.uint64(3) + box * np.uint64(5) + digit * np.uint64(7))
    return mix(colours.sum(axis=(1, 2)))


def _line_colours(colours: NDArray[np.uint64], block: int) -> NDArray[np.uint64]:
    """A colour for each row of squares[n, s, s], made of its cells and of the rows of its band, uint64[n, s]."""
    lines = mix(colours.sum(axis=2))
    bands = mix(lines.reshape(len(lines), -1, block).sum(axis=2))
    return mix(lines + np.repeat(bands, block, axis=1) * np.uint64(3))


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Puzzles from texts, blanks as `.` or `0`; raises RowError for what is no Sudoku with its solution."""
    side = round(len(questions[0]) ** 0.5)
    digits = {str(digit): digit + DIGIT_OFFSET for digit in range(1, (side if side in BOXES else 9) + 1)}
    sizes = [side * side for side in BOXES]
    question = encode(questions, {".": BLANK, "0": BLANK} | digits, sizes, "question")
    answer = encode(answers, digits, [question.shape[1]], "answer")
    require(((question == BLANK) | (question == answer)).all(axis=1), "the answer changes a given digit")
    require(is_valid(question, answer), "the answer repeats a digit in a row, column or box")
    for index, rating in enumerate(ratings):
        try:
            float(rating)
        except ValueError as error:
            raise RowError(index, f"rating {rating!r}, expected a number") from error
    return BoardRows(question, answer, np.array(ratings, dtype=np.float32))


# Solving ------------------------------------------------------------------------------------------------------------
#
# A puzzle is uint16[L] here: bit d - 1 of a cell says that digit d may stand there, so that a blank has all bits.
# A puzzle's rating is the number of guessed values over the whole search, the one that also proves that there is no
# second solution. Loops copy arrays, because numba takes seconds to compile an assignment to a slice.

Masks = NDArray[np.uint16]


class Search(NamedTuple):
    """The units of a side and the memory of one search, reused by the next; one per thread."""

    units: NDArray[np.int64]  # [3 * side, side]
    levels: Masks  # [L + 1, L] the puzzle after each guess held at a time
    found: Masks  # [2, L] solutions
    counts: NDArray[np.int64]  # [2] solutions, guesses
    start: NDArray[np.int64]  # [L] how many low values a guess skips at first: none, so that ratings repeat


def search_memory(side: int) -> Search:
    """Fresh memory for searches of this side."""
    cells = side * side
    masks = np.zeros((cells + 3, cells), dtype=np.uint16)
    return Search(units(side), masks[2:], masks[:2], np.zeros(2, np.int64), np.zeros(cells, np.int64))


@compiled
def _settle(mask: Masks, units: NDArray[np.int64]) -> bool:
    """Fill naked and hidden singles until none is left; False on a contradiction."""
    full = (1 << units.shape[1]) - 1
    turn, unchanged = 0, 0
    while unchanged < len(units):
        unit = units[turn]
        turn = (turn + 1) % len(units)
        unchanged += 1
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
        if not hidden and not twice & settled:
            continue
        unchanged = 0
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
def _search(memory: Search, level: int, limit: int) -> None:
    """Count solutions, up to `limit`, and guesses of what a level poses; memory.found keeps the solutions."""
    mask = memory.levels[level]
    if not _settle(mask, memory.units):
        return
    cell = _narrowest(mask)
    if cell < 0:
        for i in range(mask.size):
            memory.found[memory.counts[0], i] = mask[i]
        memory.counts[0] += 1
        return
    side = memory.units.shape[1]
    for i in range(side):
        bit = 1 << (memory.start[cell] + i) % side
        if mask[cell] & bit and memory.counts[0] < limit:
            memory.counts[1] += 1
            for other in range(mask.size):
                memory.levels[level + 1, other] = mask[other]
            memory.levels[level + 1, cell] = bit
            _search(memory, level + 1, limit)


@compiled
def _solve(puzzle: Masks, memory: Search, limit: int) -> tuple[int, int]:
    """(solutions up to `limit`, guesses) of a puzzle."""
    memory.counts[0] = memory.counts[1] = 0
    for cell in range(puzzle.size):
        memory.levels[0, cell] = puzzle[cell]
    _search(memory, 0, limit)
    return memory.counts[0], memory.counts[1]


# Generating ---------------------------------------------------------------------------------------------------------

ATTEMPTS_PER_CHUNK = 32
# Most givens beyond a minimal puzzle: there are only a few dozen minimal 4×4 puzzles up to symmetry.
EXTRA_GIVENS = {4: 4, 6: 0, 9: 0}


def maker(side: int = 9, guesses: int = 0) -> Make:
    """Makes puzzles that need at least so many guesses; a pure function of the random numbers.

    Every puzzle has one solution (the search for a second one ran to its end) and is rated by its guesses. It is
    minimal or, at side 4, given some cells more. One minimal 9×9 puzzle of 33 needs 20 guesses, one of 220 needs 40.
    """

    def make(rng: np.random.Generator) -> tuple[int, BoardRows]:
        puzzles = np.zeros((ATTEMPTS_PER_CHUNK, side * side), dtype=np.uint16)
        solutions, ratings = puzzles.copy(), np.zeros(ATTEMPTS_PER_CHUNK, dtype=np.int64)
        made = _make(puzzles, solutions, ratings, (guesses, EXTRA_GIVENS[side]), rng, search_memory(side))
        rows = BoardRows(
            _tokens(puzzles[:made], side), _tokens(solutions[:made], side), ratings[:made].astype(np.float32)
        )
        return ATTEMPTS_PER_CHUNK, rows

    return make


def _tokens(masks: Masks, side: int) -> NDArray[np.uint8]:
    digits = np.log2(masks).astype(np.uint8) + np.uint8(1 + DIGIT_OFFSET)
    return np.where(masks == (1 << side) - 1, np.uint8(BLANK), digits)


@compiled
def _shuffled(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """0 … count - 1 in a random order."""
    values = np.arange(count)
    for i in range(count - 1, 0, -1):
        j = int(rng.random() * (i + 1))
        values[i], values[j] = values[j], values[i]
    return values


@compiled
def _copy(source: Masks, target: Masks) -> None:
    for cell in range(target.size):
        target[cell] = source[cell]


@compiled
def _fill(solution: Masks, rng: np.random.Generator, memory: Search) -> None:
    """A random full grid: a first row in random order, the rest searched with random first values."""
    side = memory.units.shape[1]
    row = _shuffled(side, rng)
    for cell in range(solution.size):
        solution[cell] = 1 << row[cell] if cell < side else (1 << side) - 1
        memory.start[cell] = int(rng.random() * side)
    _solve(solution, memory, 1)
    _copy(memory.found[0], solution)
    for cell in range(solution.size):
        memory.start[cell] = 0


@compiled
def _minimise(puzzle: Masks, rng: np.random.Generator, memory: Search) -> None:
    """Blank every given, in a random order, whose loss leaves the solution unique.

    One pass is enough: a given that was needed is still needed when others have gone after it.
    """
    blank = (1 << memory.units.shape[1]) - 1
    for cell in _shuffled(puzzle.size, rng):
        given = puzzle[cell]
        if given != blank:
            puzzle[cell] = blank ^ given  # a solution with another digit here would be a second one
            puzzle[cell] = given if _solve(puzzle, memory, 1)[0] else blank


@compiled
def _make(
    puzzles: Masks,
    solutions: Masks,
    ratings: NDArray[np.int64],
    wish: tuple[int, int],
    rng: np.random.Generator,
    memory: Search,
) -> int:
    """Fill uint16[n, L], uint16[n, L], int64[n] from n attempts; how many met the wish (guesses, extra givens)."""
    target, extra_givens = wish
    made = 0
    for _ in range(ratings.size):
        puzzle, solution = puzzles[made], solutions[made]
        _fill(solution, rng, memory)
        _copy(solution, puzzle)
        _minimise(puzzle, rng, memory)
        adds = int(rng.random() * (extra_givens + 1))
        for cell in _shuffled(puzzle.size, rng):
            if puzzle[cell] != solution[cell] and adds:
                puzzle[cell] = solution[cell]
                adds -= 1
        found, ratings[made] = _solve(puzzle, memory, 2)
        made += found == 1 and ratings[made] >= target
    return made


KIND = Kind(
    name="sudoku",
    published="sudoku-extreme",
    url="https://huggingface.co/datasets/sapientinc/sudoku-extreme/resolve/main",
    published_rows=(3_831_994, 422_786),
    parse=parse,
    class_digests=class_digests,
    vocabulary=vocab_size,
    findings=lambda rows: {},
    maker=maker,
    wish={"side": 9, "guesses": 0},
    patience=30_000,
)
