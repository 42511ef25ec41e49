"""The layers of the one small network: RMS norm, rotary positions, attention, SwiGLU, token mixer, block.

Shapes: b batch rows, l positions, d hidden size, h heads, k head size. Weights stay in float32; every layer
computes in the precision of its input, so the model decides it once, where the input is embedded.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
GRID_ROTARY_BASE = 100.0
# Standard deviation of a unit normal cut at two of its own standard deviations.
TRUNCATED_STD = 0.8796256610342398
# Attention scores held at a time on a CPU (a few MB).
SCORES_AT_ONCE = 1 << 20


def wide(x: Tensor) -> Tensor:
    """`x` in float32; float64, in which runs are compared, stays."""
    return x if x.dtype == torch.float64 else x.float()


def truncated_normal(shape: tuple[int, ...], std: float) -> Tensor:
    """A tensor of `shape` from the normal cut at ±2σ, widened so that its standard deviation really is `std`."""
    if std == 0:
        return torch.zeros(shape)
    scale = std / TRUNCATED_STD
    return nn.init.trunc_normal_(torch.empty(shape), std=scale, a=-2 * scale, b=2 * scale)


def rms_norm(x: Tensor) -> Tensor:
    """x / √(mean(x²) + ε) over the last axis, without gain; computed in float32 whatever x's precision."""
    return F.rms_norm(x, (x.shape[-1],), eps=NORM_EPSILON)


def rotary_table(positions: Tensor, head_size: int) -> Tensor:
    """Rotary angles [2, l, k] (cosines, sines) of integer `positions` [l] (Su et al. 2021, half-split layout)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_size, 2, device=positions.device) / head_size)
    angles = positions[:, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def grid_rotary_table(rows: Tensor, columns: Tensor, head_size: int) -> Tensor:
    """Rotary angles [2, l, k] for cells on a canvas: half of the pairs turn by `rows` [l], half by `columns` [l].

    The head size is a multiple of 4. The base is small because a canvas has few rows.
    """
    frequencies = GRID_ROTARY_BASE ** (-torch.arange(0, head_size // 2, 2, device=rows.device) / (head_size // 2))
    angles = torch.cat([place[:, None].float() * frequencies for place in (rows, columns)], dim=-1)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn x [b, l, h, k] by the angles of its position; `rotary` is [2, l, k]. Computed in float32."""
    cosines, sines = rotary[:, :, None, :]
    half = x.shape[-1] // 2
    signed = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    return torch.addcmul(x * cosines, x.roll(half, dims=-1), signed).to(x.dtype)


def swiglu_width(size: int, expansion: float) -> int:
    """Inner width of a SwiGLU over `size` features: expansion · size · 2/3, up to a multiple of 256."""
    return math.ceil(round(expansion * size * 2 / 3) / 256) * 256


class Linear(nn.Module):
    """y = x Wᵀ (+ b) in the precision of x, over float32 weights with std 1/√fan_in."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal((outputs, inputs), 1 / math.sqrt(inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) over the last axis (Shazeer 2020)."""

    def __init__(self, size: int, expansion: float) -> None:
        super().__init__()
        width = swiglu_width(size, expansion)
        self.gate_up = Linear(size, 2 * width)
        self.down = Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to [..., size]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Attention(nn.Module):
    """Full (unmasked) multi-head self-attention with rotary positions; x is [b, l, d].

    The head size is ⌊d / h⌋, so a width that the heads do not divide (512 over 12) projects to h · k < d and back.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, size // heads
        self.qkv = Linear(size, 3 * heads * self.head_size)
        self.out = Linear(heads * self.head_size, size)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """[b, l, d] to [b, l, d]; `rotary` [2, l, k] turns queries and keys."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.head_size).unbind(2)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        mixed = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Mix over positions, then over features; each step adds and then normalises (post-norm, no gain).

    `mixer` is "attention" or "mlp" (a SwiGLU across the positions; its norm runs over the positions too).
    """

    def __init__(self, size: int, heads: int, expansion: float, length: int, mixer: str) -> None:
        super().__init__()
        build: dict[str, Callable[[], nn.Module]] = {
            "attention": lambda: Attention(size, heads),
            "mlp": lambda: SwiGLU(length, expansion),
        }
        self.mixer = mixer
        self.mix_tokens = build[mixer]()
        self.mix_features = SwiGLU(size, expansion)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """[b, l, d] to [b, l, d]."""
        if self.mixer == "attention":
            x = rms_norm(x + self.mix_tokens(x, rotary))
        else:
            columns = x.transpose(1, 2).contiguous()
            x = rms_norm(columns + self.mix_tokens(columns)).transpose(1, 2)
        return rms_norm(x + self.mix_features(x))


class Network(nn.Module):
    """The small network of the recursion: blocks applied to a state [b, l, d] with the other terms added to it."""

    def __init__(self, layers: int, size: int, heads: int, expansion: float, length: int, mixer: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size, heads, expansion, length, mixer) for _ in range(layers))

    def forward(self, state: Tensor, rotary: Tensor | None) -> Tensor:
        """[b, l, d] to [b, l, d]."""
        for block in self.blocks:
            state = block(state, rotary)
        return state


# Attention -----------------------------------------------------------------------------------------------------------
#
# PyTorch's own, but for bf16 on a CPU, where its kernel multiplies no faster than in float32. There heads are taken a
# few at a time, so that their scores stay in the processor's cache and the matrix library works in bf16. The scores
# are not kept for the backward pass but made again, so memory does not grow with the square of the length.


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
