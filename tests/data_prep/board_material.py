"""Small Sudokus and mazes for tests, made without the generators under test, and their plain references."""

from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.boards import HEADER, BoardRows
from data_prep.sudoku import BLANK, BOXES, DIGIT_OFFSET, bits_per_shuffle, shuffles

Tokens = NDArray[np.uint8]
Shuffles = tuple[NDArray[np.int64], NDArray[np.int64]]  # as data_prep.sudoku.shuffles draws them
CHARACTERS = "?# SGo"


def random_bits(seed: int, *shape: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, shape, dtype=np.uint64)


def random_shuffles(side: int, count: int, seed: int) -> Shuffles:
    return shuffles(random_bits(seed, count, bits_per_shuffle(side)), side)


def shuffled(cells: Tokens, drawn: Shuffles) -> Tokens:
    """The shuffled squares of tokens uint8[b, L]: the plain reference for batches on the device."""
    sources, tokens = drawn
    moved = np.take_along_axis(cells, sources, axis=1)
    return np.take_along_axis(tokens, moved.astype(np.int64), axis=1).astype(np.uint8)


def shuffled_rows(rows: BoardRows, drawn: Shuffles) -> BoardRows:
    return BoardRows(shuffled(rows.questions, drawn), shuffled(rows.answers, drawn), rows.ratings)


def pattern_grid(side: int) -> Tokens:
    """A full grid: every row is the one above shifted by a box's width, every band by one more."""
    rows, columns = BOXES[side]
    row, column = np.divmod(np.arange(side * side), side)
    return ((row % rows * columns + row // rows + column) % side + 1 + DIGIT_OFFSET).astype(np.uint8)


def random_sudokus(side: int, count: int, seed: int, givens: float = 0.4) -> BoardRows:
    """Shuffled pattern grids with cells blanked at random; more than one solution may fit the question."""
    answers = shuffled(np.tile(pattern_grid(side), (count, 1)), random_shuffles(side, count, seed))
    shown = np.random.default_rng(seed + 1).random(answers.shape) < givens
    ratings = np.arange(count, dtype=np.float32)
    return BoardRows(np.where(shown, answers, BLANK).astype(np.uint8), answers, ratings)


def write_csv(path: Path, rows: BoardRows, characters: str) -> Path:
    """Write boards as published; `characters` of the tokens, from PAD on."""
    questions, answers = (
        ["".join(characters[token] for token in cells) for cells in tokens.tolist()]
        for tokens in (rows.questions, rows.answers)
    )
    rated = zip(questions, answers, rows.ratings.tolist(), strict=True)
    path.write_text("\n".join([HEADER, *(f"made up,{q},{a},{rating:g}" for q, a, rating in rated)]) + "\n")
    return path


def maze(*rows: str) -> Tokens:
    """One maze or label from its rows of characters."""
    return np.array([CHARACTERS.index(cell) for row in rows for cell in row], dtype=np.uint8)


def text(tokens: Tokens) -> str:
    return "".join(CHARACTERS[token] for token in tokens.tolist())


def plain_path(question: Tokens) -> list[int] | None:
    """The cells from S to G that a queue finds which looks down, left, right, up; None when there is no way."""
    side = round(len(question) ** 0.5)
    [start], [goal] = (np.flatnonzero(question == CHARACTERS.index(end)).tolist() for end in "SG")
    parents: dict[int, int] = {start: start}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            break
        row, column = divmod(cell, side)
        for r, c in ((row + 1, column), (row, column - 1), (row, column + 1), (row - 1, column)):
            near = r * side + c
            if 0 <= r < side and 0 <= c < side and near not in parents and question[near] != CHARACTERS.index("#"):
                parents[near] = cell
                queue.append(near)
    if goal not in parents:
        return None
    path = [goal]
    while path[-1] != start:
        path.append(parents[path[-1]])
    return path[::-1]


def plain_label(question: Tokens) -> Tokens:
    """The question with the pinned path marked."""
    path = plain_path(question)
    assert path is not None
    label = question.copy()
    label[path[1:-1]] = CHARACTERS.index("o")
    return label


def random_mazes(side: int, count: int, seed: int, walls: float = 0.3) -> Tokens:
    """Mazes uint8[count, side * side] with a way from S to G."""
    rng = np.random.default_rng(seed)
    made: list[Tokens] = []
    while len(made) < count:
        question = np.where(rng.random(side * side) < walls, 1, 2).astype(np.uint8)
        question[rng.choice(side * side, 2, replace=False)] = 3, 4
        if plain_path(question) is not None:
            made.append(question)
    return np.stack(made)
