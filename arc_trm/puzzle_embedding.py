"""The puzzle embedding: one row of numbers per puzzle, held as a plain tensor and trained by sparse sign-SGD.

With about a million rows the table must stay out of the dense gradient, of DDP and of EMA. Only the rows of a batch
are read (as a leaf that collects their gradient) and written.
"""

import torch
from torch import Tensor


class PuzzleEmbedding:
    """A table [puzzles, width] in float32 beside the model, one per process."""

    def __init__(self, puzzles: int, width: int, device: torch.device | str = "cpu") -> None:
        self.table = torch.zeros(puzzles, width, device=device)

    def rows(self, puzzle_ids: Tensor) -> Tensor:
        """The rows [b, width] of `puzzle_ids` [b] as a new leaf whose `.grad` the backward pass fills."""
        return self.table[puzzle_ids].requires_grad_()

    @torch.no_grad()
    def update(self, puzzle_ids: Tensor, gradients: Tensor, learning_rate: float | Tensor, weight_decay: float) -> None:
        """Sign-SGD with decoupled decay on the rows named in `puzzle_ids` [b]; `gradients` is [b, width].

        The gradients of a row that occurs several times are added before the sign. Static shapes and no host
        synchronisation: sort, number the runs of equal ids, add within runs; all copies of a row write the same value.
        """
        ids, order = puzzle_ids.sort(stable=True)
        run = torch.zeros_like(ids)
        run[1:] = (ids[1:] != ids[:-1]).cumsum(0)
        totals = torch.zeros_like(gradients).index_add_(0, run, gradients[order])
        rows = self.table[ids] * (1 - learning_rate * weight_decay) - learning_rate * totals[run].sign()
        self.table.index_copy_(0, ids, rows)
