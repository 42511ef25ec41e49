"""The moving average of the weights."""

import pytest
import torch

from arc_trm.ema import Ema, ema_decay


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


def test_average_has_no_gradient_and_is_no_view(parameters):
    ema = Ema(parameters)
    parameters[0].data.fill_(7.0)
    assert not any(average.requires_grad for average in ema.averages)
    assert (ema.averages[0] != 7.0).all()


def test_decay_starts_low_and_reaches_its_target():
    assert ema_decay(1, 0.999) == pytest.approx(2 / 11)
    assert all(ema_decay(step, 0.999) < ema_decay(step + 1, 0.999) for step in range(1, 100))
    assert ema_decay(10_000, 0.999) == 0.999
