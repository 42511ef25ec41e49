"""Mazes in tokens: the pinned shortest path, symmetries, validity, published files, and a generator.

Tokens as published: 0 PAD (never used), then the characters `# SGo`: wall, free, start, goal, path.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows, parse_tokens, require
from data_prep.grid import DIHEDRALS, Scalar, dihedral, mix

CHARACTERS = "# SGo"
VOCAB_SIZE = len(CHARACTERS) + 1
WALL, FREE, START, GOAL, PATH = range(1, VOCAB_SIZE)
SMALLEST_SIDE, LARGEST_SIDE = 4, 64

Tokens = NDArray[np.uint8]


def cell_orders(cells: int) -> NDArray[np.int64]:
    """Return the old cell that each new cell shows under every dihedral element, int64[8, cells]."""
    side = math.isqrt(cells)
    square = np.arange(cells).reshape(side, side)
    return np.stack([dihedral(square, element).ravel() for element in range(len(DIHEDRALS))])


# The pinned path ----------------------------------------------------------------------------------------------------


def solve(questions: Tokens) -> Tokens:
    """Mark the pinned shortest path in mazes uint8[n, L], which have a path.

    The published labels are those of a breadth-first search from S that looks down, left, right, up: among all shortest
    paths the one whose list of directions comes first in that order.
    """
    return _mark(questions, _distances(questions != WALL, questions == GOAL))


def views(questions: Tokens) -> tuple[Tokens, Tokens]:
    """Return the eight dihedral views of mazes and their labels, each uint8[n, 8, L].

    Every view is solved, because a turned label would break the pinned order of directions.
    """
    orders, cells = cell_orders(questions.shape[1]), questions.shape[1]
    shown, steps = questions[:, orders], _distances(questions != WALL, questions == GOAL)[:, orders]
    return shown, _mark(shown.reshape(-1, cells), steps.reshape(-1, cells)).reshape(shown.shape)


def _mark(questions: Tokens, steps: NDArray[np.int32]) -> Tokens:
    """Mark the path that goes from S in the first direction that leads nearer to G, at every step."""
    flat, marked, directions = _framed(steps, -1), _framed(questions, WALL), _directions(questions)
    cells = np.flatnonzero(marked == START)
    while len(cells := cells[flat[cells] > 1]):
        nearer = [flat[cells + step] == flat[cells] - 1 for step in directions]
        cells = cells + directions[np.argmax(nearer, axis=0)]
        marked[cells] = PATH
    return _unframed(marked, questions)


def _framed(squares: NDArray[Scalar], frame: int) -> NDArray[Scalar]:
    """Put a frame around each square of cells [n, L], flat, so that no step leads out of a square."""
    side = math.isqrt(squares.shape[1])
    edges = ((0, 0), (1, 1), (1, 1))
    return np.pad(squares.reshape(-1, side, side), edges, constant_values=frame).ravel()


def _unframed(flat: NDArray[Scalar], like: NDArray[np.generic]) -> NDArray[Scalar]:
    """Take the frames away; the squares have the shape [n, L] of `like`."""
    width = math.isqrt(like.shape[1]) + 2
    return flat.reshape(-1, width, width)[:, 1:-1, 1:-1].reshape(like.shape)


def _directions(squares: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the steps down, left, right and up in framed squares."""
    width = math.isqrt(squares.shape[1]) + 2
    return np.array([width, -1, 1, -width])


def _distances(open_cells: NDArray[np.bool_], goals: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Count the steps to the goal from every open cell, int32[n, L], by breadth-first search; -1 without a way."""
    free, frontier = _framed(open_cells, False), np.flatnonzero(_framed(goals, False))
    distances, owner = np.full(len(free), -1, np.int32), np.zeros(len(free), np.int64)
    steps = distances[frontier] = 0
    while len(frontier):
        steps += 1
        near = (frontier[:, None] + _directions(goals)).ravel()
        near = near[free[near] & (distances[near] < 0)]
        distances[near] = steps
        # A cell reached from two sides goes on once: the last to write its number there owns it.
        numbers = np.arange(len(near))
        owner[near] = numbers
        frontier = near[owner[near] == numbers]
    return _unframed(distances, goals)


# Symmetry and validity ----------------------------------------------------------------------------------------------


def class_digests(rows: BoardRows) -> NDArray[np.uint64]:
    """Return a digest of every maze, uint64[n], that is the same for its eight views and with S and G exchanged.

    Each of the 16 forms is hashed with fixed random weights for cells and tokens; the digest mixes the 16 hashes
    without regard to their order.
    """
    orders = cell_orders(rows.questions.shape[1])
    values, weights = np.split(mix(np.arange(VOCAB_SIZE + orders.shape[1], dtype=np.uint64)), [VOCAB_SIZE])
    exchanged = values[[0, WALL, FREE, GOAL, START, PATH]]
    forms = [mix(form[rows.questions] @ weights[np.argsort(orders)].T) for form in (values, exchanged)]
    return mix(np.concatenate(forms, axis=1).sum(axis=1))


def is_valid_shortest(questions: Tokens, answers: Tokens) -> NDArray[np.bool_]:
    """Return whether each answer of uint8[n, L] marks a shortest path from S to G and changes nothing else, bool[n].

    The steps from S to G through all open cells and through the marked ones must agree, and no cell may be marked that
    such a path does not need.
    """
    marked = answers == PATH
    unchanged = np.where(marked, questions == FREE, answers == questions).all(axis=1)
    within = np.where(marked | (questions == START) | (questions == GOAL), questions, WALL)
    shortest = shortest_lengths(questions)
    as_short = (shortest_lengths(within) == shortest) & (marked.sum(axis=1) + 1 == shortest)
    return unchanged & (shortest > 0) & as_short


def shortest_lengths(questions: Tokens) -> NDArray[np.int64]:
    """Count the steps of a shortest path from S to G, int64[n]; -1 without a path."""
    return _distances(questions != WALL, questions == GOAL)[questions == START].astype(np.int64)


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Parse mazes from texts, rated by the length of the shortest path; raises RowError for one without a path."""
    del ratings  # what the published number counts is not documented
    tokens = {character: token for token, character in enumerate(CHARACTERS, start=1)}
    sizes = [side * side for side in range(SMALLEST_SIDE, LARGEST_SIDE + 1)]
    question = parse_tokens(questions, {c: token for c, token in tokens.items() if token != PATH}, sizes, "question")
    answer = parse_tokens(answers, tokens, [question.shape[1]], "answer")
    for token, name in ((START, "S"), (GOAL, "G")):
        require((question == token).sum(axis=1) == 1, f"not exactly one {name} in the question")
    unchanged = np.where(question == FREE, (answer == FREE) | (answer == PATH), answer == question)
    require(unchanged.all(axis=1), "the answer changes more than free cells into path")
    lengths = shortest_lengths(question)
    require(lengths > 0, "no way from S to G in the question")
    return BoardRows(question, answer, lengths.astype(np.float32))


# Making -------------------------------------------------------------------------------------------------------------
#
# After Lehnert et al. (Beyond A*, 2024): uniform walls, and a long shortest path from S to G. Theirs draw S and G
# uniformly and reject short paths; ours are the ends of a double sweep, which finds long paths hundreds of times as
# often, but prefers remote corners.

CELLS_AT_ONCE = 1 << 18  # of the mazes begun at once, so that they fit a processor's cache
WALLS = (0.37, 0.40)  # the share of walls at which long paths are most frequent
HARD_SIDE, HARD_LENGTH = 30, 110
# Measured from side 6 to 30: with this exponent 1.1 to 2.5 % of the tries find a long enough path.
LENGTH_EXPONENT = 1.25


def least_length(side: int) -> int:
    """Return what the shortest path must exceed at this side: 110 at 30, elsewhere about as rare."""
    return round(HARD_LENGTH * (side / HARD_SIDE) ** LENGTH_EXPONENT)


def make(rng: np.random.Generator, side: int = HARD_SIDE) -> BoardRows:
    """Make mazes whose shortest path exceeds the `least_length` of the side, solved and rated by it."""
    cells = np.arange(side * side)
    tries = CELLS_AT_ONCE // len(cells)
    ranks = rng.permuted(np.tile(cells, (tries, 1)), axis=1)
    free = ranks >= np.rint(rng.uniform(*WALLS, (tries, 1)) * len(cells))
    ends = ranks == cells[-1]  # a free cell, drawn uniformly
    for sweep in (2, 1):  # the second goes no more than twice as far as the first
        starts, steps = ends, _distances(free, ends)
        long = sweep * steps.max(axis=1) > least_length(side)
        free, starts, steps = free[long], starts[long], steps[long]
        ends = cells == steps.argmax(axis=1)[:, None]
    exchanged = rng.random((len(free), 1)) < 0.5
    questions = np.where(free, FREE, WALL).astype(np.uint8)
    questions[starts], questions[ends] = np.where(exchanged, [GOAL, START], [START, GOAL]).T
    return BoardRows(questions, solve(questions), steps.max(axis=1).astype(np.float32))
