"""Adapt an exported model to tasks without solutions: the trainer's own loop, ended by the clock.

New puzzles start from the mean embedding of the export. First the embeddings move alone, then everything.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from tqdm import tqdm

from arc_trm import run
from arc_trm.checkpoint import Export
from arc_trm.compiling import compile_or_explain
from arc_trm.config import LogConfig, RunConfig, TrainConfig
from arc_trm.datasets import arc_data
from arc_trm.trainer import Trainer
from data_prep.store import ArcStore
from submission.plan import TimePlan
from submission.settings import Settings

# Batch slots when nothing is said: what a GPU needs to be busy, what keeps a step short on a CPU.
BATCH_SIZES = {"cuda": 256, "cpu": 32}
# The first step warms caches up (and perhaps compiles); its time says nothing about the others.
UNTIMED_STEPS = 1


def run_config(settings: Settings, export: Export, device: torch.device, processes: int) -> RunConfig:
    """The trainer's configuration for adapting `export`; settings of 0 keep what the export was trained with."""
    model, halting = export.model, export.halting
    model = replace(
        model,
        latent_steps=settings.latent_steps or model.latent_steps,
        deep_steps=settings.deep_steps or model.deep_steps,
    )
    halting = replace(halting, max_supervision_steps=settings.supervision_steps or halting.max_supervision_steps)
    train = TrainConfig(
        batch_size=shared_size(settings.batch_size or BATCH_SIZES[device.type], processes),
        steps=settings.steps,
        lr=settings.lr,
        puzzle_lr=settings.puzzle_lr,
        weight_decay=settings.weight_decay,
        puzzle_weight_decay=settings.puzzle_weight_decay,
        warmup_steps=settings.warmup_steps,
        ema=settings.ema,
        # The token-mixing MLP is built for one length.
        canvas="sizes" if settings.canvas == "sizes" and model.mixer == "attention" else "full",
        share_multiple=processes,
        precision=settings.precision,  # type: ignore[arg-type]
        compile=settings.compile,
    )
    return RunConfig(model=model, halting=halting, train=train, log=LogConfig(track="none"), seed=settings.seed)


def shared_size(wanted: int, processes: int) -> int:
    """The batch size, raised to a multiple of the processes that leaves every canvas size a slot in each."""
    return max(4, -(-wanted // processes)) * processes


def make_trainer(settings: Settings, export: Export, store: ArcStore, accelerator: Accelerator) -> Trainer:
    """A trainer that stands at the export: its weights, and its mean embedding for every puzzle of the store."""
    config = run_config(settings, export, accelerator.device, accelerator.num_processes)
    data = arc_data(store, config, accelerator.device)
    compiling: Callable[[torch.nn.Module], torch.nn.Module] | None = None
    if settings.compile:
        compiling = lambda model: compile_or_explain(model, accelerator.device)  # noqa: E731
    trainer = Trainer(config, data.parts, accelerator, settings.steps or 1, compile_model=compiling)
    run.load_export(trainer, export)
    return trainer


def agreed_values(values: Sequence[float], accelerator: Accelerator) -> list[float]:
    """The main process's `values`, in every process: clocks differ, decisions must not."""
    if accelerator.num_processes == 1:
        return list(values)
    # float32 is what every device has; it is exact for steps up to 16 million.
    return broadcast(torch.tensor(values, dtype=torch.float32, device=accelerator.device)).tolist()


@dataclass
class Pace:
    """How fast the adaptation goes, and so how long it lasts: its schedule is stretched to the time there is."""

    plan: TimePlan
    settings: Settings
    accelerator: Accelerator
    learned: Callable[[float], object]  # hears the seconds of a step whenever the schedule is planned anew
    step_seconds: float | None = None
    began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Whether another step would end too late."""
        return self.plan.left(self.plan.adaptation_end) < (self.step_seconds or 0.0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time within this context is no step's."""
        began = self.plan.now()
        yield
        self._last += self.plan.now() - began

    def after_step(self, trainer: Trainer) -> None:
        """Learn from the step just done; now and then plan the rest of the schedule anew."""
        now = self.plan.now()
        seconds, self._last = now - self._last, now
        if trainer.step > UNTIMED_STEPS or self.step_seconds is None:
            old = self.step_seconds if trainer.step > UNTIMED_STEPS + 1 else None
            self.step_seconds = seconds if old is None else 0.8 * old + 0.2 * seconds
        if trainer.step <= 8 or trainer.step % 10 == 0:
            self._replan(trainer)

    def _replan(self, trainer: Trainer) -> None:
        self.learned(self.step_seconds or 0.0)
        left = max(0.0, self.plan.left(self.plan.adaptation_end))
        planned = trainer.step + int(left / max(self.step_seconds or 0.0, 1e-6))
        share = (self.plan.now() - self.began) / max(self.plan.now() - self.began + left, 1e-6)
        if self.settings.steps:
            planned, share = self.settings.steps, trainer.step / self.settings.steps
        planned_steps, trunk = agreed_values(
            [max(planned, trainer.step + 1), float(share >= self.settings.embedding_share)], self.accelerator
        )
        trainer.planned_steps = int(planned_steps) if not self.settings.steps else self.settings.steps
        trainer.trunk_factor = trunk


def adapt(trainer: Trainer, pace: Pace, stop: Callable[[], bool], interlude: Callable[[], object]) -> None:
    """Adapt until the plan's time for it is over, or `stop`; `interlude` runs once, half-way."""
    quiet = None if trainer.accelerator.is_main_process else True
    trainer.trunk_factor = 0.0 if pace.settings.embedding_share > 0 else 1.0
    half_way = False
    with tqdm(unit="step", desc="adapting", disable=quiet, smoothing=0.05) as bar:
        for step in run.steps(trainer, lambda: stop() or pace.over()):
            pace.after_step(trainer)
            bar.total = trainer.planned_steps
            bar.update()
            if not half_way and 2 * step >= trainer.planned_steps:
                half_way = True
                with pace.pause():
                    interlude()


def prediction_seconds_per_token(trainer: Trainer, step_seconds: float) -> float:
    """What answering should take, per token of a canvas, judged by the time of an optimiser step.

    A deep recursion costs T passes of a latent recursion forward, and 2 more backward in training; an answer takes
    all supervision steps, forward alone.
    """
    tokens = sum(part.slots * part.source.seq_len for part in trainer.parts)
    deep_steps = trainer.config.model.deep_steps
    forward_share = deep_steps / (deep_steps + 2)
    return step_seconds / tokens * forward_share * trainer.config.halting.max_supervision_steps
