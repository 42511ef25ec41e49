"""A grid: reading it from JSON, its digest, and the symmetries of the square.

An augmentation, which belongs to a puzzle, gives a cell of colour c the colour permutation[c], where 0 stays 0, and
then applies one of the 8 dihedral elements. To undo it, the element's inverse comes first. Where a grid sits on the
canvas (data_prep.canvas.Placement) is another matter.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep.files import InputError, sha256_hex

Grid: TypeAlias = NDArray[np.uint8]  # (height, width), colours 0-9
Scalar = TypeVar("Scalar", bound=np.generic)

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
    return sha256_hex(bytes(grid.shape) + np.ascontiguousarray(grid).tobytes())


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers in which every input bit moves about half of the output bits.

    Sums of mixed numbers are digests that do not change when cells or pairs change places. The constants are those of
    the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# Symmetries ---------------------------------------------------------------------------------------------------------

DIHEDRALS: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = (
    lambda g: g,
    lambda g: np.rot90(g, 1),
    lambda g: np.rot90(g, 2),
    lambda g: np.rot90(g, 3),
    np.fliplr,
    np.flipud,
    np.transpose,
    lambda g: np.fliplr(np.rot90(g, 1)),
)
INVERSE_DIHEDRAL = (0, 3, 2, 1, 4, 5, 6, 7)
DIHEDRAL_KEEPS_SHAPE = (True, False, True, False, True, True, False, False)


def dihedral(grid: NDArray[Scalar], element: int) -> NDArray[Scalar]:
    """Element 0-7 of the square's symmetries, in the published order; a view of `grid` where possible."""
    if not 0 <= element < len(DIHEDRALS):
        raise ValueError(f"dihedral element {element}, expected 0-{len(DIHEDRALS) - 1}")
    return DIHEDRALS[element](grid)
