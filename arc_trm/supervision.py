"""Deep supervision with halting: the losses, the carry, its refill, and one supervision step.

Every batch slot works on its own sequence. After a step a slot halts if the model says so, or at the last step. At the
next step a halted slot takes the row that it is offered and starts from the initial state; the others keep their
sequence and discard the offer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arc_trm.batches import Batch
from arc_trm.config import HaltingConfig
from arc_trm.layers import wide
from arc_trm.model import Output, RecursiveModel, State
from arc_trm.optim import PuzzleEmbedding
from data_prep.canvas import IGNORE_LABEL

# The forward pass: the model itself, or a wrapper of it.
Forward = Callable[[State, Tensor, Tensor, Tensor | None], Output]


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
    """Return the cross-entropy [b, l] of logits [b, l, v] and labels [b, l]; 0 for the label IGNORE_LABEL."""
    scores = TOKEN_SCORES[kind](logits)
    return F.cross_entropy(
        scores.flatten(0, -2), labels.flatten().long(), ignore_index=IGNORE_LABEL, reduction="none"
    ).view(labels.shape)


def halting_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy [b] of halting logits [b] and targets [b] in 0..1."""
    logits = wide(logits)
    return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")


class Correctness(NamedTuple):
    """Comparison of b answers with their labels, each [b]."""

    labelled: Tensor  # bool: the row has any label
    correct: Tensor  # bool: every labelled token is right (true for a row without labels)
    token_accuracy: Tensor  # float: share of the labelled tokens that are right


def correctness(logits: Tensor, labels: Tensor) -> Correctness:
    """Compare the most likely tokens of logits [b, l, v] with labels [b, l]."""
    asked = labels != IGNORE_LABEL
    count = asked.sum(-1)
    right = (asked & (logits.argmax(-1) == labels)).sum(-1)
    return Correctness(count > 0, right == count, right / count.clamp(min=1))


@dataclass(frozen=True)
class Carry:
    """State and example of each of b slots between two supervision steps."""

    state: State  # y and latents, each [b, p+l, d]
    steps: Tensor  # int32 [b]: supervision steps taken
    halted: Tensor  # bool [b]
    current: Batch


def initial_carry(model: RecursiveModel, like: Batch, dtype: torch.dtype) -> Carry:
    """Return a carry with all slots halted, so that the first offer fills each of them."""
    batch, tokens = like.inputs.shape
    halted = torch.ones(batch, dtype=torch.bool, device=like.inputs.device)
    state = tuple(part.contiguous() for part in model.initial_state(batch, tokens, dtype))
    return Carry(state, torch.zeros_like(halted, dtype=torch.int32), halted, like)


def carry_tensors(carry: Carry) -> dict[str, Tensor]:
    """Return the tensors of a carry by name."""
    named = {f"state{index}": part for index, part in enumerate(carry.state)}
    return named | {"steps": carry.steps, "halted": carry.halted} | carry.current.columns()


def carry_from(named: Mapping[str, Tensor], slots: slice, device: torch.device, dtype: torch.dtype) -> Carry:
    """Rebuild the carry of `slots` from `carry_tensors`, on `device`, with the state in the precision `dtype`."""
    # Copies, since a slice would keep the whole batch's storage alive.
    local = {name: tensor[slots].to(device, copy=True) for name, tensor in named.items()}
    features = sum(name.startswith("state") for name in local)
    state = tuple(local[f"state{index}"].to(dtype) for index in range(features))
    current = Batch(local["inputs"], local["labels"], local["puzzle_ids"], local.get("views"))
    return Carry(state, local["steps"], local["halted"], current)


def refill(carry: Carry, offer: Batch, model: RecursiveModel) -> Carry:
    """Replace row and state of every halted slot by the offered row and the initial state."""
    halted = carry.halted

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(halted.view(-1, *(1,) * (old.dim() - 1)), new, old)

    batch, tokens = offer.inputs.shape
    old = carry.current.columns()
    fresh = model.initial_state(batch, tokens, carry.state[0].dtype)
    return Carry(
        state=tuple(choose(new, old) for new, old in zip(fresh, carry.state, strict=True)),
        steps=torch.where(halted, 0, carry.steps),
        halted=halted,
        current=Batch(**{name: choose(new, old[name]) for name, new in offer.columns().items()}),
    )


# bool [b], the slots that ask to halt: "correct" is likelier than not; or halting is worth more than going on.
HALTING_RULES: dict[str, Callable[[Output], Tensor]] = {
    "correctness": lambda output: output.halt_logits > 0,
    "q_learning": lambda output: output.halt_logits > output.continue_logits,
    "never": lambda output: torch.zeros_like(output.halt_logits, dtype=torch.bool),
}


def halt(steps: Tensor, output: Output, rule: HaltingConfig, minimum: Tensor | None) -> Tensor:
    """Return the slots, bool [b], that halt after their `steps`-th step.

    `minimum` [b] is the least number of steps that exploration demands in training. None means evaluation, in which
    slots halt only at the last step.
    """
    last = steps >= rule.max_supervision_steps
    if minimum is None:
        return last
    return (last | HALTING_RULES[rule.rule](output)) & (steps >= minimum)


class StepResult(NamedTuple):
    """Result of one supervision step over b rows."""

    carry: Carry
    output: Output
    loss: Tensor  # scalar: token loss + halting loss(es), summed over the b rows
    puzzle_rows: Tensor  # [b, w] leaf: `.grad` after the backward pass
    metrics: dict[str, Tensor]  # sums over the b rows, scalars on the device
    rows: dict[str, Tensor]  # the same and the loss for every row, [b]


def supervision_step(
    forward: Forward,
    model: RecursiveModel,
    embedding: PuzzleEmbedding,
    carry: Carry,
    offer: Batch,
    rule: HaltingConfig,
    minimum: Tensor | None,
) -> StepResult:
    """Refill halted slots, improve every answer once, compute the losses, and decide which slots halt.

    The token loss is the mean over the labelled tokens of a row. A row without labels counts as correct for halting.
    """
    carry = refill(carry, offer, model)
    current = carry.current
    puzzle_rows = embedding.rows(current.puzzle_ids)
    output = forward(carry.state, current.inputs, puzzle_rows, current.views)
    with torch.no_grad():
        found = correctness(output.logits, current.labels)
        steps = carry.steps + 1
        following = Carry(output.state, steps, halt(steps, output, rule, minimum), current)
    asked = (current.labels != IGNORE_LABEL).sum(-1)
    losses = {
        "token_loss": token_loss(output.logits, current.labels, rule.token_loss).sum(-1) / asked.clamp(min=1),
        "halting_loss": halting_loss(output.halt_logits, found.correct),
    }
    if rule.continue_loss:
        target = continue_target(forward, following, puzzle_rows, rule)
        losses["continue_loss"] = halting_loss(output.continue_logits, target)
    token, *halting = losses.values()
    loss = token + rule.loss_weight * sum(halting)
    rows = {name: value.detach() for name, value in losses.items()} | step_metrics(following, output, found)
    # One sum over all metrics: on a GPU a sum for each would cost as much as this one.
    metrics = dict(zip(rows, torch.stack(list(rows.values())).sum(1).unbind(), strict=True))
    return StepResult(following, output, loss.sum(), puzzle_rows, metrics, rows | {"loss": loss.detach()})


@torch.no_grad()
def continue_target(forward: Forward, carry: Carry, puzzle_rows: Tensor, rule: HaltingConfig) -> Tensor:
    """Return HRM's target [b] for going on: the best halting or going-on probability after a second forward pass."""
    following = forward(carry.state, carry.current.inputs, puzzle_rows, carry.current.views)
    best = torch.maximum(following.halt_logits, following.continue_logits)
    last = carry.steps >= rule.max_supervision_steps
    return torch.where(last, following.halt_logits, best).sigmoid()


def step_metrics(carry: Carry, output: Output, found: Correctness) -> dict[str, Tensor]:
    """Return metrics of every row, [b]; zero for rows that have not halted or have no labels."""
    counted = (carry.halted & found.labelled).to(output.halt_logits.dtype)
    return {
        "count": counted,
        "token_accuracy": counted * found.token_accuracy,
        "exact_accuracy": counted * found.correct,
        "halting_accuracy": counted * ((output.halt_logits >= 0) == found.correct),
        "supervision_steps": counted * carry.steps,
    }
