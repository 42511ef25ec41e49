"""The dense optimisers and the learning-rate schedule."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def learning_rate(step: int, base: float, warmup: int, total: int, min_ratio: float = 1.0) -> float:
    """The rate of optimiser step `step` (1, 2, …): linear warm-up, then a cosine from `base` to min_ratio · base.

    The recipe's min_ratio of 1 makes it constant after the warm-up; beyond `total` it follows the cosine's formula.
    """
    if step < warmup:
        return base * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return base * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


class AdamAtan2(torch.optim.Optimizer):
    """AdamW with atan2(m, √v) in place of m / (√v + ε): bounded, scale-free, no ε (Everett et al. 2024)."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient, a few fused passes over all of them together."""
        if closure is not None:
            raise ValueError("AdamAtan2 takes no closure")
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
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
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
            numerator = torch._foreach_div(first, 1 - beta1**count)
            denominator = torch._foreach_div(second, 1 - beta2**count)
            torch._foreach_sqrt_(denominator)
            angles = [torch.atan2(m, v) for m, v in zip(numerator, denominator, strict=True)]
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, angles, alpha=-group["lr"])
