"""Published TRM and HRM models in our terms: their settings, and the names of their tensors."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arc_trm.config import HaltingConfig, HaltingRule, ModelConfig
from arc_trm.layers import swiglu_width
from arc_trm.model import RecursiveModel
from data_prep.files import InputError

PUZZLE_TABLE = "puzzle_emb.weights"
# What may stand in front of every tensor name: the compiled loss head, the loss head, the bare model.
KEY_PREFIXES = ("_orig_mod.model.inner.", "model.inner.", "_orig_mod.inner.", "inner.", "_orig_mod.", "model.", "")

ARCHITECTURES = {
    "trm": "answer_and_latent",
    "trm_singlez": "single_latent",
    "trm_hier6": "multi_scale_latent",
    "hrm": "answer_and_latent",
    "transformers_baseline": "direct",
}
MULTI_SCALE_LATENTS = 6
# Tokens of the published tasks' canvases by vocabulary: ARC, Sudoku, Maze.
CANVAS_TOKENS = {12: 900, 11: 81, 6: 900}
SUDOKU_VOCABULARY = 11
PREFIX = 16
BLOCK_NAMES = {"mix_features.gate_up": "mlp.gate_up_proj", "mix_features.down": "mlp.down_proj"}
MIXER_NAMES = {
    "attention": {"mix_tokens.qkv": "self_attn.qkv_proj", "mix_tokens.out": "self_attn.o_proj"},
    "mlp": {"mix_tokens.gate_up": "mlp_t.gate_up_proj", "mix_tokens.down": "mlp_t.down_proj"},
}


# Names --------------------------------------------------------------------------------------------------------------


def tensor_names(model: ModelConfig) -> dict[str, str]:
    """The published name of every tensor in our state dict but `initial`, without what stands in front of it."""
    names = {"token_embedding": "embed_tokens.embedding_weight"}
    if not model.tied_embedding:
        names["output_head.weight"] = "lm_head.weight"
    names |= {f"halting_head.{part}": f"q_head.{part}" for part in ("weight", "bias")}
    networks = [("net", "H_level" if model.recursion == "direct" else "L_level", model.layers)]
    if model.answer_layers:
        networks.append(("second_net", "H_level", model.answer_layers))
    for ours, theirs, layers in networks:
        for i in range(layers):
            for mine, published in (BLOCK_NAMES | MIXER_NAMES[model.mixer]).items():
                names[f"{ours}.blocks.{i}.{mine}.weight"] = f"{theirs}.layers.{i}.{published}.weight"
    return names


def state_names(model: ModelConfig) -> tuple[str, ...]:
    """The published names of the tensors of the state, y first: z_H, z_L or z_L1 …; `H_init` … start them."""
    return {
        "answer_and_latent": ("z_H", "z_L"),
        "single_latent": ("z_L",),
        "single_latent_text": ("z_L",),
        "multi_scale_latent": ("z_H", *(f"z_L{i + 1}" for i in range(model.features - 1))),
        "direct": ("z_H",),
    }[model.recursion]


def initial_names(model: ModelConfig) -> tuple[str, ...]:
    """The published names of the rows of `initial`."""
    return tuple(f"{name.removeprefix('z_')}_init" for name in state_names(model))


def key_prefix(names: Iterable[str]) -> str:
    """What stands in front of the published names among `names`; raises InputError when they hold no such model."""
    present = set(names)
    for prefix in KEY_PREFIXES:
        if f"{prefix}embed_tokens.embedding_weight" in present:
            return prefix
    found = ", ".join(sorted(present)[:3]) or "nothing"
    raise InputError(f"no published TRM or HRM: no tensor ….embed_tokens.embedding_weight, found {found}")


# Tensors ------------------------------------------------------------------------------------------------------------


def state_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's state dict, without allocating it."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in RecursiveModel(model).state_dict().items()}


def from_published(model: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Our float32 state dict from published tensors (bare names, puzzle table left out).

    Raises InputError for a tensor that is missing, unknown, or of another shape than `model` asks.
    """
    names, starts = tensor_names(model), initial_names(model)
    known = {*names.values(), *starts, *(("lm_head.weight",) if model.tied_embedding else ())}
    for name in sorted(known - set(tensors)):
        raise InputError(f"{where}: no tensor {name}, which the asked model has")
    for name in sorted(set(tensors) - known):
        raise InputError(f"{where}: tensor {name} {list(tensors[name].shape)} has no place in the asked model")
    shapes = state_shapes(model)
    expected = {theirs: shapes[ours] for ours, theirs in names.items()}
    expected |= dict.fromkeys(starts, shapes["initial"][1:])
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise InputError(
                f"{where}: {name} has shape {list(tensors[name].shape)}, the asked model has {list(shape)}"
            )
    state = {ours: tensors[theirs].float() for ours, theirs in names.items()}
    state["initial"] = torch.stack([tensors[name].float() for name in starts])
    return state


def to_published(model: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published tensors (bare names) from our state dict; a tied embedding is written twice."""
    tensors = {theirs: state[ours] for ours, theirs in tensor_names(model).items()}
    tensors.setdefault("lm_head.weight", state["token_embedding"])
    return tensors | dict(zip(initial_names(model), state["initial"], strict=True))


# Settings -----------------------------------------------------------------------------------------------------------


def from_settings(architecture: str, settings: Mapping[str, Any], where: str) -> tuple[ModelConfig, HaltingConfig]:
    """Our configuration from a published one (`H_cycles`, `hidden_size`, …); raises InputError where it has none."""
    if architecture not in ARCHITECTURES:
        raise InputError(f"{where}: architecture {architecture!r}, expected one of {', '.join(ARCHITECTURES)}")
    hrm, direct = architecture == "hrm", architecture == "transformers_baseline"
    mixer = "mlp" if settings.get("mlp_t") else "attention"
    if mixer == "attention" and settings.get("pos_encodings") != "rope":
        raise InputError(f"{where}: pos_encodings {settings.get('pos_encodings')!r}, expected 'rope' with attention")
    try:
        width, hidden = settings["puzzle_emb_ndim"], settings["hidden_size"]
        sizes: dict[str, Any] = {
            "vocab_size": settings["vocab_size"],
            "seq_len": settings["seq_len"],
            "hidden": hidden,
            "heads": settings["num_heads"],
            "layers": settings["H_layers" if direct else "L_layers"],
            "answer_layers": settings["H_layers"] if hrm else 0,
            "expansion": float(settings["expansion"]),
            # The published direct prediction is one pass whatever its cycles say.
            "latent_steps": 0 if direct else settings["L_cycles"],
            "deep_steps": 1 if direct else settings["H_cycles"],
            "prefix": settings.get("puzzle_emb_len") or math.ceil(width / hidden),
            "puzzle_width": width,
        }
        limits = {"max_supervision_steps": settings["halt_max_steps"]}
    except KeyError as error:
        raise InputError(f"{where}: no setting {error.args[0]!r} in its configuration") from error
    sizes |= {"mixer": mixer, "recursion": ARCHITECTURES[architecture], "graded_updates": 2 if hrm else 0}
    sizes["latents"] = MULTI_SCALE_LATENTS if architecture == "trm_hier6" else 0
    continues = not settings.get("no_ACT_continue", not hrm)
    rule: dict[str, Any] = {"rule": "q_learning" if continues or direct else "correctness", "continue_loss": continues}
    return ModelConfig(**sizes), HaltingConfig(**limits, **rule)


@dataclass(frozen=True)
class Deduced:
    """The configuration that tensors show, and the names of those settings that they cannot show."""

    model: ModelConfig
    halting: HaltingConfig
    assumed: tuple[str, ...]


def deduce(tensors: Mapping[str, Tensor], where: str) -> Deduced:
    """The configuration behind published tensors (bare names): sizes from shapes, recursion as published.

    Raises InputError when they hold no network that we know.
    """
    try:
        return _deduce(tensors, where)
    except KeyError as error:
        raise InputError(f"{where}: no tensor {error.args[0]!r}, expected a published TRM or HRM") from error


def _deduce(tensors: Mapping[str, Tensor], where: str) -> Deduced:
    low, high = _layers(tensors, "L_level"), _layers(tensors, "H_level")
    hrm, direct = bool(low and high), not low
    vocabulary, hidden = tensors["embed_tokens.embedding_weight"].shape
    block = f"{'H' if direct else 'L'}_level.layers.0."
    width = tensors[PUZZLE_TABLE].shape[1] if PUZZLE_TABLE in tensors else 0
    prefix = math.ceil(width / hidden) if hrm or direct else PREFIX
    latents = sum(re.fullmatch(r"L\d+_init", name) is not None for name in tensors)
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden": hidden,
        "layers": high if direct else low,
        "answer_layers": high if hrm else 0,
        "expansion": _expansion(hidden, tensors[f"{block}mlp.down_proj.weight"].shape[1]),
        "recursion": "direct" if direct else _recursion(tensors, latents),
        "latents": latents,
        "latent_steps": 2 if hrm else 6 if vocabulary == SUDOKU_VOCABULARY else 4,
        "deep_steps": 1 if direct else 2 if hrm else 3,
        "graded_updates": 2 if hrm else 0,
        "puzzle_width": width,
        "tied_embedding": torch.equal(tensors["embed_tokens.embedding_weight"], tensors["lm_head.weight"]),
    }
    sizes |= _positions(tensors, block, prefix, where)
    seen = {"seq_len"} if sizes["mixer"] == "mlp" else set()
    assumed = {"heads", "seq_len", "prefix", "latent_steps", "deep_steps"} - seen
    rule: HaltingRule = "q_learning" if hrm or direct else "correctness"
    return Deduced(ModelConfig(**sizes), HaltingConfig(rule=rule, continue_loss=hrm), tuple(sorted(assumed)))


def _layers(tensors: Mapping[str, Tensor], level: str) -> int:
    """How many layers the network `level` has."""
    found = (re.match(rf"{level}\.layers\.(\d+)\.", name) for name in tensors)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _recursion(tensors: Mapping[str, Tensor], latents: int) -> str:
    if latents:
        return "multi_scale_latent"
    return "answer_and_latent" if "H_init" in tensors else "single_latent"


def _expansion(size: int, width: int) -> float:
    """The published expansion 4 where it gives this inner width, else one that does."""
    return 4.0 if swiglu_width(size, 4.0) == width else 1.5 * width / size


def _positions(tensors: Mapping[str, Tensor], block: str, prefix: int, where: str) -> dict[str, Any]:
    """Mixer, heads, canvas and prefix; only the token MLP shows the sum of the last two."""
    hidden = tensors["embed_tokens.embedding_weight"].shape[1]
    tokens = CANVAS_TOKENS.get(tensors["embed_tokens.embedding_weight"].shape[0], 900)
    mixing = tensors.get(f"{block}mlp_t.down_proj.weight")
    if mixing is not None:
        length = mixing.shape[0]
        tokens = tokens if prefix <= length - tokens <= 4 * PREFIX else length - prefix
        return {"mixer": "mlp", "heads": 1, "seq_len": tokens, "prefix": length - tokens}
    rows = tensors[f"{block}self_attn.qkv_proj.weight"].shape[0]
    heads = [h for h in (8, 12, 4, 2, 1, 16, 6, 3) if h <= hidden and 3 * h * (hidden // h) == rows]
    if not heads:
        raise InputError(f"{where}: {block}self_attn.qkv_proj.weight has {rows} rows for a width of {hidden}")
    return {"mixer": "attention", "heads": heads[0], "seq_len": tokens, "prefix": prefix}
