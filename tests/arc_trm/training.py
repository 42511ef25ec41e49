"""Tiny trainers for the tests of training: toy sources of random grids, models of a few hundred numbers."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from arc_trm.batches import Batch, Part
from arc_trm.config import HaltingConfig, LogConfig, ModelConfig, RunConfig, TrainConfig
from arc_trm.model import RecursiveModel
from arc_trm.trainer import Trainer, initial_model

State = tuple[dict[str, torch.Tensor], dict[str, Any]]

CPU = torch.device("cpu")
PUZZLES = 11
VOCAB = 7

# Everything that a test does not ask for: prime sizes, halting that both happens and is put off.
TINY = RunConfig(
    model=ModelConfig(
        vocab_size=VOCAB, seq_len=25, hidden=12, heads=2, layers=1, latent_steps=2, deep_steps=2, prefix=3,
        puzzle_width=17, expansion=1.0,
    ),
    halting=HaltingConfig(max_supervision_steps=3, exploration=0.4),
    train=TrainConfig(
        batch_size=8, steps=20, lr=3e-3, puzzle_lr=1e-2, warmup_steps=4, lr_min_ratio=0.3, ema=0.9, precision="fp32"
    ),
    log=LogConfig(every=5, checkpoint_minutes=7.0, track="none"),
    seed=5,
)  # fmt: skip


def trained_on(tasks: tuple[str, ...]) -> dict[str, Any]:
    """What `trained_so_far` says of a run that began with random weights."""
    return {"training_tasks": tasks, "training_known": True, "leak": [], "stages": []}


@dataclass(frozen=True)
class ToySource:
    """Squares of random tokens whose label is the token plus one; rows depend on (seed, step, slot) alone."""

    seed: int
    side: int = 5
    vocab_size: int = VOCAB
    num_puzzles: int = PUZZLES
    views: bool = False  # told to the model, as a source does whose embedding rows belong to tasks

    @property
    def seq_len(self) -> int:
        return self.side**2

    def offer(self, step: int, slots: slice) -> Batch:
        rows = [self._row(step, slot) for slot in range(slots.start, slots.stop)]
        inputs, labels, ids = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        rng = np.random.default_rng((self.seed, step))
        views = rng.integers(0, self.vocab_size, (10**3, 11), dtype=np.int32)[slots]
        return Batch(inputs, labels, ids, torch.from_numpy(views) if self.views else None)

    def _row(self, step: int, slot: int) -> tuple[np.ndarray, np.ndarray, np.int64]:
        rng = np.random.default_rng((self.seed, self.side, step, slot))
        inputs = rng.integers(0, self.vocab_size, self.seq_len, dtype=np.int32)
        labels = (inputs + 1) % self.vocab_size
        labels[rng.random(self.seq_len) < 0.2] = -100
        return inputs, labels.astype(np.int32), rng.integers(0, self.num_puzzles)


def with_settings(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    """`config` with some fields of its sections replaced."""
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()})


def lively_model(config: RunConfig) -> RecursiveModel:
    """The model of `config`, but its halting head, silent at the start, already stops some and lets others go on."""
    model = initial_model(config)
    with torch.no_grad():
        model.halting_head.weight[0] = torch.linspace(-1, 1, config.model.hidden)
        model.halting_head.weight[1] = torch.linspace(1, -1, config.model.hidden)
        assert model.halting_head.bias is not None
        model.halting_head.bias.zero_()
    return model


def tiny_trainer(
    config: RunConfig = TINY,
    sides: Sequence[int] = (5,),
    double: bool = False,
    accelerator: Accelerator | None = None,
    compiled: bool = False,
) -> Trainer:
    """A trainer of toy examples; several `sides` share the slots, a quarter for each but the last.

    What is `compiled` is cut into graphs as for a GPU, but they run as they are.
    """
    slots = [config.train.batch_size // 4] * (len(sides) - 1)
    slots.append(config.train.batch_size - sum(slots))
    views = config.model.embedding_rows == "task"
    parts = [Part(ToySource(config.seed, side, views=views), share) for side, share in zip(sides, slots, strict=True)]
    model = lively_model(config)
    model = model.double() if double else model
    trainer = Trainer(config, parts, accelerator or Accelerator(cpu=True), config.train.steps, model)
    if compiled:
        assert trainer.compile("eager")
    return trainer


def in_pieces(trainer: Trainer, halvings: int = 1) -> Trainer:
    """The trainer, its work cut in half so many times."""
    for _ in range(halvings):
        trainer.work = [half for work in trainer.work for half in work.halves()]
    return trainer


def step_clock(trainer: Trainer) -> Callable[[], float]:
    """A clock on which every step takes a minute, in seconds."""
    return lambda: 60.0 * trainer.step


def losses(trainer: Trainer, steps: int) -> list[float]:
    """The loss of every one of the next `steps` steps."""
    curve = []
    for _ in range(steps):
        trainer.train_step()
        curve.append(trainer.read_metrics()["loss"])
    return curve


def snapshot(trainer: Trainer) -> State:
    """A copy of the whole state, as a checkpoint would hold it."""
    tensors, facts = trainer.state_dict()
    return {name: tensor.clone() for name, tensor in tensors.items()}, copy.deepcopy(facts)


def differing(one: State, two: State) -> list[str]:
    """Names of the tensors and facts in which two states differ in any bit."""
    assert one[0].keys() == two[0].keys()
    tensors = [name for name in one[0] if not identical(one[0][name], two[0][name])]
    return tensors + [name for name in one[1].keys() | two[1].keys() if one[1].get(name) != two[1].get(name)]


def identical(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Equal in every bit."""
    same_kind = one.dtype == two.dtype and one.shape == two.shape
    return same_kind and _bytes(one) == _bytes(two)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
