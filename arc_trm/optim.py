"""Dense optimisers, the learning rate schedule, the moving average of weights, the sparse puzzle embedding."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from arc_trm.config import TrainConfig

# Decays of the first and second moment, or of Muon's momentum.
BETAS = (0.9, 0.95)
# Coefficients of the quintic iteration that drives singular values towards 1 (Jordan et al. 2024, "Muon").
NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5
# Number of matrices stacked in one weight: queries, keys, values; gate and up.
STACKED = {"qkv": 3, "gate_up": 2}


def learning_rate(step: int, base: float, warmup: int, total: int, min_ratio: float = 1.0) -> float:
    """Return the rate of step `step` (1, 2, …): linear warm-up, then a cosine from `base` to min_ratio · base.

    A min_ratio of 1 makes it constant after the warm-up. Beyond `total` it follows the formula of the cosine.
    """
    if step < warmup:
        return base * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return base * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def gpu_has_bf16(gpu: torch.device) -> bool:
    """Tell whether a GPU computes in bfloat16 natively; torch also reports GPUs that emulate it slowly."""
    return torch.cuda.get_device_capability(gpu)[0] >= 8


class AdamAtan2(torch.optim.Optimizer):
    """AdamW with atan2(m, √v) in place of m / (√v + ε): bounded, scale-free, no ε (Everett et al. 2024)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, in a few fused passes over all of them."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                directions = self.directions(group, parameters, [p.grad for p in parameters])
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def directions(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return the direction of each parameter, of its shape; the update is −rate · direction."""
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
            self.state[p]["step"] += 1
        first = [self.state[p]["exp_avg"] for p in parameters]
        second = [self.state[p]["exp_avg_sq"] for p in parameters]
        count = int(self.state[parameters[0]]["step"])
        beta1, beta2 = BETAS
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        numerator = torch._foreach_div(first, 1 - beta1**count)
        denominator = torch._foreach_div(second, 1 - beta2**count)
        torch._foreach_sqrt_(denominator)
        return [torch.atan2(m, v) for m, v in zip(numerator, denominator, strict=True)]


class Muon(AdamAtan2):
    """Muon for the matrices of the networks, Adam-atan2 for everything else (embeddings, heads, biases).

    The update of a matrix is its momentum with all singular values brought near 1 (Jordan et al. 2024), times
    0.2 · √(longer side), so that it is about as long as one of Adam and shares its rate and decay (Liu et al. 2025).
    Matrices that a layer stacks in one weight are treated separately. Momentum is Nesterov's, with Adam's beta1.
    """

    def __init__(self, model: nn.Module, lr: float, weight_decay: float) -> None:
        named = list(model.named_parameters())
        matrices = {n: p for n, p in named if n.split(".")[0] in ("net", "second_net") and p.dim() == 2}
        super().__init__([p for n, p in named if n not in matrices], lr, weight_decay)
        self.add_param_group({"params": list(matrices.values()), "matrices": True})
        self._stacked: dict[Tensor, int] = {p: STACKED.get(name.split(".")[-2], 1) for name, p in matrices.items()}

    def directions(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return the orthogonalised momentum of matrices, all of one shape at once; see AdamAtan2 for the rest."""
        if not group.get("matrices"):
            return super().directions(group, parameters, gradients)
        directions = [torch.empty_like(p) for p in parameters]
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # momentum, and its direction
        for p, gradient, direction in zip(parameters, gradients, directions, strict=True):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.lerp_(gradient, 1 - BETAS[0])
            ahead = gradient.lerp(momentum, BETAS[0])
            for pair in zip(ahead.chunk(self._stacked[p]), direction.chunk(self._stacked[p]), strict=True):
                by_shape[pair[0].shape].append(pair)
        for shape, pairs in by_shape.items():
            parts, targets = zip(*pairs, strict=True)
            for target, result in zip(targets, orthogonalised(torch.stack(parts)), strict=True):
                target.copy_(0.2 * math.sqrt(max(shape)) * result)
        return directions


def orthogonalised(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices [k, m, n] near 1 by Newton-Schulz; singular vectors stay.

    Computes in bfloat16 on a GPU that has it, else in the precision of `matrices`.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda and gpu_has_bf16(matrices.device) else matrices
    wide = x if x.shape[1] <= x.shape[2] else x.mT
    wide = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = wide @ wide.mT
        wide = a * wide + (b * square + c * square @ square) @ wide
    return (wide if x.shape[1] <= x.shape[2] else wide.mT).to(matrices.dtype)


# Makers of an optimiser by name.
OPTIMISERS: dict[str, Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]] = {
    "adam_atan2": lambda model, train: AdamAtan2(model.parameters(), train.lr, train.weight_decay),
    "adamw": lambda model, train: torch.optim.AdamW(
        model.parameters(), train.lr, BETAS, weight_decay=train.weight_decay
    ),
    "muon": lambda model, train: Muon(model, train.lr, train.weight_decay),
}


def ema_decay(step: int, target: float) -> float:
    """Return the decay of update `step` (1, 2, …), min(target, (1 + step) / (10 + step)): short runs average too."""
    return min(target, (1 + step) / (10 + step))


class Ema:
    """A float32 copy of the parameters that follows them: average ← decay · average + (1 − decay) · parameter."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move every average towards its parameter."""
        torch._foreach_lerp_(self.averages, self.parameters, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange parameters and averages in place; a second call exchanges them back."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            keep = parameter.clone()
            parameter.copy_(average)
            average.copy_(keep)


class PuzzleEmbedding:
    """One row of numbers per puzzle: a table [puzzles, width] in float32 beside the model, trained by sparse sign-SGD.

    With about a million rows it must stay out of the dense gradient and of the moving average. Only the rows of a
    batch are read (as a leaf that collects their gradient) and written.
    """

    def __init__(self, puzzles: int, width: int, device: torch.device | str = "cpu") -> None:
        self.table = torch.zeros(puzzles, width, device=device)

    def rows(self, puzzle_ids: Tensor) -> Tensor:
        """The rows [b, width] of `puzzle_ids` [b] as a new leaf whose `.grad` the backward pass fills."""
        return self.table[puzzle_ids].requires_grad_()

    @torch.no_grad()
    def update(self, puzzle_ids: Tensor, gradients: Tensor, learning_rate: float | Tensor, weight_decay: float) -> None:
        """Sign-SGD with decoupled decay on the rows named in `puzzle_ids` [b]; `gradients` is [b, width].

        The gradients of a row that occurs several times are added before the sign, by a product with the matrix of
        equal ids: in a fixed order, so that processes never differ in a sign, with static shapes and without waiting
        for the device. All copies of a row write the same value, that of the first.
        """
        same = puzzle_ids[:, None] == puzzle_ids
        totals = (same.to(gradients.dtype) @ gradients)[same.byte().argmax(1)]
        rows = self.table[puzzle_ids] * (1 - learning_rate * weight_decay) - learning_rate * totals.sign()
        self.table.index_copy_(0, puzzle_ids, rows)
