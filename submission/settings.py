"""How to adapt and predict: the settings of solving and their command-line options, without torch."""

import argparse
import math
from dataclasses import dataclass, field, fields
from typing import Any

from data_prep import files
from submission.inputs import RERUN_SECONDS

whole, positive = files.whole(0, 10**9), files.whole(1, 10**9)


def amount(text: str) -> float:
    """A finite number of at least 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return value


def share(text: str) -> float:
    """A number from 0 to 1, for argparse."""
    if amount(text) > 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from 0 to 1")
    return amount(text)


def _option(default: Any, text: str, **words: Any) -> Any:
    """A field that is a command-line option: its help, and what else `add_argument` is told."""
    said = text if default is None or default is False else f"{text} ({default})"
    return field(default=default, metadata={"default": default, "help": said, **words})


COUNT, AMOUNT, SHARE = ({"type": kind, "metavar": "N"} for kind in (whole, amount, share))
SWITCH = {"action": argparse.BooleanOptionalAction}
MOST_AUGMENTATIONS, LEAST_AUGMENTATIONS, LEAST_VISITS = 128, 15, 60
# Options that go together: what the best public run with this model did at test time.
PROFILES: dict[str, dict[str, Any]] = {
    "competition": {"deep_steps": 4, "supervision_steps": 10, "compile": True, "time_budget": RERUN_SECONDS},
}


@dataclass(frozen=True)
class Settings:
    """How to adapt and predict. Every field is an option, `--batch-size` for `batch_size`."""

    augmentations: int | None = _option(
        None,
        f"puzzles of a task beside the task itself ({MOST_AUGMENTATIONS}, or fewer where the measured pace leaves an "
        f"embedding row under {LEAST_VISITS} supervision steps)",
        **COUNT,
    )
    votes: int = _option(0, "puzzles of a task that vote at most; 0: all of them", **COUNT)
    steps: int | None = _option(None, "adaptation steps at most (as many as the time allows)", **COUNT)
    batch_size: int = _option(0, "examples of an adaptation step; 0: 256 on GPUs, 32 on a CPU", **COUNT)
    predict_batch: int = _option(0, "full canvases answered at once; 0: 256 a GPU, 8 on a CPU", **COUNT)
    lr: float = _option(1e-4, "learning rate of the trunk", **AMOUNT)
    puzzle_lr: float = _option(1e-2, "learning rate of the puzzle embeddings", **AMOUNT)
    ema: float = _option(0.999, "decay of the moving average that predicts; 0: none", **SHARE)
    embedding_share: float = _option(0.25, "first part, at most 1000 steps, in which embeddings move alone", **SHARE)
    deep_steps: int = _option(0, "latent recursions in a deep recursion; 0: the checkpoint's", **COUNT)
    supervision_steps: int = _option(0, "supervision steps at most; 0: the checkpoint's", **COUNT)
    canvas: str = _option(
        "sizes",
        "sizes: small canvases for small tasks, the full one where an answer seems to go on beyond; strict: small "
        "canvases for small tasks, whatever the answers; full: always the full canvas",
        choices=("sizes", "strict", "full"),
    )
    precision: str = _option("auto", "arithmetic; auto: that of training", choices=("auto", "fp32", "bf16", "fp16"))
    compile: bool = _option(False, "compile the model", **SWITCH)
    forget: bool = _option(False, "use no embedding row that the checkpoint has learned for one of the tasks", **SWITCH)
    track: str = _option(
        "none", "tracker of Accelerate's that is told the figures, such as tensorboard, or none", metavar="NAME"
    )
    seed: int = _option(0, "which augmentations, placements and orders are drawn", **COUNT)

    @classmethod
    def read(cls, arguments: argparse.Namespace) -> "Settings":
        """The settings among parsed arguments."""
        return cls(**{f.name: getattr(arguments, f.name) for f in fields(cls)})


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for every setting."""
    group = parser.add_argument_group("adaptation and prediction")
    for f in fields(Settings):
        group.add_argument(f"--{f.name.replace('_', '-')}", **f.metadata)
