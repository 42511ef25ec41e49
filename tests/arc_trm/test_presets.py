"""Presets: sizes and depths of the paper, and that every member learns."""

import math
import re

import pytest
import torch

from arc_trm.config import RunConfig
from arc_trm.model import RecursiveModel
from arc_trm.presets import MEANT, PRESETS, VARIANTS, override, preset
from data_prep.files import InputError
from tests.arc_trm.tiny_runs import TinyRun, tiny

# Counted in the published code, the puzzle embedding apart.
PARAMETERS = {
    "arc1": 6_829_058,
    "arc2": 6_829_058,
    "sudoku": 5_028_866,
    "arc1-mlp": 18_801_666,
    "arc1-hrm": 27_276_290,
    "arc1-direct": 27_145_218,
}
# Rounded to millions as the paper prints them.
MILLIONS = {
    "sudoku": 5,
    "sudoku-att": 7,
    "sudoku-act": 5,
    "sudoku-separate": 10,
    "sudoku-noema": 5,
    "sudoku-4layers": 10,
    "sudoku-t2n2": 5,
    "sudoku-1step": 5,
    "sudoku-hrm": 27,
    "sudoku-direct": 27,
    "maze": 7,
    "maze-mlp": 19,
    "maze-hrm": 27,
}
# The paper's depths; its 9 and 7 at k = T = 1 do not follow its formula, which gives 8 (HRM) and 6.
DEPTHS = {
    "sudoku": 42,
    "sudoku-act": 42,
    "sudoku-separate": 42,
    "sudoku-4layers": 48,
    "sudoku-t2n2": 12,
    "sudoku-hrm": 24,
    "sudoku-k1t1": 6,
    "sudoku-k2t2": 20,
    "sudoku-k3t3": 42,
    "sudoku-k4t4": 72,
    "sudoku-k6t3": 78,
    "sudoku-k3t6": 84,
    "sudoku-k6t6": 156,
    "sudoku-direct": 8,
}


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in RecursiveModel(PRESETS[name].model).parameters())


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameters_are_those_of_the_published_code(name, count):
    assert parameters(name) == count


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_parameters_round_to_the_papers_figures(name, millions):
    assert round(parameters(name) / 1e6) == millions


def depth(config: RunConfig) -> int:
    """Effective depth of a supervision step by the paper's formula T(n + 1) · layers (direct: its layers)."""
    model = config.model
    updates = 1 if model.recursion == "direct" else model.latent_steps + 1
    return model.deep_steps * updates * model.layers


@pytest.mark.parametrize(("name", "expected"), DEPTHS.items())
def test_depth_follows_the_formula(name, expected):
    assert depth(PRESETS[name]) == expected


def test_only_the_continue_loss_takes_a_second_forward_pass():
    twice = {name.partition("-")[2] for name, config in PRESETS.items() if config.halting.continue_loss}
    assert twice == {"hrm", "act"}


def test_features_of_the_state_are_those_of_the_paper():
    features = {name: PRESETS[f"sudoku-{name}"].model.features for name in ("singlez", "multiz", "hrm", "direct")}
    assert features == {"singlez": 1, "multiz": 7, "hrm": 2, "direct": 1}


def test_settings_follow_the_published_commands_and_the_text_where_asked():
    assert PRESETS["sudoku"].model.mixer == "mlp"
    assert {name: PRESETS[name].model.latent_steps for name in ("arc1", "sudoku", "maze")} == {
        "arc1": 4,
        "sudoku": 6,
        "maze": 4,
    }
    text = PRESETS["arc1-paper"]
    assert (text.model.latent_steps, text.halting.loss_weight, text.train.optimiser) == (6, 1.0, "adamw")
    assert (PRESETS["arc1"].halting.loss_weight, PRESETS["arc1"].train.optimiser) == (0.5, "adam_atan2")
    assert PRESETS["sudoku"].train.weight_decay == PRESETS["maze"].train.puzzle_weight_decay == 1.0
    assert PRESETS["arc1"].train.puzzle_lr == 1e-2
    assert PRESETS["arc1-noema"].train.ema == 0.0


def test_an_unknown_override_is_refused():
    with pytest.raises(TypeError, match="layer"):
        override(RunConfig(), {"model": {"layer": 3}})
    with pytest.raises(AttributeError, match="modle"):
        override(RunConfig(), {"modle": {}})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sudoku-extreme", "sudoku"), ("sudoku-tiny", "sudoku6"), ("maze-hard", "maze"), ("arc1-fas", "arc1-fast or")],
)
def test_an_unknown_preset_names_the_one_that_is_meant(name, meant):
    with pytest.raises(InputError, match=rf"found '{name}', expected a preset: did you mean {meant}\b"):
        preset(name)


def test_names_that_are_meant_are_presets_and_the_others_are_not():
    assert set(MEANT.values()) <= PRESETS.keys()
    assert not MEANT.keys() & PRESETS.keys()


# Presets that are the same once they are small, share a test.
SMALL_PRESETS = {tiny(config): name for name, config in reversed(PRESETS.items())}


@pytest.mark.parametrize("config", SMALL_PRESETS, ids=SMALL_PRESETS.values())
def test_every_preset_trains_a_few_steps(config):
    run = TinyRun(config)
    before = run.model.token_embedding.detach().clone()
    losses = [run.step() for _ in range(2)]
    assert all(map(math.isfinite, losses))
    assert not torch.equal(run.model.token_embedding, before)
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


def learners() -> dict[RunConfig, str]:
    """Members that must learn, by their small settings, each once. The rows of the recursion table differ in depth
    alone: its shallowest and its deepest stand for those between.
    """
    names = [name for name in ("", *VARIANTS) if not re.fullmatch(r"k\dt\d", name) or name in ("k1t1", "k6t6")]
    return {tiny(PRESETS[f"arc1-{name}" if name else "arc1"]): name for name in reversed(names)}


def best_accuracy(config: RunConfig) -> float:
    """The best exact accuracy that training on the eight examples reaches."""
    run, best, step = TinyRun(config), 0.0, 0
    while best < 1 and step < 400:
        run.step()
        step += 1
        if step % 10 == 0:
            best = max(best, run.exact_accuracy())
    return best


@pytest.mark.parametrize("config", learners(), ids=learners().values())
def test_every_member_overfits_eight_examples(config):
    assert best_accuracy(config) == 1.0


def test_the_softmax_loss_overfits_too():
    assert best_accuracy(override(tiny(PRESETS["arc1"]), {"halting": {"token_loss": "softmax"}})) == 1.0
