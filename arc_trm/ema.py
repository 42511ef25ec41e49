"""Exponential moving average of the trainable weights."""

from collections.abc import Iterable

import torch
from torch import Tensor


def ema_decay(step: int, target: float) -> float:
    """Decay of update `step` (1, 2, …): min(target, (1 + step) / (10 + step)), so that short runs average too."""
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
