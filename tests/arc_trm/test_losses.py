"""Token losses, the halting loss, and how answers are judged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.losses import IGNORE_LABEL, halting_loss, judge, log_stablemax, token_loss
from tests.arc_trm.reference import stablemax_loss

B, L, V = 2, 3, 7
EXTREMES = (1.0, 0.0, -0.0, -1.0, 3e38, -3e38, 1e20, -1e20)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=V, max_size=V), st.integers(0, V - 1))
def test_stablemax_equals_its_definition_in_float64(values, label):
    logits = torch.tensor(values, dtype=torch.float64)
    expected = stablemax_loss(logits, label)
    loss = token_loss(logits.float()[None, None], torch.tensor([[label]]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("extreme", EXTREMES)
def test_stablemax_gradient_is_finite_at_the_extremes(extreme):
    logits = torch.full((1, 1, V), extreme)
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


def test_stablemax_of_bf16_logits_is_computed_in_float32():
    logits = torch.randn(B, L, V).bfloat16()
    labels = torch.randint(0, V, (B, L))
    assert token_loss(logits, labels).dtype == torch.float32
    assert torch.equal(token_loss(logits, labels), token_loss(logits.float(), labels))


def test_softmax_loss_is_cross_entropy():
    logits, labels = torch.randn(B, L, V), torch.randint(0, V, (B, L))
    expected = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    assert torch.allclose(token_loss(logits, labels, "softmax"), expected)


def test_an_unknown_loss_is_refused():
    with pytest.raises(KeyError, match="hinge"):
        token_loss(torch.zeros(1, 1, V), torch.zeros(1, 1, dtype=torch.long), "hinge")


@pytest.mark.parametrize("kind", ["stablemax", "softmax"])
def test_ignored_labels_cost_nothing_and_push_nothing(kind):
    logits = torch.randn(B, L, V, requires_grad=True)
    labels = torch.tensor([[IGNORE_LABEL, 1, 2], [IGNORE_LABEL] * 3])
    loss = token_loss(logits, labels, kind)
    loss.sum().backward()
    asked = labels != IGNORE_LABEL
    assert torch.equal(loss > 0, asked)
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(-1) > 0, asked)


def test_halting_loss_is_binary_cross_entropy():
    logits, target = torch.tensor([-5.0, 0.0, 2.0]), torch.tensor([0.0, 0.5, 1.0])
    p = logits.double().sigmoid()
    expected = -(target * p.log() + (1 - target) * (1 - p).log())
    assert torch.allclose(halting_loss(logits, target).double(), expected, atol=1e-6)


def test_judging_counts_labelled_tokens_alone():
    labels = torch.tensor([[1, 2, IGNORE_LABEL], [1, 3, 2], [IGNORE_LABEL] * 3])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 5], [1, 2, 2], [0, 0, 0]]), V).float()
    judged = judge(logits, labels)
    assert judged.labelled.tolist() == [True, True, False]
    # A row without labels counts as right, as in the published code.
    assert judged.correct.tolist() == [True, False, True]
    assert judged.token_accuracy.tolist() == pytest.approx([1.0, 2 / 3, 0.0])
