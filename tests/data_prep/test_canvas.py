"""Tokens on a canvas: placements, cuts, canvas sizes."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.canvas import (
    CANVAS_SIDE,
    CANVAS_SIDES,
    EOS,
    ORIGIN,
    PAD,
    VOCAB_SIZE,
    Placement,
    choose_side,
    closed,
    encode,
    implied_shapes,
    largest_rectangles,
    placement_limits,
)
from data_prep.grid import Grid
from data_prep.tasks import Pair
from tests.data_prep.material import (
    decode,
    grid,
    grids,
    random_task,
    task,
)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Grid, Placement, int]:
    side = draw(st.sampled_from(CANVAS_SIDES))
    drawn = draw(grids(side if side == CANVAS_SIDE else side - 1))
    rows, columns = placement_limits(drawn.shape, drawn.shape, side)
    return drawn, Placement(draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))), side


@given(placed())
def test_encode_at_every_placement_is_undone_by_a_cut(example: tuple[Grid, Placement, int]) -> None:
    drawn, placement, side = example
    canvas = encode(drawn, placement, side)
    cut = decode(canvas, placement, side)
    assert cut is not None
    assert np.array_equal(cut, drawn)
    assert canvas.shape == (side * side,)
    assert canvas.max() < VOCAB_SIZE


@given(placed())
def test_a_window_shows_what_the_full_canvas_holds_there(example: tuple[Grid, Placement, int]) -> None:
    drawn, placement, side = example
    full = encode(drawn, placement).reshape(CANVAS_SIDE, CANVAS_SIDE)
    assert np.array_equal(encode(drawn, placement, side).reshape(side, side), full[:side, :side])
    assert np.all(full[side:] == PAD)
    assert np.all(full[:, side:] == PAD)


@given(grids(7), st.integers(-3, 3), st.integers(-3, 3))
def test_encode_refuses_a_grid_outside_the_canvas(drawn: Grid, above: int, left: int) -> None:
    placement = Placement(11 - drawn.shape[0] + above, 11 - drawn.shape[1] + left)
    if above > 0 or left > 0:
        with pytest.raises(ValueError, match="leaves a side of 11"):
            encode(drawn, placement, 11)
    else:
        encode(drawn, placement, 11)


def plain_cut(canvas: NDArray[np.uint8]) -> tuple[int, int]:
    """The largest rectangle at (0, 0) by trying every size; among equals the first with fewest rows."""
    colours = (canvas > EOS) & (canvas < VOCAB_SIZE)
    best = (0, 0)
    for height in range(1, len(canvas) + 1):
        for width in range(1, len(canvas) + 1):
            if colours[:height, :width].all() and height * width > best[0] * best[1]:
                best = (height, width)
    return best


@given(hnp.arrays(np.uint8, (7, 7), elements=st.sampled_from([PAD, EOS, 2, 3, 3, 3, 11, 11, 11, 12, 255])))
@settings(max_examples=300)
def test_largest_rectangles_equal_the_plain_search(canvas: NDArray[np.uint8]) -> None:
    heights, widths = largest_rectangles(canvas.reshape(1, -1), 7)
    assert (int(heights[0]), int(widths[0])) == plain_cut(canvas)


@given(st.lists(placed().filter(lambda example: example[2] == 16), min_size=1, max_size=5))
def test_cuts_of_a_batch_are_those_of_its_canvases(examples: list[tuple[Grid, Placement, int]]) -> None:
    batch = np.stack([encode(drawn, side=16) for drawn, _, _ in examples])
    heights, widths = largest_rectangles(batch, 16)
    assert [(h, w) for h, w in zip(heights, widths, strict=True)] == [drawn.shape for drawn, _, _ in examples]
    assert closed(batch, heights, widths, 16).all()


@given(placed(), st.data())
def test_closed_is_false_if_a_border_cell_is_missing(example: tuple[Grid, Placement, int], data: st.DataObject) -> None:
    drawn, _, side = example
    canvas = encode(drawn, ORIGIN, side)[None]
    heights, widths = (np.array([size], dtype=np.uint8) for size in drawn.shape)
    assert closed(canvas, heights, widths, side).all()
    border = np.flatnonzero(canvas[0] == EOS)
    if len(border):
        canvas[0, data.draw(st.sampled_from(border.tolist()))] = PAD
        assert not closed(canvas, heights, widths, side).any()


@pytest.mark.parametrize(("side", "fine"), [(11, False), (16, False), (21, False), (30, True)])
def test_closed_needs_no_border_only_at_the_edge_of_the_full_canvas(side: int, fine: bool) -> None:
    canvas = encode(np.zeros((side, side), np.uint8), ORIGIN, side)[None]
    edge = np.array([side], dtype=np.uint8)
    assert closed(canvas, edge, edge, side)[0] == fine


def test_largest_rectangles_refuse_tokens_of_another_type() -> None:
    with pytest.raises(TypeError, match="tokens of type int64, expected uint8"):
        decode(encode(grid(["12"])).astype(np.int64))


def test_closed_is_false_for_a_canvas_without_a_rectangle() -> None:
    canvases = np.stack([np.full(900, PAD, np.uint8), np.full(900, EOS, np.uint8)])
    heights, widths = largest_rectangles(canvases)
    assert not heights.any()
    assert not widths.any()
    assert not closed(canvases, heights, widths).any()


@pytest.mark.parametrize("side", CANVAS_SIDES)
def test_placement_limits_leave_room_for_the_border_in_a_window(side: int) -> None:
    largest = side if side == CANVAS_SIDE else side - 1
    assert placement_limits((largest, 2), (3, largest), side) == (1, 1)
    assert placement_limits((largest - 2, 3), (2, 5), side) == (3, largest - 4)
    with pytest.raises(ValueError, match=f"canvas of side {side}"):
        placement_limits((largest + 1, 2), (3, 5), side)


def sized(*shapes: tuple[tuple[int, int], tuple[int, int]]) -> list[Pair]:
    return [Pair(np.zeros(given_shape, np.uint8), np.ones(asked, np.uint8)) for given_shape, asked in shapes]


@pytest.mark.parametrize(
    ("shapes", "asked", "side"),
    [
        ([((3, 5), (3, 5)), ((7, 2), (7, 2))], (11, 3), 16),  # same size as the input
        ([((3, 3), (9, 9)), ((2, 5), (6, 15))], (6, 3), 21),  # three times as large
        ([((10, 4), (2, 2)), ((7, 3), (2, 2))], (5, 5), 11),  # always 2 x 2
        ([((3, 5), (5, 3)), ((2, 7), (7, 2))], (5, 13), 16),  # turned
        ([((3, 5), (5, 7)), ((2, 7), (4, 9))], (13, 14), 21),  # two more on each side
        ([((2, 3), (11, 1)), ((3, 2), (2, 7))], (2, 2), 16),  # no rule: the largest visible grid
        ([((9, 9), (27, 27)), ((5, 4), (15, 12))], (11, 11), 30),  # 33 would be implied
        ([((21, 2), (2, 2))], (2, 2), 30),
    ],
)
def test_choose_side_follows_only_from_what_is_visible(
    shapes: list[tuple[tuple[int, int], tuple[int, int]]], asked: tuple[int, int], side: int
) -> None:
    for hidden in (None, np.zeros((1, 1), np.uint8), np.zeros((30, 30), np.uint8)):
        made = task("t", sized(*shapes), [Pair(np.zeros(asked, np.uint8), hidden)])
        assert choose_side(made) == side


def test_implied_shapes_are_none_without_a_demonstrated_output() -> None:
    made = task("t", [Pair(grid(["12"]), None)], [Pair(grid(["1"]), None)])
    assert implied_shapes(made) == []
    assert choose_side(made) == 11


@given(st.integers(0, 50))
def test_choose_side_fits_every_visible_grid(seed: int) -> None:
    made = random_task(seed)
    side = choose_side(made)
    for shown in made.demonstrations:
        assert shown.output is not None
        placement_limits(shown.input.shape, shown.output.shape, side)
