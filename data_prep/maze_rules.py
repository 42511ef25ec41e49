"""The rules of mazes in tokens: vocabulary, the pinned shortest path, symmetry, validity.

Tokens as published: 0 PAD (never used), then the characters `# SGo`: wall, free, start, goal, path.
"""

import math

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import dihedral, mix

CHARACTERS = "# SGo"
VOCAB_SIZE = len(CHARACTERS) + 1
WALL, FREE, START, GOAL, PATH = range(1, VOCAB_SIZE)
DIHEDRALS = 8
SMALLEST_SIDE, LARGEST_SIDE = 4, 64

Tokens = NDArray[np.uint8]
CHUNK = 512


def cell_orders(side: int) -> NDArray[np.int64]:
    """Which old cell each new cell shows under every dihedral element, int64[8, side * side]."""
    cells = np.arange(side * side).reshape(side, side)
    return np.stack([dihedral(cells, t).ravel() for t in range(DIHEDRALS)])


def solve(questions: Tokens) -> Tokens:
    """The mazes uint8[n, L] with the pinned shortest path marked.

    Breadth-first search from S that looks down, left, right, up finds the published labels: among all shortest
    paths the one whose list of directions comes first in that order. Raises ValueError without a path.
    """
    return np.concatenate([questions[:0], *(_solve(questions[i : i + CHUNK], (0,))[:, 0] for i in _starts(questions))])


def views(questions: Tokens) -> tuple[Tokens, Tokens]:
    """The eight dihedral views of mazes and of their labels, solved again in every view, each uint8[n, 8, L].

    A turned label would break the pinned order of directions. Raises ValueError without a path.
    """
    orders = cell_orders(math.isqrt(questions.shape[1]))
    everything = tuple(range(DIHEDRALS))
    marked = [_solve(questions[i : i + CHUNK], everything) for i in _starts(questions)]
    answers = np.concatenate([questions[:0, None].repeat(DIHEDRALS, 1), *marked])
    return questions[:, orders], np.take_along_axis(answers, orders[None], axis=2)


def _starts(rows: Tokens) -> range:
    return range(0, len(rows), CHUNK)


def _solve(questions: Tokens, elements: tuple[int, ...]) -> Tokens:
    """Labels in the cells of the maze as it is, following the pinned order as each element shows it, [n, k, L]."""
    count, cells = questions.shape
    side = math.isqrt(cells)
    width = side + 2
    padded = np.full((count, width, width), WALL, dtype=np.uint8)
    padded[:, 1:-1, 1:-1] = questions.reshape(count, side, side)
    flat = padded.reshape(-1)
    starts, goals = np.flatnonzero(flat == START), np.flatnonzero(flat == GOAL)
    if len(starts) != count or len(goals) != count:
        raise ValueError("a maze without exactly one S and one G")
    distances = _distances(flat != WALL, goals, width)
    if (distances[starts] < 0).any():
        raise ValueError(f"maze {int(np.argmin(distances[starts]))}: no path from S to G")
    marked = np.repeat(padded[:, None], len(elements), axis=1)
    for k, element in enumerate(elements):
        path = _walk(distances, starts, _directions(width, element))
        maze, cell = np.divmod(path, width * width)
        marked[maze, k, cell // width, cell % width] = PATH
    return marked[:, :, 1:-1, 1:-1].reshape(count, len(elements), cells)


def _directions(width: int, element: int) -> list[int]:
    """Steps in the flat maze that look like down, left, right, up once the dihedral element is applied."""
    cells = np.arange(width * width).reshape(width, width)
    shown = dihedral(cells, element)
    return [int(shown[1 + down, 1 + right] - shown[1, 1]) for down, right in ((1, 0), (0, -1), (0, 1), (-1, 0))]


def _distances(free: NDArray[np.bool_], goals: NDArray[np.int64], width: int) -> NDArray[np.int32]:
    """Steps to the goal from every free cell of flat mazes with a wall around each; -1 where there is no way."""
    distances = np.full(len(free), -1, dtype=np.int32)
    distances[goals] = 0
    owner = np.zeros(len(free), dtype=np.int64)
    frontier, steps = goals, 0
    while len(frontier):
        steps += 1
        near = (frontier[:, None] + np.array([width, -1, 1, -width])).ravel()
        near = near[free[near] & (distances[near] < 0)]
        distances[near] = steps
        # A cell reached from two sides goes on once: the last to write its number there owns it.
        numbers = np.arange(len(near))
        owner[near] = numbers
        frontier = near[owner[near] == numbers]
    return distances


def _walk(distances: NDArray[np.int32], starts: NDArray[np.int64], directions: list[int]) -> NDArray[np.int64]:
    """The cells strictly between start and goal when each step is the first direction that leads nearer."""
    cells = starts[distances[starts] > 1]
    path = []
    while len(cells):
        nearer = [distances[cells + step] == distances[cells] - 1 for step in directions]
        cells = cells + np.array(directions)[np.argmax(nearer, axis=0)]
        path.append(cells)
        cells = cells[distances[cells] > 1]
    return np.concatenate([starts[:0], *path])


def class_digests(questions: Tokens) -> NDArray[np.uint64]:
    """A number for every maze, uint64[n], the same for its eight views and with S and G exchanged.

    Every one of the 16 forms is hashed with fixed random weights for cells and tokens, and the digest mixes the
    16 hashes without regard to their order.
    """
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

    Independent of `solve`: floods from S count the steps to G through all open cells and through the marked ones;
    both must agree, and no cell may be marked that such a path does not need.
    """
    parts = [_check(questions[i : i + CHUNK], answers[i : i + CHUNK]) for i in _starts(questions)]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def shortest_lengths(questions: Tokens) -> NDArray[np.int64]:
    """Steps of a shortest path from S to G, -1 without one, int64[n]."""
    parts = [_flood(chunk, chunk != WALL) for chunk in (questions[i : i + CHUNK] for i in _starts(questions))]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _check(questions: Tokens, answers: Tokens) -> NDArray[np.bool_]:
    marked = answers == PATH
    unchanged = np.where(marked, questions == FREE, answers == questions).all(axis=1)
    ends = (questions == START) | (questions == GOAL)
    shortest = _flood(questions, questions != WALL)
    as_short = (_flood(questions, marked | ends) == shortest) & (marked.sum(axis=1) + 1 == shortest)
    return unchanged & (shortest > 0) & as_short


def _flood(questions: Tokens, open_cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Steps from S to G through open cells, -1 where the flood stops before."""
    side = math.isqrt(questions.shape[1])
    room = open_cells.reshape(-1, side, side)
    reached = (questions == START).reshape(-1, side, side)
    goal = (questions == GOAL).reshape(-1, side, side)
    steps = np.full(len(questions), -1, dtype=np.int64)
    size = -1
    for step in range(1, side * side):
        grown = reached.copy()
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown[:, :, 1:] |= reached[:, :, :-1]
        grown[:, :, :-1] |= reached[:, :, 1:]
        reached = grown & room
        steps[(steps < 0) & (reached & goal).any(axis=(1, 2))] = step
        if reached.sum() == size:
            break
        size = reached.sum()
    return steps
