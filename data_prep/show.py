"""Look at tasks in the terminal.

python -m data_prep.show arc1-training 007bbfb7           one task in colour
python -m data_prep.show challenges.json 00576224 --solutions solutions.json
python -m data_prep.show data/arc1                        the names of all tasks of a dataset, file or corpus
python -m data_prep.show data/sudoku test/0               a Sudoku or maze of a dataset (the first), with its answer

Grids are coloured blocks in a terminal, digits elsewhere; the environment variables NO_COLOR and FORCE_COLOR overrule
that.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TextIO

import numpy as np

from data_prep.boards import BoardStore
from data_prep.corpus import CONCEPTARC, PINNED, find_tasks, pick
from data_prep.files import MANIFEST, InputError
from data_prep.grid import Grid
from data_prep.program import command_line, run_program
from data_prep.store import open_store
from data_prep.tasks import Task

# Grids as text ------------------------------------------------------------------------------------------------------

# ARC's own colours, 0-9, as its viewer shows them.
PALETTE = (
    "#000000", "#0074D9", "#FF4136", "#2ECC40", "#FFDC00", "#AAAAAA", "#F012BE", "#FF851B", "#7FDBFF", "#870C25",
)  # fmt: skip
# On a drawn canvas, PAD is left empty and EOS is a dark grey that is no colour of ARC.
PAD_SYMBOL, EOS_SYMBOL = ".", "e"
# The nearest of xterm's 256 colours, as escape sequence parameters; "49" is the terminal's own.
_NEAREST = (16, 32, 203, 41, 220, 248, 199, 208, 117, 88, 237)
_BACKGROUNDS = {symbol: f"48;5;{number}" for symbol, number in zip("0123456789" + EOS_SYMBOL, _NEAREST, strict=True)}
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def wants_colour(stream: TextIO | None = None) -> bool:
    """Return whether text for `stream` (stdout by default) should carry colours."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def render(grid: Grid) -> str:
    """Draw a grid as lines without a final newline: coloured blocks if `wants_colour`, else digits."""
    return render_symbols(["".join(map(str, row)) for row in grid.tolist()])


def render_symbols(rows: Sequence[str]) -> str:
    """Draw rows of symbols likewise: digits are colours, PAD_SYMBOL and EOS_SYMBOL are further tokens of a canvas."""
    if not wants_colour():
        return "\n".join(" ".join(row) for row in rows)
    runs = [[(_BACKGROUNDS.get(symbol, "49"), len(list(run))) for symbol, run in groupby(row)] for row in rows]
    lines = ["".join(f"\x1b[{background}m{'  ' * length}" for background, length in row) for row in runs]
    # In a thin frame, because without it black cells end nowhere on a black terminal.
    edge, side = "──" * len(rows[0]), f"{_DIM}│{_RESET}"
    framed = [f"{side}{line}{_RESET}{side}" for line in lines]
    return "\n".join([f"{_DIM}┌{edge}┐{_RESET}", *framed, f"{_DIM}└{edge}┘{_RESET}"])


def visible_width(text: str) -> int:
    """Count the columns of the widest line, without escape sequences."""
    return max(len(_ESCAPES.sub("", line)) for line in text.split("\n"))


def beside(texts: Sequence[str], gap: str = "    ") -> str:
    """Put texts of several lines next to each other, top aligned; those too many for a terminal's width go below."""
    widths = [visible_width(text) for text in texts]
    room = shutil.get_terminal_size().columns if wants_colour() else sum(widths) + len(gap) * len(widths)
    count = max(1, int((np.cumsum(widths) + len(gap) * np.arange(len(widths)) <= room).sum()))
    rows = zip_longest(*(text.split("\n") for text in texts[:count]), fillvalue="")
    padded = (
        [line + " " * (width - visible_width(line)) for line, width in zip(row, widths, strict=False)] for row in rows
    )
    below = [beside(texts[count:], gap)] if texts[count:] else []
    return "\n".join([*(gap.join(line).rstrip(" ") for line in padded), *below])


# Tasks and boards as text -------------------------------------------------------------------------------------------

# Symbols of the tokens of Sudokus and mazes, from PAD on.
BOARD_SYMBOLS = {"sudoku": "?.123456789", "maze": "?# SGo"}


def show_task(task: Task) -> str:
    """Draw all pairs of a task, one below the other; a hidden output is a question mark."""
    roles = {"demonstration": task.demonstrations, "test": task.tests}
    lines = [f"{task.name}: " + ", ".join(_number(len(pairs), role) for role, pairs in roles.items())]
    for role, pairs in roles.items():
        for i, pair in enumerate(pairs):
            grids = (pair.input, pair.output)
            sizes = ["hidden" if grid is None else f"{len(grid)} × {len(grid[0])}" for grid in grids]
            drawn = ["?" if grid is None else render(grid) for grid in grids]
            lines += ["", f"{role} {i}: {' → '.join(sizes)}", beside(drawn)]
    return "\n".join(lines)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def show_board(store: BoardStore, name: str) -> str:
    """Draw one puzzle of a Sudoku or maze dataset with its answer; `name` is split and number, as in "test/0".

    Raises InputError, with the names there are, if there is no such puzzle.
    """
    split, _, number = name.partition("/")
    splits = {"train": store.train, "test": store.test}
    if split not in splits or not re.fullmatch("[0-9]{1,9}", number) or int(number) >= len(splits[split]):
        expected = " or ".join(f"{split}/0 to {split}/{len(rows) - 1}" for split, rows in splits.items())
        raise InputError(f"no puzzle {name}, expected {expected}")
    rows, index, symbols = splits[split], int(number), np.array(list(BOARD_SYMBOLS[store.kind]))
    squares = (symbols[tokens[index]].reshape(store.side, -1) for tokens in (rows.questions, rows.answers))
    texts = ["\n".join(map(" ".join, square)) for square in squares]
    return f"{store.kind} {name}, rating {rows.ratings[index]:g}\n" + beside(texts)


def main(argv: Sequence[str] | None = None) -> int:
    """Print tasks, or their names; returns the exit status."""
    parser = command_line("data_prep.show", __doc__)
    add, corpora = parser.add_argument, ", ".join([*PINNED, CONCEPTARC])
    add("source", metavar="SOURCE", help=f"corpus ({corpora}), file or folder of tasks, or dataset folder")
    add("tasks", metavar="TASK_ID", nargs="*", help="tasks to show; none: their names")
    add("--solutions", metavar="FILE", type=Path, help="Kaggle's file of outputs for a challenges file")
    add("--conceptarc", metavar="DIR", type=Path, help="ConceptARC's folder of task folders")
    arguments = parser.parse_args(argv)
    store = open_store(arguments.source) if (Path(arguments.source) / MANIFEST).is_file() else None
    if isinstance(store, BoardStore):
        print("\n\n".join(show_board(store, name) for name in arguments.tasks or ["test/0"]))
        return 0
    tasks = find_tasks(arguments.source, arguments.conceptarc, arguments.solutions)
    chosen = [task for name in arguments.tasks for task in pick(tasks, name, arguments.source)]
    print("\n\n".join(map(show_task, chosen)) if chosen else "\n".join(task.name for task in tasks))
    return 0


if __name__ == "__main__":
    run_program(main)
