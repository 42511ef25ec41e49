"""The layers of the one small network: RMS norm, rotary positions, attention, SwiGLU, token mixer, convolution, block.

Shapes: b batch rows, l positions, d hidden size, h heads, k head size. Weights stay in float32; every layer
computes in the precision of its input, which the model chooses when it embeds the input.
"""

import math
from collections.abc import Iterable

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
    """Cast `x` to float32; float64, in which runs are compared, stays."""
    return x if x.dtype == torch.float64 else x.float()


def truncated_normal(shape: tuple[int, ...], std: float) -> Tensor:
    """Draw a tensor of `shape` from a normal truncated at ±2σ, scaled so that its standard deviation is `std`."""
    if std == 0:
        return torch.zeros(shape)
    scale = std / TRUNCATED_STD
    return nn.init.trunc_normal_(torch.empty(shape), std=scale, a=-2 * scale, b=2 * scale)


def rms_norm(x: Tensor) -> Tensor:
    """x / √(mean(x²) + ε) over the last axis, without gain; computed in float32 whatever x's precision."""
    return F.rms_norm(x, (x.shape[-1],), eps=NORM_EPSILON)


def rotary_table(positions: Tensor, head_size: int) -> Tensor:
    """Return rotary angles [2, l, k] (cosines, sines) of integer `positions` (Su et al. 2021, half-split layout).

    For positions [l] all pairs of numbers turn by them. For rows and columns on a canvas [l, 2] half of the pairs turn
    by each; the head size must be a multiple of 4, and the base is small because a canvas has few rows.
    """
    kinds, base = (1, ROTARY_BASE) if positions.dim() == 1 else (2, GRID_ROTARY_BASE)
    share = head_size // kinds
    frequencies = base ** (-torch.arange(0, share, 2, device=positions.device) / share)
    angles = (positions.float().view(-1, kinds, 1) * frequencies).flatten(1)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def swiglu_width(size: int, expansion: float) -> int:
    """Return the inner width of a SwiGLU over `size` features: expansion · size · 2/3, rounded up to 256s."""
    return math.ceil(round(expansion * size * 2 / 3) / 256) * 256


class Linear(nn.Module):
    """y = x Wᵀ (+ b) in the precision of x, over float32 weights with std 1/√fan_in."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal((outputs, inputs), 1 / math.sqrt(inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Map [..., inputs] to [..., outputs] and add `onto`, which is overwritten if gradients are off."""
        weight = self.weight.to(x.dtype)
        if onto is None:
            return F.linear(x, weight, None if self.bias is None else self.bias.to(x.dtype))
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return onto + F.linear(x, weight)
        return onto.flatten(0, -2).addmm_(x.flatten(0, -2), weight.t()).view_as(onto)


class SwiGLU(nn.Module):
    """x + down(silu(gate(x)) · up(x)) over the last axis (Shazeer 2020); without gradient x is overwritten."""

    def __init__(self, size: int, expansion: float) -> None:
        super().__init__()
        width = swiglu_width(size, expansion)
        self.gate_up = Linear(size, 2 * width)
        self.down = Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to [..., size]."""
        return self.down(gated(self.gate_up(x)), onto=x)


class Attention(nn.Module):
    """Full (unmasked) multi-head self-attention with rotary positions; x is [b, l, d].

    The head size is ⌊d / h⌋, so a width that the heads do not divide (512 over 12) projects to h · k < d and back.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, size // heads
        self.qkv = Linear(size, 3 * heads * self.head_size)
        self.out = Linear(heads * self.head_size, size)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        """[b, l, d] to [b, l, d]; `rotary` [2, l, k] turns queries and keys."""
        batch, length, _ = x.shape
        q, k, v = turned(self.qkv(x).view(batch, length, 3, self.heads, self.head_size), rotary)
        mixed = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    """x + 3×3 depthwise convolution of the square canvas that follows `prefix` positions, which stay as they are.

    Its weights start at zero, so it starts as the identity. Beyond its edge the canvas is padded with zeros.
    """

    def __init__(self, size: int, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.weight = nn.Parameter(torch.zeros(size, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        """[b, l, d] to [b, l, d]."""
        front, canvas = x[:, : self.prefix], x[:, self.prefix :]
        side, size = math.isqrt(canvas.shape[1]), x.shape[2]
        cells = canvas.transpose(1, 2).reshape(len(x), size, side, side)
        near = F.conv2d(cells, self.weight.to(x.dtype), padding=1, groups=size)
        return torch.cat((front, canvas + near.flatten(2).transpose(1, 2)), dim=1)


class Block(nn.Module):
    """Mix over positions, then over features; each step adds and then normalises (post-norm, no gain).

    `mixer` is "attention" or "mlp" (a SwiGLU across the positions; its norm runs over the positions too). With
    `canvas_from`, the position at which a square canvas begins, its cells see their neighbours before the features mix.
    """

    def __init__(
        self, size: int, heads: int, expansion: float, length: int, mixer: str, canvas_from: int | None = None
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mix_tokens = Attention(size, heads) if mixer == "attention" else SwiGLU(length, expansion)
        self.mix_neighbours = None if canvas_from is None else Convolution(size, canvas_from)
        self.mix_features = SwiGLU(size, expansion)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """[b, l, d] to [b, l, d]."""
        if self.mixer == "attention":
            x = rms_norm(x + self.mix_tokens(x, rotary))
        else:
            # Copied there and back: the products of transposed tensors would be one small product a row of the batch.
            columns = x.transpose(1, 2).contiguous()
            x = rms_norm(self.mix_tokens(columns)).transpose(1, 2).contiguous()
        if self.mix_neighbours is not None:
            x = self.mix_neighbours(x)
        return rms_norm(self.mix_features(x))


class Network(nn.Module):
    """The small network of the recursion: blocks applied to a state [b, l, d] with the other terms added to it."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, state: Tensor, rotary: Tensor | None) -> Tensor:
        """[b, l, d] to [b, l, d]."""
        for block in self.blocks:
            state = block(state, rotary)
        return state


# Passes over memory --------------------------------------------------------------------------------------------------
#
# What stands between matrix products costs a GPU as much time as they do, by the bytes that it moves. A compiler makes
# one pass of a formula; without one these take as few as PyTorch has operations for (tests/gpu/counting.py counts).


def turned(qkv: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [b, l, 3, h, k] into rotated queries, rotated keys and values, each [b, l, h, k].

    `rotary` is [2, l, k]; numbers turn in pairs that are half a head apart.
    """
    if not torch.compiler.is_compiling():
        return _Turned.apply(qkv, rotary)  # type: ignore[no-untyped-call]
    cosines, sines = rotary[:, :, None, None]
    half = qkv.shape[-1] // 2
    signed = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    both = qkv[:, :, :2]
    q, k = torch.addcmul(both * cosines, both.roll(half, dims=-1), signed).unbind(2)
    return q, k, qkv[:, :, 2]


def _turn(x: Tensor, rotary: Tensor, out: Tensor, direction: int) -> None:
    """Write x [b, l, …, h, k], turned forward (1) or back (-1), into `out`; `rotary` is [2, l, …, 1, k]."""
    (cosines, sines), half = rotary, x.shape[-1] // 2
    torch.mul(x, cosines, out=out)
    out[..., :half].addcmul_(x[..., half:], sines[..., :half], value=-direction)
    out[..., half:].addcmul_(x[..., :half], sines[..., half:], value=direction)


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(rotary)
        both = torch.empty_like(qkv[:, :, :2], memory_format=torch.contiguous_format)
        _turn(qkv[:, :, :2], rotary[:, :, None, None], both, 1)
        return both[:, :, 0], both[:, :, 1], qkv[:, :, 2]

    @staticmethod
    def backward(ctx, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        [rotary] = ctx.saved_tensors
        gradient = q.new_empty(*q.shape[:2], 3, *q.shape[2:])
        for turned_back, out in ((q, gradient[:, :, 0]), (k, gradient[:, :, 1])):
            _turn(turned_back, rotary[:, :, None], out, -1)
        gradient[:, :, 2] = v
        return gradient, None


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up, [..., w], of [..., 2 w], which holds gate and up."""
    if not torch.compiler.is_compiling():
        return _Gated.apply(gate_up)  # type: ignore[no-untyped-call]
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _Gated(torch.autograd.Function):
    """Keep only the input for the backward pass, and write the gradients of both halves side by side."""

    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        [gate_up] = ctx.saved_tensors
        both = torch.empty_like(gate_up)
        (gate, up), (to_gate, to_up) = gate_up.chunk(2, dim=-1), both.chunk(2, dim=-1)
        passed = F.silu(gate)
        torch.mul(gradient, passed, out=to_up)
        torch.mul(gradient, up, out=passed)
        torch.ops.aten.silu_backward.grad_input(passed, gate, grad_input=to_gate)
        return both


# Attention -----------------------------------------------------------------------------------------------------------
#
# PyTorch's own, but for bf16 on a CPU, where its kernel multiplies no faster than in float32. There heads are taken a
# few at a time, so that their scores stay in the processor's cache and the matrix library works in bf16. The scores
# are not kept for the backward pass but made again, so memory does not grow with the square of the length.


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q kᵀ / √c) v, [b, h, l, c], for q, k, v of that shape; no mask."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return attend_cpu(q, k, v)
    return F.scaled_dot_product_attention(q, k, v)


@torch.library.custom_op("arc_trm::attend_cpu", mutates_args=())
def attend_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute `attend` for bf16 on a CPU; opaque to torch.compile, which would unroll the loop."""
    heads = [t.flatten(0, 1) for t in (q, k, v)]
    out = torch.empty_like(heads[0], memory_format=torch.contiguous_format)
    for part in _parts(heads[0]):
        some_q, some_k, some_v = (t[part] for t in heads)
        torch.bmm(_weights(some_q, some_k), some_v, out=out[part])
    return out.view(q.shape)


@torch.library.custom_op("arc_trm::attend_cpu_backward", mutates_args=())
def attend_cpu_backward(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of q, k and v, given the gradient of `attend_cpu`'s result."""
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


def _parts(heads: Tensor) -> list[slice]:
    """Slice the heads [b · h, l, c] so that the scores of a slice stay in the cache."""
    count, length, _ = heads.shape
    size = max(1, SCORES_AT_ONCE // length**2)
    return [slice(start, start + size) for start in range(0, count, size)]


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q * (1 / math.sqrt(q.shape[-1])), k.transpose(1, 2)).softmax(-1)


attend_cpu.register_fake(lambda q, k, v: q.new_empty(q.shape))
attend_cpu_backward.register_fake(lambda q, k, v, gradient: [q.new_empty(q.shape) for _ in range(3)])
attend_cpu.register_autograd(
    lambda ctx, gradient: tuple(attend_cpu_backward(*ctx.saved_tensors, gradient)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
