"""Memory of the recursion table's cells, with and without activation checkpointing: python -m tests.benchmarks memory

What a training step keeps for its backward pass is counted tensor by tensor, which needs no GPU and grows in proportion
to the batch. Only the last of the T recursions keeps anything, so n alone matters. On a GPU the peak of whole steps at
batch 768, forward and backward in bf16, is measured besides.
"""

from dataclasses import replace

import torch
from torch import Tensor

from arc_trm.config import ModelConfig
from arc_trm.model import RecursiveModel
from arc_trm.presets import PRESETS
from tests.benchmarks.table import Row

CELLS = ("k1t1", "k2t2", "k3t3", "k4t4", "k6t3", "k3t6", "k6t6")
BATCHES, PAPER_BATCH = (1, 2), 768


def loss_of(model: RecursiveModel, batch: int, device: str, dtype: torch.dtype) -> Tensor:
    """A forward pass on random boards, as a scalar to go back from."""
    config = model.config
    inputs = torch.randint(0, config.vocab_size, (batch, config.seq_len), device=device)
    puzzle = torch.zeros(batch, config.puzzle_width, device=device, requires_grad=True)
    output = model(model.initial_state(batch, config.seq_len, dtype), inputs, puzzle)
    return output.logits.float().logsumexp(-1).mean() + output.halt_logits.mean()


def kept_bytes(config: ModelConfig, batch: int) -> int:
    """Bytes that one forward pass keeps for the backward pass, weights apart."""
    model = RecursiveModel(config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model, batch, "cpu", torch.float32)
        return sum(kept.values())


def peak_bytes(config: ModelConfig) -> int:
    """Peak GPU memory of a forward and a backward pass at the paper's batch, in bf16."""
    model = RecursiveModel(config).to("cuda")
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.backward(loss_of(model, PAPER_BATCH, "cuda", torch.bfloat16))
    return torch.cuda.max_memory_allocated()


def row(what: str, size: str, plain: int, checkpointed: int, note: str) -> list[Row]:
    """Two lines: without and with checkpointing, the second as a share of the first."""
    return [
        Row(what, size, plain / 1e9, "GB", None, note),
        Row(f"{what}, checkpointed", size, checkpointed / 1e9, "GB", checkpointed / plain, note),
    ]


def kept_rows(data: str, k: int, batch: int) -> list[Row]:
    """What a step with n = 2k keeps; recomputing brings one update's share back, one update at a time."""
    config = replace(PRESETS[data].model, latent_steps=2 * k, deep_steps=1)
    plain, inputs = (kept_bytes(replace(config, activation_checkpointing=on), batch) for on in (False, True))
    checkpointed = inputs + plain // (2 * k + 1)
    at_768 = [f"{kept / batch * PAPER_BATCH / 1e9:.0f}" for kept in (plain, checkpointed)]
    note = f"in proportion at 768: {at_768[0]} GB, checkpointed {at_768[1]} GB"
    return row(f"{data} n={2 * k}, kept for backward", f"batch {batch}, fp32", plain, checkpointed, note)


def run() -> list[Row]:
    """Kept bytes for small, usual and large n, and peaks for every cell of the table where there is a GPU."""
    rows = []
    for data in ("sudoku", "arc1"):
        for k in (1, 3, 6):
            for batch in BATCHES:
                rows += kept_rows(data, k, batch)
    if torch.cuda.is_available():
        for cell in CELLS:
            config = PRESETS[f"sudoku-{cell}"].model
            plain, checkpointed = (peak_bytes(replace(config, activation_checkpointing=on)) for on in (False, True))
            rows += row(f"sudoku {cell} peak", f"batch {PAPER_BATCH}, bf16", plain, checkpointed, "measured")
    return rows
