"""Sudokus and mazes: making them, changing them for training, telling them apart, checking answers.

python -m tests.benchmarks puzzles
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from arc_trm.batches import RULES, BoardSource
from data_prep import maze, sudoku
from data_prep.boards import BoardRows, BoardStore, board_store
from tests.benchmarks.table import Row, median_seconds

BATCH = 768
SECONDS = 6.0


def making(what: str, size: str, make: Callable[[np.random.Generator], BoardRows], note: str) -> tuple[Row, BoardRows]:
    """The rate of a generator, and the puzzles it made meanwhile."""
    rng, made, start = np.random.default_rng(1), [], time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        made.append(make(rng))
    rows = BoardRows.concatenate(made)
    rate = len(rows) / (time.perf_counter() - start)
    return Row(what, size, rate, "puzzles/s", None, f"{note}mean rating {rows.ratings.mean():.1f}"), rows


def offering(store: BoardStore, note: str) -> Row:
    """Examples a second that a source offers at the published batch size."""
    source = BoardSource(store, seed=0, batch_size=BATCH, device="cpu")
    steps = 20

    def offer() -> None:
        for step in range(steps):
            source.offer(step, slice(0, BATCH))

    rate = steps * BATCH / median_seconds(offer)
    return Row(f"offer {store.kind} examples", f"batch {BATCH}", rate, "examples/s", None, note)


def checking(kind: str, rows: BoardRows) -> Row:
    """Answers a second judged by the rules."""
    rate = len(rows) / median_seconds(lambda: RULES[kind](rows.questions, rows.answers), repeats=3)
    return Row(f"check {kind} answers", f"{len(rows)}", rate, "answers/s")


def run() -> list[Row]:
    """The rows of the table."""
    minimal, sudokus = making("make minimal sudokus", "9x9", sudoku.make, "target >= 100, ")
    hard, _ = making("make hard sudokus", "9x9, 20 guesses", partial(sudoku.make, guesses=20), "")
    long, mazes = making("make mazes", "30x30", maze.make, "target >= 10, ")
    sudokus, mazes = sudokus[:4000], mazes[:1000]
    solving = len(mazes) / median_seconds(lambda: maze.views(mazes.questions), repeats=3)
    digesting = len(sudokus) / median_seconds(lambda: sudoku.class_digests(sudokus), repeats=3)
    stores = [board_store("sudoku", 11, sudokus, sudokus, {}), board_store("maze", 6, mazes, mazes, {})]
    return [
        minimal,
        hard,
        long,
        offering(stores[0], "target >= 150,000, published code 14,000 to 17,000 shuffles"),
        offering(stores[1], ""),
        Row("solve mazes in eight views", "30x30", solving, "mazes/s"),
        Row("digest sudokus up to symmetry", "9x9", digesting, "puzzles/s"),
        checking("sudoku", sudokus),
        checking("maze", mazes),
    ]
