"""The Tiny Recursive Model and its relatives, as one family.

Read it beside the pseudocode of "Less is More: Recursive Reasoning with Tiny Networks" (Jolicoeur-Martineau, 2025):
x is the embedded question, y the embedded answer, z the latent; `latent_recursion` improves z several times and then
y once, `deep_recursion` repeats that and keeps a gradient only in its last pass, the heads read the answer off y.

A member of the family differs in three places: what one latent recursion does (`LATENT_RECURSIONS`), how many networks
there are (`ModelConfig.answer_layers`), and how far the gradient reaches (`ModelConfig.gradient_updates`).

Shapes: b batch rows, l canvas cells, q canvas positions (q = l unless positions hold patches of cells), p embedding
positions in front of them, d hidden size, v vocabulary.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from arc_trm.config import ModelConfig
from arc_trm.layers import Block, Linear, Network, rotary_table, truncated_normal, wide
from data_prep.canvas import PAD

HALTING_BIAS = -5.0

# The state that recursion improves: y first, then the latents z (none where y is the only feature); each [b, p+q, d].
State = tuple[Tensor, ...]


class Output(NamedTuple):
    """What one supervision step's forward pass gives."""

    state: State  # detached: the next step starts from it without a gradient
    logits: Tensor  # [b, l, v]
    halt_logits: Tensor  # [b] float32, "the answer is right"
    continue_logits: Tensor  # [b] float32, "going on is worth more" (only trained by Q-learning members)


def rotary_angles(config: ModelConfig) -> Tensor:
    """Rotary angles [2, p+q, k] of the prefix and the whole canvas, for either kind of positions."""
    prefix, head_size = config.prefix, config.hidden // config.heads
    canvas = config.canvas_positions(config.seq_len)
    if config.positions == "sequence":
        return rotary_table(torch.arange(prefix + canvas), head_size)
    places = torch.arange(canvas)
    side = math.isqrt(canvas)
    # The prefix stands left of the canvas, in a row above it.
    rows = torch.cat((torch.full((prefix,), -1), places // side))
    columns = torch.cat((torch.arange(-prefix, 0), places % side))
    return rotary_table(torch.stack((rows, columns), dim=1), head_size)


def network(config: ModelConfig, layers: int) -> Network:
    """A network of that many blocks, for the prefix and the canvas of `config`."""
    length = config.prefix + config.canvas_positions(config.seq_len)
    shape = (config.hidden, config.heads, config.expansion, length, config.mixer)
    canvas_from = config.prefix if config.convolution else None
    return Network(Block(*shape, canvas_from) for _ in range(layers))


def patches(canvas: Tensor, patch: int) -> Tensor:
    """Cells [b, q, patch²] of the q patches of square canvases [b, l], filled with PAD beyond their edge."""
    side = math.isqrt(canvas.shape[1])
    count = math.ceil(side / patch)
    filled = F.pad(canvas.view(-1, side, side), (0, count * patch - side) * 2, value=PAD)
    return filled.view(-1, count, patch, count, patch).transpose(2, 3).reshape(-1, count**2, patch**2)


def unpatched(values: Tensor, patch: int, tokens: int) -> Tensor:
    """Values [b, l, v] of the l = `tokens` cells from those of their patches [b, q, patch² · v]: undoes `patches`."""
    side, count = math.isqrt(tokens), math.isqrt(values.shape[1])
    cells = values.view(-1, count, count, patch, patch, values.shape[-1] // patch**2).transpose(2, 3)
    return cells.reshape(-1, count * patch, count * patch, cells.shape[-1])[:, :side, :side].flatten(1, 2)


class RecursiveModel(nn.Module):
    """One member of the family, as its `ModelConfig` describes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, v = config.hidden, config.vocab_size
        self.token_embedding = nn.Parameter(truncated_normal((v, d), 1 / math.sqrt(d)))
        self.net = network(config, config.layers)
        # Registered only where there are two, so that no tensor has two names in the state dict.
        self.second_net = network(config, config.answer_layers) if config.answer_layers else None
        if config.embedding_rows == "task":
            # What the model is told of a view: its dihedral element, and which colour stands for which of the task's.
            self.dihedral_embedding = nn.Parameter(truncated_normal((8, d), 1 / math.sqrt(d)))
            self.colour_embedding = nn.Parameter(truncated_normal((config.view_positions - 1, d), 1 / math.sqrt(d)))
        self.patch_projection = Linear(config.patch**2 * d, d) if config.patch > 1 else None
        self.output_head = None if config.tied_embedding else Linear(d, config.patch**2 * v)
        self.halting_head = Linear(d, 2, bias=True)
        with torch.no_grad():
            self.halting_head.weight.zero_()
            assert self.halting_head.bias is not None
            self.halting_head.bias.fill_(HALTING_BIAS)
        # y and every z start from one fixed vector each, the same at all positions; none of them is ever trained.
        self.initial: Tensor
        self.register_buffer("initial", truncated_normal((config.features, d), 1.0))
        self.rotary_table: Tensor
        self.register_buffer("rotary_table", rotary_angles(config), persistent=False)

    @property
    def answer_net(self) -> Network:
        """The network that updates y: one of its own, or the one that updates z."""
        return self.net if self.second_net is None else self.second_net

    def initial_state(self, batch: int, tokens: int, dtype: torch.dtype) -> State:
        """The state that a fresh sequence starts from, for canvases of `tokens` cells."""
        shape = (batch, self.config.prefix + self.config.canvas_positions(tokens), self.config.hidden)
        return tuple(vector.to(dtype).expand(shape) for vector in self.initial)

    def embed(self, inputs: Tensor, puzzle: Tensor, dtype: torch.dtype, views: Tensor | None = None) -> Tensor:
        """x [b, p+q, d] from tokens [b, l], puzzle embeddings [b, w] and views [b, 11].

        The puzzle embedding fills the first positions of the prefix, then zeros, the view the last ones: the vector
        of the dihedral element, and for every colour c of the task its own vector plus that of the token that stands
        for c in this view (a palette).
        """
        d, p = self.config.hidden, self.config.prefix - self.config.view_positions
        scale = math.sqrt(d)
        tokens = scale * self.token_embedding  # scaled here, where there are few of them
        parts = [F.pad(scale * puzzle, (0, p * d - puzzle.shape[-1])).view(len(inputs), p, d)]
        if self.config.view_positions:
            if views is None:
                raise ValueError("a model whose embedding rows belong to tasks must be told the views")
            palette = F.embedding(views[:, 1:], tokens) + scale * self.colour_embedding
            parts += [F.embedding(views[:, :1], scale * self.dihedral_embedding), palette]
        return torch.cat((*parts, self.embed_canvas(inputs, tokens)), dim=1).to(dtype)

    def embed_canvas(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """Canvas positions [b, q, d] of cells [b, l], from the embedding of every token [v, d].

        A patch is the projection of its cells' embeddings, joined. Projected are the few tokens, once for every
        place in a patch; its cells' projections are then looked up and added.
        """
        if self.patch_projection is None:
            return F.embedding(inputs, tokens)
        (v, d), size = tokens.shape, self.config.patch**2
        places = self.patch_projection.weight.to(tokens.dtype).view(d, size, d)
        projected = torch.einsum("vi,oki->kvo", tokens, places).reshape(size * v, d)
        cells = patches(inputs, self.config.patch) + v * torch.arange(size, device=inputs.device)
        return F.embedding(cells, projected).sum(2)

    def rotary(self, tokens: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """Rotary angles for a canvas of `tokens` tokens: the whole canvas, or a square window at its corner (0, 0)."""
        seq_len, prefix = self.config.seq_len, self.config.prefix
        if self.config.mixer != "attention":
            if tokens != seq_len:
                raise ValueError(
                    f"the token-mixing MLP is built for {seq_len} tokens and cannot take {tokens}: "
                    "canvas windows need attention"
                )
            return None
        if tokens == seq_len:
            return self.rotary_table.to(dtype)
        side, window = (math.isqrt(self.config.canvas_positions(count)) for count in (seq_len, tokens))
        front, canvas = self.rotary_table[:, :prefix], self.rotary_table[:, prefix:]
        canvas = canvas.view(2, side, side, -1)[:, :window, :window].reshape(2, window**2, -1)
        return torch.cat((front, canvas), dim=1).to(dtype)

    def forward(self, state: State, inputs: Tensor, puzzle: Tensor, views: Tensor | None = None) -> Output:
        """Improve `state` once (T latent recursions); inputs [b, l] tokens, puzzle [b, w] embeddings.

        `views` [b, 11] is for models whose embedding rows belong to tasks: see `arc_trm.batches.Batch`.
        """
        dtype = state[0].dtype
        cast = {n: p.to(dtype) for n, p in self.named_parameters() if ".blocks." in n and p.dtype != dtype}
        if cast:  # once, not at each use; with these there is nothing left to cast
            return functional_call(self, cast, (state, inputs, puzzle, views))
        x = self.embed(inputs, puzzle, dtype, views)
        state = self.deep_recursion(x, state, self.rotary(inputs.shape[1], dtype))
        halting = self.halting_head(wide(state[0][:, 0]))
        logits = self.answer(state[0][:, self.config.prefix :], inputs.shape[1])
        return Output(tuple(part.detach() for part in state), logits, halting[:, 0], halting[:, 1])

    def answer(self, y: Tensor, tokens: int) -> Tensor:
        """Logits [b, l, v] of the answer that the canvas positions y [b, q, d] hold, for a canvas of l = `tokens`."""
        if self.output_head is None:
            return F.linear(y, self.token_embedding.to(y.dtype))
        logits = self.output_head(y)
        return logits if self.config.patch == 1 else unpatched(logits, self.config.patch, tokens)

    def deep_recursion(self, x: Tensor, state: State, rotary: Tensor | None) -> State:
        """T latent recursions; all but the last only move the state and leave no gradient."""
        latent_recursion = LATENT_RECURSIONS[self.config.recursion]
        with torch.no_grad():
            for _ in range(self.config.deep_steps - 1):
                state = latent_recursion(self, x, state, rotary)
        return latent_recursion(self, x, state, rotary)

    def update(self, net: Network, h: Tensor, rotary: Tensor | None) -> Tensor:
        """One pass through a network; with activation checkpointing its inside is recomputed in the backward pass."""
        if self.config.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(net, h, rotary, use_reentrant=False)
        return net(h, rotary)

    def graded(self, index: int, updates: int) -> AbstractContextManager[None]:
        """Gradient for update `index` of the `updates` in a latent recursion, if among the last `gradient_updates`."""
        last = self.config.gradient_updates or updates
        return torch.set_grad_enabled(torch.is_grad_enabled() and index >= updates - last)


def answer_and_latent(model: RecursiveModel, x: Tensor, state: State, rotary: Tensor | None) -> State:
    """TRM and HRM: n times z ← net(z + y + x), then y ← net(y + z)."""
    y, z = state
    n = model.config.latent_steps
    question = y + x
    for i in range(n):
        with model.graded(i, n + 1):
            z = model.update(model.net, z + question, rotary)
    with model.graded(n, n + 1):
        y = model.update(model.answer_net, y + z, rotary)
    return y, z


def single_latent(
    model: RecursiveModel, x: Tensor, state: State, rotary: Tensor | None, always_x: bool = False
) -> State:
    """One feature for both: n passes that see x and one that does not (as published), or n + 1 with x (the text)."""
    (y,) = state
    n = model.config.latent_steps
    for i in range(n + 1):
        with model.graded(i, n + 1):
            y = model.update(model.net, y + x if always_x or i < n else y, rotary)
    return (y,)


def multi_scale_latent(model: RecursiveModel, x: Tensor, state: State, rotary: Tensor | None) -> State:
    """Several latents, n of them updated in turn from all latents, y and x; then y from all of them."""
    y, *z = state
    n = model.config.latent_steps
    question = y + x
    for i in range(n):
        with model.graded(i, n + 1):
            z[i] = model.update(model.net, sum(z[1:], z[0]) + question, rotary)
    with model.graded(n, n + 1):
        y = model.update(model.answer_net, y + sum(z[1:], z[0]), rotary)
    return (y, *z)


def direct(model: RecursiveModel, x: Tensor, state: State, rotary: Tensor | None) -> State:
    """Direct prediction: one pass of a deep network, y ← net(y + x)."""
    (y,) = state
    return (model.update(model.net, y + x, rotary),)


LATENT_RECURSIONS: dict[str, Callable[[RecursiveModel, Tensor, State, Tensor | None], State]] = {
    "answer_and_latent": answer_and_latent,
    "single_latent": single_latent,
    "single_latent_text": partial(single_latent, always_x=True),
    "multi_scale_latent": multi_scale_latent,
    "direct": direct,
}
