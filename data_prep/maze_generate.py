"""Mazes made here, after Lehnert et al. (Beyond A*, 2024): uniform walls, a long shortest path from S to G.

Used by `python -m data_prep.build maze --generate`; needs numba.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.cell_store import CellRows
from data_prep.compiled import compiled, in_parallel
from data_prep.maze_rules import FREE, GOAL, PATH, START, WALL, solve

Ints = NDArray[np.int64]
TRIES_PER_CHUNK = 2048


@dataclass(frozen=True)
class MazeWish:
    """What to generate: the side, the range of the share of walls, and what the shortest path must exceed.

    `method` is rejection (free start and goal drawn uniformly, as in the paper) or fast (start and goal are the ends
    of a double sweep, which finds long paths far more often but prefers remote corners).
    """

    side: int
    walls: tuple[float, float]
    longer_than: int
    method: str


class Workspace(NamedTuple):
    """Memory of one search in a maze with a wall around it."""

    open: NDArray[np.bool_]
    order: Ints
    queue: Ints
    distances: Ints


def generate(wish: MazeWish, *, seed: int, workers: int) -> Iterator[tuple[int, CellRows]]:
    """Without end: (tries, the mazes they gave, solved and rated by path length); depends on (wish, seed) alone."""
    find = METHODS[wish.method]

    def chunk(rng: np.random.Generator) -> tuple[int, CellRows]:
        questions = np.zeros((TRIES_PER_CHUNK, wish.side**2), dtype=np.uint8)
        made = _make(questions, find, wish.walls, wish.longer_than, rng, _workspace(wish.side))
        answers = solve(questions[:made])
        lengths = (answers == PATH).sum(axis=1) + 1
        return TRIES_PER_CHUNK, CellRows(questions[:made], answers, lengths.astype(np.float32))

    return in_parallel(chunk, seed=seed, workers=workers)


def _workspace(side: int) -> Workspace:
    width = side + 2
    inside = np.arange(width * width).reshape(width, width)[1:-1, 1:-1].ravel()
    blank = np.zeros(width * width, dtype=np.int64)
    return Workspace(np.zeros(width * width, dtype=np.bool_), inside.astype(np.int64), blank, blank.copy())


@compiled
def _draw_walls(walls: tuple[float, float], rng: np.random.Generator, space: Workspace) -> int:
    """Build that share of the cells, which ones drawn uniformly, as walls; the rest of `order` is free.

    Returns the number of walls. An earlier order of the cells may be any, for its start is drawn from all of it.
    """
    share = walls[0] + (walls[1] - walls[0]) * rng.random()
    count = int(share * space.order.size + 0.5)
    for i in range(space.order.size):
        if i < count:
            j = i + int(rng.random() * (space.order.size - i))
            space.order[i], space.order[j] = space.order[j], space.order[i]
        space.open[space.order[i]] = i >= count
    return count


@compiled
def _sweep(start: int, goal: int, space: Workspace) -> int:
    """Breadth-first search; distances from `start` (-1: not reached). Returns the goal, or the last cell reached."""
    width = int(np.sqrt(space.open.size))
    for cell in range(space.distances.size):
        space.distances[cell] = -1
    space.distances[start] = 0
    space.queue[0] = start
    first, last = 0, 1
    while first < last:
        cell = space.queue[first]
        first += 1
        if cell == goal:
            return cell
        for step in (width, -1, 1, -width):
            near = cell + step
            if space.open[near] and space.distances[near] < 0:
                space.distances[near] = space.distances[cell] + 1
                space.queue[last] = near
                last += 1
    return space.queue[last - 1]


@compiled
def _rejection(free: Ints, rng: np.random.Generator, space: Workspace) -> tuple[int, int, int]:
    """A start and another goal, both drawn uniformly from the free cells, and the steps between (-1: no way)."""
    start = free[int(rng.random() * free.size)]
    goal = start
    while goal == start:
        goal = free[int(rng.random() * free.size)]
    _sweep(start, goal, space)
    return start, goal, space.distances[goal]


@compiled
def _fast(free: Ints, rng: np.random.Generator, space: Workspace) -> tuple[int, int, int]:
    """The cell farthest from a random one, the cell farthest from that, in a random order, and the steps between."""
    start = _sweep(free[int(rng.random() * free.size)], -1, space)
    goal = _sweep(start, -1, space)
    steps = space.distances[goal]
    if rng.random() < 0.5:
        return goal, start, steps
    return start, goal, steps


# Finds (start, goal, steps) in the free cells of a maze.
Find = Callable[[Ints, np.random.Generator, Workspace], tuple[int, int, int]]
METHODS: dict[str, Find] = {"rejection": _rejection, "fast": _fast}


@compiled
def _make(
    questions: NDArray[np.uint8],
    find: Find,
    walls: tuple[float, float],
    longer_than: int,
    rng: np.random.Generator,
    space: Workspace,
) -> int:
    """Fill questions uint8[n, L] from n tries; how many had a path long enough."""
    width = int(np.sqrt(space.open.size))
    made = 0
    for _ in range(questions.shape[0]):
        count = _draw_walls(walls, rng, space)
        start, goal, steps = find(space.order[count:], rng, space)
        if steps <= longer_than:
            continue
        for cell in range(questions.shape[1]):
            padded = (cell // (width - 2) + 1) * width + cell % (width - 2) + 1
            questions[made, cell] = FREE if space.open[padded] else WALL
            if padded == start:
                questions[made, cell] = START
            if padded == goal:
                questions[made, cell] = GOAL
        made += 1
    return made
