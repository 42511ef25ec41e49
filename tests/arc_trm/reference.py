"""The published models a second time, as plainly as possible: float64, one loop per idea, no shared code with arc_trm.

It reads weights by their published names and knows each architecture by heart, so the family in `arc_trm.model` can be
compared with it at any size.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
IGNORE = -100


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def inner_width(size: int, expansion: float) -> int:
    wanted = round(expansion * size * 2 / 3)
    return wanted + (-wanted) % 256


def turn(x: Tensor) -> Tensor:
    """Rotary positions of x [l, k], pair (i, i + k/2) by the angle l · 10000^(-2i/k)."""
    half = x.shape[1] // 2
    out = torch.empty_like(x)
    for position in range(x.shape[0]):
        for i in range(half):
            angle = position * 10_000.0 ** (-2 * i / x.shape[1])
            a, b = x[position, i], x[position, i + half]
            out[position, i] = a * math.cos(angle) - b * math.sin(angle)
            out[position, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def turn_all(x: Tensor) -> Tensor:
    """`turn` for x [b, l, k], vectorised so that gradients stay cheap; `turn` itself checks it in a test."""
    length, size = x.shape[1:]
    frequencies = 10_000.0 ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    first, second = x[..., : size // 2], x[..., size // 2 :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def swiglu(x: Tensor, weights: Weights, name: str) -> Tensor:
    both = x @ weights[f"{name}.gate_up_proj.weight"].T
    gate, up = both[..., : both.shape[-1] // 2], both[..., both.shape[-1] // 2 :]
    return (gate * gate.sigmoid() * up) @ weights[f"{name}.down_proj.weight"].T


def attend(x: Tensor, weights: Weights, name: str, heads: int) -> Tensor:
    size = x.shape[-1] // heads
    mixed = x @ weights[f"{name}.qkv_proj.weight"].T
    results = []
    for head in range(heads):
        q, k, v = (mixed[..., (part * heads + head) * size :][..., :size] for part in range(3))
        scores = turn_all(q) @ turn_all(k).transpose(1, 2) / math.sqrt(size)
        results.append(scores.softmax(-1) @ v)
    return torch.cat(results, -1) @ weights[f"{name}.o_proj.weight"].T


def level(name: str, h: Tensor, weights: Weights, config: Mapping[str, Any]) -> Tensor:
    layer = 0
    while f"{name}.layers.{layer}.mlp.down_proj.weight" in weights:
        block = f"{name}.layers.{layer}"
        if config.get("mlp_t"):
            columns = h.transpose(1, 2)
            h = rms(columns + swiglu(columns, weights, f"{block}.mlp_t")).transpose(1, 2)
        else:
            h = rms(h + attend(h, weights, f"{block}.self_attn", config["num_heads"]))
        h = rms(h + swiglu(h, weights, f"{block}.mlp"))
        layer += 1
    return h


def recurse(arch: str, state: list[Tensor], x: Tensor, weights: Weights, config: Mapping[str, Any]) -> list[Tensor]:
    """One forward pass of the recursion; gradients only where the published code keeps them."""

    def low(h: Tensor) -> Tensor:
        return level("L_level", h, weights, config)

    def high(h: Tensor) -> Tensor:
        return level("H_level", h, weights, config)

    if arch == "transformers_baseline":
        return [high(state[0] + x)]
    cycles, steps = config["H_cycles"], config["L_cycles"]
    for cycle in range(cycles):
        with torch.set_grad_enabled(cycle == cycles - 1 and arch != "hrm"):
            if arch == "trm_singlez":
                (z,) = state
                for _ in range(steps):
                    z = low(z + x)
                state = [low(z)]
            elif arch == "trm_hier6":
                y, z = state[0], list(state[1:])
                for step in range(steps):
                    z[step] = low(z[0] + z[1] + z[2] + z[3] + z[4] + z[5] + y + x)
                state = [low(y + z[0] + z[1] + z[2] + z[3] + z[4] + z[5]), *z]
            else:
                y, z = state
                last = arch == "hrm" and cycle == cycles - 1
                for _ in range(steps - last):
                    z = low(z + y + x)
                state = [y, z] if last else [(high if arch == "hrm" else low)(y + z), z]
    if arch == "hrm":  # the 1-step gradient: only the very last update of z and of y
        y, z = state
        z = low(z + y + x)
        state = [high(y + z), z]
    return state


STATES = {
    "trm": ["z_H", "z_L"],
    "trm_singlez": ["z_L"],
    "trm_hier6": ["z_H", *(f"z_L{i}" for i in range(1, 7))],
    "hrm": ["z_H", "z_L"],
    "transformers_baseline": ["z_H"],
}


def prefix_of(config: Mapping[str, Any]) -> int:
    return config.get("puzzle_emb_len") or math.ceil(config["puzzle_emb_ndim"] / config["hidden_size"])


def forward(
    arch: str, state: list[Tensor], inputs: Tensor, puzzle: Tensor, weights: Weights, config: Mapping[str, Any]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """(state, logits [b, l, v], q [b, 2])."""
    hidden, prefix = config["hidden_size"], prefix_of(config)
    front = torch.zeros(len(inputs), prefix * hidden, dtype=torch.float64)
    front = torch.cat((puzzle, front[:, puzzle.shape[1] :]), 1).view(len(inputs), prefix, hidden)
    tokens = weights["embed_tokens.embedding_weight"][inputs.long()]
    state = recurse(arch, state, math.sqrt(hidden) * torch.cat((front, tokens), 1), weights, config)
    logits = state[0][:, prefix:] @ weights["lm_head.weight"].T
    return state, logits, state[0][:, 0] @ weights["q_head.weight"].T + weights["q_head.bias"]


def stablemax_loss(logits: Tensor, label: int) -> Tensor:
    s = torch.where(logits >= 0, logits + 1, 1 / (1 - logits.clamp(max=0)))
    return -(s[label] / s.sum()).log()


def bce(logit: Tensor, target: Tensor) -> Tensor:
    p = logit.sigmoid()
    return -(target * p.log() + (1 - target) * (1 - p).log())


def row_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, float, bool, int]:
    """(mean token loss, share of right tokens, all right, labelled tokens) of one row."""
    asked = [(position, int(label)) for position, label in enumerate(labels) if label != IGNORE]
    losses = [stablemax_loss(logits[position], label) for position, label in asked]
    right = [int(logits[position].argmax()) == label for position, label in asked]
    loss = torch.stack(losses).mean() if losses else logits.sum() * 0
    return loss, sum(right) / max(len(asked), 1), all(right), len(asked)
