"""Batches: what the trainer consumes, and how examples are made on the training device."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Examples side by side: inputs int32[b, L], labels int32[b, L] (IGNORE_LABEL where nothing is asked),
    puzzle_ids int64[b].
    """

    inputs: Tensor
    labels: Tensor
    puzzle_ids: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`."""
        return Batch(
            self.inputs.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.puzzle_ids.to(device, non_blocking=True),
        )


class Source(Protocol):
    """An endless supply of examples: what is offered to a batch slot depends on (seed, step, slot) alone."""

    @property
    def vocab_size(self) -> int:
        """Number of distinct tokens."""

    @property
    def seq_len(self) -> int:
        """Tokens of one example."""

    @property
    def num_puzzles(self) -> int:
        """Rows of the puzzle embedding table."""

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to these batch slots at this step."""
