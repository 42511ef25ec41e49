"""Convert published TRM and HRM weights into an export, and an export into the published format, bit for bit.

python -m arc_trm.published import STEP arc1 --out exports/arc1    a published checkpoint becomes an export
python -m arc_trm.published import STEP arc2 --model.hidden 256 --model.puzzle-width 256 --out exports/narrow
python -m arc_trm.published export exports/arc1 --out STEP         an export becomes a published checkpoint

A preset of `arc_trm.train`, such as `sudoku-att`, names the model, because tensors do not show everything; its settings
of model and halting are changed by their dotted names.
"""

import argparse
import io
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch
import tyro
from torch import Tensor

from arc_trm.checkpoint import UNKNOWN_TRAINING, Export, read_export, write_export
from arc_trm.config import HaltingConfig, ModelConfig, check_config
from arc_trm.model import RecursiveModel
from arc_trm.presets import preset
from data_prep.files import InputError, file_digest, read_json, refuse_input, write_atomic
from data_prep.program import command_line, run_program
from data_prep.store import load

PROGRAM = "arc_trm.published"
PUZZLE_TABLE = "puzzle_emb.weights"
# Prefixes of the tensor names: of the compiled loss head, the loss head, the bare model.
KEY_PREFIXES = ("_orig_mod.model.inner.", "model.inner.", "_orig_mod.inner.", "inner.", "_orig_mod.", "model.", "")
BLOCK_NAMES = {"mix_features.gate_up": "mlp.gate_up_proj", "mix_features.down": "mlp.down_proj"}
MIXER_NAMES = {
    "attention": {"mix_tokens.qkv": "self_attn.qkv_proj", "mix_tokens.out": "self_attn.o_proj"},
    "mlp": {"mix_tokens.gate_up": "mlp_t.gate_up_proj", "mix_tokens.down": "mlp_t.down_proj"},
}
# The first name in a list of puzzle names: row 0 of the table, which no puzzle trains.
BLANK = "<blank>"
ROWS_AT_ONCE = 1 << 15  # of a table whose mean is taken: 64 MB of the published width
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


# Names --------------------------------------------------------------------------------------------------------------


def tensor_names(model: ModelConfig) -> dict[str, str]:
    """Return the published name, without prefix, of every tensor in our state dict but `initial`."""
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
    """Return the published names of the state's tensors, y first: z_H, z_L or z_L1 …; `H_init` … start them."""
    return {
        "answer_and_latent": ("z_H", "z_L"),
        "single_latent": ("z_L",),
        "single_latent_text": ("z_L",),
        "multi_scale_latent": ("z_H", *(f"z_L{i + 1}" for i in range(model.features - 1))),
        "direct": ("z_H",),
    }[model.recursion]


def initial_names(model: ModelConfig) -> tuple[str, ...]:
    """Return the published names of the rows of `initial`."""
    return tuple(f"{name.removeprefix('z_')}_init" for name in state_names(model))


def check_published(model: ModelConfig, where: str) -> None:
    """Raise InputError for a model that the published code lacks."""
    published = {"positions": "sequence", "embedding_rows": "puzzle", "convolution": False, "patch": 1}
    for setting, value in published.items():
        found = getattr(model, setting)
        if found != value:
            raise InputError(f"{where}: model.{setting} {found}, the published code has only {value}")


# Tensors ------------------------------------------------------------------------------------------------------------


def from_published(model: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return our float32 state dict from published tensors (bare names); a puzzle table is checked and left out.

    Raises InputError that lists the tensors that are missing, unknown or of another shape than `model` needs.
    """
    with torch.device("meta"):  # shapes without numbers
        expected = to_published(model, RecursiveModel(model).state_dict())
        if PUZZLE_TABLE in tensors:
            expected[PUZZLE_TABLE] = torch.empty(len(tensors[PUZZLE_TABLE]), model.puzzle_width)
    unfit = []
    for name in sorted(expected.keys() | tensors.keys()):
        found, asked = (list(of[name].shape) if name in of else "none" for of in (tensors, expected))
        if found != asked:
            unfit.append(f"{name} has shape {found}, the asked model has {asked}")
    if unfit:
        raise InputError(f"{where}: {'; '.join(unfit)}")
    state = {ours: tensors[theirs].float() for ours, theirs in tensor_names(model).items()}
    return state | {"initial": torch.stack([tensors[name].float() for name in initial_names(model)])}


def to_published(model: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return published tensors (bare names) from our state dict; a tied embedding is there twice."""
    tensors = {theirs: state[ours] for ours, theirs in tensor_names(model).items()}
    tensors.setdefault("lm_head.weight", state["token_embedding"])
    return tensors | dict(zip(initial_names(model), state["initial"], strict=True))


# Import -------------------------------------------------------------------------------------------------------------


def import_checkpoint(arguments: argparse.Namespace) -> int:
    """Write a published checkpoint as our export."""
    path: Path = arguments.checkpoint
    asked = with_settings(arguments.preset, arguments.settings)
    tensors, prefix = read_published(path)
    # The published multi-scale member has six latents, of which it updates n.
    latents = sum(re.fullmatch(r"L\d+_init", name) is not None for name in tensors)
    model = replace(asked.model, latents=latents)
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items() if tensor.dtype != torch.float32}
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise InputError(f"{path}: {name} is {dtype}, expected one of {', '.join(DTYPES)}")
    weights = from_published(model, tensors, str(path))
    table = tensors.get(PUZZLE_TABLE)
    names = _identifiers(arguments.identifiers, table)
    facts = {
        "source": path.name,
        "source_sha256": file_digest(path),
        "preset": arguments.preset,
        "published": {"key_prefix": prefix, "dtypes": dtypes},
    }
    trained = () if arguments.training_tasks is None else load(arguments.training_tasks).training_digests()
    facts |= {} if trained else {"training_tasks": UNKNOWN_TRAINING}
    mean = torch.zeros(model.puzzle_width) if table is None else mean_row(path, prefix + PUZZLE_TABLE, names)
    if table is not None and names is None and not arguments.no_table:
        print(f"note: the {len(table):,} puzzle embeddings have no names (--identifiers), so only their mean is kept")
    names = None if arguments.no_table else names
    kept = None if table is None or names is None else table.float()
    write_export(arguments.out, Export(model, asked.halting, weights, mean, trained, kept, names, facts))
    count = sum(tensor.numel() for name, tensor in weights.items() if name != "initial")
    print(f"wrote {arguments.out}: {model.recursion}, {count:,} parameters, {len(names or ()):,} puzzle embeddings")
    return 0


@dataclass(frozen=True)
class Settings:
    """The settings that an export keeps."""

    model: ModelConfig
    halting: HaltingConfig


def with_settings(name: str, words: Sequence[str]) -> Settings:
    """Return the settings of a preset, changed by dotted options such as `--model.hidden 256`.

    Exits with status 2 for an option that does not exist; raises InputError for a value out of its range.
    """
    config = preset(name)
    asked = tyro.cli(Settings, default=Settings(config.model, config.halting), args=words, prog=f"{PROGRAM} import")
    check_config(replace(config, model=asked.model, halting=asked.halting))
    check_published(asked.model, f"preset {name}")
    return asked


def read_published(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a published checkpoint by bare name, and the prefix that their names had.

    Nothing is unpickled, and the numbers stay in the file until they are used. Raises InputError if the file is
    missing or damaged, or holds no TRM or HRM.
    """
    content = _load(path)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path}: expected a torch file of named tensors, found {type(content).__name__}")
    first = "embed_tokens.embedding_weight"
    prefix = next((prefix for prefix in KEY_PREFIXES if prefix + first in content), None)
    if prefix is None:
        found = ", ".join(sorted(content)[:3]) or "nothing"
        raise InputError(f"{path}: no published TRM or HRM: no tensor ….{first}, found {found}")
    for name in content:
        if not name.startswith(prefix):
            raise InputError(f"{path}: tensor {name} does not begin with {prefix!r} as the others do")
    return {name.removeprefix(prefix): tensor for name, tensor in content.items()}, prefix


def _load(path: Path) -> Any:
    """Return the content of a torch file, with its tensors mapped into memory; raises InputError if that fails."""
    try:
        zipfile.ZipFile(path).close()
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, zipfile.BadZipFile, RuntimeError, ValueError, LookupError, pickle.UnpicklingError) as error:
        # For content other than tensors, torch explains how to load it unsafely, or fails with what it stumbled over.
        plain = isinstance(error, (OSError, zipfile.BadZipFile, RuntimeError))
        reason = str(error).splitlines()[0] if plain else "other content"
        raise InputError(f"{path}: cannot read as a torch file of named tensors ({reason})") from error


def mean_row(path: Path, key: str, names: tuple[str, ...] | None) -> Tensor:
    """Return the mean of the trained rows of the table `key` in a torch file, float32 [w].

    Row 0 is the blank puzzle, which was not trained, unless it is the only row. The file is mapped anew for every
    piece, because pages that were read stay in memory as long as their mapping.
    """
    rows = len(_load(path)[key])
    first = int(rows > 1 and (names is None or names[0] == BLANK))
    pieces = (_load(path)[key][i : i + ROWS_AT_ONCE].double() for i in range(first, rows, ROWS_AT_ONCE))
    total = torch.stack([piece.sum(0) for piece in pieces]).sum(0)
    return (total / (rows - first)).float()


def _identifiers(path: Path | None, table: Tensor | None) -> tuple[str, ...] | None:
    """Return the puzzle names in an identifiers file (a JSON list; index = row of the table)."""
    if path is None:
        return None
    names, rows = read_json(path), 0 if table is None else len(table)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: expected a list of puzzle names")
    if len(names) != rows:
        raise InputError(f"{path}: {len(names)} names for a puzzle table of {rows} rows")
    return tuple(names)


# Export -------------------------------------------------------------------------------------------------------------


def export_checkpoint(arguments: argparse.Namespace) -> int:
    """Write an export as a published checkpoint, and its identifiers if asked."""
    for out in filter(None, (arguments.out, arguments.identifiers)):
        refuse_input(out, [arguments.folder])
    export = read_export(arguments.folder)
    check_published(export.model, str(arguments.folder))
    tensors = to_published(export.model, export.weights)
    # Without a table the mean embedding stands for every puzzle.
    tensors[PUZZLE_TABLE] = export.puzzle_mean[None] if export.puzzle_table is None else export.puzzle_table
    origin = export.facts.get("published", {"key_prefix": KEY_PREFIXES[0], "dtypes": {}})
    for name, dtype in origin["dtypes"].items():
        tensors[name] = tensors[name].to(DTYPES[dtype])
    prefix = origin["key_prefix"]
    buffer = io.BytesIO()
    torch.save({prefix + name: tensor.clone() for name, tensor in tensors.items()}, buffer)
    write_atomic(arguments.out, buffer.getvalue())
    if arguments.identifiers is not None:
        names = export.puzzle_names
        if names is None:
            raise InputError(f"{arguments.folder}: holds no puzzle names to write to {arguments.identifiers}")
        write_atomic(arguments.identifiers, orjson.dumps(names))
    print(f"wrote {arguments.out}: {len(tensors)} tensors named {prefix}…")
    return 0


# Command line -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = command_line(PROGRAM, __doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("import", help="turn a published checkpoint into an export")
    one.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="torch file of named tensors")
    one.add_argument("preset", metavar="PRESET", help="its model, as for training: arc1, sudoku-att …")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="export folder to write")
    one.add_argument("--identifiers", type=Path, metavar="FILE", help="identifiers.json: the name of every puzzle")
    dataset = "a dataset of what it was trained on, which tells seen tasks from unseen ones (unknown)"
    one.add_argument("--training-tasks", type=Path, metavar="DIR", help=dataset)
    one.add_argument("--no-table", action="store_true", help="keep only the mean of the puzzle embeddings")
    one.set_defaults(run=import_checkpoint)
    one = commands.add_parser("export", help="turn an export into a published checkpoint")
    one.add_argument("folder", type=Path, metavar="DIR", help="export or run folder")
    one.add_argument("--out", type=Path, required=True, metavar="FILE", help="torch file to write")
    one.add_argument("--identifiers", type=Path, metavar="FILE", help="write the puzzle names here")
    one.set_defaults(run=export_checkpoint)
    arguments, settings = parser.parse_known_args(argv)
    if settings and arguments.run is export_checkpoint:
        parser.error(f"unrecognized arguments: {' '.join(settings)}")
    arguments.settings = settings
    return int(arguments.run(arguments))


if __name__ == "__main__":
    run_program(main)
