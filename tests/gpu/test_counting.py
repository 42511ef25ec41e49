"""What a training step asks of a GPU, pinned: no launch and no byte comes in unseen."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arc_trm.presets import PRESETS
from tests.benchmarks.bench_members import example_flops
from tests.gpu.counting import Step, counted, counts_of_step, per_example

# Launches of a whole step; per example bytes of traffic (all but products and attention), of saved activations, and
# operations. Each is what is reached, and a bound: where a change lowers one, lower it here too.
REACHED = {
    "arc1": Step(launches=886, traffic=1_560_804_090, saved=179_701_428, flops=406_705_532_928),
    "sudoku": Step(launches=1082, traffic=369_524_109, saved=40_233_027, flops=42_721_735_680),
    "sudoku6": Step(launches=569, traffic=7_826_018, saved=1_057_116, flops=174_700_032),
}


@pytest.mark.parametrize("preset", REACHED)
def test_a_step_asks_no_more_than_it_did(preset: str) -> None:
    found, bound = per_example(preset), REACHED[preset]
    assert found.launches <= bound.launches
    assert found.traffic <= bound.traffic
    assert found.saved <= bound.saved
    assert found.flops <= bound.flops
    # Nothing else is counted than the formula of the model says: its products, and attention's scores made again.
    assert found.flops == pytest.approx(example_flops(PRESETS[preset].model), rel=0.05)


@pytest.mark.parametrize("preset", ["sudoku", "sudoku6"])
def test_the_mlp_over_tokens_has_plain_products_alone(preset: str) -> None:
    names = counts_of_step(preset, 3).by_name
    assert names["mm"] > 0
    assert not {"bmm", "baddbmm"} & set(names)


# Of the heads, whose few outputs are a row; and half of those of the MLP over tokens (docs/gpu.md says why).
ODD = {"arc1": 7, "sudoku": 147, "sudoku6": 52}


@pytest.mark.parametrize("preset", ODD)
def test_no_more_products_have_rows_that_tensor_cores_cannot_load_whole(preset: str) -> None:
    assert counts_of_step(preset, 3).odd <= ODD[preset]


def test_rows_of_products_are_what_lies_side_by_side() -> None:
    with counted() as counts:
        wide, odd = torch.empty(3, 8, device="meta"), torch.empty(8, 5, device="meta")
        wide @ torch.empty(8, 4, device="meta")
        assert counts.odd == 0
        torch.empty(8, 4, device="meta").T @ wide.T
        assert counts.odd == 1, "the result has rows of 12 bytes"
        wide @ odd
    assert counts.odd == 2


def test_operations_are_those_of_pytorchs_own_counter() -> None:
    a, b = torch.empty(3, 5, 7, device="meta"), torch.empty(7, 11, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as theirs, counted() as ours:
        (a @ b).sum().backward()
    assert ours.flops == theirs.get_total_flops() == 2 * 2 * 3 * 5 * 7 * 11


def test_views_cost_nothing_and_what_is_expanded_is_read_once() -> None:
    x, row = torch.empty(3, 5, device="meta"), torch.empty(5, device="meta")
    with counted() as counts:
        x.view(15)[2:].unsqueeze(0)
        torch.empty(7, device="meta")
        torch.add(x, row.expand(3, 5), out=torch.empty(3, 5, device="meta"))
        x.mul_(2)
    assert counts.by_name == {"add": 1, "mul_": 1}
    assert counts.traffic_by_name == {"add": 4 * (15 + 5 + 15), "mul_": 4 * 30}
    assert counts.traffic == sum(counts.traffic_by_name.values())


def test_what_autograd_keeps_is_counted_once() -> None:
    weight = torch.empty(7, device="meta", requires_grad=True)
    with counted() as counts:
        y = torch.empty(3, 7, device="meta") * weight
        y.exp() * y.exp()
    # The factor that weight needs, and both results of exp, each of which a product and an exponential keep.
    assert counts.saved == 4 * 21 * 3
