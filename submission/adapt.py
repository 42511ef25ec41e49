"""Adapt an exported model to tasks without solutions: the trainer's own loop, ended by the clock.

New puzzles start from the mean embedding of the export. First the embeddings move alone, then everything.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from arc_trm import run
from arc_trm.checkpoint import Export
from arc_trm.compiling import compile_or_explain
from arc_trm.config import LogConfig, RunConfig, TrainConfig
from arc_trm.datasets import arc_data
from arc_trm.supervision import initial_carry, supervision_step
from arc_trm.trainer import Trainer, Work
from data_prep.progress import Progress
from data_prep.store import ArcStore
from submission.plan import TimePlan
from submission.settings import Settings

# Batch slots when nothing is said: what a GPU needs to be busy, what keeps a step short on a CPU.
BATCH_SIZES = {"cuda": 256, "cpu": 32}
# The first step warms caches up (and perhaps compiles); its time says nothing about the others.
UNTIMED_STEPS = 1
# Steps between two looks at the loss, which wait for the device and keep a copy of what is good.
LOOK_EVERY = 50
MOST_STEPS = 10_000_000  # float32 carries them exactly from process to process


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
        batch_size=shared_size(settings.batch_size or BATCH_SIZES.get(device.type, BATCH_SIZES["cpu"]), processes),
        steps=settings.steps,
        lr=settings.lr,
        puzzle_lr=settings.puzzle_lr,
        weight_decay=settings.weight_decay,
        puzzle_weight_decay=settings.puzzle_weight_decay,
        warmup_steps=settings.warmup_steps,
        ema=settings.ema,
        # The token-mixing MLP is built for one length.
        canvas="sizes" if settings.canvas != "full" and model.mixer == "attention" else "full",
        share_multiple=processes,
        precision=settings.precision,  # type: ignore[arg-type]
        compile=settings.compile,
    )
    return RunConfig(model=model, halting=halting, train=train, log=LogConfig(track="none"), seed=settings.seed)


def shared_size(wanted: int, processes: int) -> int:
    """The batch size, raised to a multiple of the processes that leaves every canvas size a slot in each."""
    return max(4, -(-wanted // processes)) * processes


def make_trainer(settings: Settings, export: Export, store: ArcStore, accelerator: Accelerator) -> Trainer:
    """A trainer that stands at the export: its weights, its rows for the tasks that it knows, else its mean row."""
    config = run_config(settings, export, accelerator.device, accelerator.num_processes)
    data = arc_data(store, config, accelerator.device)
    compiling: Callable[[torch.nn.Module], torch.nn.Module] | None = None
    if settings.compile:
        compiling = lambda model: compile_or_explain(model, accelerator.device)  # noqa: E731
    trainer = Trainer(config, data.parts, accelerator, settings.steps or 1, compile_model=compiling)
    trainer.row_names = () if settings.forget else data.row_names
    run.load_export(trainer, export)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        fit_memory(trainer)
    return trainer


def fit_memory(trainer: Trainer) -> None:
    """Cut the work into halves until the forward and backward pass of every piece fit into the memory of every process.

    Among several processes one that ran out of memory in the middle of a step would leave the others waiting; so each
    tries alone, without moving anything, and then they agree. Raises OutOfMemoryError where a single slot is too much.
    """
    while run.agreed(trainer, not all(map(partial(_fits, trainer), trainer.work))):
        if all(work.slots == 1 for work in trainer.work):
            raise torch.OutOfMemoryError(f"a single example does not fit into {trainer.accelerator.device}'s memory")
        trainer.work = [half for work in trainer.work for half in work.halves()]


def _fits(trainer: Trainer, work: Work) -> bool:
    offer = work.part.source.offer(0, work.local)
    minimum = torch.zeros_like(offer.puzzle_ids, dtype=torch.int32)
    try:
        carry = initial_carry(trainer.model, offer, trainer.dtype)
        result = supervision_step(
            trainer.running, trainer.model, trainer.embedding, carry, offer, trainer.config.halting, minimum
        )
        trainer.accelerator.backward(result.loss)
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        trainer.model.zero_grad(set_to_none=True)


def agreed_values(values: Sequence[float], accelerator: Accelerator) -> list[float]:
    """The main process's `values`, in every process: clocks differ, decisions must not."""
    if accelerator.num_processes == 1:
        return list(values)
    return broadcast(torch.tensor(values, dtype=torch.float32, device=accelerator.device)).tolist()


@dataclass
class Pace:
    """How fast the adaptation goes, and so how long it lasts: its schedule is stretched to the time there is."""

    plan: TimePlan
    settings: Settings
    accelerator: Accelerator
    learned: Callable[[float], object]  # hears the seconds of a step whenever the schedule is planned anew
    step_seconds: float | None = None
    loss: float | None = None  # as read last
    broken: bool = False  # the loss became no number
    began: float = 0.0
    _last: float = 0.0
    _good: list[Tensor] | None = None  # weights, averages and embeddings when they were last seen to be finite

    def start(self) -> None:
        """Begin to measure, or go on with it after a prediction."""
        self._last = self.plan.now()
        self.began = self.began or self._last

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
        """Learn from the step just done; now and then plan the rest of the schedule anew and look at the loss.

        Raises NonFiniteLoss, in all processes alike.
        """
        now = self.plan.now()
        seconds, self._last = now - self._last, now
        if self.step_seconds is None or trainer.step <= UNTIMED_STEPS + 1:
            self.step_seconds = seconds
        else:
            self.step_seconds += 0.2 * (seconds - self.step_seconds)
        if trainer.step <= 8 or trainer.step % 10 == 0:
            self._replan(trainer)
        if trainer.step == 1 or trainer.step % LOOK_EVERY == 0:
            self.loss = trainer.read_metrics()["loss"]
            trainer.check_finite()
            self._good = [tensor.clone() for tensor in _moving(trainer)]

    def goes_on(self, trainer: Trainer) -> bool:
        """Whether further steps are wanted: not after all those asked for, nor after a broken one."""
        return not self.broken and (not self.settings.steps or trainer.step < self.settings.steps)

    def restore(self, trainer: Trainer) -> None:
        """Go back to what was last seen to be finite, or to the export, and stay there."""
        self.broken = True
        for tensor, good in zip(_moving(trainer), self._good or (), strict=False):
            tensor.copy_(good)

    def _replan(self, trainer: Trainer) -> None:
        """The number of steps, and whether the trunk moves yet, as the main process sees it."""
        self.learned(self.step_seconds or 0.0)
        spent, left = self.plan.now() - self.began, max(0.0, self.plan.left(self.plan.adaptation_end))
        planned = trainer.step + int(left / max(self.step_seconds or 0.0, 1e-6))
        share = spent / max(spent + left, 1e-6)
        if 0 < self.settings.steps <= planned:
            planned, share = self.settings.steps, trainer.step / self.settings.steps
        # The clock ends the adaptation, not an estimate that is ten steps old.
        planned = min(max(planned, trainer.step + 11), self.settings.steps or MOST_STEPS)
        moves = share >= self.settings.embedding_share
        planned_steps, trainer.trunk_factor = agreed_values([planned, float(moves)], self.accelerator)
        trainer.planned_steps = int(planned_steps)


def _moving(trainer: Trainer) -> list[Tensor]:
    """All tensors that training moves, but for the optimiser's."""
    averages = [] if trainer.ema is None else trainer.ema.averages
    return [*(p.detach() for p in trainer.model.parameters()), *averages, trainer.embedding.table]


def adapt(trainer: Trainer, pace: Pace, stop: Callable[[], bool], interlude: Callable[[], object]) -> None:
    """Adapt until the plan's time for it is over, or `stop`; `interlude` runs once, half-way through the first time.

    Raises NonFiniteLoss, in all processes alike.
    """
    if trainer.step == 0:
        trainer.trunk_factor = 0.0 if pace.settings.embedding_share > 0 else 1.0
    half_way = trainer.step > 0
    pace.start()
    with Progress("adapting", done=trainer.step, quiet=not trainer.accelerator.is_main_process) as bar:
        for step in run.steps(trainer, lambda: stop() or pace.over()):
            pace.after_step(trainer)
            bar.total = trainer.planned_steps
            bar.update(1, f"loss {pace.loss:.3f}")
            if not half_way and trainer.planned_steps > step >= trainer.planned_steps / 2:
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
