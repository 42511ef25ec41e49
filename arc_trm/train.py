"""Train a model of the family on a built dataset.

    accelerate launch arc_trm/train.py arc1 --data data/arc1 --out runs/arc1
    accelerate launch arc_trm/train.py arc1-small --data data/arc1 --out runs/small --train.lr 5e-4
    accelerate launch arc_trm/train.py arc1 --data data/arc1 --out runs/arc1 --resume

The first word is a preset, `<data>[-<variant>]`; every setting of it can be overridden by its dotted name. Without
`accelerate launch`, `python -m arc_trm.train` runs one process.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from arc_trm import run
from arc_trm.compiling import compile_or_explain
from arc_trm.config import RunConfig
from arc_trm.datasets import open_training_data
from arc_trm.presets import PRESETS, describe
from arc_trm.trainer import NonFiniteLoss, Trainer
from data_prep.files import InputError, file_digest, run_program
from data_prep.store import MANIFEST, ArcStore
from submission.evaluation import arc_evaluation


@dataclass(frozen=True, kw_only=True)
class Arguments(RunConfig):
    """The command line: a run's settings, and where it reads and writes."""

    data: Path
    """Dataset folder that `python -m data_prep.build` wrote."""
    out: Path
    """Run folder: checkpoints, logs, export."""
    resume: bool = False
    """Go on from the newest whole checkpoint in --out."""
    init_from: Path | None = None
    """Start a new run from the weights and the mean embedding of this export or run folder."""
    allow_changes: bool = False
    """Resume although settings or data differ; rows of known puzzles keep what they learned."""
    minutes: float = 0.0
    """Stop cleanly after this many minutes, with a checkpoint and an export; 0: no limit."""

    @property
    def config(self) -> RunConfig:
        """The run's settings alone."""
        return RunConfig(**{field.name: getattr(self, field.name) for field in fields(RunConfig)})


def arguments_for(preset: RunConfig) -> Arguments:
    """The command line's defaults for a preset."""
    settings = {field.name: getattr(preset, field.name) for field in fields(RunConfig)}
    return Arguments(data=tyro.MISSING, out=tyro.MISSING, **settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, train, evaluate, export."""
    choices = {name: (describe(name), arguments_for(preset)) for name, preset in PRESETS.items()}
    arguments = tyro.extras.overridable_config_cli(choices, args=argv, prog="arc_trm.train")
    config = arguments.config
    accelerator = run.make_accelerator(arguments.log.track, arguments.out)
    say = print if accelerator.is_main_process else (lambda *_, **__: None)
    data = open_training_data(arguments.data, config, accelerator.device)
    facts = data.facts | {"data_digest": file_digest(arguments.data / MANIFEST)}
    trainer = Trainer(
        config,
        data.parts,
        accelerator,
        data.planned_steps(config),
        compile_model=(lambda model: compile_or_explain(model, accelerator.device)) if config.train.compile else None,
    )
    start = run.Start(arguments.out, arguments.resume, arguments.init_from, arguments.allow_changes)
    say(run.begin(trainer, start, data.naming, facts["data_digest"]), file=sys.stderr)
    log = run.MetricLog(accelerator, arguments.out, config, trainer.step)
    evaluate = arc_evaluation(data.store, config.log) if isinstance(data.store, ArcStore) else None
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    try:
        reason = run.train(trainer, arguments.out, facts, evaluate, log, deadline)
    except NonFiniteLoss as error:
        raise InputError(f"{error}; the last good checkpoint is kept, go on with a lower train.lr") from error
    scores = evaluate(trainer) if evaluate and reason == "finished" else {}
    log.add(scores, trainer.step)
    run.export(trainer, arguments.out / "export", data.training_tasks, facts)
    accelerator.end_training()
    figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if name in FINAL_FIGURES)
    say(f"wrote {arguments.out / 'export'}: {trainer.step} steps, {reason}{', ' if figures else ''}{figures}")
    return 0


# The scores that the last line names; the log holds all of them.
FINAL_FIGURES = ("evaluation/outputs", "evaluation/task_mean", "evaluation/tasks", "evaluation/exact_accuracy")


if __name__ == "__main__":
    run_program(main)
