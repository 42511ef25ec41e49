"""Pictures for notebooks: tasks, their views, answers that grow, scores, and curves of a training run while it runs."""

import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arc_trm import plot
from arc_trm.frames import Frame
from data_prep.canvas import COLOUR_OFFSET
from data_prep.files import InputError
from data_prep.grid import dihedral
from data_prep.show import PALETTE
from data_prep.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By token: PAD, EOS (a hidden cell of a Sudoku), then the ten colours.
COLOURS = ("#ffffff", "#dddddd", *PALETTE)
SECONDS = 5.0  # between two pictures of a run


@dataclass(frozen=True)
class Picture:
    """A PNG that a notebook shows if it is the value of a cell."""

    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png


def picture(figure: "Figure") -> Picture:
    """Return a figure of matplotlib as a picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Picture(buffer.getvalue())


def draw(panels: Sequence[tuple[str, NDArray[np.uint8]]], columns: int) -> Picture:
    """Draw titled squares of tokens [height, width] in rows of so many columns."""
    from matplotlib.colors import ListedColormap  # here, because importing it takes time
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2 * columns, 2.2 * rows), layout="constrained")
    for place, (title, tokens) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place, title=title, xticks=[], yticks=[])
        colours, last = ListedColormap(COLOURS), len(COLOURS) - 0.5
        axes.pcolormesh(tokens[::-1], cmap=colours, vmin=-0.5, vmax=last, edgecolors="#888888", linewidth=0.5)
        axes.set_aspect("equal")
    return picture(figure)


def show_task(task: Task) -> Picture:
    """Draw the pairs of a task, each with its input beside its output; a hidden output is left out."""
    named = [*((f"example {i}", pair) for i, pair in enumerate(task.demonstrations))]
    named += [(f"test {i}", pair) for i, pair in enumerate(task.tests)]
    sides = [(f"{name}: {side}", getattr(pair, side)) for name, pair in named for side in ("input", "output")]
    return draw([(title, grid + COLOUR_OFFSET) for title, grid in sides if grid is not None], 4)


def show_views(task: Task) -> Picture:
    """Draw the first input of a task turned and mirrored in all eight ways, each in other colours; black stays."""
    grid = task.demonstrations[0].input
    views = [np.where(grid > 0, (grid + t - 1) % 9 + 1, 0) for t in range(8)]
    return draw([(f"view {t}", dihedral(view, t).astype(np.uint8) + COLOUR_OFFSET) for t, view in enumerate(views)], 4)


def show_answers(frames: Sequence[Frame]) -> Picture:
    """Draw the answer after every supervision step; a cell that is not sure is white."""
    return draw([(f"step {i}", frame.canvases[0]) for i, frame in enumerate(frames, start=1)], 8)


def show_scores(scores: Mapping[int, float]) -> Picture:
    """Draw scores from 0 to 1 as bars, by number of supervision steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 2.5), layout="constrained")
    axes = figure.add_subplot(ylim=(0, 1), xlabel="supervision steps", ylabel="score")
    axes.bar_label(axes.bar(list(map(str, scores)), list(scores.values())), fmt="{:.1%}")
    return picture(figure)


def train_live(words: Sequence[str], out: Path) -> None:
    """Train into `out` as arc_trm.train does with `words`, and redraw the curves in a notebook until it ends.

    Raises InputError with the program's last line if it fails.
    """
    from IPython.display import display

    shown = display(display_id=True)  # type: ignore[no-untyped-call]
    command = [sys.executable, "-m", "arc_trm.train", *words, f"--out={out}", "--log.track=none"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as training:
        running = True
        while running:
            try:
                _, said = training.communicate(timeout=SECONDS)
                running = False
            except subprocess.TimeoutExpired:
                said = ""
            log = out / "metrics.jsonl"
            if log.is_file() and log.stat().st_size:
                shown.update(Picture(plot.draw({"training": plot.over_seeds([plot.read_run(out)])})))
    if training.returncode:
        raise InputError(f"training failed: {said.strip().rpartition(chr(10))[2]}")
