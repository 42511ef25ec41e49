"""A tiny problem for every member of the family: eight examples, and training on them by plain supervision steps."""

import numpy as np
import torch

from arc_trm.batches import Batch
from arc_trm.config import VIEW_POSITIONS, RunConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import Ema, PuzzleEmbedding
from arc_trm.presets import Overrides, override
from arc_trm.supervision import initial_carry, supervision_step
from arc_trm.trainer import OPTIMISERS

EXAMPLES, SIDE, VOCABULARY = 8, 3, 5
TINY: Overrides = {
    "model": {"vocab_size": VOCABULARY, "seq_len": SIDE**2, "hidden": 48, "heads": 2, "puzzle_width": 48},
    "halting": {"max_supervision_steps": 3},
    "train": {"weight_decay": 0.01},
}


def tiny(config: RunConfig) -> RunConfig:
    """The same member, small, at a rate at which it learns fast: more than two layers do not at the higher one."""
    small = override(config, TINY)
    rate = 2e-3 if small.model.layers <= 2 else 5e-4
    prefix = min(small.model.prefix, 2 + small.model.view_positions)
    return override(small, {"model": {"prefix": prefix}, "train": {"lr": rate}})


def eight_examples() -> Batch:
    """Random questions; the answer is every token's successor. Each example is a puzzle of its own, in a view."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, VOCABULARY, (EXAMPLES, SIDE**2), generator=generator, dtype=torch.int32)
    views = torch.randint(0, VOCABULARY, (EXAMPLES, VIEW_POSITIONS), generator=generator, dtype=torch.int32)
    return Batch(inputs, (inputs + 1) % VOCABULARY, torch.arange(EXAMPLES), views)


class TinyRun:
    """Training of a tiny member on the eight examples, in every batch slot its own."""

    def __init__(self, config: RunConfig) -> None:
        torch.manual_seed(0)
        self.config = config
        self.model = RecursiveModel(config.model)
        self.embedding = PuzzleEmbedding(EXAMPLES, config.model.puzzle_width)
        self.optimiser = OPTIMISERS[config.train.optimiser](self.model, config.train)
        self.ema = Ema(self.model.parameters()) if config.train.ema else None
        self.batch = eight_examples()
        self.carry = initial_carry(self.model, self.batch, torch.float32)
        self.draws = np.random.default_rng(0)

    def step(self) -> float:
        """One optimiser step; returns the mean loss."""
        halting, train = self.config.halting, self.config.train
        explores = self.draws.random(EXAMPLES) < halting.exploration
        least = self.draws.integers(2, halting.max_supervision_steps + 1, EXAMPLES)
        minimum = torch.from_numpy(np.where(explores, least, 0))
        result = supervision_step(self.model, self.model, self.embedding, self.carry, self.batch, halting, minimum)
        self.optimiser.zero_grad()
        torch.autograd.backward(result.loss / EXAMPLES)
        self.optimiser.step()
        ids, rows = result.carry.current.puzzle_ids, result.puzzle_rows
        if rows.grad is not None:
            self.embedding.update(ids, rows.grad, train.puzzle_lr, train.puzzle_weight_decay)
        if self.ema:
            self.ema.update(0.9)
        self.carry = result.carry
        return result.loss.item() / EXAMPLES

    @torch.no_grad()
    def exact_accuracy(self) -> float:
        """Share of the examples that are answered without a mistake, by the averaged weights, after all steps."""
        if self.ema:
            self.ema.swap()
        carry = initial_carry(self.model, self.batch, torch.float32)
        for _ in range(self.config.halting.max_supervision_steps):
            result = supervision_step(
                self.model, self.model, self.embedding, carry, self.batch, self.config.halting, None
            )
            carry = result.carry
        if self.ema:
            self.ema.swap()
        return result.metrics["exact_accuracy"].item() / EXAMPLES
