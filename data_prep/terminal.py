"""Grids as text: coloured blocks in a terminal, digits wherever colour is not wanted or not possible.

Colour is used where the output is a terminal; the environment variables NO_COLOR and FORCE_COLOR overrule that.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from typing import TextIO

from data_prep.files import InputError
from data_prep.grid import Grid

# ARC's own colours, 0-9, as its viewer shows them.
PALETTE = (
    "#000000",
    "#0074D9",
    "#FF4136",
    "#2ECC40",
    "#FFDC00",
    "#AAAAAA",
    "#F012BE",
    "#FF851B",
    "#7FDBFF",
    "#870C25",
)
COLOUR_NAMES = ("black", "blue", "red", "green", "yellow", "grey", "magenta", "orange", "sky", "maroon")
# The nearest of xterm's 256 colours, for terminals that do not say that they know more.
_XTERM = (16, 32, 203, 41, 220, 248, 199, 208, 117, 88)
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def wants_colour(stream: TextIO | None = None) -> bool:
    """Whether text for `stream` (stdout by default) should carry colours."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def render(grid: Grid, style: str | None = None) -> str:
    """The grid as lines of text without a final newline: "blocks", "compact" or "digits" (see STYLES).

    None chooses blocks where `wants_colour`, else digits. Raises InputError for an unknown style.
    """
    if style is None:
        style = "blocks" if wants_colour() else "digits"
    if style not in STYLES:
        raise InputError(f"unknown style {style!r}, expected one of: {', '.join(STYLES)}")
    return "\n".join(STYLES[style](grid.tolist()))


def _colour(colour: int, layer: int) -> str:
    """The escape sequence parameters for a colour as foreground (38) or background (48)."""
    if os.environ.get("COLORTERM") not in ("truecolor", "24bit"):
        return f"{layer};5;{_XTERM[colour]}"
    red, green, blue = bytes.fromhex(PALETTE[colour][1:])
    return f"{layer};2;{red};{green};{blue}"


def _framed(lines: Sequence[str], width: int) -> list[str]:
    """The lines in a thin frame: without it, black cells end nowhere on a black terminal."""
    side = f"{_DIM}│{_RESET}"
    return [
        f"{_DIM}┌{'─' * width}┐{_RESET}",
        *(f"{side}{line}{side}" for line in lines),
        f"{_DIM}└{'─' * width}┘{_RESET}",
    ]


def _blocks(rows: Sequence[Sequence[int]]) -> list[str]:
    """Two character cells a grid cell."""
    lines = [
        "".join(f"\x1b[{_colour(colour, 48)}m{'  ' * len(list(run))}" for colour, run in groupby(row)) + _RESET
        for row in rows
    ]
    return _framed(lines, 2 * len(rows[0]))


def _compact(rows: Sequence[Sequence[int]]) -> list[str]:
    """Two grid rows a line, one character cell wide: a quarter of the room, and the cells are square."""
    lines = []
    for upper, lower in zip_longest(rows[::2], rows[1::2]):
        line = ""
        for (above, below), run in groupby(zip(upper, lower or [None] * len(upper), strict=True)):
            background = "49" if below is None else _colour(below, 48)
            line += f"\x1b[{_colour(above, 38)};{background}m{'▀' * len(list(run))}"
        lines.append(line + _RESET)
    return _framed(lines, len(rows[0]))


def _digits(rows: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


STYLES: dict[str, Callable[[Sequence[Sequence[int]]], list[str]]] = {
    "blocks": _blocks,
    "compact": _compact,
    "digits": _digits,
}


def visible_width(text: str) -> int:
    """Columns that the widest line takes, escape sequences apart."""
    return max(len(_ESCAPES.sub("", line)) for line in text.split("\n"))


def beside(texts: Sequence[str], gap: str = "  ") -> str:
    """Texts of several lines next to each other, top aligned, `gap` between them."""
    widths = [visible_width(text) for text in texts]
    rows = zip_longest(*(text.split("\n") for text in texts), fillvalue="")
    return "\n".join(
        gap.join(line + " " * (width - visible_width(line)) for line, width in zip(row, widths, strict=True)).rstrip(
            " "
        )
        for row in rows
    )


def terminal_width() -> int:
    """Columns of the terminal, or of the text where there is none (80, or what COLUMNS says)."""
    return shutil.get_terminal_size().columns


def fitting_style(grids: Sequence[Grid], gap: int = 4) -> str | None:
    """The style in which these grids fit next to each other: None (the usual one), or "compact" if that is needed."""
    width = sum(2 * grid.shape[1] + 2 for grid in grids) + gap * (len(grids) - 1)
    return "compact" if wants_colour() and width > terminal_width() else None
