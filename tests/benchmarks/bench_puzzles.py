"""Sudokus and mazes: making them, changing them for training, telling them apart, checking answers.

python -m tests.benchmarks puzzles
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice

from arc_trm.batches import RULES, BoardSource
from data_prep.boards import BoardRows, BoardStore, board_store
from data_prep.generators import generate, make_mazes, make_sudokus
from data_prep.maze import views
from data_prep.sudoku import class_digests
from tests.benchmarks.table import Row, median_seconds

BATCH = 768
SECONDS = 6.0
WORKERS = os.cpu_count() or 1

Stream = Iterator[BoardRows]


def generating(what: str, size: str, stream: Stream, note: str) -> tuple[Row, BoardRows]:
    """The rate of a generator once it is compiled, and the puzzles it made meanwhile."""
    for _ in islice(stream, 2 * WORKERS):
        pass
    start, made = time.perf_counter(), []
    while time.perf_counter() - start < SECONDS:
        made.append(next(stream))
    seconds = time.perf_counter() - start
    rows = BoardRows.concatenate(made)
    return Row(
        what, size, len(rows) / seconds, "puzzles/s", None, f"{note}, mean rating {rows.ratings.mean():.1f}"
    ), rows


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
    workers = f"{WORKERS} threads"
    minimal, sudokus = generating(
        "make minimal sudokus",
        "9x9",
        generate(make_sudokus, 1, WORKERS),
        f"{workers}, target >= 1000",
    )
    hard, _ = generating(
        "make hard sudokus",
        "9x9, 20 guesses",
        generate(partial(make_sudokus, guesses=20), 1, WORKERS),
        workers,
    )
    long, mazes = generating("make mazes", "30x30", generate(make_mazes, 1, WORKERS), f"{workers}, target >= 300")
    sudokus, mazes = sudokus[:4000], mazes[:1000]
    solving = len(mazes) / median_seconds(lambda: views(mazes.questions), repeats=3)
    digesting = len(sudokus) / median_seconds(lambda: class_digests(sudokus), repeats=3)
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
