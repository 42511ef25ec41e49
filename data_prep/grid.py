"""Grids: reading it from JSON, digests, and the symmetries of the square."""

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
    """Parse a JSON list of rows; raises InputError, naming `where`, if it is no grid."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: found {describe(value)}, expected a grid (a list of rows of colours 0-9)")
    widths = {len(row) if isinstance(row, list) else 0 for row in value}
    cells = [cell for row in value for cell in row] if 0 not in widths else []
    # type() and not isinstance: true is an int in Python but no colour.
    if len(widths) > 1 or set(map(type, cells)) != {int} or min(cells) < 0 or max(cells) >= COLOURS:
        raise InputError(f"{where}: {_first_fault(value)}")
    if len(value) > MAX_SIDE or len(value[0]) > MAX_SIDE:
        raise InputError(f"{where}: {len(value)} x {len(value[0])} cells, expected at most {MAX_SIDE} x {MAX_SIDE}")
    return np.array(bytearray(cells)).reshape(len(value), -1)


def _first_fault(rows: list[Any]) -> str:
    """Describe the first fault in rows that are no grid."""
    for r, row in enumerate(rows):
        if not isinstance(row, list) or not row:
            return f"row {r} is {describe(row)}, expected a list of colours 0-9"
        if len(row) != len(rows[0]):
            return f"row {r} has {len(row)} cells, expected {len(rows[0])} as in row 0"
        for c, cell in enumerate(row):
            if type(cell) is not int or not 0 <= cell < COLOURS:
                return f"found {cell!r} at row {r}, column {c}, expected a colour 0-9"
    raise ValueError("a grid without a fault")


def describe(value: object) -> str:
    """Describe a JSON value in a few words, for error messages."""
    if isinstance(value, (list, dict, str)) and not value:
        return f"an empty {type(value).__name__}"
    names = {list: "a list", dict: "an object", str: "a text", type(None): "nothing"}
    return names.get(type(value), repr(value))


def grid_digest(grid: Grid) -> str:
    """Return the SHA-256 of one byte height, one byte width and the cells row major (the published grid hash)."""
    return sha256_hex(bytes(grid.shape) + np.ascontiguousarray(grid).tobytes())


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Map 64-bit numbers one to one, so that every input bit changes about half of the output bits.

    A sum of mixed numbers is a digest that does not depend on their order. The constants are those of
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
    lambda g: np.swapaxes(g, 0, 1),
    lambda g: np.fliplr(np.rot90(g, 1)),
)
INVERSE_DIHEDRAL = (0, 3, 2, 1, 4, 5, 6, 7)
DIHEDRAL_KEEPS_SHAPE = (True, False, True, False, True, True, False, False)


def dihedral(grid: NDArray[Scalar], element: int) -> NDArray[Scalar]:
    """Apply element 0-7 of the square's symmetries, in the published order, to the first two axes; may return a view.

    Raises ValueError for another element.
    """
    if not 0 <= element < len(DIHEDRALS):
        raise ValueError(f"dihedral element {element}, expected 0-{len(DIHEDRALS) - 1}")
    return DIHEDRALS[element](grid)
