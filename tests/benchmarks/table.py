"""One measured line of `make bench` and how the table is printed."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A figure: what, at which size, and its ratio to the plain path measured in the same run."""

    what: str
    size: str
    figure: float
    unit: str
    ratio: float | None = None
    note: str = ""


def median_seconds(call: Callable[[], object], repeats: int = 5, warmups: int = 1) -> float:
    """Median wall-clock seconds of `call` over `repeats` runs after `warmups` unmeasured ones."""
    for _ in range(warmups):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def format_table(rows: Sequence[Row]) -> str:
    """The rows as an aligned text table."""
    cells = [("what", "size", "figure", "unit", "ratio", "note")]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        cells.append(
            (
                row.what,
                row.size,
                f"{row.figure:,.4g}" if row.figure < 1000 else f"{row.figure:,.0f}",
                row.unit,
                ratio,
                row.note,
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
