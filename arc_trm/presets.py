"""Named runs: `<data>` or `<data>-<variant>`, composed from two tables.

A data setting says which canvas and recipe, a variant what differs from it. Where the paper's text and its published
code disagree, the data settings follow the published commands and the variant `paper` follows the text.
"""

import difflib
from dataclasses import replace
from typing import Any

from arc_trm.config import RunConfig
from data_prep.files import InputError

# Overrides per section of RunConfig: {"model": {"layers": 4}, …}.
Overrides = dict[str, dict[str, Any]]


def merged(base: Overrides, changes: Overrides) -> Overrides:
    """Merge two sets of overrides section by section; `changes` takes precedence."""
    return {section: {**base.get(section, {}), **changes.get(section, {})} for section in base | changes}


ARC: Overrides = {"model": {"latent_steps": 4}}
# Settings for two CPU cores: a narrow model, short recursion, small batches, quick schedules.
SMALL: Overrides = {
    "model": {"hidden": 128, "heads": 4, "puzzle_width": 128, "latent_steps": 3, "deep_steps": 2},
    "train": {"batch_size": 32, "steps": 3000, "lr": 1e-3, "warmup_steps": 200, "canvas": "sizes"},
    "log": {"evaluation_augmentations": 16},
}
# One embedding row a task, views drawn afresh, Muon: what learned fastest of the few ways compared so far
# (docs/results.md). Not run at full size, and its rate there is a guess: small sizes wanted two to four times Adam's.
FAST: Overrides = {
    "model": {"embedding_rows": "task", "positions": "grid"},
    "train": {"optimiser": "muon", "lr": 3e-4, "canvas": "sizes"},
}
# `fast` for Sudokus and mazes: less recursion, more puzzles an hour. Half the cost to 95 % of 6×6 Sudokus.
FAST_BOARDS: Overrides = {
    "model": {"deep_steps": 1},
    "halting": {"max_supervision_steps": 4},
    "train": {"lr_min_ratio": 0.0},
}
# Hours on one or two CPU cores, for tasks on the smallest canvas: what the demo's export is an example of. With n = 1
# and one supervision step every step sees fresh examples; more of either learned more slowly (docs/results.md).
TINY: Overrides = merged(
    merged(SMALL, FAST),
    {
        "model": {"latent_steps": 1, "deep_steps": 1, "prefix": 12, "convolution": True},
        "halting": {"max_supervision_steps": 1, "token_loss": "softmax"},
        "train": {"batch_size": 64, "steps": 7000, "lr": 2e-3, "lr_min_ratio": 0.1, "compile": True},
    },
)
SUDOKU: Overrides = {
    "model": {"vocab_size": 11, "seq_len": 81, "mixer": "mlp"},
    "train": {"epochs": 50_000, "weight_decay": 1.0, "puzzle_lr": 1e-4, "puzzle_weight_decay": 1.0},
}
MAZE: Overrides = {
    "model": {"vocab_size": 6, "latent_steps": 4},
    "train": {"epochs": 50_000, "weight_decay": 1.0, "puzzle_lr": 1e-4, "puzzle_weight_decay": 1.0},
}
# Minutes on two CPU cores. What mattered: few recursions (their cost is linear, small puzzles need few), a high
# learning rate with AdamW (3e-3: twice as fast as 2e-3), a short memory of the moving average, one embedding position,
# and the MLP over tokens: on 6×6 mazes it reaches in 400 steps what attention has not after 1200.
QUICK: Overrides = {
    "model": {"hidden": 64, "heads": 4, "latent_steps": 2, "deep_steps": 2, "prefix": 1, "puzzle_width": 64},
    "train": {
        "batch_size": 64,
        "steps": 1200,
        "optimiser": "adamw",
        "lr": 3e-3,
        "puzzle_lr": 1e-4,
        "warmup_steps": 50,
        "ema": 0.99,
    },
}

DATA: dict[str, Overrides] = {
    "arc1": ARC,
    "arc2": ARC,
    "sudoku": SUDOKU,
    "maze": MAZE,
    "sudoku6": merged(QUICK, {"model": {"vocab_size": 8, "seq_len": 36, "mixer": "mlp"}}),
    "sudoku4": merged(QUICK, {"model": {"vocab_size": 6, "seq_len": 16, "mixer": "mlp"}, "train": {"steps": 500}}),
    "maze6": merged(QUICK, {"model": {"vocab_size": 6, "seq_len": 36, "mixer": "mlp"}}),
}

VARIANTS: dict[str, Overrides] = {
    "small": SMALL,
    "fast": FAST,
    "tiny": TINY,
    "att": {"model": {"mixer": "attention"}},
    "mlp": {"model": {"mixer": "mlp"}},
    "singlez": {"model": {"recursion": "single_latent"}},
    "singleztext": {"model": {"recursion": "single_latent_text"}},
    "multiz": {"model": {"recursion": "multi_scale_latent"}},
    "hrm": {
        "model": {
            "mixer": "attention",
            "layers": 4,
            "answer_layers": 4,
            "latent_steps": 2,
            "deep_steps": 2,
            "gradient_updates": 2,
            "prefix": 1,
        },
        "halting": {"rule": "q_learning", "continue_loss": True},
        "train": {"ema": 0.0},
    },
    "direct": {
        "model": {"mixer": "attention", "recursion": "direct", "layers": 8, "heads": 12, "deep_steps": 1, "prefix": 1},
        "halting": {"rule": "q_learning"},
        "train": {"ema": 0.0},
    },
    # The ablation table.
    "act": {"halting": {"rule": "q_learning", "continue_loss": True}},
    "separate": {"model": {"answer_layers": 2}},
    "noema": {"train": {"ema": 0.0}},
    "4layers": {"model": {"layers": 4, "latent_steps": 3}},
    "t2n2": {"model": {"deep_steps": 2, "latent_steps": 2}},
    "1step": {"model": {"gradient_updates": 2}},
    # Ideas that failed.
    "lastk": {"model": {"gradient_updates": 4}},
    "noact": {"halting": {"rule": "never"}},
    "tied": {"model": {"tied_embedding": True}},
    # The paper's text where its published code differs.
    "paper": {
        "model": {"latent_steps": 6},
        "halting": {"loss_weight": 1.0},
        "train": {"optimiser": "adamw"},
    },
}
# The recursion table: TRM at (k, T) takes n = 2k latent steps.
VARIANTS |= {
    f"k{k}t{t}": {"model": {"latent_steps": 2 * k, "deep_steps": t}}
    for k, t in ((1, 1), (2, 2), (3, 3), (4, 4), (6, 3), (3, 6), (6, 6))
}


def override(config: RunConfig, overrides: Overrides) -> RunConfig:
    """Replace some fields of some sections of `config`; raises TypeError for an unknown name."""
    sections = {name: replace(getattr(config, name), **fields) for name, fields in overrides.items()}
    return replace(config, **sections)


def _presets() -> dict[str, RunConfig]:
    presets = {}
    for data, settings in DATA.items():
        presets[data] = override(RunConfig(), settings)
        for variant, changes in VARIANTS.items():
            if not data.startswith("arc"):
                if variant == "tiny":
                    continue  # Sudokus and mazes have no tasks that could own a row
                changes = FAST_BOARDS if variant == "fast" else changes
            preset = override(presets[data], changes)
            # Rotary positions turn pairs of numbers: the 12 heads of `direct` need a wider model than the small ones.
            if preset.model.mixer != "attention" or preset.model.hidden // preset.model.heads % 2 == 0:
                presets[f"{data}-{variant}"] = preset
    return presets


PRESETS: dict[str, RunConfig] = _presets()


def preset(name: str) -> RunConfig:
    """Return the preset of that name; raises InputError with similar names if there is none."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(
            f"found {name!r}, expected a preset: {hint}DATA or DATA-VARIANT with DATA of {', '.join(DATA)} "
            f"and VARIANT of {', '.join(VARIANTS)}"
        )
    return PRESETS[name]


def describe(name: str) -> str:
    """Describe a preset in one line: model, recursion and batch size."""
    config = PRESETS[name]
    model, train = config.model, config.train
    return (
        f"{model.mixer}, {model.recursion.replace('_', ' ')}, hidden {model.hidden}, {model.layers} layers, "
        f"n={model.latent_steps}, T={model.deep_steps}, batch {train.batch_size}"
    )
