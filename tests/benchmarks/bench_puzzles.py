"""Sudokus and mazes: making them, changing them for training, telling them apart, checking answers.

python -m tests.benchmarks puzzles
"""

import os
import time
from collections.abc import Iterator
from itertools import islice

from arc_trm.cells import CHECKS, CellSource
from data_prep.cell_store import CellRows, CellStore, build_cell_store
from data_prep.maze import WALLS, default_length
from data_prep.maze_generate import MazeWish
from data_prep.maze_generate import generate as generate_mazes
from data_prep.maze_rules import views
from data_prep.sudoku_generate import SudokuWish
from data_prep.sudoku_generate import generate as generate_sudokus
from data_prep.sudoku_symmetry import class_digests
from tests.benchmarks.table import Row, median_seconds

BATCH = 768
SECONDS = 6.0
WORKERS = os.cpu_count() or 1

Stream = Iterator[tuple[int, CellRows]]


def generating(what: str, size: str, stream: Stream, note: str) -> tuple[Row, CellRows]:
    """The rate of a generator once it is compiled, and the puzzles it made meanwhile."""
    for _ in islice(stream, 2 * WORKERS):
        pass
    start, made = time.perf_counter(), []
    while time.perf_counter() - start < SECONDS:
        made.append(next(stream)[1])
    seconds = time.perf_counter() - start
    rows = CellRows.concatenate(made)
    return Row(
        what, size, len(rows) / seconds, "puzzles/s", None, f"{note}, mean rating {rows.ratings.mean():.1f}"
    ), rows


def offering(store: CellStore, note: str) -> Row:
    """Examples a second that a source offers at the published batch size."""
    source = CellSource(store, seed=0, batch_size=BATCH, device="cpu")
    steps = 20

    def offer() -> None:
        for step in range(steps):
            source.offer(step, slice(0, BATCH))

    rate = steps * BATCH / median_seconds(offer)
    return Row(f"offer {store.kind} examples", f"batch {BATCH}", rate, "examples/s", None, note)


def checking(kind: str, rows: CellRows) -> Row:
    """Answers a second judged by the rules."""
    rate = len(rows) / median_seconds(lambda: CHECKS[kind](rows.questions, rows.answers), repeats=3)
    return Row(f"check {kind} answers", f"{len(rows)}", rate, "answers/s")


def run() -> list[Row]:
    """The rows of the table."""
    workers = f"{WORKERS} threads"
    minimal, sudokus = generating(
        "make minimal sudokus",
        "9x9",
        generate_sudokus(SudokuWish(), seed=1, workers=WORKERS),
        f"{workers}, target >= 1000",
    )
    hard, _ = generating(
        "make hard sudokus",
        "9x9, 20 guesses",
        generate_sudokus(SudokuWish(guesses=20), seed=1, workers=WORKERS),
        workers,
    )
    wishes = {name: MazeWish(30, walls, default_length(30), name) for name, walls in WALLS.items()}
    fast, mazes = generating(
        "make mazes, fast",
        "30x30",
        generate_mazes(wishes["fast"], seed=1, workers=WORKERS),
        f"{workers}, target >= 300",
    )
    literal, _ = generating(
        "make mazes, rejection", "30x30", generate_mazes(wishes["rejection"], seed=1, workers=WORKERS), workers
    )
    sudokus, mazes = sudokus[:4000], mazes[:1000]
    solving = len(mazes) / median_seconds(lambda: views(mazes.questions), repeats=3)
    digesting = len(sudokus) / median_seconds(lambda: class_digests(sudokus.questions, sudokus.answers), repeats=3)
    stores = [build_cell_store("sudoku", 11, sudokus, sudokus, {}), build_cell_store("maze", 6, mazes, mazes, {})]
    return [
        minimal,
        hard,
        fast,
        literal,
        offering(stores[0], "target >= 150,000, published code 14,000 to 17,000 shuffles"),
        offering(stores[1], ""),
        Row("solve mazes in eight views", "30x30", solving, "mazes/s"),
        Row("digest sudokus up to symmetry", "9x9", digesting, "puzzles/s"),
        checking("sudoku", sudokus),
        checking("maze", mazes),
    ]
