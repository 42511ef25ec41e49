"""The layers, against formulas and the plain reference."""

import itertools
import math

import pytest
import torch

from arc_trm.layers import (
    Block,
    Convolution,
    Linear,
    SwiGLU,
    gated,
    rms_norm,
    rotary_table,
    swiglu_width,
    truncated_normal,
    turned,
)
from tests.arc_trm import reference

B, L, D, H = 2, 5, 21, 3  # batch, positions, width, heads


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_rms_norm_of_bf16_is_computed_in_float32():
    x = (1000 + torch.arange(D)).bfloat16().expand(B, D)
    assert torch.equal(rms_norm(x), rms_norm(x.float()).bfloat16())


def rotate(x, table):
    """x [b, l, h, k] turned as queries are."""
    return turned(torch.stack((x, x, x), 2), table)[0]


def test_rotary_positions_turn_pairs_half_the_head_apart():
    x = torch.randn(1, L, 1, 6)
    turned = rotate(x, rotary_table(torch.arange(L), 6))
    assert torch.allclose(turned[0, :, 0].double(), reference.turn(x[0, :, 0].double()), atol=1e-6)
    both = torch.randn(B, L, 6, dtype=torch.float64)
    assert torch.allclose(reference.turn_all(both)[1], reference.turn(both[1]))


def test_rotated_products_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 14)
    table = rotary_table(torch.tensor([3, 10, 53, 60]), 14)
    turned = [(rotate(q, table[:, i : i + 1]) * rotate(k, table[:, i + 1 : i + 2])).sum() for i in (0, 2)]
    assert torch.allclose(turned[0], turned[1], atol=1e-5)


def test_grid_products_depend_on_the_distance_in_rows_and_columns():
    q, k = torch.randn(2, 1, 1, 1, 12)
    # Two cells 2 rows up and 3 columns right of each other, twice; then one that is only as far along the sequence.
    rows, columns = torch.tensor([7, 5, 29, 27, 7, 8]), torch.tensor([1, 4, 20, 23, 1, 4])
    table = rotary_table(torch.stack((rows, columns), 1), 12)
    turned = [(rotate(q, table[:, i : i + 1]) * rotate(k, table[:, i + 1 : i + 2])).sum() for i in (0, 2, 4)]
    assert torch.allclose(turned[0], turned[1], atol=1e-5)
    assert not torch.allclose(turned[0], turned[2], atol=1e-2)


@pytest.mark.parametrize(("size", "expansion", "width"), [(512, 4, 1536), (51, 4, 256), (97, 4, 512), (512, 2, 768)])
def test_swiglu_width_is_rounded_up_to_256(size, expansion, width):
    assert swiglu_width(size, expansion) == width == reference.inner_width(size, expansion)
    assert SwiGLU(size, expansion).gate_up.weight.shape == (2 * width, size)


def test_truncated_normal_has_the_wanted_spread_and_a_hard_edge():
    sample = truncated_normal((211, 1009), 0.3)
    assert sample.std().item() == pytest.approx(0.3, rel=0.01)
    assert sample.mean().item() == pytest.approx(0, abs=0.005)
    assert sample.abs().max() <= 0.3 * 2.2737
    assert not truncated_normal((3,), 0.0).any()


def test_linear_computes_in_the_precision_of_its_input():
    linear = Linear(D, 7, bias=True)
    assert linear(torch.randn(B, D).bfloat16()).dtype == torch.bfloat16
    assert linear.weight.dtype == torch.float32
    assert linear.weight.std().item() == pytest.approx(1 / math.sqrt(D), rel=0.2)


def weights_of(block: Block, name: str) -> dict[str, torch.Tensor]:
    """The block's weights in float64 under published names."""
    names = {"mix_features.gate_up": "mlp.gate_up_proj", "mix_features.down": "mlp.down_proj"}
    names |= {"mix_tokens.gate_up": "mlp_t.gate_up_proj", "mix_tokens.down": "mlp_t.down_proj"}
    names |= {"mix_tokens.qkv": "self_attn.qkv_proj", "mix_tokens.out": "self_attn.o_proj"}
    state = {key.removesuffix(".weight"): value.double() for key, value in block.state_dict().items()}
    return {f"{name}.layers.0.{names[key]}.weight": value for key, value in state.items()}


@pytest.mark.parametrize("heads", [1, 3, 5])
def test_attention_equals_the_reference_head_by_head(heads):
    size = 30
    block = Block(size, heads, 1.5, L, "attention")
    x = torch.randn(B, L, size)
    rotary = rotary_table(torch.arange(L), size // heads)
    expected = reference.level("N", x.double(), weights_of(block, "N"), {"num_heads": heads})
    assert torch.allclose(block(x, rotary).double(), expected, atol=2e-6)


def test_token_mixer_normalises_over_the_positions():
    block = Block(D, H, 1.5, L, "mlp")
    x = torch.randn(B, L, D)
    expected = reference.level("N", x.double(), weights_of(block, "N"), {"mlp_t": True})
    assert torch.allclose(block(x, None).double(), expected, atol=2e-6)
    columns = x.transpose(1, 2)
    normed = rms_norm(block.mix_tokens(columns))
    assert torch.allclose(normed.square().mean(-1), torch.ones(B, D), atol=1e-3)
    assert normed.shape == (B, D, L)


def test_the_convolution_adds_to_every_cell_of_the_canvas_what_its_neighbours_weigh():
    prefix, side = 2, 5
    convolution, x = Convolution(D, prefix), torch.randn(B, prefix + side**2, D)
    assert torch.equal(convolution(x), x)
    weight = torch.nn.init.normal_(convolution.weight.data)
    found, canvas = convolution(x), x[:, prefix:].view(B, side, side, D)
    assert torch.equal(found[:, :prefix], x[:, :prefix])
    expected = canvas.clone()
    for row, column, i, j in itertools.product(range(side), range(side), range(3), range(3)):
        above, left = row + i - 1, column + j - 1
        if 0 <= above < side and 0 <= left < side:
            expected[:, row, column] += weight[:, 0, i, j] * canvas[:, above, left]
    assert torch.allclose(found[:, prefix:].view(B, side, side, D), expected, atol=1e-5)


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_a_block_convolves_between_its_two_halves(mixer):
    length = 3 + 4**2
    block, plain = Block(6, 1, 1.0, length, mixer, canvas_from=3), Block(6, 1, 1.0, length, mixer)
    missing = block.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["mix_neighbours.weight"]
    x, table = torch.randn(B, length, 6), rotary_table(torch.arange(length), 6)
    assert torch.equal(block(x, table), plain(x, table))
    torch.nn.init.normal_(block.mix_neighbours.weight)
    if mixer == "attention":
        middle = rms_norm(x + plain.mix_tokens(x, table))
    else:
        middle = rms_norm(plain.mix_tokens(x.transpose(1, 2).contiguous())).transpose(1, 2)
    expected = rms_norm(plain.mix_features(block.mix_neighbours(middle.clone())))
    assert torch.allclose(block(x, table), expected, atol=1e-6)
    assert not torch.allclose(expected, plain(x, table), atol=1e-2)


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_gradients_are_those_of_the_formulas(mixer):
    """The backward passes of its own, against finite differences."""
    block = Block(6, 1, 1.0, L, mixer).double()
    table = rotary_table(torch.arange(L), 6).double()
    x = torch.randn(B, L, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: block(x, table), (x,))
    gate_up = torch.randn(B, 2 * 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gated, (gate_up,))


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_without_gradient_it_computes_the_same_and_leaves_its_input(mixer, dtype):
    block, x = Block(6, 1, 1.0, L, mixer).double(), torch.randn(B, L, 6).to(dtype)
    table, before = rotary_table(torch.arange(L), 6).to(dtype), x.clone()
    with torch.no_grad():
        found = block(x, table)
    assert torch.equal(x, before)
    assert torch.allclose(found, block(x, table), atol=1e-12 if dtype == torch.float64 else 2e-2)
