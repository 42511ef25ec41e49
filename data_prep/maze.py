"""Mazes: published CSVs or our own generator, to a dataset on disk.

python -m data_prep.build maze --generate --out data/maze
"""

import argparse
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the `maze` command to `python -m data_prep.build`."""
    parser = subparsers.add_parser("maze", help="Mazes from published CSVs or generated")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Build the dataset that the arguments describe."""
    raise NotImplementedError
