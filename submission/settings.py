"""How to adapt and predict: the settings of solving and their command-line options, without torch."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast

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


def _option(default: Any, kind: Callable[[str], Any] | tuple[str, ...] | None, text: str) -> Any:
    """A field with what its command-line option needs: how to read its text (or the choices), and a help line."""
    return field(default=default, metadata={"kind": kind, "help": text})


CANVASES = {
    "sizes": "small canvases for small tasks, the full one where an answer seems to go on beyond",
    "strict": "small canvases for small tasks, whatever the answers",
    "full": "always the full canvas",
}


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
        whole,
        f"puzzles of a task beside the task itself ({MOST_AUGMENTATIONS}, or fewer where the measured pace leaves an "
        f"embedding row under {LEAST_VISITS} supervision steps)",
    )
    votes: int = _option(0, whole, "puzzles of a task that vote at most; 0: all of them")
    steps: int | None = _option(None, whole, "adaptation steps at most (as many as the time allows)")
    batch_size: int = _option(0, whole, "examples of an adaptation step; 0: 256 on GPUs, 32 on a CPU")
    predict_batch: int = _option(0, whole, "full canvases answered at once; 0: 256 a GPU, 8 on a CPU")
    lr: float = _option(1e-4, amount, "learning rate of the trunk")
    puzzle_lr: float = _option(1e-2, amount, "learning rate of the puzzle embeddings")
    ema: float = _option(0.999, share, "decay of the moving average that predicts; 0: none")
    embedding_share: float = _option(0.25, share, "first part, at most 1000 steps, in which embeddings move alone")
    deep_steps: int = _option(0, whole, "latent recursions in a deep recursion; 0: the checkpoint's")
    supervision_steps: int = _option(0, whole, "supervision steps at most; 0: the checkpoint's")
    canvas: str = _option("sizes", tuple(CANVASES), "; ".join(f"{name}: {text}" for name, text in CANVASES.items()))
    precision: str = _option("auto", ("auto", "fp32", "bf16", "fp16"), "arithmetic; auto: the fastest that works")
    compile: bool = _option(False, None, "compile the model")
    forget: bool = _option(False, None, "use no embedding row that the checkpoint has learned for one of the tasks")
    track: str = _option("none", str, "tracker of Accelerate's that is told the figures, such as tensorboard, or none")
    seed: int = _option(0, whole, "which augmentations, placements and orders are drawn")

    @classmethod
    def read(cls, arguments: argparse.Namespace) -> "Settings":
        """The settings among parsed arguments."""
        return cls(**{f.name: getattr(arguments, f.name) for f in fields(cls)})


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for every setting."""
    group = parser.add_argument_group("adaptation and prediction")
    for f in fields(Settings):
        name, kind, text = f"--{f.name.replace('_', '-')}", f.metadata["kind"], f.metadata["help"]
        if kind is None:
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=f.default, help=text)
        elif isinstance(kind, tuple):
            group.add_argument(name, choices=kind, default=f.default, help=f"{text} ({f.default})")
        else:
            read = cast(Callable[[str], Any], kind)
            said = text if f.default is None else f"{text} ({f.default})"
            shown = "NAME" if read is str else "N"
            group.add_argument(name, type=read, metavar=shown, default=f.default, help=said)
