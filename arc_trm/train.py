"""Train a model of the family on a built dataset.

    accelerate launch arc_trm/train.py arc1 --data data/arc1 --out runs/arc1
    accelerate launch arc_trm/train.py arc1-small --data data/arc1 --out runs/small --train.lr 5e-4
    accelerate launch arc_trm/train.py arc1 --data data/arc1 --out runs/arc1 --resume

The first word is a preset, `<data>[-<variant>]`; every setting of it can be overridden by its dotted name. Without
`accelerate launch`, `python -m arc_trm.train` runs one process.
"""

import math
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import tyro
from accelerate import Accelerator

from arc_trm import run
from arc_trm.batches import open_training_data
from arc_trm.config import RunConfig, check_config, within
from arc_trm.device import describe_device, make_accelerator
from arc_trm.metrics import MetricLog
from arc_trm.presets import DATA, VARIANTS, describe, preset
from arc_trm.scoring import evaluation
from arc_trm.trainer import NonFiniteLoss, Trainer, UnequalReplicas
from data_prep.files import MANIFEST, InputError, file_digest
from data_prep.program import run_program

PROGRAM = "arc_trm.train"
# The scores that the last line names; the log holds all of them.
FINAL_FIGURES = ("evaluation/outputs", "evaluation/task_mean", "evaluation/tasks", "evaluation/exact_accuracy")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig, run.Start):
    """Settings of a run, and the folders it reads and writes."""

    data: Path
    """Dataset folder that `python -m data_prep.build` wrote."""
    minutes: float = within(0.0, 0)
    """Stop cleanly after this many minutes, with a checkpoint and an export; 0: no limit."""

    @property
    def config(self) -> RunConfig:
        """Return only the settings of the run."""
        return RunConfig(**{field.name: getattr(self, field.name) for field in fields(RunConfig)})


def help_text() -> str:
    """Return the text of `--help` without a preset: the two tables that presets are composed from."""
    lines = [
        f"usage: {PROGRAM} PRESET --data FOLDER --out FOLDER [--resume] [--SECTION.SETTING VALUE ...]",
        f"       {PROGRAM} PRESET --help    every setting of a preset, with its value",
        "",
        "Train a model of the family on a built dataset. A preset is DATA or DATA-VARIANT.",
        "",
        "DATA:",
        *(f"  {name:12}{describe(name)}" for name in DATA),
        "",
        "VARIANT, and what it changes:",
    ]
    for name, sections in VARIANTS.items():
        changes = [f"{section}.{key} {value}" for section, keys in sections.items() for key, value in keys.items()]
        lines += textwrap.wrap(", ".join(changes), 100, initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
    return "\n".join(lines)


def parse(argv: Sequence[str]) -> Arguments:
    """Parse the command line; exits with status 2, naming what is valid, if it is wrong, and with 0 after --help."""
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text())
        raise SystemExit(0 if argv else 2)
    name, *rest = argv
    settings = {field.name: getattr(preset(name), field.name) for field in fields(RunConfig)}
    default = Arguments(data=tyro.MISSING, out=tyro.MISSING, **settings)
    arguments = tyro.cli(Arguments, default=default, args=rest, prog=f"{PROGRAM} {name}", description=describe(name))
    check_config(arguments)
    if arguments.out.resolve() == arguments.data.resolve():
        raise InputError(f"--out {arguments.out}: is the dataset of --data too, expected another folder")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, train, evaluate, export; return the exit status."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    accelerator = make_accelerator(arguments.log.track, arguments.out)
    if accelerator.is_main_process:
        # Before anything that takes time: launchers have been seen to start one process where two were asked for.
        print(describe_device(accelerator), file=sys.stderr, flush=True)
    with run.explained_memory(arguments.config, accelerator.device):
        line = train(arguments, accelerator)
    if accelerator.is_main_process:
        print(line)
    return 0


def train(arguments: Arguments, accelerator: Accelerator) -> str:
    """Train, evaluate and export; return the last line of the output."""
    config, out = arguments.config, arguments.out
    data = open_training_data(arguments.data, config, accelerator)
    facts = data.facts | {"data_digest": file_digest(arguments.data / MANIFEST)}
    trainer = Trainer(config, data.parts, accelerator, data.planned_steps(config), names=data.names)
    if accelerator.device.type == "cuda":  # a CPU does not say when memory runs out
        trainer.fit_memory()
    line = run.begin(trainer, arguments, facts)
    trained = run.trained_so_far(trainer, arguments, data.training_tasks, facts)
    if accelerator.is_main_process:
        print(f"{line}, in {str(trainer.dtype).removeprefix('torch.')}", file=sys.stderr)
    if config.train.compile:
        trainer.compile()
    log = MetricLog(accelerator, out, config, trainer.step)
    evaluate = evaluation(data.store)
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else math.inf
    try:
        with run.explained_memory(config, accelerator.device, lambda: run.last_good(trainer, out)):
            reason = trainer.train(out, facts, evaluate, log, deadline)
    except NonFiniteLoss as error:
        raise InputError(f"{error}; {run.last_good(trainer, out)}; go on with a lower train.lr") from error
    except UnequalReplicas as error:
        raise InputError(f"{error}; {run.last_good(trainer, out)}") from error
    run.export(trainer, out / "export", trained, facts)
    accelerator.end_training()
    scores = log.scores if log.scores.get("step") == trainer.step else {}
    figures = [f"{name} {value:.4f}" for name, value in scores.items() if name in FINAL_FIGURES]
    return ", ".join([f"wrote {out / 'export'}: {trainer.step} steps", reason, *figures])


if __name__ == "__main__":
    run_program(main)
