"""Settings: JSON and back, and what is refused."""

from dataclasses import asdict

import pytest

from arc_trm.config import HaltingConfig, ModelConfig, RunConfig, TrainConfig, check_config, from_json
from arc_trm.presets import PRESETS, override
from data_prep.files import InputError


@pytest.mark.parametrize("name", ["arc1", "sudoku-mlp", "maze-hrm", "arc2-direct", "arc1-small"])
def test_a_run_goes_through_json(name):
    assert from_json(RunConfig, asdict(PRESETS[name]), "run") == PRESETS[name]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RunConfig, {"train": {"beta1": 0.9}}, "where.train: unknown setting 'beta1', expected some of augment, "),
        (ModelConfig, {"hiden": 5}, "unknown setting 'hiden'"),
        (ModelConfig, {"hidden": "5"}, "where.hidden: found '5', expected a int"),
        (ModelConfig, {"hidden": True}, "where.hidden: found True"),
        (ModelConfig, {"mixer": "convolution"}, "'attention', 'mlp'"),
        (HaltingConfig, {"rule": None}, "'correctness', 'q_learning', 'never'"),
        (RunConfig, {"model": {"layers": 2.5}}, "where.model.layers: found 2.5"),
        (RunConfig, [], "expected an object of settings, found list"),
        (ModelConfig, {"puzzle_width": 513, "prefix": 1}, "puzzle_width 513 does not fit 1 positions of 512"),
    ],
)
def test_wrong_settings_are_named(kind, values, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        from_json(kind, values, "where")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"hidden": 30, "heads": 2}, "2 heads of 15 numbers, expected a multiple of 2 numbers"),
        ({"hidden": 12, "heads": 2, "positions": "grid"}, "2 heads of 6 numbers, expected a multiple of 4 numbers"),
        ({"seq_len": 26, "positions": "grid"}, "model.seq_len: found 26, expected a square for model.positions grid"),
        ({"seq_len": 26, "convolution": True}, "model.seq_len: found 26, expected a square for model.convolution"),
    ],
)
def test_settings_that_do_not_go_together_are_named(model, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        check_config(override(RunConfig(), {"model": {"puzzle_width": 5} | model}))


def test_whole_numbers_are_welcome_where_fractions_are():
    assert from_json(TrainConfig, {"lr": 1}, "train").lr == 1.0


@pytest.mark.parametrize(
    ("recursion", "settings", "features"),
    [
        ("answer_and_latent", {}, 2),
        ("single_latent", {}, 1),
        ("single_latent_text", {}, 1),
        ("direct", {}, 1),
        ("multi_scale_latent", {"latent_steps": 5}, 6),
        ("multi_scale_latent", {"latent_steps": 3, "latents": 6}, 7),
    ],
)
def test_features_of_the_state(recursion, settings, features):
    assert ModelConfig(recursion=recursion, **settings).features == features
