"""Prediction: all supervision steps for every example, in fixed-size batches shared by all processes."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.batches import ArcBatches, Batch
from arc_trm.config import HaltingConfig
from arc_trm.halting import Forward
from arc_trm.model import RecursiveModel
from arc_trm.puzzle_embedding import PuzzleEmbedding
from arc_trm.sampler import Rows, fixed_batches


@dataclass(frozen=True)
class Predictor:
    """What turns a batch into answers: the forward pass, its model, the embedding table and the halting settings."""

    forward: Forward
    model: RecursiveModel
    embedding: PuzzleEmbedding
    halting: HaltingConfig
    dtype: torch.dtype

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Most likely tokens uint8 [b, l] and halting probability float32 [b] after the last supervision step."""
        size, tokens = batch.inputs.shape
        state = self.model.initial_state(size, tokens, self.dtype)
        puzzle = self.embedding.table[batch.puzzle_ids]
        for _ in range(self.halting.max_supervision_steps):
            output = self.forward(state, batch.inputs, puzzle)
            state = output.state
        return output.logits.argmax(-1).to(torch.uint8), output.halt_logits.sigmoid()


@dataclass
class MemoryLimit:
    """How many rows are answered at once: half as many whenever memory runs out."""

    at_once: int

    def answer(self, predictor: Predictor, batch: Batch) -> tuple[Tensor, Tensor]:
        """`predictor.answer`, in pieces that fit; raises OutOfMemoryError when a single row does not."""
        while True:
            try:
                parts = [predictor.answer(part) for part in _pieces(batch, self.at_once)]
            except torch.OutOfMemoryError:
                if self.at_once == 1:
                    raise
            else:
                return torch.cat([tokens for tokens, _ in parts]), torch.cat([halting for _, halting in parts])
            self.at_once = -(-self.at_once // 2)
            torch.cuda.empty_cache()
            print(f"note: out of memory, going on with {self.at_once} rows at once", file=sys.stderr)


def _pieces(batch: Batch, size: int) -> list[Batch]:
    columns = (torch.split(column, size) for column in (batch.inputs, batch.labels, batch.puzzle_ids))
    return [Batch(*piece) for piece in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Predicted:
    """Answers to n rows: tokens uint8 [n, l] and halting probabilities float32 [n]."""

    rows: Rows
    tokens: NDArray[np.uint8]
    halting: NDArray[np.float32]

    def __getitem__(self, index: NDArray[np.int64]) -> "Predicted":
        """The answers at `index`."""
        return Predicted(self.rows[index], self.tokens[index], self.halting[index])


def predict(
    predictor: Predictor, batches: ArcBatches, rows: Rows, batch_size: int, accelerator: Accelerator
) -> Iterator[Predicted]:
    """Answer `rows` in order, `batch_size` at a time over all processes; every process gets every answer."""
    share = -(-batch_size // accelerator.num_processes)
    first = accelerator.process_index * share
    within_memory = MemoryLimit(share)
    for chunk, valid in fixed_batches(rows, share * accelerator.num_processes):
        mine = chunk[np.arange(first, first + share)]
        tokens, halting = within_memory.answer(predictor, batches.make(mine))
        if accelerator.num_processes > 1:
            tokens, halting = accelerator.gather((tokens, halting))
        yield Predicted(chunk[np.arange(valid)], tokens[:valid].cpu().numpy(), halting[:valid].float().cpu().numpy())
