"""Typed configuration: what a model is, how it is trained, on which data."""

import math
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from data_prep.files import InputError

Mixer = Literal["attention", "mlp"]
Positions = Literal["sequence", "grid"]
EmbeddingRows = Literal["puzzle", "task"]
Recursion = Literal["answer_and_latent", "single_latent", "single_latent_text", "multi_scale_latent", "direct"]
HaltingRule = Literal["correctness", "q_learning", "never"]
TokenLoss = Literal["stablemax", "softmax"]
Optimiser = Literal["adam_atan2", "adamw", "muon"]
CanvasSchedule = Literal["full", "sizes"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Config = TypeVar("Config")
# One position for the dihedral element, one for each of the ten colours.
VIEW_POSITIONS = 11


@dataclass(frozen=True)
class ModelConfig:
    """One member of the model family; the defaults are TRM with attention on the ARC canvas, as the paper has it."""

    vocab_size: int = 12
    """Number of tokens."""
    seq_len: int = 900
    """Tokens of the full canvas."""
    hidden: int = 512
    """Numbers per position (d)."""
    heads: int = 8
    """Attention heads."""
    layers: int = 2
    """Blocks in the network that updates z (or everything)."""
    answer_layers: int = 0
    """Blocks in a second network that updates y; 0: the same network does both."""
    expansion: float = 4.0
    """Feed-forward expansion of SwiGLU."""
    mixer: Mixer = "attention"
    """How positions exchange information: self-attention, or an MLP over tokens (fixed length)."""
    positions: Positions = "sequence"
    """Rotary angles of attention: by place in the sequence (the paper), or half by row and half by column."""
    recursion: Recursion = "answer_and_latent"
    """What one latent recursion does."""
    latent_steps: int = 6
    """Updates of z in a latent recursion (n)."""
    latents: int = 0
    """Latents of the multi-scale member, at least n; 0: n of them (the published code always has six)."""
    deep_steps: int = 3
    """Latent recursions in a deep recursion, gradient in the last (T)."""
    graded_updates: int = 0
    """Last updates of the last latent recursion that carry gradient; 0: all. 2 is HRM's 1-step gradient."""
    prefix: int = 16
    """Positions in front of the canvas that hold the puzzle embedding."""
    puzzle_width: int = 512
    """Numbers in a puzzle embedding; they fill the first positions of the prefix."""
    embedding_rows: EmbeddingRows = "puzzle"
    """What owns a row of the puzzle embedding: every puzzle (the paper), or every task. A task's augmentations share
    its row; the model is told the augmentation in the last eleven positions of the prefix (one for the dihedral
    element, ten for the colours), and training draws a new one for every example."""
    tied_embedding: bool = False
    """Read the answer with the token embedding instead of a head of its own."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time, same numbers."""

    def __post_init__(self) -> None:
        positions = self.prefix - self.view_positions
        if self.puzzle_width > positions * self.hidden:
            raise ValueError(
                f"puzzle_width {self.puzzle_width} does not fit {positions} positions of {self.hidden} numbers"
            )

    @property
    def view_positions(self) -> int:
        """Positions at the end of the prefix that name an example's augmentation."""
        return VIEW_POSITIONS if self.embedding_rows == "task" else 0

    @property
    def features(self) -> int:
        """Tensors in the state: y and its latents."""
        return {
            "answer_and_latent": 2,
            "single_latent": 1,
            "single_latent_text": 1,
            "multi_scale_latent": 1 + (self.latents or self.latent_steps),
            "direct": 1,
        }[self.recursion]


@dataclass(frozen=True)
class HaltingConfig:
    """Deep supervision: how many steps a sequence gets, when it stops, and what the losses weigh."""

    rule: HaltingRule = "correctness"
    """Halt when the answer is likelier right than not, when stopping beats going on (Q-learning), or never early."""
    max_supervision_steps: int = 16
    """Supervision steps at most (N_sup); an evaluation takes all of them, but for `log.early_exit`."""
    exploration: float = 0.1
    """Probability that a training step demands a random minimum of 2..N_sup steps before halting counts."""
    continue_loss: bool = False
    """Also learn the value of going on, which takes a second forward pass (HRM's adaptive computation time)."""
    token_loss: TokenLoss = "stablemax"
    """Cross-entropy over tokens: stable-max or soft-max."""
    loss_weight: float = 0.5
    """Weight of each halting loss beside the token loss (published code 0.5; the TRM paper's pseudocode 1)."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation: rates, sizes, durations."""

    batch_size: int = 768
    """Batch slots over all processes."""
    epochs: int = 100_000
    """Passes over the groups (one augmentation of every task each); used when `steps` is 0."""
    steps: int = 0
    """Optimiser steps in all; 0: as many as `epochs` take."""
    optimiser: Optimiser = "adam_atan2"
    """Adam-atan2 (published code), AdamW (the paper's text), or Muon for the matrices (Adam-atan2 for the rest)."""
    lr: float = 1e-4
    """Learning rate of the trunk."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the trunk."""
    beta1: float = 0.9
    """Decay of Adam's first moment."""
    beta2: float = 0.95
    """Decay of Adam's second moment."""
    puzzle_lr: float = 1e-2
    """Learning rate of the puzzle embedding (sign-SGD)."""
    puzzle_weight_decay: float = 0.1
    """Decoupled weight decay of the puzzle embedding."""
    warmup_steps: int = 2000
    """Steps of linear warm-up."""
    warmup_share: float = 0.1
    """The warm-up takes at most this share of all steps."""
    lr_min_ratio: float = 1.0
    """Final rate over base rate of the cosine after the warm-up; 1: constant."""
    ema: float = 0.999
    """Decay of the weights' moving average, which evaluation and export use; 0: none."""
    ema_warmup: bool = True
    """Let the decay grow as (1 + t) / (10 + t) first, so that short runs average too (published code: no)."""
    augment: bool = True
    """Shuffle Sudokus and turn mazes (published command for mazes: no); an ARC dataset says so itself."""
    colours_from: int = 0
    """Step from which colour permutations are drawn too, dihedral elements alone before; for rows owned by tasks."""
    micro_batches: int = 1
    """Parts that a process's batch slots are worked through in; gradients add up (less memory, same result)."""
    canvas: CanvasSchedule = "full"
    """Every example on the full canvas, or each task on the smallest canvas size that its visible grids need."""
    share_multiple: int = 4
    """Every canvas size gets a multiple of this many slots, so that up to as many processes share them evenly."""
    precision: Precision = "auto"
    """Arithmetic of the forward pass; auto: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    compile: bool = False
    """Compile the model (torch.compile); falls back to eager with one line when the toolchain is missing."""


@dataclass(frozen=True)
class LogConfig:
    """What a run reports and keeps, in optimiser steps."""

    every: int = 10
    """Read metrics from the device and log them."""
    evaluate_every: int = 0
    """Evaluate with the competition's score; 0: only at the end."""
    checkpoint_every: int = 1000
    """Write a checkpoint; the last step is always written."""
    keep_checkpoints: int = 2
    """Checkpoints kept; older ones are deleted."""
    evaluation_augmentations: int = 1000
    """Puzzles per task that vote in an evaluation, the identity included."""
    evaluation_batch: int = 768
    """Batch rows of an evaluation over all processes."""
    early_exit: bool = False
    """In an evaluation, take a row's answer when it wants to halt, and give its place to others."""
    track: str = "tensorboard"
    """Tracker known to Accelerate (tensorboard, wandb, …), or none."""


@dataclass(frozen=True)
class RunConfig:
    """A whole training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The model."""
    halting: HaltingConfig = field(default_factory=HaltingConfig)
    """Deep supervision and its losses."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The optimisation."""
    log: LogConfig = field(default_factory=LogConfig)
    """Reports, evaluations, checkpoints."""
    seed: int = 0
    """Seed of the initial weights, the sampler and the exploration."""


INFINITY = float("inf")
# What a number may be at least and at most; settings that are not listed may be any value of their type.
RANGES: dict[str, tuple[float, float]] = {
    **{
        f"model.{name}": (1, INFINITY)
        for name in (
            "vocab_size", "seq_len", "hidden", "heads", "layers", "expansion", "latent_steps", "deep_steps", "prefix"
        )
    },
    **{f"model.{name}": (0, INFINITY) for name in ("answer_layers", "latents", "graded_updates", "puzzle_width")},
    "halting.max_supervision_steps": (1, INFINITY),
    "halting.exploration": (0, 1),
    "halting.loss_weight": (0, INFINITY),
    **{f"train.{name}": (1, INFINITY) for name in ("batch_size", "epochs", "micro_batches", "share_multiple")},
    **{
        f"train.{name}": (0, INFINITY)
        for name in (
            "steps", "lr", "weight_decay", "puzzle_lr", "puzzle_weight_decay", "warmup_steps", "lr_min_ratio",
            "colours_from",
        )
    },
    **{f"train.{name}": (0, 1) for name in ("beta1", "beta2", "warmup_share", "ema")},
    **{
        f"log.{name}": (1, INFINITY)
        for name in (
            "every", "checkpoint_every", "keep_checkpoints", "evaluation_augmentations", "evaluation_batch"
        )
    },
    "log.evaluate_every": (0, INFINITY),
    "seed": (0, 2**64 - 1),
}  # fmt: skip


def check_config(config: RunConfig) -> None:
    """Raise InputError naming the first setting that is out of its range."""
    for name, (least, most) in RANGES.items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if not least <= value <= most:
            limits = f"at least {least}" if most == INFINITY else f"{least} to {most}"
            raise InputError(f"{name}: found {value}, expected {limits}")
    head_size = config.model.hidden // config.model.heads
    # Rotary positions turn the numbers of a head in pairs, as many by row as by column where they tell these apart.
    turned = 4 if config.model.positions == "grid" else 2
    if config.model.mixer == "attention" and (head_size < 2 or head_size % turned):
        raise InputError(
            f"model.heads: {config.model.heads} heads of {head_size} numbers, expected a multiple of {turned} numbers"
        )
    if config.model.positions == "grid" and math.isqrt(config.model.seq_len) ** 2 != config.model.seq_len:
        raise InputError(f"model.seq_len: found {config.model.seq_len}, expected a square for model.positions grid")


def to_json(config: Any) -> dict[str, Any]:
    """A configuration dataclass as plain JSON values."""
    return asdict(config)


def from_json(kind: type[Config], values: Any, where: str) -> Config:
    """The configuration that `to_json` wrote; raises InputError naming a field that is unknown or of a wrong type."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected an object of settings, found {type(values).__name__}")
    known = get_type_hints(kind)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InputError(f"{where}: unknown setting {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
    arguments = {name: _convert(known[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return kind(**arguments)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _convert(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return from_json(kind, value, where)  # type: ignore[arg-type]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{where}: found {value!r}, expected one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InputError(f"{where}: found {value!r}, expected a {kind.__name__}")
    return value
