"""Draw the metrics of training runs: a panel for each metric, a colour for each run.

python -m arc_trm.plot runs/arc1
python -m arc_trm.plot runs/full-canvas runs/windows --out compared.png
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arc_trm.metrics import read_reports
from data_prep.files import InputError, refuse_input, write_atomic
from data_prep.program import command_line, run_program

Curves = Mapping[str, NDArray[np.float64]]  # by metric: steps and values, [2, n]
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


def draw(runs: Mapping[str, Curves]) -> bytes:
    """Return a PNG of the metrics of runs by name: logged values as faint points, running means as lines."""
    from matplotlib.figure import Figure  # here, because importing it takes time

    metrics = sorted({name for curves in runs.values() for name in curves})
    rows = -(-len(metrics) // COLUMNS)
    figure = Figure(figsize=(4.5 * COLUMNS, 0.5 + 3 * rows), layout="constrained")
    lines = {}
    for place, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(rows, COLUMNS, place, title=metric, xlabel="optimiser step")
        for number, (name, curves) in enumerate(runs.items()):
            if metric in curves:
                steps, values = curves[metric]
                axes.plot(steps, values, ".", color=f"C{number}", alpha=0.3)
                [lines[name]] = axes.plot(steps, running_mean(values), color=f"C{number}")
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
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the picture (default: curves.png in the first RUN)")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.runs[0] / "curves.png"
    refuse_input(out, arguments.runs)
    runs = {str(folder): read_run(folder) for folder in arguments.runs}
    write_atomic(out, draw(runs))
    print(f"wrote {out}: " + ", ".join(f"{name} with {len(curves)} metrics" for name, curves in runs.items()))
    return 0


if __name__ == "__main__":
    run_program(main)
