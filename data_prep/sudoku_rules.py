"""The rules of Sudoku in tokens: sizes, vocabulary, validity.

Tokens as published: 0 PAD (never used, all cells are there), 1 blank, 2 … side + 1 the digits 1 … side.
"""

import math

import numpy as np
from numpy.typing import NDArray

BLANK = 1
DIGIT_OFFSET = 1
# side -> (rows, columns) of a box
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def side_of(cells: int) -> int:
    """The side of a sudoku with this many cells; raises ValueError for a size that is not in BOXES."""
    side = math.isqrt(cells)
    if side not in BOXES or side * side != cells:
        raise ValueError(f"{cells} cells: expected one of {[s * s for s in BOXES]}")
    return side


def vocab_size(side: int) -> int:
    """Number of tokens: PAD, blank and the digits; 11 at side 9, as published."""
    return side + 1 + DIGIT_OFFSET


def units(side: int) -> NDArray[np.int64]:
    """Cell numbers of the rows, columns and boxes, int64[3 * side, side]."""
    cells = np.arange(side * side).reshape(side, side)
    rows, columns = BOXES[side]
    boxes = cells.reshape(side // rows, rows, side // columns, columns).swapaxes(1, 2).reshape(side, side)
    return np.concatenate([cells, cells.T, boxes])


def is_valid(questions: NDArray[np.uint8], answers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether answers[..., L] keep the givens of questions[..., L] and obey all rules, bool[...]."""
    side = side_of(answers.shape[-1])
    rows, columns = BOXES[side]
    digits = np.zeros(256, dtype=np.uint16)
    digits[1 + DIGIT_OFFSET : side + 1 + DIGIT_OFFSET] = 1 << np.arange(side)
    bits = digits[answers].reshape(*answers.shape[:-1], side // rows, rows, side // columns, columns)
    # A unit of `side` cells shows all `side` digits exactly when it shows each of them once.
    full = (1 << side) - 1
    valid = ((questions == BLANK) | (questions == answers)).all(axis=-1)
    for axes in ((-2, -1), (-4, -3), (-3, -1)):
        valid &= (np.bitwise_or.reduce(bits, axis=axes) == full).all(axis=(-2, -1))
    return valid
