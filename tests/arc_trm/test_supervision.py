"""Deep supervision: refill, halting, exploration, the continue target, and what a step reports."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.batches import Batch
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import Output, RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.supervision import (
    HALTING_RULES,
    Carry,
    continue_target,
    correctness,
    halt,
    initial_carry,
    log_stablemax,
    refill,
    supervision_step,
    token_loss,
)
from data_prep.canvas import IGNORE_LABEL
from tests.arc_trm.reference import stablemax_loss

B, L, V, D, W, PUZZLES = 3, 4, 5, 6, 7, 11
TINY = ModelConfig(
    vocab_size=V,
    seq_len=L,
    hidden=D,
    heads=1,
    layers=1,
    expansion=1.0,
    latent_steps=1,
    deep_steps=1,
    prefix=2,
    puzzle_width=W,
)
RULE = HaltingConfig(max_supervision_steps=3, exploration=0.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return RecursiveModel(TINY)


@pytest.fixture
def embedding():
    embedding = PuzzleEmbedding(PUZZLES, W)
    embedding.table.normal_(generator=torch.Generator().manual_seed(0))
    return embedding


def offer(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randint(0, V, (B, L), generator=generator, dtype=torch.int32)
    labels = torch.randint(0, V, (B, L), generator=generator, dtype=torch.int32)
    return Batch(inputs, labels, torch.tensor([step, step + 1, step + 2]))


def force_halting(model, logit, going_on=-5.0):
    """Make the halting head say `logit` (and `going_on`) whatever the answer."""
    model.halting_head.weight.data.zero_()
    model.halting_head.bias.data.copy_(torch.tensor([logit, going_on]))


def step(model, embedding, carry, number, rule=RULE, minimum=None):
    return supervision_step(model, model, embedding, carry, offer(number), rule, minimum)


NO_MINIMUM = torch.zeros(B, dtype=torch.int32)


def test_halted_slots_take_the_offer_and_the_others_discard_it(model):
    carry = initial_carry(model, offer(0), torch.float32)
    busy = Carry(
        tuple(torch.full_like(part, 9.0) for part in carry.state),
        torch.tensor([2, 1, 2], dtype=torch.int32),
        torch.tensor([True, False, True]),
        offer(0),
    )
    after = refill(busy, offer(5), model)
    assert after.steps.tolist() == [0, 1, 0]
    assert after.current.puzzle_ids.tolist() == [5, 1, 7]
    for name in ("inputs", "labels"):
        expected = [getattr(offer(which), name)[slot] for slot, which in enumerate((5, 0, 5))]
        assert torch.equal(getattr(after.current, name), torch.stack(expected))
    for part, start in zip(after.state, model.initial_state(B, L, torch.float32), strict=True):
        assert torch.equal(part[[0, 2]], start[[0, 2]])
        assert (part[1] == 9.0).all()


def run(model, embedding, rule, minimum, steps=4):
    """(halted, puzzles at work) after each step."""
    carry = initial_carry(model, offer(0), torch.float32)
    history = []
    for number in range(1, steps + 1):
        result = step(model, embedding, carry, number, rule, minimum)
        carry = result.carry
        history.append((carry.halted.tolist(), carry.current.puzzle_ids.tolist()))
    return history


def test_sure_slots_halt_at_once_and_doubtful_ones_at_the_last_step(model, embedding):
    force_halting(model, 1.0)
    assert run(model, embedding, RULE, NO_MINIMUM) == [([True] * 3, [n, n + 1, n + 2]) for n in (1, 2, 3, 4)]
    force_halting(model, -1.0)
    never, last = [False] * 3, [True] * 3
    assert run(model, embedding, RULE, NO_MINIMUM) == [
        (never, [1, 2, 3]),
        (never, [1, 2, 3]),
        (last, [1, 2, 3]),
        (never, [4, 5, 6]),
    ]


def test_exploration_demands_a_minimum_of_steps(model, embedding):
    force_halting(model, 1.0)
    history = run(model, embedding, RULE, torch.tensor([0, 2, 3], dtype=torch.int32), steps=3)
    assert [halted for halted, _ in history] == [[True, False, False], [True, True, False], [True, False, True]]


@pytest.mark.parametrize(("rule", "minimum"), [("correctness", None), ("never", NO_MINIMUM)])
def test_evaluation_takes_all_steps_and_so_does_training_that_never_halts(model, embedding, rule, minimum):
    force_halting(model, 9.0)
    history = run(model, embedding, replace(RULE, rule=rule), minimum)
    assert [halted[0] for halted, _ in history] == [False, False, True, False]


def test_q_learning_halts_when_stopping_beats_going_on(model, embedding):
    rule = replace(RULE, rule="q_learning")
    force_halting(model, -2.0, -3.0)
    assert run(model, embedding, rule, NO_MINIMUM, 1)[0][0] == [True] * 3
    force_halting(model, 2.0, 3.0)
    assert run(model, embedding, rule, NO_MINIMUM, 1)[0][0] == [False] * 3


def test_single_step_supervision_always_halts():
    output = Output((), torch.zeros(B, L, V), torch.full((B,), -9.0), torch.zeros(B))
    for rule in HALTING_RULES:
        config = HaltingConfig(rule=rule, max_supervision_steps=1)
        assert halt(torch.ones(B), output, config, torch.zeros(B)).all()


def test_an_unknown_rule_is_refused(model, embedding):
    with pytest.raises(KeyError, match="sometimes"):
        run(model, embedding, replace(RULE, rule="sometimes"), NO_MINIMUM, 1)


def test_halting_losses_weigh_as_asked(model, embedding):
    carry = initial_carry(model, offer(0), torch.float32)
    result = step(model, embedding, carry, 3, replace(RULE, loss_weight=2.0), NO_MINIMUM)
    token, halting = (result.metrics[f"{name}_loss"].item() for name in ("token", "halting"))
    assert result.loss.item() == pytest.approx(token + 2.0 * halting, rel=1e-5)


def test_continue_loss_costs_a_second_pass_and_trains_the_second_logit(model, embedding):
    force_halting(model, 1.0, -1.0)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    rule = replace(RULE, rule="q_learning", continue_loss=True)
    carry = initial_carry(model, offer(0), torch.float32)
    result = step(model, embedding, carry, 1, rule, NO_MINIMUM)
    assert calls == [True, False]
    result.loss.backward()
    assert model.halting_head.bias.grad[1] != 0


def test_continue_target_looks_one_pass_ahead_and_can_only_stop_at_the_end(model, embedding):
    force_halting(model, 1.0, 2.0)
    rule = replace(RULE, rule="q_learning", continue_loss=True)
    result = step(model, embedding, initial_carry(model, offer(0), torch.float32), 1, rule, NO_MINIMUM)
    carry = replace(result.carry, steps=torch.tensor([1, 3, 2], dtype=torch.int32))
    target = continue_target(model, carry, result.puzzle_rows, rule)
    assert target.tolist() == pytest.approx(torch.tensor([2.0, 1.0, 2.0]).sigmoid().tolist())
    assert not target.requires_grad


# Losses and correctness ---------------------------------------------------------------------------------------------


ROWS, TOKENS, KINDS = 2, 3, 7
EXTREMES = (1.0, 0.0, -0.0, -1.0, 3e38, -3e38, 1e20, -1e20)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=KINDS, max_size=KINDS), st.integers(0, KINDS - 1))
def test_stablemax_equals_its_definition_in_float64(values, label):
    logits = torch.tensor(values, dtype=torch.float64)
    expected = stablemax_loss(logits, label)
    loss = token_loss(logits.float()[None, None], torch.tensor([[label]]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("extreme", EXTREMES)
def test_stablemax_gradient_is_finite_at_the_extremes(extreme):
    logits = torch.full((1, 1, KINDS), extreme)
    logits[..., 0] = 0.5
    logits.requires_grad_()
    for label in (0, 1):
        token_loss(logits, torch.tensor([[label]])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_stablemax_gradient_is_that_of_the_definition_on_both_sides_of_zero():
    logits = torch.tensor([[-2.0, -0.5, 0.0, 0.5, 1.0, 3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    stablemax_loss(logits[0], 3).backward()
    ours = logits.detach().float()[None].requires_grad_()
    token_loss(ours, torch.tensor([[3]])).sum().backward()
    assert torch.allclose(ours.grad[0].double(), logits.grad, atol=1e-6)


def test_log_stablemax_is_increasing_and_odd():
    x = torch.linspace(-50, 50, 1001)
    assert (log_stablemax(x).diff() > 0).all()
    assert torch.allclose(log_stablemax(x), -log_stablemax(-x))


def test_an_unknown_loss_is_refused():
    with pytest.raises(KeyError, match="hinge"):
        token_loss(torch.zeros(1, 1, KINDS), torch.zeros(1, 1, dtype=torch.long), "hinge")


@pytest.mark.parametrize("kind", ["stablemax", "softmax"])
def test_ignored_labels_cost_nothing_and_push_nothing(kind):
    logits = torch.randn(ROWS, TOKENS, KINDS, requires_grad=True)
    labels = torch.tensor([[IGNORE_LABEL, 1, 2], [IGNORE_LABEL] * 3])
    loss = token_loss(logits, labels, kind)
    loss.sum().backward()
    asked = labels != IGNORE_LABEL
    assert torch.equal(loss > 0, asked)
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(-1) > 0, asked)


def test_judging_counts_labelled_tokens_alone():
    labels = torch.tensor([[1, 2, IGNORE_LABEL], [1, 3, 2], [IGNORE_LABEL] * 3])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 5], [1, 2, 2], [0, 0, 0]]), KINDS).float()
    found = correctness(logits, labels)
    assert found.labelled.tolist() == [True, True, False]
    # A row without labels counts as right, as in the published code.
    assert found.correct.tolist() == [True, False, True]
    assert found.token_accuracy.tolist() == pytest.approx([1.0, 2 / 3, 0.0])
