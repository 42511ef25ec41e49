"""What is learned: cross-entropy over tokens, halting, and the figures that are logged beside them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE_LABEL = -100


def wide(x: Tensor) -> Tensor:
    """`x` in float32; float64, in which runs are compared, stays."""
    return x if x.dtype == torch.float64 else x.float()


def log_stablemax(logits: Tensor) -> Tensor:
    """log s(x), s(x) = x + 1 for x ≥ 0 and 1 / (1 − x) for x < 0 (Prieto et al. 2025), in float32.

    In the log domain both branches are ±log(1 + |x|), so nothing overflows and no branch has an infinite gradient;
    stable-max cross-entropy is the ordinary one of these values.
    """
    x = wide(logits)
    return torch.where(x < 0, -torch.log1p(-x.clamp(max=0)), torch.log1p(x.clamp(min=0)))


TOKEN_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "stablemax": log_stablemax,
    "softmax": wide,
}


def token_loss(logits: Tensor, labels: Tensor, kind: str = "stablemax") -> Tensor:
    """Cross-entropy [b, l] of logits [b, l, v] against labels [b, l]; 0 where the label is IGNORE_LABEL."""
    scores = TOKEN_SCORES[kind](logits)
    return F.cross_entropy(
        scores.flatten(0, -2), labels.flatten().long(), ignore_index=IGNORE_LABEL, reduction="none"
    ).view(labels.shape)


def halting_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy [b] of a halting logit with its target in 0..1."""
    logits = wide(logits)
    return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")


class Judged(NamedTuple):
    """How a batch of answers [b] compares with its labels."""

    labelled: Tensor  # bool: the row has labels at all
    correct: Tensor  # bool: every labelled token is right (true for a row without labels)
    token_accuracy: Tensor  # float: share of the labelled tokens that are right


def judge(logits: Tensor, labels: Tensor) -> Judged:
    """Compare the most likely tokens of logits [b, l, v] with labels [b, l]."""
    asked = labels != IGNORE_LABEL
    count = asked.sum(-1)
    right = (asked & (logits.argmax(-1) == labels)).sum(-1)
    return Judged(count > 0, right == count, right / count.clamp(min=1))
