"""Prediction: all supervision steps for every example, in fixed-size batches shared by all processes."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.batches import ArcBatches, Batch
from arc_trm.config import HaltingConfig
from arc_trm.model import RecursiveModel, State
from arc_trm.optim import PuzzleEmbedding
from arc_trm.sampler import Rows, fixed_batches
from arc_trm.supervision import HALTING_RULES, Forward


class Answers(NamedTuple):
    """What a batch of b rows was answered."""

    tokens: Tensor  # uint8 [b, l], most likely tokens
    halting: Tensor  # float32 [b], halting probability
    steps: Tensor  # int64 [b], the first supervision step at which the row wanted to halt, else the last


@dataclass(frozen=True)
class Predictor:
    """What turns a batch into answers: the forward pass, its model, the embedding table and the halting settings."""

    forward: Forward
    model: RecursiveModel
    embedding: PuzzleEmbedding
    halting: HaltingConfig
    dtype: torch.dtype

    early_exit: bool = False

    @torch.no_grad()
    def answer(self, batch: Batch) -> Answers:
        """The answers after the last supervision step; with `early_exit`, after the step at which a row halts."""
        size, tokens = batch.inputs.shape
        state = tuple(part.contiguous() for part in self.model.initial_state(size, tokens, self.dtype))
        puzzle = self.embedding.table[batch.puzzle_ids]
        if self.early_exit:
            return self._answer_early(state, batch.inputs, puzzle, batch.views)
        last = self.halting.max_supervision_steps
        steps = torch.full((size,), last, device=batch.inputs.device)
        for step in range(1, last + 1):
            output = self.forward(state, batch.inputs, puzzle, batch.views)
            state = output.state
            steps = torch.where(HALTING_RULES[self.halting.rule](output), steps.clamp(max=step), steps)
        return Answers(output.logits.argmax(-1).to(torch.uint8), output.halt_logits.sigmoid(), steps)

    def _answer_early(self, state: State, inputs: Tensor, puzzle: Tensor, views: Tensor | None) -> Answers:
        """Rows leave when they halt; whenever half of them have, the others are packed into half the batch.

        Batch sizes are halves of b, so that a compiled model sees few shapes.
        """
        size, tokens = inputs.shape
        answers = torch.empty(size, tokens, dtype=torch.uint8, device=inputs.device)
        halting = torch.empty(size, device=inputs.device)
        steps = torch.empty(size, dtype=torch.int64, device=inputs.device)
        rows = torch.arange(size, device=inputs.device)  # of the batch, for every row in work
        waiting = torch.ones_like(rows, dtype=torch.bool)
        for step in range(1, self.halting.max_supervision_steps + 1):
            output = self.forward(state, inputs, puzzle, views)
            state = output.state
            last = step == self.halting.max_supervision_steps
            done = waiting if last else waiting & HALTING_RULES[self.halting.rule](output)
            answers[rows[done]] = output.logits[done].argmax(-1).to(torch.uint8)
            halting[rows[done]] = output.halt_logits[done].sigmoid().float()
            steps[rows[done]] = step
            waiting = waiting & ~done
            left = int(waiting.sum())
            if left == 0:
                break
            if left <= len(rows) // 2:
                # Rows that are done fill up the half; they are worked on and never read again.
                kept = torch.argsort(~waiting, stable=True)[: _halved(len(rows), left)]
                state = tuple(part[kept] for part in state)
                inputs, puzzle, views = inputs[kept], puzzle[kept], None if views is None else views[kept]
                rows, waiting = rows[kept], waiting[kept]
        return Answers(answers, halting, steps)


def _halved(size: int, needed: int) -> int:
    while size // 2 >= needed:
        size //= 2
    return size


@dataclass
class MemoryLimit:
    """How many rows are answered at once: half as many whenever memory runs out."""

    at_once: int

    def answer(self, predictor: Predictor, batch: Batch) -> Answers:
        """`predictor.answer`, in pieces that fit; raises OutOfMemoryError when a single row does not."""
        while True:
            try:
                parts = [predictor.answer(part) for part in _pieces(batch, self.at_once)]
            except torch.OutOfMemoryError:
                if self.at_once == 1:
                    raise
            else:
                return Answers(*map(torch.cat, zip(*parts, strict=True)))
            self.at_once = -(-self.at_once // 2)
            torch.cuda.empty_cache()
            print(f"note: out of memory, going on with {self.at_once} rows at once", file=sys.stderr)


def _pieces(batch: Batch, size: int) -> list[Batch]:
    columns = batch.columns()
    pieces = zip(*(torch.split(column, size) for column in columns.values()), strict=True)
    return [Batch(**dict(zip(columns, piece, strict=True))) for piece in pieces]


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
        tokens, halting, _ = within_memory.answer(predictor, batches.make(mine))
        if accelerator.num_processes > 1:
            tokens, halting = accelerator.gather((tokens, halting))
        yield Predicted(chunk[np.arange(valid)], tokens[:valid].cpu().numpy(), halting[:valid].float().cpu().numpy())
