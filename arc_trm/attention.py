"""Scaled dot-product attention: PyTorch's own, but for bf16 on a CPU.

PyTorch's CPU kernel multiplies bf16 no faster than float32. Here heads are taken a few at a time, so that their scores
stay in the processor's cache and the matrix library works in bf16. The scores are not kept for the backward pass but
made again, so memory does not grow with the square of the length.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Attention scores held at a time on a CPU (a few MB).
SCORES_AT_ONCE = 1 << 20


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √c) v over q, k, v of shape [b, h, l, c], without a mask."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return attend_cpu(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)


@torch.library.custom_op("arc_trm::attend_cpu", mutates_args=())
def attend_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`attend` for bf16 on a CPU; opaque to torch.compile, which would unroll the loop."""
    heads = [t.flatten(0, 1) for t in (q, k, v)]
    out = torch.empty_like(heads[0], memory_format=torch.contiguous_format)
    for part in _parts(heads[0]):
        some_q, some_k, some_v = (t[part] for t in heads)
        torch.bmm(_weights(some_q, some_k), some_v, out=out[part])
    return out.view(q.shape)


@attend_cpu.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@torch.library.custom_op("arc_trm::attend_cpu_backward", mutates_args=())
def attend_cpu_backward(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    """Gradients of q, k and v, from the gradient of `attend_cpu`'s result."""
    heads = [t.flatten(0, 1) for t in (q, k, v, gradient)]
    results = [torch.empty_like(heads[0], memory_format=torch.contiguous_format) for _ in range(3)]
    for part in _parts(heads[0]):
        some_q, some_k, some_v, some_gradient = (t[part] for t in heads)
        weights = _weights(some_q, some_k)
        torch.bmm(weights.transpose(1, 2), some_gradient, out=results[2][part])
        scores = torch.bmm(some_gradient, some_v.transpose(1, 2))
        scores = torch._softmax_backward_data(scores, weights, -1, weights.dtype)
        scores *= 1 / math.sqrt(q.shape[-1])
        torch.bmm(scores, some_k, out=results[0][part])
        torch.bmm(scores.transpose(1, 2), some_q, out=results[1][part])
    return [result.view(q.shape) for result in results]


@attend_cpu_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    return [torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)]


def _parts(heads: Tensor) -> list[slice]:
    """Slices of the heads [b · h, l, c], as many at a time as their scores stay in the cache."""
    count, length, _ = heads.shape
    size = max(1, SCORES_AT_ONCE // length**2)
    return [slice(start, start + size) for start in range(0, count, size)]


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q * (1 / math.sqrt(q.shape[-1])), k.transpose(1, 2)).softmax(-1)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
    return tuple(attend_cpu_backward(*ctx.saved_tensors, gradient))


attend_cpu.register_autograd(_backward, setup_context=_keep)
