"""Sudoku datasets: from the published CSVs, or made here.

python -m data_prep.build sudoku --csv train.csv test.csv --out data/sudoku
python -m data_prep.build sudoku --generate --guesses 20 --out data/sudoku
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from data_prep.cell_build import (
    Generator,
    Kind,
    Published,
    add_arguments,
    build,
    import_numba,
    refuse_unless_generating,
    whole,
)
from data_prep.cell_csv import RowError, encode, require
from data_prep.cell_store import CellRows
from data_prep.sudoku_rules import BLANK, BOXES, DIGIT_OFFSET, is_valid, vocab_size
from data_prep.sudoku_symmetry import class_digests

EXTREME = Published(
    name="sudoku-extreme",
    url="https://huggingface.co/datasets/sapientinc/sudoku-extreme/resolve/main",
    train_rows=3_831_994,
    test_rows=422_786,
)
SIZES = [side * side for side in BOXES]
# Givens beyond a minimal puzzle: there are only a few dozen minimal 4×4 puzzles up to symmetry.
EXTRA_GIVENS = {4: 4, 6: 0, 9: 0}
# Tries without a new puzzle before giving up; with a hard target a try may take half a second.
PATIENCE = 1000


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> CellRows:
    """Puzzles from texts, blanks as `.` or `0`; raises RowError for what is no Sudoku with its solution."""
    side = round(len(questions[0]) ** 0.5)
    digits = {str(digit): digit + DIGIT_OFFSET for digit in range(1, (side if side in BOXES else 9) + 1)}
    question = encode(questions, {".": BLANK, "0": BLANK} | digits, SIZES, "question")
    answer = encode(answers, digits, [question.shape[1]], "answer")
    require(((question == BLANK) | (question == answer)).all(axis=1), "the answer changes a given digit")
    require(is_valid(question, answer), "the answer repeats a digit in a row, column or box")
    return CellRows(question, answer, _parse_ratings(ratings))


def _parse_ratings(ratings: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    try:
        return np.array(ratings, dtype=np.float32)
    except ValueError:
        for index, rating in enumerate(ratings):
            try:
                float(rating)
            except ValueError as error:
                raise RowError(index, f"rating {rating!r}, expected a number") from error
        raise


KIND = Kind(
    name="sudoku",
    published=EXTREME,
    parse=parse,
    class_digests=lambda rows: class_digests(rows.questions, rows.answers),
    vocabulary=vocab_size,
    findings=lambda rows: {},
)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `sudoku` command to `python -m data_prep.build`."""
    parser = subparsers.add_parser(
        "sudoku",
        help="Sudokus from the published files or made here",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, KIND)
    group = parser.add_argument_group("with --generate")
    group.add_argument(
        "--side", type=int, choices=list(BOXES), help="cells of a row (9); smaller ones train in minutes"
    )
    group.add_argument(
        "--guesses", metavar="N", type=whole(0), help="least guesses our solver needs (0); 20: extreme-like"
    )
    group.add_argument(
        "--extra-givens", metavar="N", type=whole(0), help="up to so many givens beyond a minimal puzzle (0; 4x4: 4)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build the dataset that the arguments describe."""
    refuse_unless_generating(arguments, ["side", "guesses", "extra_givens"])
    return build(KIND, arguments, lambda: _generator(arguments))


def _generator(arguments: argparse.Namespace) -> Generator:
    import_numba()
    from data_prep.sudoku_generate import SudokuWish, generate

    side = arguments.side or 9
    extra = EXTRA_GIVENS[side] if arguments.extra_givens is None else arguments.extra_givens
    wish = SudokuWish(side, arguments.guesses or 0, extra)

    def make(seed: int, workers: int) -> Iterator[tuple[int, CellRows]]:
        return generate(wish, seed=seed, workers=workers)

    facts = {"side": side, "guesses": wish.guesses, "extra_givens": extra}
    return Generator(make, facts, PATIENCE, "ask for fewer, for fewer --guesses or for more --extra-givens")
