"""Typed settings of the model, its training and its logs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from data_prep.files import InputError

Recursion = Literal["answer_and_latent", "single_latent", "single_latent_text", "multi_scale_latent", "direct"]
Config = TypeVar("Config")
Number = TypeVar("Number", int, float)
# One position for the dihedral element, one for each of the ten colours.
VIEW_POSITIONS = 11
# Settings that the weights of a model do not depend on.
FREE_OF_WEIGHTS = ("activation_checkpointing", "latent_steps", "deep_steps", "gradient_updates")
SHOWN = 60  # characters of two values in a line about their difference


def within(default: Number, least: float, most: float = math.inf) -> Number:
    """Declare a numeric field with its allowed range, `least` to `most`."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True)
class ModelConfig:
    """One member of the model family; the defaults are TRM with attention on the ARC canvas, as the paper has it."""

    vocab_size: int = within(12, 1)
    """Number of tokens."""
    seq_len: int = within(900, 1)
    """Tokens of the full canvas."""
    hidden: int = within(512, 1)
    """Numbers per position (d)."""
    heads: int = within(8, 1)
    """Attention heads."""
    layers: int = within(2, 1)
    """Blocks in the network that updates z (or everything)."""
    answer_layers: int = within(0, 0)
    """Blocks in a second network that updates y; 0: the same network does both."""
    expansion: float = within(4.0, 1)
    """Feed-forward expansion of SwiGLU."""
    mixer: Literal["attention", "mlp"] = "attention"
    """How positions exchange information: self-attention, or an MLP over tokens (fixed length)."""
    positions: Literal["sequence", "grid"] = "sequence"
    """Rotary angles of attention: by place in the sequence (the paper), or half by row and half by column."""
    convolution: bool = False
    """Before its SwiGLU every block adds to each canvas position a 3×3 depthwise convolution of its surroundings."""
    patch: int = within(1, 1)
    """Side of the square of cells that one canvas position holds; 1: a position for every cell (the paper)."""
    recursion: Recursion = "answer_and_latent"
    """Kind of latent recursion."""
    latent_steps: int = within(6, 1)
    """Updates of z in a latent recursion (n)."""
    latents: int = within(0, 0)
    """Latents of the multi-scale member, at least n; 0: n of them (the published code always has six)."""
    deep_steps: int = within(3, 1)
    """Latent recursions in a deep recursion, gradient in the last (T)."""
    gradient_updates: int = within(0, 0)
    """Last updates of the last latent recursion that carry gradient; 0: all. 2 is HRM's 1-step gradient."""
    prefix: int = within(16, 1)
    """Positions in front of the canvas that hold the puzzle embedding."""
    puzzle_width: int = within(512, 0)
    """Numbers in a puzzle embedding; they fill the first positions of the prefix."""
    embedding_rows: Literal["puzzle", "task"] = "puzzle"
    """Owner of a row of the puzzle embedding: every puzzle (the paper), or every task. A task's augmentations share
    its row; the model is told the augmentation in the last eleven positions of the prefix (one for the dihedral
    element, ten for the colours), and training draws a new one for every example."""
    tied_embedding: bool = False
    """Read the answer with the token embedding instead of a head of its own."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time, same numbers."""

    def __post_init__(self) -> None:
        positions = self.prefix - self.view_positions
        if self.patch > 1 and self.tied_embedding:
            raise ValueError(f"tied_embedding reads one cell from a position, which holds {self.patch}x{self.patch}")
        if self.puzzle_width > positions * self.hidden:
            raise ValueError(
                f"puzzle_width {self.puzzle_width} does not fit {positions} positions of {self.hidden} numbers"
            )

    @property
    def view_positions(self) -> int:
        """Positions at the end of the prefix that name an example's augmentation."""
        return VIEW_POSITIONS if self.embedding_rows == "task" else 0

    def canvas_positions(self, tokens: int) -> int:
        """Positions of a canvas of `tokens` cells; patches that reach beyond its edge are filled with PAD."""
        return tokens if self.patch == 1 else math.ceil(math.isqrt(tokens) / self.patch) ** 2

    @property
    def features(self) -> int:
        """Tensors in the state: y and its latents."""
        latents = {"answer_and_latent": 1, "multi_scale_latent": self.latents or self.latent_steps}
        return 1 + latents.get(self.recursion, 0)


@dataclass(frozen=True)
class HaltingConfig:
    """Deep supervision: how many steps a sequence gets, when it stops, and what the losses weigh."""

    rule: Literal["correctness", "q_learning", "never"] = "correctness"
    """Halt when the answer is likelier right than not, when stopping beats going on (Q-learning), or never early."""
    max_supervision_steps: int = within(16, 1)
    """Supervision steps at most (N_sup); an evaluation takes all of them."""
    exploration: float = within(0.1, 0, 1)
    """Probability that a training step demands a random minimum of 2..N_sup steps before halting counts."""
    continue_loss: bool = False
    """Also learn the value of going on, which takes a second forward pass (HRM's adaptive computation time)."""
    token_loss: Literal["stablemax", "softmax"] = "stablemax"
    """Cross-entropy over tokens: stable-max or soft-max."""
    loss_weight: float = within(0.5, 0)
    """Weight of each halting loss beside the token loss (published code 0.5; the TRM paper's pseudocode 1)."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation: rates, sizes, durations."""

    batch_size: int = within(768, 1)
    """Batch slots over all processes."""
    epochs: int = within(100_000, 1)
    """Passes over the groups (one augmentation of every task each); used when `steps` is 0."""
    steps: int = within(0, 0)
    """Optimiser steps in all; 0: as many as `epochs` take."""
    optimiser: Literal["adam_atan2", "adamw", "muon"] = "adam_atan2"
    """Adam-atan2 (published code), AdamW (the paper's text), or Muon for the matrices (Adam-atan2 for the rest)."""
    lr: float = within(1e-4, 0)
    """Learning rate of the trunk."""
    weight_decay: float = within(0.1, 0)
    """Decoupled weight decay of the trunk."""
    puzzle_lr: float = within(1e-2, 0)
    """Learning rate of the puzzle embedding (sign-SGD)."""
    puzzle_weight_decay: float = within(0.1, 0)
    """Decoupled weight decay of the puzzle embedding."""
    warmup_steps: int = within(2000, 0)
    """Steps of linear warm-up, at most a tenth of all."""
    lr_min_ratio: float = within(1.0, 0)
    """Final rate over base rate of the cosine after the warm-up; 1: constant."""
    ema: float = within(0.999, 0, 1)
    """Decay of the weights' moving average, which evaluation and export use, at most (1 + t) / (10 + t); 0: none."""
    augment: bool = True
    """Shuffle Sudokus and turn mazes (published command for mazes: no); an ARC dataset says so itself."""
    own_colours: float = within(0.7, 0, 1)
    """Share of the examples, and of the votes, in their task's own colours; for rows owned by tasks."""
    sampling: Literal["visits", "mixed"] = "visits"
    """Give a task's pairs one after the other (the published rule), or draw a task and one of its pairs for every
    example, which gives a batch as many tasks as examples."""
    generated_share: float = within(0.5, 0, 1)
    """Share of generated pairs among the mixed examples of a task that has both kinds."""
    canvas: Literal["full", "sizes"] = "full"
    """Every example on the full canvas, or each task on the smallest canvas size that its visible grids need."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward pass; auto: bf16 on a GPU that has it, else fp16 on a GPU; on a CPU fp32, or bf16
    if that is measured to be faster."""
    compile: bool = False
    """Compile the networks (torch.compile); without, and with one line that says why, if that fails."""


@dataclass(frozen=True)
class LogConfig:
    """Reports, evaluations and checkpoints of a run."""

    every: int = within(10, 1)
    """Optimiser steps between two readings of the metrics from the device, which are logged."""
    evaluate_every: int = within(0, 0)
    """Optimiser steps between two evaluations with the competition's score; 0: only at the end."""
    checkpoint_minutes: float = within(20.0, 0)
    """Minutes from one checkpoint to the next; the last step, and those that are evaluated, are always written."""
    keep_checkpoints: int = within(2, 1)
    """Checkpoints kept; older ones are deleted."""
    evaluation_augmentations: int = within(1000, 1)
    """Puzzles per task that vote in an evaluation, the identity included."""
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
    seed: int = within(0, 0, 2**64 - 1)
    """Seed of the initial weights, the sampler and the exploration."""


def settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield dotted name, value and field of every setting."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{each.name}.")
        else:
            yield f"{prefix}{each.name}", value, each


def flat(config: Any) -> dict[str, Any]:
    """Return all settings by dotted name."""
    return {name: value for name, value, _ in settings(config)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], free: tuple[str, ...]) -> list[str]:
    """List the values that differ as lines `name: old, now new`; names that begin with one of `free` may differ."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and not name.startswith(free):
            shown = f"{old.get(name)!r}, now {new.get(name)!r}"
            lines.append(f"{name}: {shown}" if len(shown) <= SHOWN else name)
    return lines


def model_differences(old: ModelConfig, new: ModelConfig) -> list[str]:
    """List the differences that keep the weights of one model from fitting another."""
    return differences(asdict(old), asdict(new), FREE_OF_WEIGHTS)


def check_config(config: RunConfig) -> None:
    """Raise InputError naming the first setting that is out of its range or does not go with another."""
    for name, value, each in settings(config):
        if "range" not in each.metadata:
            continue
        least, most = each.metadata["range"]
        if not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise InputError(f"{name}: found {value}, expected {limits}")
    head_size = config.model.hidden // config.model.heads
    # Rotary positions turn the numbers of a head in pairs, half of them by row and half by column for a grid.
    turned = 4 if config.model.positions == "grid" else 2
    if config.model.mixer == "attention" and (head_size < 2 or head_size % turned):
        raise InputError(
            f"model.heads: {config.model.heads} heads of {head_size} numbers, expected a multiple of {turned} numbers"
        )
    for setting, set_so in (
        ("positions grid", config.model.positions == "grid"),
        ("convolution", config.model.convolution),
        ("patch", config.model.patch > 1),
    ):
        if set_so and math.isqrt(config.model.seq_len) ** 2 != config.model.seq_len:
            raise InputError(f"model.seq_len: found {config.model.seq_len}, expected a square for model.{setting}")


def from_json(kind: type[Config], values: Any, where: str) -> Config:
    """Return the configuration that `dataclasses.asdict` turned into `values`; missing settings get their defaults.

    Raises InputError naming a field that is unknown or of a wrong type.
    """
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
