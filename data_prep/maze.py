"""Mazes in tokens: the pinned shortest path, symmetries, validity, published files.

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


def cell_orders(side: int) -> NDArray[np.int64]:
    """Which old cell each new cell shows under every dihedral element, int64[8, side * side]."""
    cells = np.arange(side * side).reshape(side, side)
    return np.stack([dihedral(cells, element).ravel() for element in range(len(DIHEDRALS))])


# The pinned path ----------------------------------------------------------------------------------------------------


def solve(questions: Tokens) -> Tokens:
    """Mazes uint8[n, L], which have a path, with the pinned shortest one marked.

    Breadth-first search from S that looks down, left, right, up finds the published labels: among all shortest
    paths the one whose list of directions comes first in that order.
    """
    return _mark(questions, _distances(questions != WALL, questions == GOAL))


def views(questions: Tokens) -> tuple[Tokens, Tokens]:
    """The eight dihedral views of mazes and of their labels, solved again in every view, each uint8[n, 8, L].

    A turned label would break the pinned order of directions.
    """
    orders = cell_orders(math.isqrt(questions.shape[1]))
    steps = _distances(questions != WALL, questions == GOAL)
    shown = questions[:, orders]
    answers = [_mark(shown[:, element], steps[:, order]) for element, order in enumerate(orders)]
    return shown, np.stack(answers, axis=1)


def _mark(questions: Tokens, steps: NDArray[np.int32]) -> Tokens:
    """The mazes with each path marked that walks from S in the first direction that leads nearer to G."""
    side = math.isqrt(questions.shape[1])
    flat, marked = _framed(steps, -1), _framed(questions, WALL)
    cells = np.flatnonzero(marked == START)
    directions = _directions(side)
    while len(cells := cells[flat[cells] > 1]):
        nearer = [flat[cells + step] == flat[cells] - 1 for step in directions]
        cells = cells + directions[np.argmax(nearer, axis=0)]
        marked[cells] = PATH
    return marked.reshape(-1, side + 2, side + 2)[:, 1:-1, 1:-1].reshape(questions.shape)


def _framed(squares: NDArray[Scalar], frame: int) -> NDArray[Scalar]:
    """Squares of cells [n, L] with a frame around each, flat, so that a step never leads out of a square."""
    side = math.isqrt(squares.shape[1])
    edges = ((0, 0), (1, 1), (1, 1))
    return np.pad(squares.reshape(-1, side, side), edges, constant_values=frame).ravel()


def _directions(side: int) -> NDArray[np.int64]:
    """The steps down, left, right and up in framed squares."""
    return np.array([side + 2, -1, 1, -side - 2])


def _distances(open_cells: NDArray[np.bool_], goals: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Steps to the goal from every open cell, int32[n, L], by breadth-first search; -1 where there is no way."""
    side = math.isqrt(goals.shape[1])
    free, frontier = _framed(open_cells, False), np.flatnonzero(_framed(goals, False))
    distances = np.full(len(free), -1, dtype=np.int32)
    distances[frontier] = 0
    owner = np.zeros(len(free), dtype=np.int64)
    steps = 0
    while len(frontier):
        steps += 1
        near = (frontier[:, None] + _directions(side)).ravel()
        near = near[free[near] & (distances[near] < 0)]
        distances[near] = steps
        # A cell reached from two sides goes on once: the last to write its number there owns it.
        numbers = np.arange(len(near))
        owner[near] = numbers
        frontier = near[owner[near] == numbers]
    return distances.reshape(-1, side + 2, side + 2)[:, 1:-1, 1:-1].reshape(goals.shape)


# Symmetry and validity ----------------------------------------------------------------------------------------------


def class_digests(rows: BoardRows) -> NDArray[np.uint64]:
    """A number for every maze, uint64[n], the same for its eight views and with S and G exchanged.

    Every one of the 16 forms is hashed with fixed random weights for cells and tokens, and the digest mixes the
    16 hashes without regard to their order.
    """
    questions = rows.questions
    orders = cell_orders(math.isqrt(questions.shape[1]))
    numbers = mix(np.arange(questions.shape[1] + VOCAB_SIZE, dtype=np.uint64))
    values, weights = np.split(numbers, [VOCAB_SIZE])
    weights = weights[np.argsort(orders, axis=1)].T
    exchanged = values.copy()
    exchanged[[START, GOAL]] = values[[GOAL, START]]
    forms = [mix(form[questions] @ weights).sum(axis=1) for form in (values, exchanged)]
    return mix(forms[0] + forms[1])


def is_valid_shortest(questions: Tokens, answers: Tokens) -> NDArray[np.bool_]:
    """Whether each answer of uint8[n, L] marks a shortest path from S to G and changes nothing else, bool[n].

    The steps from S to G through all open cells and through the marked ones must agree, and no cell may be marked that
    such a path does not need.
    """
    marked = answers == PATH
    unchanged = np.where(marked, questions == FREE, answers == questions).all(axis=1)
    ends = (questions == START) | (questions == GOAL)
    shortest = shortest_lengths(questions)
    as_short = (shortest_lengths(questions, marked | ends) == shortest) & (marked.sum(axis=1) + 1 == shortest)
    return unchanged & (shortest > 0) & as_short


def shortest_lengths(questions: Tokens, open_cells: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Steps of a shortest path from S to G through open cells (None: all but walls), -1 without one, int64[n]."""
    open_cells = questions != WALL if open_cells is None else open_cells
    return _distances(open_cells, questions == GOAL)[questions == START].astype(np.int64)


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Mazes from texts, rated by the length of the shortest path; raises RowError for what is no maze with a path."""
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
