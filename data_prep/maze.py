"""Mazes in tokens: the pinned shortest path, symmetries, validity, published files, and a generator of long paths.

Tokens as published: 0 PAD (never used), then the characters `# SGo`: wall, free, start, goal, path.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.boards import BoardRows, Kind, Make, compiled, encode, require
from data_prep.grid import DIHEDRALS, dihedral, mix

CHARACTERS = "# SGo"
VOCAB_SIZE = len(CHARACTERS) + 1
WALL, FREE, START, GOAL, PATH = range(1, VOCAB_SIZE)
SMALLEST_SIDE, LARGEST_SIDE = 4, 64

Tokens = NDArray[np.uint8]
CHUNK = 512


def cell_orders(side: int) -> NDArray[np.int64]:
    """Which old cell each new cell shows under every dihedral element, int64[8, side * side]."""
    cells = np.arange(side * side).reshape(side, side)
    return np.stack([dihedral(cells, element).ravel() for element in range(len(DIHEDRALS))])


# The pinned path ----------------------------------------------------------------------------------------------------


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
    everything = tuple(range(len(DIHEDRALS)))
    marked = [_solve(questions[i : i + CHUNK], everything) for i in _starts(questions)]
    answers = np.concatenate([questions[:0, None].repeat(len(DIHEDRALS), 1), *marked])
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


# Symmetry and validity ----------------------------------------------------------------------------------------------


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

    The steps from S to G through all open cells and through the marked ones must agree, and no cell may be marked that
    such a path does not need.
    """
    parts = [_check(questions[i : i + CHUNK], answers[i : i + CHUNK]) for i in _starts(questions)]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def shortest_lengths(questions: Tokens) -> NDArray[np.int64]:
    """Steps of a shortest path from S to G, -1 without one, int64[n]."""
    parts = [_lengths(chunk, chunk != WALL) for chunk in (questions[i : i + CHUNK] for i in _starts(questions))]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _check(questions: Tokens, answers: Tokens) -> NDArray[np.bool_]:
    marked = answers == PATH
    unchanged = np.where(marked, questions == FREE, answers == questions).all(axis=1)
    ends = (questions == START) | (questions == GOAL)
    shortest = _lengths(questions, questions != WALL)
    as_short = (_lengths(questions, marked | ends) == shortest) & (marked.sum(axis=1) + 1 == shortest)
    return unchanged & (shortest > 0) & as_short


def _lengths(questions: Tokens, open_cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Steps from S to G through open cells, -1 where there is no way."""
    side = math.isqrt(questions.shape[1])
    framed = [
        np.pad(cells.reshape(-1, side, side), ((0, 0), (1, 1), (1, 1))).ravel()
        for cells in (open_cells, questions == START, questions == GOAL)
    ]
    distances = _distances(framed[0], np.flatnonzero(framed[2]), side + 2)
    return distances[framed[1]].astype(np.int64)


# Published files ----------------------------------------------------------------------------------------------------


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> BoardRows:
    """Mazes from texts, rated by the length of the shortest path; raises RowError for what is no maze with a path."""
    del ratings  # what the published number counts is not documented
    tokens = {character: token for token, character in enumerate(CHARACTERS, start=1)}
    sizes = [side * side for side in range(SMALLEST_SIDE, LARGEST_SIDE + 1)]
    question = encode(questions, {c: token for c, token in tokens.items() if token != PATH}, sizes, "question")
    answer = encode(answers, tokens, [question.shape[1]], "answer")
    for token, name in ((START, "S"), (GOAL, "G")):
        require((question == token).sum(axis=1) == 1, f"not exactly one {name} in the question")
    unchanged = np.where(question == FREE, (answer == FREE) | (answer == PATH), answer == question)
    require(unchanged.all(axis=1), "the answer changes more than free cells into path")
    lengths = shortest_lengths(question)
    require(lengths > 0, "no way from S to G in the question")
    return BoardRows(question, answer, lengths.astype(np.float32))


def findings(rows: BoardRows) -> dict[str, int]:
    """How many labels are shortest paths, and how many of them the one that the pinned order of directions finds."""
    return {
        "labels_valid_and_shortest": int(is_valid_shortest(rows.questions, rows.answers).sum()),
        "labels_in_the_pinned_order": int((rows.answers == solve(rows.questions)).all(axis=1).sum()),
    }


# Generating ---------------------------------------------------------------------------------------------------------
#
# After Lehnert et al. (Beyond A*, 2024): uniform walls, and a long shortest path from S to G. Theirs draw S and G
# uniformly and reject short paths; ours are the ends of a double sweep, which finds long paths hundreds of times as
# often, but prefers remote corners.

TRIES_PER_CHUNK = 2048
WALLS = (0.37, 0.40)  # the share of walls at which long paths are most frequent
HARD_SIDE, HARD_LENGTH = 30, 110
# Measured from side 6 to 30: with this exponent 1.4 to 3 % of the tries find a long enough path.
LENGTH_EXPONENT = 1.25


def default_length(side: int) -> int:
    """What the shortest path must exceed at this side: 110 at 30, elsewhere about as rare."""
    return round(HARD_LENGTH * (side / HARD_SIDE) ** LENGTH_EXPONENT)


def maker(side: int = HARD_SIDE, longer_than: int | None = None) -> Make:
    """Makes mazes whose shortest path exceeds `longer_than` (None: the default of the side), solved and rated by it.

    A pure function of the random numbers.
    """
    least = default_length(side) if longer_than is None else longer_than

    def make(rng: np.random.Generator) -> tuple[int, BoardRows]:
        questions = np.zeros((TRIES_PER_CHUNK, side * side), dtype=np.uint8)
        questions = questions[: _make(questions, least, rng, search_memory(side))]
        answers = solve(questions)
        lengths = (answers == PATH).sum(axis=1) + 1
        return TRIES_PER_CHUNK, BoardRows(questions, answers, lengths.astype(np.float32))

    return make


class Search(NamedTuple):
    """Memory of one search in a maze with a wall around it; cells are numbered in that larger square."""

    open: NDArray[np.bool_]
    inside: NDArray[np.int64]  # [L] the maze's own cells, row major
    order: NDArray[np.int64]  # [L] the same in random order, walls first
    queue: NDArray[np.int64]
    distances: NDArray[np.int64]


def search_memory(side: int) -> Search:
    """Fresh memory for mazes of this side."""
    size = (side + 2) ** 2
    inside = np.arange(size).reshape(side + 2, side + 2)[1:-1, 1:-1].ravel()
    return Search(np.zeros(size, np.bool_), inside, inside.copy(), np.zeros(size, np.int64), np.zeros(size, np.int64))


@compiled
def _draw_walls(rng: np.random.Generator, memory: Search) -> int:
    """Build a share of the cells within WALLS, which ones drawn uniformly; how many, the first of `order`.

    An earlier order of the cells may be any, for its start is drawn from all of it.
    """
    order = memory.order
    share = WALLS[0] + (WALLS[1] - WALLS[0]) * rng.random()
    count = int(share * order.size + 0.5)
    for i in range(order.size):
        if i < count:
            j = i + int(rng.random() * (order.size - i))
            order[i], order[j] = order[j], order[i]
        memory.open[order[i]] = i >= count
    return count


@compiled
def _farthest(start: int, memory: Search) -> int:
    """The cell that breadth-first search from `start` reaches last; memory.distances has the steps to it."""
    width = int(np.sqrt(memory.open.size))
    for cell in range(memory.distances.size):
        memory.distances[cell] = -1
    memory.distances[start] = 0
    memory.queue[0] = start
    first, last = 0, 1
    while first < last:
        cell = memory.queue[first]
        first += 1
        for step in (width, -1, 1, -width):
            near = cell + step
            if memory.open[near] and memory.distances[near] < 0:
                memory.distances[near] = memory.distances[cell] + 1
                memory.queue[last] = near
                last += 1
    return memory.queue[last - 1]


@compiled
def _make(questions: Tokens, longer_than: int, rng: np.random.Generator, memory: Search) -> int:
    """Fill questions uint8[n, L] from n tries; how many had a path long enough."""
    made = 0
    for _ in range(questions.shape[0]):
        walls = _draw_walls(rng, memory)
        free = memory.order[walls:]
        start = _farthest(free[int(rng.random() * free.size)], memory)
        goal = _farthest(start, memory)
        steps = memory.distances[goal]
        if rng.random() < 0.5:
            start, goal = goal, start
        if steps <= longer_than:
            continue
        for i in range(memory.inside.size):
            cell = memory.inside[i]
            questions[made, i] = FREE if memory.open[cell] else WALL
            if cell == start:
                questions[made, i] = START
            if cell == goal:
                questions[made, i] = GOAL
        made += 1
    return made


KIND = Kind(
    name="maze",
    published="maze-30x30-hard-1k",
    url="https://huggingface.co/datasets/sapientinc/maze-30x30-hard-1k/resolve/main",
    published_rows=(1000, 1000),
    parse=parse,
    class_digests=lambda rows: class_digests(rows.questions),
    vocabulary=lambda side: VOCAB_SIZE,
    findings=findings,
    maker=maker,
    wish={"side": HARD_SIDE},
    patience=5_000_000,
)
