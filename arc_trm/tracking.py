"""What a run reports: a file of its own, and the trackers of Accelerate."""

import os
import sys
from pathlib import Path
from typing import Any

import orjson
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType

from arc_trm.config import RunConfig, to_json
from arc_trm.memory import keep_freed_memory
from data_prep.files import InputError, write_atomic

EVALUATION = "evaluation/"


def make_accelerator(track: str, out: Path) -> Accelerator:
    """The Accelerator of a run; without the asked-for tracker's package it says so and goes on without.

    On a CPU the process keeps the memory that it frees from here on.
    Raises InputError for a tracker that Accelerate does not know.
    """
    # The model does its own casting (float32 weights, a few statistics in float32), so no mixed precision here.
    # On a CPU several processes find each other only when the program asks for the CPU.
    cpu = not torch.accelerator.is_available()
    if cpu:
        keep_freed_memory()
    known = sorted(str(name) for name in LoggerType if name != LoggerType.ALL)
    if track != "none" and track not in known:
        raise InputError(f"log.track: found {track!r}, expected none or one of {', '.join(known)}")
    if track in [str(name) for name in get_available_trackers()]:
        return Accelerator(log_with=track, project_dir=str(out), cpu=cpu)
    accelerator = Accelerator(cpu=cpu)
    if track != "none" and accelerator.is_main_process:
        print(f"note: {track} is not installed, going on without it; metrics.jsonl has every figure", file=sys.stderr)
    return accelerator


class MetricLog:
    """Every reported figure, one JSON line a report in `metrics.jsonl`, and the trackers of Accelerate."""

    def __init__(self, accelerator: Accelerator, out: Path, config: RunConfig, step: int) -> None:
        """Open the log of a run that stands at `step`; reports of later steps (from before a kill) are dropped."""
        self.accelerator, self.path = accelerator, out / "metrics.jsonl"
        self.scores: dict[str, float] = {}  # of the latest evaluation
        self._scores_step = -1
        if accelerator.is_main_process:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            kept = [line for line in lines if _step_of(line) <= step]
            write_atomic(self.path, b"".join(kept))
            for line in kept:
                self._remember(orjson.loads(line))
        # TensorBoard hides what an earlier process wrote of steps that are done again.
        options = {"tensorboard": {"purge_step": step + 1}}
        accelerator.init_trackers("logs", None if step else flat(to_json(config)), options)

    def add(self, values: dict[str, float], step: int) -> None:
        """Report `values` for `step`; raises InputError where that cannot be written."""
        if not values:
            return
        line = {"step": step, **values}
        self._remember(line)
        try:
            if self.accelerator.is_main_process:
                self._write(orjson.dumps(line) + b"\n")
            self.accelerator.log(values, step=step)
        except OSError as error:
            raise InputError(f"{self.path}: cannot write ({error.strerror})") from error

    def _write(self, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            # A checkpoint that survives a power cut finds the reports before it.
            os.fsync(file.fileno())

    def evaluated(self, step: int) -> bool:
        """Whether the scores of `step` are there (known to the main process)."""
        return self._scores_step == step

    def _remember(self, line: dict[str, float]) -> None:
        scores = {name: value for name, value in line.items() if name.startswith(EVALUATION)}
        if scores:
            self.scores, self._scores_step = scores, int(line["step"])


def _step_of(line: bytes) -> float:
    try:
        return float(orjson.loads(line)["step"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return float("inf")  # cut short by a kill


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return result
