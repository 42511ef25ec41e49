"""Adam-atan2 and the learning-rate schedule."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from arc_trm.config import ModelConfig
from arc_trm.model import RecursiveModel
from arc_trm.optim import AdamAtan2, Ema, Muon, PuzzleEmbedding, ema_decay, learning_rate, orthogonalised


def scalar_adam_atan2(value, gradients, rate, beta1, beta2, decay):
    """Adam-atan2 of one number, written out."""
    m = v = 0.0
    for step, gradient in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        value -= rate * decay * value
        value -= rate * math.atan2(m / (1 - beta1**step), math.sqrt(v / (1 - beta2**step)))
    return value


@given(
    st.floats(-3, 3, width=32),
    # No gradients so small that their squares vanish in float32.
    st.lists(st.integers(-500, 500).map(lambda number: number / 8), min_size=1, max_size=7),
    st.sampled_from([1e-3, 0.3]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_adam_atan2_equals_a_scalar_loop(value, gradients, rate, decay):
    parameter = torch.nn.Parameter(torch.tensor([value, 1.0]))
    optimiser = AdamAtan2([parameter], lr=rate, weight_decay=decay)
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient, 0.0])
        optimiser.step()
    expected = scalar_adam_atan2(value, gradients, rate, 0.9, 0.95, decay)
    assert parameter[0].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert parameter[1].item() == pytest.approx((1 - rate * decay) ** len(gradients), rel=1e-5)


def test_a_step_is_at_most_the_rate_times_half_pi_and_does_not_see_the_scale():
    def moved(scale):
        parameter = torch.nn.Parameter(torch.zeros(5))
        optimiser = AdamAtan2([parameter], lr=0.1, weight_decay=0.0)
        for gradient in torch.linspace(-1, 2, 15).view(3, 5):
            parameter.grad = gradient * scale
            optimiser.step()
        return parameter.detach()

    assert torch.allclose(moved(1.0), moved(1e6), atol=1e-6)
    assert torch.allclose(moved(1.0), moved(1e-6), atol=1e-6)
    assert moved(1.0).abs().max() <= 3 * 0.1 * math.pi / 2


def test_parameters_without_a_gradient_stay():
    with_gradient, without = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    optimiser = AdamAtan2([with_gradient, without], lr=1e-4, weight_decay=1.0)
    optimiser.step()
    with_gradient.grad = torch.ones(3)
    optimiser.step()
    assert without.tolist() == [1.0, 1.0]
    assert (with_gradient != 1).all()


def test_rate_warms_up_then_stays_or_falls_along_a_cosine():
    assert learning_rate(1, 1e-4, 2000, 10_000) == pytest.approx(1e-4 / 2000)
    assert learning_rate(2000, 1e-4, 2000, 10_000) == learning_rate(9999, 1e-4, 2000, 10_000) == 1e-4
    assert learning_rate(6000, 1.0, 2000, 10_000, 0.1) == pytest.approx(0.55)
    assert learning_rate(10_000, 1.0, 2000, 10_000, 0.1) == pytest.approx(0.1)
    assert learning_rate(1, 1.0, 0, 100, 0.0) < 1.0


@given(st.integers(1, 500), st.integers(0, 600))
def test_rate_never_leaves_its_bounds(step, warmup):
    assert 0 <= learning_rate(step, 1.0, warmup, 500, 0.1) <= 1.0


# Muon ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 5, 13), (1, 17, 3)])
def test_orthogonalised_keeps_singular_vectors_and_brings_values_near_one(shape):
    torch.manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(0, -1.5, u.shape[-1], dtype=torch.float64)
    found = orthogonalised((u * values @ vt).float() * 1e3).double()
    inside = u.mT @ found @ vt.mT
    diagonal = inside.diagonal(dim1=1, dim2=2)
    assert torch.allclose(inside, torch.diag_embed(diagonal), atol=1e-3)
    assert diagonal.min() > 0.6
    assert diagonal.max() < 1.3


def small_model(**changes):
    torch.manual_seed(1)
    model = {"hidden": 12, "heads": 2, "seq_len": 25, "prefix": 2, "puzzle_width": 7, "layers": 1} | changes
    return RecursiveModel(ModelConfig(**model))


def test_muon_moves_stacked_matrices_apart_and_the_rest_as_adam_atan2():
    model, twin = small_model(), small_model()
    muon, adam = Muon(model, 0.1, 0.3), AdamAtan2(twin.parameters(), 0.1, 0.3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: torch.randn_like(p) for name, p in before.items()}
    for optimiser, moved in ((muon, model), (adam, twin)):
        for name, p in moved.named_parameters():
            p.grad = gradients[name].clone()
        optimiser.step()
    others = dict(twin.named_parameters())
    stacks = {"qkv": 3, "gate_up": 2, "out": 1, "down": 1}
    seen = set()
    for name, p in model.named_parameters():
        if not name.startswith("net."):
            assert torch.equal(p, others[name])
            continue
        kind = name.split(".")[-2]
        seen.add(kind)
        # The first momentum, looked ahead, points along the gradient; only its direction counts.
        parts = [orthogonalised(part[None])[0] for part in gradients[name].chunk(stacks[kind])]
        directions = torch.cat([0.2 * max(part.shape) ** 0.5 * part for part in parts])
        assert torch.allclose(p, before[name] * (1 - 0.1 * 0.3) - 0.1 * directions, atol=1e-5)
    assert seen == set(stacks)


# The moving average of the weights ------------------------------------------------------------------------------------


@pytest.fixture
def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, 5)), torch.nn.Parameter(torch.randn(2))]


def test_average_follows_as_a_plain_loop_says(parameters):
    ema = Ema(parameters)
    expected = [parameter.detach().clone() for parameter in parameters]
    for step in range(4):
        for parameter in parameters:
            parameter.data += torch.randn(parameter.shape)
        ema.update(0.9 + 0.01 * step)
        expected = [
            (0.9 + 0.01 * step) * e + (0.1 - 0.01 * step) * p for e, p in zip(expected, parameters, strict=True)
        ]
    for average, value in zip(ema.averages, expected, strict=True):
        assert torch.allclose(average, value, atol=1e-6)
    assert not any(average.requires_grad for average in ema.averages)


def test_swapping_twice_is_the_identity(parameters):
    ema = Ema(parameters)
    for parameter in parameters:
        parameter.data.add_(1.0)
    weights = [parameter.detach().clone() for parameter in parameters]
    averages = [average.clone() for average in ema.averages]
    ema.swap()
    assert all(torch.equal(p, a) for p, a in zip(parameters, averages, strict=True))
    assert all(torch.equal(a, w) for a, w in zip(ema.averages, weights, strict=True))
    ema.swap()
    assert all(torch.equal(p, w) for p, w in zip(parameters, weights, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ema.averages, averages, strict=True))


def test_decay_starts_low_and_reaches_its_target():
    assert ema_decay(1, 0.999) == pytest.approx(2 / 11)
    assert all(ema_decay(step, 0.999) < ema_decay(step + 1, 0.999) for step in range(1, 100))
    assert ema_decay(10_000, 0.999) == 0.999


# The sparse table and its sign-SGD, against a plain loop over a dict --------------------------------------------------


N, W = 7, 3


def plain_update(table, ids, gradients, learning_rate, decay):
    """The same update by a loop: gradients of a row added up, then one signed step."""
    sums: dict[int, np.ndarray] = {}
    for identifier, gradient in zip(ids, gradients, strict=True):
        sums[identifier] = sums.get(identifier, np.zeros(W)) + gradient
    result = table.copy()
    for identifier, gradient in sums.items():
        result[identifier] = result[identifier] * (1 - learning_rate * decay) - learning_rate * np.sign(gradient)
    return result


# Small integers add up exactly in any order, and often cancel.
BATCHES = st.lists(
    st.tuples(st.integers(0, N - 1), st.lists(st.integers(-2, 2), min_size=W, max_size=W)), min_size=1, max_size=13
)


@given(BATCHES, st.sampled_from([1e-2, 0.5]), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 99))
def test_update_equals_a_plain_loop(batch, learning_rate, decay, seed):
    ids, gradients = [i for i, _ in batch], np.array([g for _, g in batch], dtype=np.float32)
    embedding = PuzzleEmbedding(N, W)
    start = np.random.default_rng(seed).normal(size=(N, W)).astype(np.float32)
    embedding.table.copy_(torch.from_numpy(start))
    embedding.update(torch.tensor(ids), torch.from_numpy(gradients), learning_rate, decay)
    expected = plain_update(start, ids, gradients, learning_rate, decay)
    np.testing.assert_allclose(embedding.table.numpy(), expected, atol=1e-6)
    untouched = sorted(set(range(N)) - set(ids))
    np.testing.assert_array_equal(embedding.table.numpy()[untouched], start[untouched])


def test_rows_are_leaves_that_collect_one_gradient_a_batch_row():
    embedding = PuzzleEmbedding(N, W)
    rows = embedding.rows(torch.tensor([5, 2, 5]))
    (rows * torch.tensor([[1.0], [2.0], [4.0]])).sum().backward()
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [1.0, 2.0, 4.0]
    assert not embedding.table.requires_grad


def test_duplicates_are_added_in_a_fixed_order_and_all_copies_write_the_same():
    """Nothing that a GPU does by atomics, whose order and so whose rounding differs from process to process."""
    seen = set()

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(function.overloadpacket._qualified_op_name)
            return function(*args, **(kwargs or {}))

    generator = torch.Generator().manual_seed(3)
    ids, gradients = torch.randint(0, N, (101,), generator=generator), torch.randn(101, W, generator=generator)
    gradients[50:100] = -gradients[:50]  # sums near zero, whose sign is a matter of rounding
    ids[50:100] = ids[:50]
    embedding = PuzzleEmbedding(N, W)
    with Recorded():
        embedding.update(ids, gradients, 0.1, 0.0)
    assert not [name for name in seen if "add_" in name or "scatter" in name or "put" in name]
    again = PuzzleEmbedding(N, W)
    again.update(ids, gradients, 0.1, 0.0)
    assert torch.equal(again.table, embedding.table)
