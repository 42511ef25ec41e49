"""One ARC grid: parse it from JSON, refuse what is no grid, name its content by a digest."""

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.files import InputError

Grid: TypeAlias = NDArray[np.uint8]  # (height, width), colours 0-9

MAX_SIDE = 30
COLOURS = 10


def parse_grid(value: object, where: str) -> Grid:
    """The grid that a JSON list of rows describes; raises InputError, naming `where`, when it is none."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: found {describe(value)}, expected a grid (a list of rows of colours 0-9)")
    for r, row in enumerate(value):
        if not isinstance(row, list) or not row:
            raise InputError(f"{where}: row {r} is {describe(row)}, expected a list of colours 0-9")
        if len(row) != len(value[0]):
            raise InputError(f"{where}: row {r} has {len(row)} cells, expected {len(value[0])} as in row 0")
        # type() and not isinstance: true is an int in Python but no colour.
        if set(map(type, row)) != {int} or min(row) < 0 or max(row) >= COLOURS:
            c = next(c for c, cell in enumerate(row) if type(cell) is not int or not 0 <= cell < COLOURS)
            raise InputError(f"{where}: found {row[c]!r} at row {r}, column {c}, expected a colour 0-9")
    if len(value) > MAX_SIDE or len(value[0]) > MAX_SIDE:
        raise InputError(f"{where}: {len(value)} x {len(value[0])} cells, expected at most {MAX_SIDE} x {MAX_SIDE}")
    return np.array(value, dtype=np.uint8)


def describe(value: object) -> str:
    """A few words about a JSON value, for error messages."""
    if isinstance(value, (list, dict, str)) and not value:
        return f"an empty {type(value).__name__}"
    names = {list: "a list", dict: "an object", str: "a text", type(None): "nothing"}
    return names.get(type(value), repr(value))


def grid_digest(grid: Grid) -> str:
    """SHA-256 of one byte height, one byte width and the cells row major (the published grid hash)."""
    return hashlib.sha256(bytes(grid.shape) + np.ascontiguousarray(grid).tobytes()).hexdigest()
