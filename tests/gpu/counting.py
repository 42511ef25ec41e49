"""What a training step asks of a GPU, counted without one: launches, bytes, products, saved activations.

Steps run on PyTorch's meta device, whose tensors have shapes and no numbers. RMS norm and attention, which a GPU has in
one kernel each and the meta device takes apart, are put back together here.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arc_trm import layers
from arc_trm.batches import Part
from arc_trm.presets import PRESETS
from arc_trm.trainer import Trainer
from tests.benchmarks.bench_training import FixedSource

META = torch.device("meta")
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm"}
# Operations that read of their first argument as much as they write, or nothing.
GATHERS = {"embedding", "index", "index_select", "gather"}
# Bytes in which tensor cores load rows; others are loaded in smaller pieces.
ALIGNED = 16
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass
class Counts:
    """What was counted; `traffic` is bytes read and written by everything but products and attention."""

    launches: int = 0
    traffic: int = 0
    product_bytes: int = 0
    flops: int = 0
    saved: int = 0
    odd: int = 0  # products with rows that are no multiple of ALIGNED bytes
    by_name: Counter[str] = field(default_factory=Counter)  # launches
    traffic_by_name: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, moved: int, flops: int = 0) -> None:
        """A kernel that moves so many bytes."""
        self.launches += 1
        self.by_name[name] += 1
        if flops:
            self.product_bytes += moved
            self.flops += flops
        else:
            self.traffic += moved
            self.traffic_by_name[name] += moved


def size_of(tensor: Tensor) -> int:
    """Bytes of memory behind a tensor; what is expanded is there once."""
    lengths = (length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(lengths) * tensor.element_size() if tensor.numel() else 0


def sizes_of(values: Any) -> int:
    """The same of all tensors in a nest of values."""
    return sum(size_of(value) for value in tree_leaves(values) if isinstance(value, Tensor))


def row_size(tensor: Tensor) -> int:
    """Bytes of a matrix's rows, or of its columns where these are what lies side by side."""
    return tensor.element_size() * max(
        n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride == 1
    )


class Watch(TorchDispatchMode):
    """Counts every operation that is no mere view."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        name = function.overloadpacket.__name__
        # What is written alone, given as `out=` or the like, is not read.
        outs = {argument.name for argument in function._schema.arguments if argument.is_out}
        read = {name: value for name, value in (options or {}).items() if name not in outs}
        given = [value for value in tree_leaves((arguments, read)) if isinstance(value, Tensor)]
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        known = {value.untyped_storage()._cdata for value in given}
        if not function._schema.is_mutable and all(value.untyped_storage()._cdata in known for value in made):
            return result  # a view, or a question about a shape
        if name in NO_KERNEL:
            return result
        moved = sizes_of(made) + sizes_of(given)
        if name in GATHERS:
            moved = 2 * sizes_of(made) + sizes_of(given[1:])
        self.counts.add(name, moved, product_flops(given[-2:]) if name in PRODUCTS else 0)
        self.counts.odd += name in PRODUCTS and any(row_size(value) % ALIGNED for value in (*given, *made))
        return result


def product_flops(factors: list[Tensor]) -> int:
    """Multiplications and additions of [..., m, k] times [..., k, n]."""
    return 2 * factors[0].numel() * factors[1].shape[-1]


class _Norm(torch.autograd.Function):
    """RMS norm as one kernel forward and one backward, for shapes alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Counts) -> Tensor:
        scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        counts.add("rms_norm", sizes_of((x, result, scale)))
        ctx.save_for_backward(x, scale)
        ctx.counts = counts
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        result = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        ctx.counts.add("rms_norm_backward", sizes_of((gradient, result, ctx.saved_tensors)))
        return result, None


class _Attend(torch.autograd.Function):
    """Attention as one kernel forward and one backward, for shapes alone; q, k, v are [b, h, l, c]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, counts: Counts) -> Tensor:
        batch, heads, length, size = q.shape
        result = q.new_empty(batch, length, heads, size).transpose(1, 2)
        logsumexp = q.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.flops = 4 * q.numel() * length
        counts.add("attention", sizes_of((q, k, v, result, logsumexp)), ctx.flops)
        ctx.save_for_backward(q, k, v, result, logsumexp)
        ctx.counts = counts
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q = ctx.saved_tensors[0]
        made = [q.new_empty(q.transpose(1, 2).shape).transpose(1, 2) for _ in range(3)]
        # Scores again, and the gradients of scores, q, k and v.
        ctx.counts.add("attention_backward", sizes_of((gradient, made, ctx.saved_tensors)), ctx.flops * 5 // 2)
        return made[0], made[1], made[2], None


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what is done on the meta device within this context, and what autograd keeps."""
    counts = Counts()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        patch.object(layers, "rms_norm", lambda x: _Norm.apply(x, counts)),
        patch.object(layers, "attend", lambda q, k, v: _Attend.apply(q, k, v, counts)),
        saved_tensors_hooks(keep, lambda tensor: tensor),
        Watch(counts),
    ):
        yield counts
    counts.saved = sum(kept.values())


def counts_of_step(preset: str, batch: int, precision: str = "bf16") -> Counts:
    """Counts of the second training step of a preset, on full canvases."""
    config = PRESETS[preset]
    train = replace(config.train, batch_size=batch, precision=precision)  # type: ignore[arg-type]
    config = replace(config, train=train)
    device = SimpleNamespace(device=META, num_processes=1, process_index=0, is_main_process=True)
    part = Part(FixedSource(config, META), batch)
    trainer = Trainer(config, [part], cast(Accelerator, device), 10)
    trainer.train_step()
    with counted() as counts:
        trainer.train_step()
    return counts


@dataclass(frozen=True)
class Step:
    """A preset's step: launches, and per example traffic, saved activations and operations."""

    launches: int
    traffic: float
    saved: float
    flops: float


def per_example(preset: str) -> Step:
    """Launches of a step, and what one more example costs."""
    two, four = (counts_of_step(preset, batch) for batch in (2, 4))
    grown = {name: (getattr(four, name) - getattr(two, name)) / 2 for name in ("traffic", "saved", "flops")}
    return Step(two.launches, **grown)
