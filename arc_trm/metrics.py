"""The log of a run: one JSON object a line in `metrics.jsonl`, and the trackers of Accelerate."""

import os
from pathlib import Path
from typing import Any

import orjson
from accelerate import Accelerator

from arc_trm.config import RunConfig, flat
from data_prep.files import InputError, write_atomic


def read_reports(path: Path) -> list[dict[str, Any]]:
    """Read the reports of a `metrics.jsonl`, oldest first; skip a last line that a kill cut short.

    Raises InputError if the file cannot be read, or naming the first line that is no report.
    """
    try:
        lines = path.read_bytes().rpartition(b"\n")[0].splitlines()
    except OSError as error:
        raise InputError(f"{path}: not the log of a run ({error})") from error
    return [_report(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _report(line: bytes, where: str) -> dict[str, Any]:
    try:
        report = orjson.loads(line)
    except ValueError:
        report = None
    if not isinstance(report, dict) or not isinstance(report.get("step"), (int, float)):
        found = line[:60].decode(errors="replace")
        raise InputError(f"{where}: not the log of a run (found {found!r}, expected a JSON object with a step)")
    return report


class MetricLog:
    """Append reports to `metrics.jsonl` and hand them to Accelerate's trackers; training and solving have one each."""

    def __init__(self, accelerator: Accelerator, out: Path, config: RunConfig, step: int, prefix: str = "") -> None:
        """Open the log of a run that stands at `step`; drop reports of later steps (from before a kill).

        `prefix` precedes the file names in the folder `out`. Raises InputError if the log is damaged.
        """
        self.accelerator, self.path = accelerator, out / f"{prefix}metrics.jsonl"
        self.scores: dict[str, float] = {}  # the latest evaluation; the main process also knows earlier runs'
        if accelerator.is_main_process:
            reports = read_reports(self.path) if self.path.exists() else []
            kept = [report for report in reports if report["step"] <= step]
            write_atomic(self.path, b"".join(orjson.dumps(report) + b"\n" for report in kept))
            for report in kept:
                self._remember(report)
        # TensorBoard hides what an earlier process wrote of steps that are done again.
        options = {"tensorboard": {"purge_step": step + 1}}
        accelerator.init_trackers(f"{prefix}logs", None if step else flat(config), options)

    def add(self, values: dict[str, float], step: int) -> None:
        """Report `values` for `step`; raises InputError if they cannot be written."""
        if not values:
            return
        report = {"step": step, **values}
        self._remember(report)
        try:
            if self.accelerator.is_main_process:
                with self.path.open("ab") as file:
                    file.write(orjson.dumps(report) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())  # a checkpoint that survives a power cut finds the reports before it
            self.accelerator.log(values, step=step)
        except OSError as error:
            raise InputError(f"{self.path}: cannot write ({error.strerror})") from error

    def _remember(self, report: dict[str, float]) -> None:
        if any(name.startswith("evaluation/") for name in report):
            self.scores = report
