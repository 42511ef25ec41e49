"""The padded square of tokens that the model sees: encode a grid onto it, cut a grid out of it.

The full canvas is 30 x 30. A smaller side is the window of the full canvas at (0, 0), if the grid and its EOS border
fit into it. PAD cells have no labels.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import COLOURS, MAX_SIDE, Grid
from data_prep.tasks import Task

PAD, EOS, COLOUR_OFFSET = 0, 1, 2
VOCAB_SIZE = COLOUR_OFFSET + COLOURS
CANVAS_SIDE = MAX_SIDE
CANVAS_SIDES = (11, 16, 21, 30)  # grids up to 10, 15 and 20 a side with their EOS border, and the full canvas
IGNORE_LABEL = -100

Shape = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Placement:
    """The canvas cell under a grid's top left cell."""

    row: int
    column: int


ORIGIN = Placement(0, 0)


def encode(grid: Grid, placement: Placement = ORIGIN, side: int = CANVAS_SIDE) -> NDArray[np.uint8]:
    """Return tokens uint8[side * side]: the grid, one EOS row below and one EOS column right of it if they fit.

    Raises ValueError if the grid does not fit at the placement.
    """
    top, left = placement.row, placement.column
    bottom, right = top + grid.shape[0], left + grid.shape[1]
    if top < 0 or left < 0 or bottom > side or right > side:
        raise ValueError(f"a {grid.shape[0]} x {grid.shape[1]} grid at ({top}, {left}) leaves a side of {side}")
    canvas = np.full((side, side), PAD, dtype=np.uint8)
    canvas[top:bottom, left:right] = grid + np.uint8(COLOUR_OFFSET)
    canvas[bottom : bottom + 1, left:right] = EOS
    canvas[top:bottom, right : right + 1] = EOS
    return canvas.reshape(-1)


def largest_rectangles(
    tokens: NDArray[np.uint8], side: int = CANVAS_SIDE
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Find the largest rectangles of colours that begin at (0, 0), heights and widths uint8[n], in [n, side * side].

    Of equal areas the one with fewer rows counts (the published rule). Both are 0 if the first cell is no colour.
    Raises TypeError for tokens of another type.
    """
    if tokens.dtype != np.uint8:
        raise TypeError(f"tokens of type {tokens.dtype}, expected uint8")
    canvases = tokens.reshape(-1, side, side)
    # uint8 arithmetic wraps: PAD and EOS become 254 and 255, so one comparison finds every non-colour.
    stops = (canvases - np.uint8(COLOUR_OFFSET)) >= COLOURS
    runs = stops.argmax(axis=2).astype(np.uint8)
    runs[(runs == 0) & ~stops[:, :, 0]] = side
    np.minimum.accumulate(runs, axis=1, out=runs)
    areas = runs * np.arange(1, side + 1, dtype=np.uint16)
    last_rows = areas.argmax(axis=1)
    widths = np.take_along_axis(runs, last_rows[:, None], axis=1)[:, 0]
    return np.where(widths > 0, last_rows + 1, 0).astype(np.uint8), widths


def closed(
    tokens: NDArray[np.uint8],
    heights: NDArray[np.uint8],
    widths: NDArray[np.uint8],
    side: int = CANVAS_SIDE,
) -> NDArray[np.bool_]:
    """Return whether EOS borders the cut rectangle below and on the right, within the window, bool[n].

    On the full canvas a rectangle that reaches the edge needs no border there; in a smaller window it is
    not closed, because the grid may go on beyond the window. An empty rectangle is not closed.
    """
    eos = tokens.reshape(-1, side, side) == EOS
    n, places = np.arange(len(eos)), np.arange(side)
    at_edge_is_fine = side == CANVAS_SIDE
    below = eos[n, np.minimum(heights, side - 1)] | (places >= widths[:, None])
    right = eos[n, :, np.minimum(widths, side - 1)] | (places >= heights[:, None])
    return (
        np.where(heights < side, below.all(axis=1), at_edge_is_fine)
        & np.where(widths < side, right.all(axis=1), at_edge_is_fine)
        & (heights > 0)
    )


def placement_limits(input_shape: Shape, output_shape: Shape, side: int = CANVAS_SIDE) -> Shape:
    """Return (rows, columns), exclusive bounds of the placements at which both grids fit.

    On the full canvas a grid may touch the edge; in a smaller window its EOS border must be inside too, because the
    full canvas shows it. Raises ValueError if the grids do not even fit at (0, 0).
    """
    border = 0 if side == CANVAS_SIDE else 1
    rows, columns = (side - border - max(a, b) + 1 for a, b in zip(input_shape, output_shape, strict=True))
    if rows < 1 or columns < 1:
        raise ValueError(f"grids of {input_shape} and {output_shape} do not fit into a canvas of side {side}")
    return rows, columns


def _rule_sizes(given: Shape, shown: Shape, asked: Shape) -> list[tuple[Fraction | int, Fraction | int]]:
    """Apply each size rule that one demonstration (given, shown) defines to an input of size `asked`.

    The output has a constant size, is larger than the input by a constant, or by a factor; or by a factor than the
    turned input.
    """
    (height, width), (tall, wide) = given, asked
    return [
        shown,
        (tall + shown[0] - height, wide + shown[1] - width),
        (Fraction(tall * shown[0], height), Fraction(wide * shown[1], width)),
        (Fraction(wide * shown[0], width), Fraction(tall * shown[1], height)),
    ]


def implied_shapes(task: Task) -> list[Shape]:
    """Return the shapes of the test outputs under every size rule that all demonstrations obey."""
    shapes = [(p.input.shape, p.output.shape) for p in task.demonstrations if p.output is not None]
    if not shapes:
        return []
    told = ([size == shown for size in _rule_sizes(*shapes[0], given)] for given, shown in shapes)
    obeyed = [all(rule) for rule in zip(*told, strict=True)]
    return [
        (min(int(height), MAX_SIDE), min(int(width), MAX_SIDE))
        for pair in task.tests
        for (height, width), obeys in zip(_rule_sizes(*shapes[0], pair.input.shape), obeyed, strict=True)
        if obeys
    ]


def choose_side(task: Task) -> int:
    """Return the smallest canvas for every visible grid and every output size that the demonstrations imply.

    Does not look at outputs of test pairs.
    """
    shapes = [pair.input.shape for pair in task.pairs]
    shapes += [pair.output.shape for pair in task.demonstrations if pair.output is not None]
    return smallest_side(max(max(shape) for shape in shapes + implied_shapes(task)))


def smallest_side(longest: int) -> int:
    """Return the smallest canvas for a grid whose longer side has `longest` cells, with its EOS border."""
    return next(side for side in CANVAS_SIDES if longest < side or side == CANVAS_SIDE)
