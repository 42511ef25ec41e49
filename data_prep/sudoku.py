"""Sudoku puzzles: published CSVs or our own generator, to a dataset on disk.

python -m data_prep.build sudoku --generate --out data/sudoku
"""

import argparse
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `sudoku` command to `python -m data_prep.build`."""
    parser = subparsers.add_parser("sudoku", help="Sudoku puzzles from published CSVs or generated")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build the dataset that the arguments describe."""
    raise NotImplementedError
