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
# On a drawn canvas, PAD is left empty and EOS is a dark grey that is no colour of ARC.
PAD_SYMBOL, EOS_SYMBOL = ".", "e"
_HEX = {**{str(colour): code for colour, code in enumerate(PALETTE)}, EOS_SYMBOL: "#3A3A3A"}
# The nearest of xterm's 256 colours, for terminals that do not say that they know more.
_XTERM = dict(zip(_HEX, (16, 32, 203, 41, 220, 248, 199, 208, 117, 88, 237), strict=True))
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_FOREGROUND, _BACKGROUND = 38, 48


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
    return render_symbols(["".join(map(str, row)) for row in grid.tolist()], style)


def render_symbols(rows: Sequence[str], style: str | None = None) -> str:
    """The same for rows of symbols: digits are colours, PAD_SYMBOL and EOS_SYMBOL what a canvas has besides."""
    if style is None:
        style = "blocks" if wants_colour() else "digits"
    if style not in STYLES:
        raise InputError(f"unknown style {style!r}, expected one of: {', '.join(STYLES)}")
    return "\n".join(STYLES[style](rows))


def _colour(symbol: str, layer: int) -> str:
    """The escape sequence parameters of a symbol's colour in a layer."""
    if symbol not in _HEX:
        return str(layer + 1)  # the terminal's own
    if os.environ.get("COLORTERM") not in ("truecolor", "24bit"):
        return f"{layer};5;{_XTERM[symbol]}"
    red, green, blue = bytes.fromhex(_HEX[symbol][1:])
    return f"{layer};2;{red};{green};{blue}"


def _framed(lines: Sequence[str], width: int) -> list[str]:
    """The lines in a thin frame: without it, black cells end nowhere on a black terminal."""
    side = f"{_DIM}│{_RESET}"
    return [
        f"{_DIM}┌{'─' * width}┐{_RESET}",
        *(f"{side}{line}{side}" for line in lines),
        f"{_DIM}└{'─' * width}┘{_RESET}",
    ]


def _blocks(rows: Sequence[str]) -> list[str]:
    """Two character cells a grid cell."""
    lines = [
        "".join(f"\x1b[{_colour(symbol, _BACKGROUND)}m{'  ' * len(list(run))}" for symbol, run in groupby(row)) + _RESET
        for row in rows
    ]
    return _framed(lines, 2 * len(rows[0]))


def _compact(rows: Sequence[str]) -> list[str]:
    """Two grid rows a line, one character cell wide: a quarter of the room, and the cells are square."""
    lines = []
    for upper, lower in zip_longest(rows[::2], rows[1::2], fillvalue=PAD_SYMBOL * len(rows[0])):
        line = ""
        for (above, below), run in groupby(zip(upper, lower, strict=True)):
            # A half block has a colour of its own only in the foreground, so an empty upper half needs the other one.
            half, front, back = ("▄", below, above) if above == PAD_SYMBOL else ("▀", above, below)
            block = " " if front == PAD_SYMBOL else half
            line += f"\x1b[{_colour(front, _FOREGROUND)};{_colour(back, _BACKGROUND)}m{block * len(list(run))}"
        lines.append(line + _RESET)
    return _framed(lines, len(rows[0]))


def _digits(rows: Sequence[str]) -> list[str]:
    return [" ".join(row) for row in rows]


STYLES: dict[str, Callable[[Sequence[str]], list[str]]] = {
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


def fitting_style(columns: Sequence[int], gap: int = 4) -> str | None:
    """The style in which grids of so many columns fit side by side: None (the usual one), or "compact" if needed."""
    width = sum(2 * count + 2 for count in columns) + gap * (len(columns) - 1)
    return "compact" if wants_colour() and width > shutil.get_terminal_size().columns else None
