"""Exchange weights with the published TRM and HRM code, and check that ours computes what it computes.

    python -m arc_trm.interop check GOLDEN                          compare with a folder of golden numbers
    python -m arc_trm.interop import CHECKPOINT --out exports/arc1  a published checkpoint becomes an export
    python -m arc_trm.interop export exports/arc1 --out step_1      an export becomes a published checkpoint

`check` prints one line per quantity and ends with status 1 if any is out of tolerance.
"""

import argparse
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, get_args

import orjson
import torch
from torch import Tensor

from arc_trm.checkpoint import Export, read_export, write_export
from arc_trm.comparison import Report
from arc_trm.config import HaltingRule
from arc_trm.golden import ModelCheck, check_parts, read_tensors
from arc_trm.golden_grids import check_grids
from arc_trm.golden_votes import Cast, Standing, check_votes
from arc_trm.presets import PRESETS
from arc_trm.published import KEY_PREFIXES, PUZZLE_TABLE, Deduced, deduce, from_published, key_prefix, to_published
from data_prep.files import InputError, file_digest, read_json, refuse_input, run_program, write_atomic
from submission.candidates import Predictions, count_candidates
from submission.vote import Output, Tally

Result = TypeVar("Result")

BLANK = "<blank>"
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
# Sizes that may be asked for; what is not asked is deduced from the tensors, or assumed as published.
SIZES = {
    "vocab_size": "number of tokens",
    "seq_len": "tokens of the canvas",
    "hidden": "numbers per position",
    "heads": "attention heads",
    "layers": "blocks of the network that updates z",
    "prefix": "positions in front of the canvas",
    "latent_steps": "updates of z in a latent recursion (n)",
    "deep_steps": "latent recursions in a deep recursion (T)",
}


# check --------------------------------------------------------------------------------------------------------------


def check(arguments: argparse.Namespace) -> int:
    """Compare everything in a golden folder; 1 if any quantity is out of tolerance."""
    lines = []
    for report in _reports(arguments.golden):
        for line in report:
            print(line)
            lines.append(line)
        for note in report.notes:
            print(f"note: {report.title}: {note}")
    if not lines:
        raise InputError(f"{arguments.golden}: nothing to compare, expected models.json, misc.json or arc_data.json")
    out = [line.quantity for line in lines if not line.ok]
    print(
        f"compared {len(lines)} quantities: {f'{len(out)} out: ' + ', '.join(out) if out else 'all within tolerance'}"
    )
    return 1 if out else 0


def _reports(folder: Path) -> Iterator[Report]:
    """The comparisons of every file in a golden folder, as they are made."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    listed = folder / "models.json"
    models = _usable(listed, itemgetter("models"), read_json(listed)) if listed.is_file() else {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.stem in models:
            yield _usable(path, ModelCheck.compare, path.stem, read_tensors(path), models[path.stem])
        elif path.stem != "misc":
            yield Report(path.stem, notes=["not compared: models.json does not describe it"])
    for name in models:
        if not (folder / f"{name}.safetensors").is_file():
            yield Report(name, notes=["not compared: models.json describes it, but there is no file"])
    if (folder / "misc.json").is_file():
        path, facts = folder / "misc.safetensors", read_json(folder / "misc.json")
        yield _usable(path, check_parts, read_tensors(path), facts)
    if (folder / "arc_data.json").is_file():
        path, facts = folder / "arc_data.json", read_json(folder / "arc_data.json")
        yield _usable(path, check_grids, facts)
        yield _usable(path, check_votes, facts, count_cast)


def _usable(path: Path, compare: Callable[..., Result], *arguments: Any) -> Result:
    """The comparison's result; raises InputError where the file lacks something or holds something else."""
    try:
        return compare(*arguments)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path}: not golden numbers of the known format ({type(error).__name__}: {error})") from error


def count_cast(cast: Cast) -> list[list[Standing]]:
    """For every output what was voted for, best first, by the submission's own counting."""
    tally = Tally(Output("golden", number) for number in range(cast.outputs))
    tally.add(count_candidates(Predictions(cast.tokens, cast.halting, cast.output, cast.dihedrals, cast.permutations)))
    return [
        [Standing(tuple(map(tuple, c.grid.tolist())), c.votes, c.mean_halt) for c in tally.candidates(number)]
        for number in range(cast.outputs)
    ]


# import -------------------------------------------------------------------------------------------------------------


def import_checkpoint(arguments: argparse.Namespace) -> int:
    """Write a published checkpoint as our export."""
    path: Path = arguments.checkpoint
    tensors, prefix = read_published(path)
    asked = _asked(arguments, tensors, str(path))
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items() if tensor.dtype != torch.float32}
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise InputError(f"{path}: {name} is {dtype}, expected one of {', '.join(DTYPES)}")
    table = tensors.pop(PUZZLE_TABLE, None)
    width = asked.model.puzzle_width
    if table is not None and table.shape[1:] != (width,):
        found, expected = list(table.shape), [len(table), width]
        raise InputError(f"{path}: {PUZZLE_TABLE} has shape {found}, the asked model has {expected}")
    weights = from_published(asked.model, tensors, str(path))
    names = _identifiers(arguments.identifiers, table)
    facts = {
        "source": path.name,
        "source_sha256": file_digest(path),
        "training_tasks": "unknown: the checkpoint does not say",
        "assumed": list(asked.assumed),
        "published": {"key_prefix": prefix, "dtypes": dtypes},
    }
    mean = torch.zeros(width) if table is None else _mean(table.float(), names)
    kept = None if table is None or arguments.no_table else table.float()
    kept_names = None if kept is None else names
    write_export(arguments.out, Export(asked.model, asked.halting, weights, mean, (), kept, kept_names, facts))
    for name in asked.assumed:
        print(f"assumed {name} {getattr(asked.model, name)}: the tensors cannot show it")
    count = sum(tensor.numel() for name, tensor in weights.items() if name != "initial")
    rows = 0 if kept is None else len(kept)
    print(f"wrote {arguments.out}: {asked.model.recursion}, {count:,} parameters, {rows:,} puzzle embeddings")
    return 0


def read_published(path: Path) -> tuple[dict[str, Tensor], str]:
    """(tensors by bare name, what stood in front of the names) of a published checkpoint; nothing is unpickled.

    Raises InputError when the file is missing, damaged, or holds no TRM or HRM.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        # What torch says of a file that is none of its own, is advice to load it unsafely.
        foreign = isinstance(error, pickle.UnpicklingError)
        reason = "another format" if foreign else (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: cannot read as a torch file of tensors alone ({reason})") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path}: expected a torch file of named tensors, found {type(content).__name__}")
    try:
        prefix = key_prefix(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    for name in content:
        if not name.startswith(prefix):
            raise InputError(f"{path}: tensor {name} does not begin with {prefix!r} as the others do")
    return {name.removeprefix(prefix): tensor for name, tensor in content.items()}, prefix


def _asked(arguments: argparse.Namespace, tensors: Mapping[str, Tensor], where: str) -> Deduced:
    """The model that the command line asks for: a preset's or the one deduced, with the sizes given replaced."""
    if arguments.preset is None:
        start = deduce(tensors, where)
    elif arguments.preset in PRESETS:
        start = Deduced(PRESETS[arguments.preset].model, PRESETS[arguments.preset].halting, ())
    else:
        raise InputError(f"--preset: found {arguments.preset!r}, expected one of {', '.join(PRESETS)}")
    sizes = {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    rule = {"rule": arguments.rule} if arguments.rule else {}
    assumed = tuple(name for name in start.assumed if name not in sizes)
    try:
        return Deduced(replace(start.model, **sizes), replace(start.halting, **rule), assumed)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _identifiers(path: Path | None, table: Tensor | None) -> tuple[str, ...] | None:
    """The puzzle names in an identifiers file (a JSON list; index = row of the table)."""
    if path is None:
        return None
    names = read_json(path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: expected a list of puzzle names")
    rows = 0 if table is None else len(table)
    if len(names) != rows:
        raise InputError(f"{path}: {len(names)} names for a puzzle table of {rows} rows")
    return tuple(names)


def _mean(table: Tensor, names: tuple[str, ...] | None) -> Tensor:
    """Mean of the rows that were trained: row 0 is the blank puzzle, unless it is all there is."""
    blank = len(table) > 1 and (names is None or names[0] == BLANK)
    return table[1:].mean(0) if blank else table.mean(0)


# export -------------------------------------------------------------------------------------------------------------


def export_checkpoint(arguments: argparse.Namespace) -> int:
    """Write an export as a published checkpoint, its identifiers beside it when asked for."""
    for out in filter(None, (arguments.out, arguments.identifiers)):
        refuse_input(out, [arguments.folder])
    export = read_export(arguments.folder)
    if export.model.positions != "sequence":
        raise InputError(f"{arguments.folder}: positions by {export.model.positions}, which the published code lacks")
    tensors = to_published(export.model, export.weights)
    # Without a table the mean embedding stands for every puzzle.
    tensors[PUZZLE_TABLE] = export.puzzle_mean[None] if export.puzzle_table is None else export.puzzle_table
    origin = export.facts.get("published", {"key_prefix": KEY_PREFIXES[0], "dtypes": {}})
    for name, dtype in origin["dtypes"].items():
        tensors[name] = tensors[name].to(DTYPES[dtype])
    prefix = origin["key_prefix"] if arguments.key_prefix is None else arguments.key_prefix
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="python -m arc_trm.interop", description=(__doc__ or "").splitlines()[0])
    commands = result.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("check", help="compare our models with a folder of golden numbers")
    one.add_argument("golden", type=Path, metavar="DIR", help="folder with models.json, misc.json, arc_data.json")
    one.set_defaults(run=check)
    one = commands.add_parser("import", help="turn a published checkpoint into an export")
    one.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="torch file of named tensors")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="export folder to write")
    one.add_argument("--identifiers", type=Path, metavar="FILE", help="identifiers.json: the name of every puzzle")
    one.add_argument("--no-table", action="store_true", help="keep only the mean of the puzzle embeddings")
    one.add_argument("--preset", metavar="NAME", help="ask for this preset's model, e.g. arc1 or arc1-hrm")
    for name, meaning in SIZES.items():
        one.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
    one.add_argument("--rule", choices=get_args(HaltingRule), help="when training halts a sequence")
    one.set_defaults(run=import_checkpoint)
    one = commands.add_parser("export", help="turn an export into a published checkpoint")
    one.add_argument("folder", type=Path, metavar="DIR", help="export or run folder")
    one.add_argument("--out", type=Path, required=True, metavar="FILE", help="torch file to write")
    one.add_argument("--identifiers", type=Path, metavar="FILE", help="write the puzzle names here")
    one.add_argument("--key-prefix", metavar="TEXT", help="what tensor names begin with (default: as imported)")
    one.set_defaults(run=export_checkpoint)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = parser().parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    run_program(main)
