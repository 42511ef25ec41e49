"""The model family: recursion written out by hand, reach of the gradient, windows, memory and precision options."""

from dataclasses import replace

import pytest
import torch

from arc_trm.config import ModelConfig
from arc_trm.model import HALTING_BIAS, LATENT_RECURSIONS, RecursiveModel, patches, unpatched

B, SIDE, V, D, H = 2, 5, 7, 22, 1
PUZZLE = 29
CLOSE = 1e-5  # a few float32 roundings, which another order of sums costs
TINY = ModelConfig(
    vocab_size=V,
    seq_len=SIDE**2,
    hidden=D,
    heads=H,
    layers=1,
    expansion=1.5,
    latent_steps=2,
    deep_steps=2,
    prefix=3,
    puzzle_width=PUZZLE,
)


def build(**changes):
    torch.manual_seed(0)
    model = RecursiveModel(replace(TINY, **changes))
    torch.nn.init.normal_(model.halting_head.weight)
    return model


def example(model, tokens=SIDE**2):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, V, (B, tokens), generator=generator)
    puzzle = torch.randn(B, PUZZLE, generator=generator, requires_grad=True)
    return model.initial_state(B, tokens, torch.float32), inputs, puzzle


def gradients(model, output, puzzle):
    for tensor in (*model.parameters(), puzzle):
        tensor.grad = None
    (output.logits.square().mean() + output.halt_logits.sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()} | {"puzzle": puzzle.grad}


# The recursion, by hand ---------------------------------------------------------------------------------------------


def two_features(model, x, y, z):
    """n = 2, T = 2, one line an update."""
    r, f, g = model.rotary(SIDE**2), model.net, model.answer_net
    with torch.no_grad():
        z = f(z + (y + x), r)
        z = f(z + (y + x), r)
        y = g(y + z, r)
    z = f(z + (y + x), r)
    z = f(z + (y + x), r)
    return g(y + z, r), z


def one_feature(model, x, y):
    r, f = model.rotary(SIDE**2), model.net
    with torch.no_grad():
        y = f(f(f(y + x, r) + x, r), r)
    return (f(f(f(y + x, r) + x, r), r),)


def one_feature_of_the_text(model, x, y):
    r, f = model.rotary(SIDE**2), model.net
    with torch.no_grad():
        y = f(f(f(y + x, r) + x, r) + x, r)
    return (f(f(f(y + x, r) + x, r) + x, r),)


def three_features(model, x, y, z1, z2):
    r, f = model.rotary(SIDE**2), model.net
    with torch.no_grad():
        z1 = f((z1 + z2) + (y + x), r)
        z2 = f((z1 + z2) + (y + x), r)
        y = f(y + (z1 + z2), r)
    z1 = f((z1 + z2) + (y + x), r)
    z2 = f((z1 + z2) + (y + x), r)
    return f(y + (z1 + z2), r), z1, z2


def spare_latent(model, x, y, z1, z2, z3):
    """Two of three latents are updated; the third still counts in every sum (published: always six)."""
    r, f = model.rotary(SIDE**2), model.net
    with torch.no_grad():
        z1 = f((z1 + z2 + z3) + (y + x), r)
        z2 = f((z1 + z2 + z3) + (y + x), r)
        y = f(y + (z1 + z2 + z3), r)
    z1 = f((z1 + z2 + z3) + (y + x), r)
    z2 = f((z1 + z2 + z3) + (y + x), r)
    return f(y + (z1 + z2 + z3), r), z1, z2, z3


def one_step_gradient(model, x, y, z):
    """HRM: all but the very last update of z and of y without gradient."""
    r, f, g = model.rotary(SIDE**2), model.net, model.answer_net
    with torch.no_grad():
        z = f(z + (y + x), r)
        z = f(z + (y + x), r)
        y = g(y + z, r)
        z = f(z + (y + x), r)
    z = f(z + (y + x), r)
    return g(y + z, r), z


def no_recursion(model, x, y):
    return (model.net(y + x, model.rotary(SIDE**2)),)


BY_HAND = {
    "trm": (two_features, {}),
    "trm-mlp": (two_features, {"mixer": "mlp"}),
    "separate": (two_features, {"answer_layers": 2}),
    "singlez": (one_feature, {"recursion": "single_latent"}),
    "singleztext": (one_feature_of_the_text, {"recursion": "single_latent_text"}),
    "multiz": (three_features, {"recursion": "multi_scale_latent"}),
    "hier3": (spare_latent, {"recursion": "multi_scale_latent", "latents": 3}),
    "hrm": (one_step_gradient, {"answer_layers": 2, "gradient_updates": 2}),
    "1step": (one_step_gradient, {"gradient_updates": 2}),
    "direct": (no_recursion, {"recursion": "direct", "deep_steps": 1}),
}


@pytest.mark.parametrize("member", BY_HAND)
def test_recursion_equals_its_updates_written_out(member):
    by_hand, changes = BY_HAND[member]
    model = build(**changes)
    state, inputs, puzzle = example(model)
    output = model(state, inputs, puzzle)
    found = gradients(model, output, puzzle)

    expected = by_hand(model, model.embed(inputs, puzzle, torch.float32), *state)
    assert all(torch.allclose(a, b, atol=CLOSE) for a, b in zip(output.state, expected, strict=True))
    assert not any(part.requires_grad for part in output.state)
    y = expected[0]
    logits = y[:, 3:] @ model.output_head.weight.T
    halting = y[:, 0] @ model.halting_head.weight.T + model.halting_head.bias
    assert torch.allclose(output.logits, logits, atol=CLOSE)
    assert torch.allclose(output.halt_logits, halting[:, 0], atol=CLOSE)
    assert torch.allclose(output.continue_logits, halting[:, 1], atol=CLOSE)

    wanted = gradients(model, output._replace(logits=logits, halt_logits=halting[:, 0]), puzzle)
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, atol=CLOSE), name


def test_every_recursion_is_written_out_here():
    changes = [TINY.recursion, *(changes.get("recursion") for _, changes in BY_HAND.values())]
    assert set(LATENT_RECURSIONS) <= set(changes)


@pytest.mark.parametrize("graded", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("recursion", ["answer_and_latent", "single_latent", "multi_scale_latent"])
def test_gradient_reaches_the_last_updates_and_no_others(recursion, graded):
    n, deep = 3, 2
    model = build(recursion=recursion, latent_steps=n, deep_steps=deep, gradient_updates=graded)
    state, inputs, puzzle = example(model)
    updates = []
    model.net.register_forward_hook(lambda module, given, result: updates.append(result.requires_grad))
    model(state, inputs, puzzle)
    reached = min(graded or n + 1, n + 1)
    assert updates == [False] * (deep * (n + 1) - reached) + [True] * reached


def test_puzzle_and_question_learn_only_through_updates_that_see_them():
    model = build(gradient_updates=1)
    state, inputs, puzzle = example(model)
    found = gradients(model, model(state, inputs, puzzle), puzzle)
    assert found["puzzle"] is None
    assert found["token_embedding"] is None
    assert found["net.blocks.0.mix_features.down.weight"].abs().sum() > 0


# Parts --------------------------------------------------------------------------------------------------------------


def test_question_is_embedded_behind_the_puzzle_and_zeros():
    model = build()
    _, inputs, puzzle = example(model)
    x = model.embed(inputs, puzzle, torch.float32) / D**0.5
    front = x[:, :3].reshape(B, -1)
    assert torch.allclose(front[:, :PUZZLE], puzzle, atol=CLOSE)
    assert not front[:, PUZZLE:].any()
    assert torch.allclose(x[:, 3:], model.token_embedding[inputs], atol=CLOSE)


def test_the_last_positions_of_the_prefix_name_the_view():
    model = build(embedding_rows="task", prefix=14)
    _, inputs, puzzle = example(model)
    views = torch.stack([torch.tensor([b, *torch.randperm(9)[:9] % V, 3]) for b in range(B)]).int()
    x = model.embed(inputs, puzzle, torch.float32, views) / D**0.5
    assert torch.allclose(x[:, :3].reshape(B, -1)[:, :PUZZLE], puzzle, atol=CLOSE)
    for b in range(B):
        assert torch.allclose(x[b, 3], model.dihedral_embedding[b], atol=CLOSE)
        for colour in range(10):
            expected = model.token_embedding[views[b, 1 + colour]] + model.colour_embedding[colour]
            assert torch.allclose(x[b, 4 + colour], expected, atol=CLOSE)
    assert torch.allclose(x[:, 14:], model.token_embedding[inputs], atol=CLOSE)
    with pytest.raises(ValueError, match="must be told the views"):
        model.embed(inputs, puzzle, torch.float32)


def test_the_puzzle_embedding_leaves_room_for_the_view():
    with pytest.raises(ValueError, match=f"puzzle_width {3 * D} does not fit 2 positions of {D} numbers"):
        build(embedding_rows="task", prefix=13, puzzle_width=3 * D)


def test_a_model_without_puzzle_embedding_has_no_front():
    model = build(prefix=0, puzzle_width=0)
    state, inputs, _ = example(model)
    assert model(state, inputs, torch.zeros(B, 0)).logits.shape == (B, SIDE**2, V)


def test_start_states_are_fixed_and_the_same_everywhere():
    model = build(recursion="multi_scale_latent")
    state = model.initial_state(B, SIDE**2, torch.float32)
    assert [part.shape for part in state] == [(B, 3 + SIDE**2, D)] * 3
    assert all((part == part[:1, :1]).all() for part in state)
    assert "initial" not in dict(model.named_parameters())
    assert "initial" in model.state_dict()
    assert not torch.equal(state[0], state[1])


def test_halting_head_starts_undecided_but_doubtful():
    model = RecursiveModel(TINY)
    output = model(*example(model))
    assert output.halt_logits.tolist() == [HALTING_BIAS] * B == output.continue_logits.tolist()


def test_tied_embedding_reads_the_answer_with_the_token_embedding():
    model = build(tied_embedding=True)
    state, inputs, puzzle = example(model)
    output = model(state, inputs, puzzle)
    assert torch.allclose(output.logits, output.state[0][:, 3:] @ model.token_embedding.T, atol=CLOSE)
    untied = build()
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters()) == V * D


def test_no_tensor_has_two_names():
    for changes in ({}, {"answer_layers": 1}):
        state = build(**changes).state_dict()
        assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)


# Windows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 4])
def test_windows_use_the_positions_of_the_full_canvas(window):
    model = build()
    cells = [row * SIDE + column for row in range(window) for column in range(window)]
    positions = [0, 1, 2, *(3 + cell for cell in cells)]
    assert torch.equal(model.rotary(window**2), model.rotary_table[:, positions])
    # A window of the full canvas: the same network over the same positions, the others left out.
    state, inputs, puzzle = example(model, window**2)
    output = model(state, inputs, puzzle)
    x, y, z = model.embed(inputs, puzzle, torch.float32), *state
    rotary = model.rotary_table[:, positions]
    for _ in range(2):
        for _ in range(2):
            z = model.net(z + (y + x), rotary)
        y = model.net(y + z, rotary)
    assert torch.allclose(output.state[0], y, atol=CLOSE)
    assert output.logits.shape == (B, window**2, V)


def test_grid_positions_see_rows_and_columns_alone():
    model = build(hidden=24, heads=2, positions="grid", prefix=1, puzzle_width=24)
    x = torch.randn(1, 2, 24)

    def pair_at(*cells):
        return model.net(x, model.rotary_table[:, [1 + row * SIDE + column for row, column in cells]])

    first = pair_at((0, 0), (1, 1))
    assert torch.allclose(first, pair_at((1, 2), (2, 3)), atol=CLOSE)
    assert not torch.allclose(first, pair_at((0, 0), (2, 1)), atol=1e-3)
    window = [0, *(1 + row * SIDE + column for row in range(2) for column in range(2))]
    assert torch.equal(model.rotary(4), model.rotary_table[:, window])


def test_the_token_mixer_refuses_windows():
    model = build(mixer="mlp")
    with pytest.raises(ValueError, match="built for 25 tokens and cannot take 4: canvas windows need attention"):
        model(*example(model, 4))


# Memory and precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", BY_HAND)
def test_activation_checkpointing_changes_no_bit(member):
    _, changes = BY_HAND[member]
    results = []
    for checkpointing in (False, True):
        model = build(**changes, activation_checkpointing=checkpointing)
        state, inputs, puzzle = example(model)
        output = model(state, inputs, puzzle)
        results.append((output.logits.detach(), gradients(model, output, puzzle)))
    (logits, plain), (logits_again, recomputed) = results
    assert torch.equal(logits, logits_again)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert gradient is recomputed[name] is None or torch.equal(gradient, recomputed[name]), name


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_bf16_is_computed_over_float32_weights(mixer):
    model = build(mixer=mixer)
    _, inputs, puzzle = example(model)
    exact = model(model.initial_state(B, SIDE**2, torch.float32), inputs, puzzle)
    output = model(model.initial_state(B, SIDE**2, torch.bfloat16), inputs, puzzle)
    assert {part.dtype for part in output.state} == {torch.bfloat16} == {output.logits.dtype}
    assert output.halt_logits.dtype == torch.float32
    assert (output.logits.float() - exact.logits).abs().mean() < 0.1
    found = gradients(model, output._replace(logits=output.logits.float()), puzzle)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in found.values())


# Patches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [2, 3])
@pytest.mark.parametrize("side", [2, 3, 5])
def test_patches_hold_the_cells_of_their_square_and_pad_beyond_the_canvas(patch, side):
    canvas = torch.randint(1, V, (B, side**2), generator=torch.Generator().manual_seed(2))
    cells = patches(canvas, patch)
    count = -(-side // patch)
    assert cells.shape == (B, count**2, patch**2)
    for row in range(count * patch):
        for column in range(count * patch):
            place = cells[:, row // patch * count + column // patch, row % patch * patch + column % patch]
            inside = row < side and column < side
            assert torch.equal(place, canvas[:, row * side + column] if inside else torch.zeros_like(place))
    values = torch.nn.functional.one_hot(cells, V).flatten(2)
    assert torch.equal(unpatched(values, patch, side**2).argmax(-1), canvas)


GRID = {"positions": "grid", "hidden": 24}


@pytest.mark.parametrize("changes", [{"patch": 2}, {"patch": 3, "convolution": True, **GRID}])
def test_a_model_of_patches_joins_and_projects_the_embeddings_of_their_cells(changes):
    model = build(**changes)
    state, inputs, puzzle = example(model)
    x = model.embed(inputs, puzzle, torch.float32)
    d = model.config.hidden
    cells = d**0.5 * model.token_embedding[patches(inputs, model.config.patch)]
    expected = cells.flatten(2) @ model.patch_projection.weight.T
    assert torch.allclose(x[:, 3:], expected, atol=CLOSE)
    output = model(state, inputs, puzzle)
    assert output.logits.shape == (B, SIDE**2, V)
    assert output.state[0].shape == (B, 3 + model.config.canvas_positions(SIDE**2), d)
    found = gradients(model, output, puzzle)
    assert all(gradient is not None and gradient.any() for name, gradient in found.items() if "mix_neigh" not in name)


def test_a_window_of_a_model_of_patches_turns_by_the_angles_of_its_places_on_the_full_canvas():
    model = build(patch=2, **GRID)
    front, canvas = model.rotary_table[:, :3], model.rotary_table[:, 3:].view(2, 3, 3, -1)
    window = model.rotary(3**2)  # two patches a side, the second half outside
    assert torch.equal(window, torch.cat((front, canvas[:, :2, :2].flatten(1, 2)), dim=1))


def test_a_tied_embedding_cannot_read_patches():
    with pytest.raises(ValueError, match="tied_embedding reads one cell from a position, which holds 2x2"):
        replace(TINY, patch=2, tied_embedding=True)
