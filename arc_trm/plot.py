"""Draw the metrics of training runs: a panel for each metric, a colour for each run.

python -m arc_trm.plot runs/arc1
python -m arc_trm.plot runs/full-canvas runs/windows --out compared.png
python -m arc_trm.plot runs/a0,runs/a1,runs/a2 "runs/b?" --out seeds.png

Runs that one word names, by commas or by a quoted pattern, are seeds of one run: a line shows their mean and a band
their standard deviation, at the steps that all of them report.
"""

import glob
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arc_trm.metrics import read_reports
from data_prep.files import InputError, refuse_input, write_atomic
from data_prep.program import command_line, run_program

Curves = Mapping[str, NDArray[np.float64]]  # by metric: steps and values, [2, n] or more
COLUMNS = 4


def read_run(folder: Path) -> Curves:
    """Read the curves of the run in `folder`; raises InputError if its metrics.jsonl holds no report."""
    path = folder / "metrics.jsonl"
    points: dict[str, list[tuple[float, float]]] = {}
    for report in read_reports(path):
        for name in report.keys() - {"step"}:
            if isinstance(report[name], (int, float)):
                points.setdefault(name, []).append((report["step"], report[name]))
    if not points:
        raise InputError(f"{path}: holds no report yet, expected lines like {{'step': 10, 'train/loss': 1.2}}")
    return {name: np.array(values, np.float64).T for name, values in sorted(points.items())}


def run_folders(word: str) -> list[Path]:
    """Return the folders that a word of the command line names, by commas, by patterns, or as it stands."""
    return [Path(path) for part in word.split(",") for path in sorted(glob.glob(part)) or [part]]


def over_seeds(runs: Sequence[Curves]) -> Curves:
    """Return step, mean and standard deviation of the metrics that all runs report, float64 [3, n] by metric."""
    together = {}
    for metric in sorted(set.intersection(*map(set, runs))):
        values = [dict(run[metric].T.tolist()) for run in runs]  # by step
        steps = sorted(set.intersection(*map(set, values)))
        if steps:
            each = np.array([[own[step] for step in steps] for own in values])
            together[metric] = np.stack((steps, each.mean(0), each.std(0)))
    return together


def draw(runs: Mapping[str, Curves]) -> bytes:
    """Return a PNG of what `over_seeds` gave by name: means as faint points, their running means as lines in bands."""
    from matplotlib.figure import Figure  # here, because importing it takes time

    metrics = sorted({name for curves in runs.values() for name in curves})
    rows = -(-len(metrics) // COLUMNS)
    figure = Figure(figsize=(4.5 * COLUMNS, 0.5 + 3 * rows), layout="constrained")
    lines = {}
    for place, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(rows, COLUMNS, place, title=metric, xlabel="optimiser step")
        for number, (name, curves) in enumerate(runs.items()):
            if metric in curves:
                steps, values, deviations = curves[metric]
                middle, width, colour = running_mean(values), running_mean(deviations), f"C{number}"
                axes.plot(steps, values, ".", color=colour, alpha=0.3)
                [lines[name]] = axes.plot(steps, middle, color=colour)
                axes.fill_between(steps, middle - width, middle + width, color=colour, alpha=0.2, linewidth=0)
        if metric.endswith(("loss", "lr")) and axes.dataLim.y0 > 0:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
    figure.legend(lines.values(), lines.keys(), loc="outside upper left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centred mean over a thirtieth of the values, fewer at the ends; both float64 [n]."""
    window = np.ones(2 * (len(values) // 60) + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw one picture and return the exit status."""
    parser = command_line("arc_trm.plot", __doc__)
    help_text = "a run folder; several seeds of a run: folders joined by commas, or a quoted pattern"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=help_text)
    parser.add_argument("--out", metavar="FILE", type=Path, help="the picture (default: curves.png in the first RUN)")
    arguments = parser.parse_args(argv)
    folders = {word: run_folders(word) for word in arguments.runs}
    out = arguments.out or folders[arguments.runs[0]][0] / "curves.png"
    refuse_input(out, [folder for several in folders.values() for folder in several])
    runs = {word: over_seeds([read_run(folder) for folder in several]) for word, several in folders.items()}
    write_atomic(out, draw(runs))
    print(f"wrote {out}: " + ", ".join(f"{name} with {len(curves)} metrics" for name, curves in runs.items()))
    return 0


if __name__ == "__main__":
    run_program(main)
