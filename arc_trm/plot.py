"""Draw the curves of training runs: losses, accuracies, steps until halting, throughput, scores.

    python -m arc_trm.plot runs/arc1
    python -m arc_trm.plot runs/full-canvas runs/windows --out compared.png

Reads the metrics.jsonl that training writes into its run folder; several runs are drawn into the same axes.
"""

import argparse
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from data_prep.files import InputError, refuse_input, run_program, write_atomic

METRICS = "metrics.jsonl"
PICTURE = "curves.png"


class Panel(NamedTuple):
    """One pair of axes: the metrics in it, and the scale of its vertical axis."""

    title: str
    metrics: tuple[str, ...]
    scale: str = "linear"


# A metric that stands in none of these gets a panel of its own, so that nothing that was logged goes unseen.
PANELS = (
    Panel("loss", ("train/loss", "train/token_loss", "train/halting_loss", "train/continue_loss"), "log"),
    Panel("accuracy of halted sequences", ("train/exact_accuracy", "train/token_accuracy", "train/halting_accuracy")),
    Panel("supervision steps until halting", ("train/supervision_steps",)),
    Panel("examples/s", ("train/examples_per_second",)),
    Panel("peak memory, GB", ("train/peak_memory_gb",)),
    Panel("learning rate", ("train/lr", "train/puzzle_lr"), "log"),
    Panel("score on the evaluation tasks", ("evaluation/outputs", "evaluation/task_mean", "evaluation/tasks")),
    Panel("pass@k of the outputs", tuple(f"evaluation/pass@{k}" for k in (1, 2, 5, 10, 100, 1000))),
)
SMOOTHED_ABOVE = 60  # points in a curve


@dataclass(frozen=True)
class Run:
    """What a run reported: for every metric its steps and values."""

    name: str
    curves: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]

    @property
    def last_step(self) -> int:
        """The last step that was reported."""
        return int(max(steps[-1] for steps, _ in self.curves.values()))


def read_run(folder: Path) -> Run:
    """The reports of a run; raises InputError when there are none. A line cut short by a kill is left out."""
    path = folder / METRICS
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); expected the folder of a training run") from error
    points: dict[str, list[tuple[float, float]]] = {}
    for report in filter(None, map(_parse, lines)):
        for name in report.keys() - {"step"}:
            if isinstance(report[name], (int, float)) and math.isfinite(report[name]):
                points.setdefault(name, []).append((report["step"], report[name]))
    if not points:
        raise InputError(f"{path}: holds no report yet, expected lines like {{'step': 10, 'train/loss': 1.2}}")
    columns = {name: np.array(values, np.float64).T for name, values in points.items()}
    return Run(_label(folder), {name: (column[0], column[1]) for name, column in columns.items()})


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        report = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return report if isinstance(report, dict) and isinstance(report.get("step"), int) else None


def _label(folder: Path) -> str:
    """The run's name, with what matters most for throughput where its settings are at hand."""
    name = folder.resolve().name
    try:
        train = orjson.loads((folder / "config.json").read_bytes())["train"]
        return f"{name} (canvas {train['canvas']}, batch {train['batch_size']}, {train['precision']})"
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return name


def panels_of(runs: Sequence[Run]) -> list[Panel]:
    """The panels that have something to show, the known ones first."""
    present = {name for run in runs for name in run.curves}
    known = [panel for panel in PANELS if present & set(panel.metrics)]
    others = sorted(present - {name for panel in PANELS for name in panel.metrics})
    return [*known, *(Panel(name, (name,)) for name in others)]


def draw(runs: Sequence[Run], columns: int = 3) -> bytes:
    """The PNG of all panels, `columns` next to each other."""
    import matplotlib as mpl  # here, because it takes time to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = panels_of(runs)
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(5.2 * columns, 3.5 * rows), squeeze=False, layout="constrained")
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, runs)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(
        "\n".join(f"{style} {run.name}" for style, run in zip(_styles(runs), runs, strict=True)), fontsize=10
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return buffer.getvalue()


LINE_STYLES = {"——": "-", "– –": "--", "· · ·": ":", "– · –": "-."}


def _styles(runs: Sequence[Run]) -> list[str]:
    """The line style of every run, drawn in text."""
    names = list(LINE_STYLES)
    return [names[i % len(names)] for i in range(len(runs))]


def _draw_panel(axes: Any, panel: Panel, runs: Sequence[Run]) -> None:
    for style, run in zip(_styles(runs), runs, strict=True):
        for number, name in enumerate(panel.metrics):
            if name in run.curves:
                label = name.rpartition("/")[2].replace("_", " ")
                _draw_curve(
                    axes, *run.curves[name], f"C{number}", LINE_STYLES[style], label if run is runs[0] else None
                )
    values = [run.curves[name][1] for run in runs for name in panel.metrics if name in run.curves]
    axes.set(title=panel.title, xlabel="optimiser step")
    lowest = min(map(np.min, values))
    if panel.scale == "log" and lowest > 0:
        axes.set_yscale("log")
    elif lowest >= 0:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(panel.metrics) > 1:
        axes.legend(fontsize=8)


def _draw_curve(
    axes: Any, steps: NDArray[np.float64], values: NDArray[np.float64], colour: str, style: str, label: str | None
) -> None:
    if len(values) <= SMOOTHED_ABOVE:
        axes.plot(steps, values, style, color=colour, label=label, marker="." if len(values) < 20 else None)
        return
    axes.plot(steps, values, "-", color=colour, alpha=0.2, linewidth=0.8)
    axes.plot(steps, smoothed(values), style, color=colour, label=label)


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred running mean over a thirtieth of the curve, at the ends over what there is."""
    half = max(1, len(values) // 60)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    start, end = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    means: NDArray[np.float64] = (sums[end] - sums[start]) / (end - start)
    return means


def main(argv: Sequence[str] | None = None) -> int:
    """Draw one picture; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m arc_trm.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders")
    parser.add_argument("--out", metavar="FILE", type=Path, help=f"the picture (default: {PICTURE} in the first RUN)")
    arguments = parser.parse_args(argv)
    runs = [read_run(folder) for folder in arguments.runs]
    out = arguments.runs[0] / PICTURE if arguments.out is None else arguments.out
    refuse_input(out, arguments.runs)
    write_atomic(out, draw(runs))
    print(f"wrote {out}: {len(panels_of(runs))} panels, up to step {max(run.last_step for run in runs)}")
    return 0


if __name__ == "__main__":
    run_program(main)
