"""How to adapt and predict: the settings of solving, and the command lines of solving and launching, without torch."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from data_prep import program
from submission.inputs import KAGGLE_INPUT, RERUN_SECONDS, affordable

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
# A year of hours; far beyond it the clocks of the system, which watch over a run, overflow.
LONGEST = 8760 * 3600.0
MOST_FOLDS = 10
whole, positive = program.whole(0, 10**9), program.whole(1, 10**9)


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


def duration(text: str) -> float:
    """Seconds of a duration such as 11h30m, 10m or 90s, for argparse."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    understood = "".join(number + unit for number, unit in parts) == text
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts) if understood else 0.0
    if not 0 < seconds <= LONGEST:
        expected = f"a duration of at most {LONGEST / 3600:.0f}h, such as 11h30m, 10m or 90s"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return seconds


def part(text: str) -> tuple[int, int]:
    """K and N of `K/N`, for argparse."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= number <= count <= MOST_FOLDS:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected K/N with 1 <= K <= N <= {MOST_FOLDS}, such as 2/5")
    return number, count


def gpu_numbers(text: str) -> tuple[int, ...]:
    """Numbers of GPUs for argparse: the first N of `N`, those of a list such as `0,2`."""
    if not re.fullmatch(r"[1-9]\d?|\d+(,\d+)+", text) or len(set(text.split(","))) < text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected how many GPUs, or a list of different ones: 0,2")
    return tuple(map(int, text.split(","))) if "," in text else tuple(range(int(text)))


def _option(default: Any, text: str, section: str = "", **words: Any) -> Any:
    """A field that is a command-line option: its help, and further arguments of `add_argument`.

    `section` is that of training's setting of the same name, such as "train.", or its whole name.
    """
    said = text if default is None or default is False else f"{text} ({default})"
    return field(default=default, metadata={"section": section, "words": {"help": said, **words}})


COUNT, AMOUNT, SHARE = (dict[str, Any](type=kind, metavar="N") for kind in (whole, amount, share))
SWITCH: dict[str, Any] = {"action": "store_true"}
AFFORDABLE = -1  # tasks of a rehearsal: as many as the time is for
MOST_AUGMENTATIONS, LEAST_AUGMENTATIONS, LEAST_VISITS = 128, 15, 60
# T and supervision steps of the best public run with this model at test time. IF_DEEP stands for them if training had
# at least those of DEEP_ENOUGH, and for training's own otherwise.
DEEPER, DEEP_ENOUGH, IF_DEEP = (4, 10), (3, 10), -1
# Options that go together.
PROFILES: dict[str, dict[str, Any]] = {
    "competition": {
        "deep_steps": IF_DEEP,
        "supervision_steps": IF_DEEP,
        "compile": True,
        "time_budget": RERUN_SECONDS,
    },
}


@dataclass(frozen=True)
class Settings:
    """How to adapt and predict. Every field is an option; what is training has the name that it has there."""

    augmentations: int | None = _option(
        None,
        f"puzzles of a task beside the task itself ({MOST_AUGMENTATIONS}, or fewer where the measured pace leaves an "
        f"embedding row under {LEAST_VISITS} supervision steps)",
        **COUNT,
    )
    votes: int = _option(0, "puzzles of a task that vote at most; 0: all of them", **COUNT)
    steps: int | None = _option(None, "adaptation steps at most (as many as the time allows)", "train.", **COUNT)
    batch_size: int = _option(0, "examples of an adaptation step; 0: 256 on GPUs, 32 on a CPU", "train.", **COUNT)
    predict_batch: int = _option(0, "full canvases answered at once; 0: 256 a GPU, 8 on a CPU", **COUNT)
    lr: float = _option(1e-4, "learning rate of the trunk", "train.", **AMOUNT)
    puzzle_lr: float = _option(1e-2, "learning rate of the puzzle embeddings", "train.", **AMOUNT)
    ema: float = _option(0.999, "decay of the moving average that predicts; 0: none", "train.", **SHARE)
    embedding_share: float = _option(0.25, "first part, at most 1000 steps, in which embeddings move alone", **SHARE)
    deep_steps: int = _option(0, "latent recursions in a deep recursion; 0: the checkpoint's", "model.", **COUNT)
    supervision_steps: int = _option(
        0, "supervision steps at most; 0: the checkpoint's", "halting.max_supervision_steps", **COUNT
    )
    canvas: str = _option(
        "sizes",
        "sizes: small canvases for small tasks, the full one where an answer seems to go on beyond; strict: small "
        "canvases for small tasks, whatever the answers; full: always the full canvas",
        choices=("sizes", "strict", "full"),
    )
    precision: str = _option(
        "auto", "arithmetic; auto: that of training", "train.", choices=("auto", "fp32", "bf16", "fp16")
    )
    compile: bool = _option(False, "compile the networks; --train.no-compile: not", "train.", **SWITCH)
    forget: bool = _option(False, "use no embedding row that the checkpoint has learned for one of the tasks", **SWITCH)
    track: str = _option(
        "none", "tracker of Accelerate's that is told the figures, such as tensorboard, or none", "log.", metavar="NAME"
    )
    seed: int = _option(0, "which augmentations, placements and orders are drawn", **COUNT)

    @classmethod
    def read(cls, arguments: argparse.Namespace) -> "Settings":
        """The settings among parsed arguments."""
        return cls(**{f.name: getattr(arguments, f.name) for f in fields(cls)})


def option_name(setting: Field[Any]) -> str:
    """The option of a field: `--train.batch-size` for `batch_size`, `--votes` for `votes`."""
    section = setting.metadata["section"]
    return "--" + (section + setting.name if section.endswith(".") or not section else section).replace("_", "-")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for every setting; training's have dotted names, as they have there."""
    group = parser.add_argument_group("adaptation and prediction")
    for setting in fields(Settings):
        option = option_name(setting)
        group.add_argument(option, dest=setting.name, default=setting.default, **setting.metadata["words"])
        if setting.name == "compile":  # which a profile may have switched on
            group.add_argument("--train.no-compile", dest=setting.name, action="store_false", help=argparse.SUPPRESS)


# Command lines --------------------------------------------------------------------------------------------


def read_solve_arguments(words: Sequence[str] | None, description: str | None = None) -> argparse.Namespace:
    """The command line of submission.solve, where a profile only changes what is not said."""
    made = solve_parser(description)
    profile = made.parse_known_args(words)[0].profile
    made.set_defaults(**PROFILES.get(profile, {}))
    arguments = made.parse_args(words)
    if arguments.rehearse == AFFORDABLE:
        arguments.rehearse = affordable(arguments.time_budget)
    return arguments


def solve_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of submission.solve."""
    made = program.command_line("submission.solve", description)
    add = made.add_argument
    add("--challenges", metavar="PATH", type=Path, help="Kaggle's file, one task file, or a folder of tasks")
    several = "a run folder, an export or its JSON file; several times: they share the time, their votes add up"
    add("--checkpoint", metavar="DIR", type=Path, action="append", help=several)
    add("--input", metavar="DIR", type=Path, default=KAGGLE_INPUT, help=f"where files are mounted ({KAGGLE_INPUT})")
    add("--out", metavar="FILE", type=Path, default=Path("submission.json"), help="the submission (submission.json)")
    add("--time-budget", metavar="TIME", type=duration, default=duration("10m"), help="such as 11h30m or 90s (10m)")
    add("--resume", action="store_true", help="go on from the state that an earlier process left beside --out")
    add(
        "--profile",
        choices=PROFILES,
        help="competition: compiled, 11h45m; T = 4 and 10 supervision steps if trained deep",
    )
    add("--plan", action="store_true", help="print what would be done in the time, and do nothing")
    add("--rate", metavar="N", type=amount, default=0.0, help="for --plan: training examples a second (measured here)")
    add("--gpus", metavar="N", type=whole, default=0, help="for --plan: GPUs that reach --rate (this machine)")
    add("--candidates", metavar="FILE", type=Path, help="also keep all votes in this file (.npz)")
    add(
        "--rehearse",
        metavar="N",
        type=positive,
        nargs="?",
        const=AFFORDABLE,
        help="solve and score N public tasks (as many as get the time that one has in the rerun), shaped like the "
        "competition's, that the checkpoint has not seen; they are written beside --out",
    )
    fold = "rehearse on the K-th of N sets of tasks that share none; submission.folds sums up"
    add("--fold", metavar="K/N", type=part, help=fold)
    void = "where the checkpoint has seen every public task, rehearse all the same; the score is void or flattering"
    add("--allow-seen", action="store_true", help=void)
    add_settings(made)
    return made


def read_launch_arguments(words: Sequence[str], description: str | None = None) -> tuple[argparse.Namespace, list[str]]:
    """What submission.launch is told, and its options of solving; ends with status 2 where either would be refused."""
    parser = program.command_line("submission.launch", description, allow_abbrev=False)
    add = parser.add_argument
    add("--time-budget", metavar="TIME", type=duration, default=RERUN_SECONDS, help="in the rerun (11h45m)")
    add("--rehearsal-budget", metavar="TIME", type=duration, default=duration("20m"), help="otherwise, twice (20m)")
    tasks = "public tasks to rehearse on (as many as get the time that one has in the rerun); 0: none"
    add("--rehearsal-tasks", metavar="N", type=whole, help=tasks)
    add(
        "--gpus",
        metavar="N|LIST",
        type=gpu_numbers,
        help="the first N, or those such as 0,2, of the visible GPUs (all)",
    )
    arguments, options = parser.parse_known_args(words)
    options = ["--profile", "competition", *options]
    read_solve_arguments(options)
    return arguments, options
