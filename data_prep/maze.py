"""Maze datasets: from the published CSVs, or made here after Lehnert et al.

python -m data_prep.build maze --csv train.csv test.csv --out data/maze
python -m data_prep.build maze --generate --method fast --out data/maze
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
from data_prep.cell_csv import encode, require
from data_prep.cell_store import CellRows
from data_prep.files import InputError
from data_prep.maze_rules import (
    CHARACTERS,
    FREE,
    GOAL,
    LARGEST_SIDE,
    PATH,
    SMALLEST_SIDE,
    START,
    VOCAB_SIZE,
    class_digests,
    is_valid_shortest,
    shortest_lengths,
    solve,
)

HARD = Published(
    name="maze-30x30-hard-1k",
    url="https://huggingface.co/datasets/sapientinc/maze-30x30-hard-1k/resolve/main",
    train_rows=1000,
    test_rows=1000,
)
SIZES = [side * side for side in range(SMALLEST_SIDE, LARGEST_SIDE + 1)]
TOKENS = {character: token for token, character in enumerate(CHARACTERS, start=1)}
# The share of walls by method: as in the paper, and where long paths are most frequent.
WALLS = {"rejection": (0.30, 0.50), "fast": (0.37, 0.40)}
HARD_SIDE, HARD_LENGTH = 30, 110
# Measured from side 6 to 30: with this exponent the fast method finds a long enough path in 1.4 to 3 % of its tries.
LENGTH_EXPONENT = 1.25
# Tries without a new maze before giving up: about half a minute.
PATIENCE = 5_000_000


def default_length(side: int) -> int:
    """What the shortest path must exceed at this side: 110 at 30, elsewhere about as rare."""
    return round(HARD_LENGTH * (side / HARD_SIDE) ** LENGTH_EXPONENT)


def parse(questions: Sequence[str], answers: Sequence[str], ratings: Sequence[str]) -> CellRows:
    """Mazes from texts, rated by the length of the shortest path; raises RowError for what is no maze with a path."""
    del ratings  # what the published number counts is not documented
    question = encode(questions, {c: token for c, token in TOKENS.items() if token != PATH}, SIZES, "question")
    answer = encode(answers, TOKENS, [question.shape[1]], "answer")
    for token, name in ((START, "S"), (GOAL, "G")):
        require((question == token).sum(axis=1) == 1, f"not exactly one {name} in the question")
    unchanged = np.where(question == FREE, (answer == FREE) | (answer == PATH), answer == question)
    require(unchanged.all(axis=1), "the answer changes more than free cells into path")
    lengths = shortest_lengths(question)
    require(lengths > 0, "no way from S to G in the question")
    return CellRows(question, answer, lengths.astype(np.float32))


def findings(rows: CellRows) -> dict[str, int]:
    """How many labels are shortest paths, and how many of them the one that the pinned order of directions finds."""
    return {
        "labels_valid_and_shortest": int(is_valid_shortest(rows.questions, rows.answers).sum()),
        "labels_in_the_pinned_order": int((rows.answers == solve(rows.questions)).all(axis=1).sum()),
    }


KIND = Kind(
    name="maze",
    published=HARD,
    parse=parse,
    class_digests=lambda rows: class_digests(rows.questions),
    vocabulary=lambda side: VOCAB_SIZE,
    findings=findings,
)


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `maze` command to `python -m data_prep.build`."""
    parser = subparsers.add_parser(
        "maze",
        help="mazes from the published files or made here",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, KIND)
    group = parser.add_argument_group("with --generate")
    group.add_argument("--side", metavar="N", type=whole(SMALLEST_SIDE), help="cells of a row (30)")
    group.add_argument(
        "--method",
        choices=list(WALLS),
        help="rejection: start and goal drawn uniformly, as in the paper, slow; fast: the ends of a double sweep, "
        "which prefers remote corners (fast)",
    )
    group.add_argument(
        "--walls",
        nargs=2,
        metavar=("LOW", "HIGH"),
        type=float,
        help="share of walls (rejection 0.3 0.5, fast 0.37 0.4)",
    )
    group.add_argument(
        "--longer-than", metavar="N", type=whole(0), help="steps that every path exceeds (110 at side 30)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build the dataset that the arguments describe."""
    refuse_unless_generating(arguments, ["side", "method", "walls", "longer_than"])
    return build(KIND, arguments, lambda: _generator(arguments))


def _generator(arguments: argparse.Namespace) -> Generator:
    import_numba()
    from data_prep.maze_generate import MazeWish, generate

    side = arguments.side or HARD_SIDE
    if side > LARGEST_SIDE:
        raise InputError(f"--side {side}: expected at most {LARGEST_SIDE}")
    method = arguments.method or "fast"
    low, high = arguments.walls or WALLS[method]
    if not 0 <= low <= high <= 0.9:
        raise InputError(f"--walls {low} {high}: expected 0 <= LOW <= HIGH <= 0.9")
    longer_than = default_length(side) if arguments.longer_than is None else arguments.longer_than
    wish = MazeWish(side, (low, high), longer_than, method)

    def make(seed: int, workers: int) -> Iterator[tuple[int, CellRows]]:
        return generate(wish, seed=seed, workers=workers)

    facts = {"side": side, "method": method, "walls": [low, high], "longer_than": longer_than}
    return Generator(make, facts, PATIENCE, "ask for fewer, for shorter paths (--longer-than) or --method fast")
