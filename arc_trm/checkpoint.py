"""Files of a run: checkpoints, from which training resumes, and the small export that solving needs.

Both are folders of one safetensors file and one JSON file that holds its SHA-256. A folder is written under another
name, flushed and renamed, so it is either complete or absent; nothing is ever unpickled.

    runs/arc1/
        config.json             the run's settings
        metrics.jsonl           every reported figure, one line a report; logs/ has them for TensorBoard
        checkpoints/step-00001000/{state.safetensors, state.json}
        export/{export.safetensors, export.json}
"""

import shutil
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from arc_trm import __version__
from arc_trm.config import HaltingConfig, ModelConfig, from_json
from arc_trm.model import RecursiveModel
from data_prep.augment import Augmentations
from data_prep.files import (
    InputError,
    file_digest,
    new_folder,
    read_json,
    refuse_other_files,
    sha256_hex,
    standing_json,
)
from data_prep.store import ArcStore

Tensors = dict[str, Tensor]

STATE, EXPORT = "state", "export"
FORMATS = {STATE: "arc-trm-checkpoint", EXPORT: "arc-trm-export"}
FORMAT_VERSION = 1
# Words of a digest computed at once: their products take 128 MB.
WORDS_AT_ONCE = 1 << 24


def write_folder(folder: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `tensors` and `facts` as a folder of `kind`, replacing an old one at the last moment.

    Raises InputError if the folder cannot be written, for example on a full disk; the old one stays.
    """
    refuse_other_files(folder, kind, (f"{kind}.json", f"{kind}.safetensors"))
    with new_folder(folder) as fresh:
        data = fresh / f"{kind}.safetensors"
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, data)
        except SafetensorError as error:
            raise InputError(f"{folder}: cannot write ({error})") from error
        described = {"format": FORMATS[kind], "version": FORMAT_VERSION, "package": __version__}
        described |= {"sha256": file_digest(data), **facts}
        described["facts_sha256"] = _facts_digest(described)
        (fresh / f"{kind}.json").write_bytes(orjson.dumps(described, option=orjson.OPT_INDENT_2))


def _facts_digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of a JSON file, independent of its layout."""
    said = {name: value for name, value in facts.items() if name != "facts_sha256"}
    return sha256_hex(orjson.dumps(said, option=orjson.OPT_SORT_KEYS))


def read_folder(folder: Path, kind: str, name: str = "") -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors and facts of a folder of `kind`, from files called `name` if given.

    Raises InputError if a file is missing, truncated or altered.
    """
    where = standing_json(folder, name or kind) or folder / f"{name or kind}.json"
    facts = read_json(where)
    if not isinstance(facts, dict) or facts.get("format") != FORMATS[kind]:
        raise InputError(f"{where}: not a file of format {FORMATS[kind]}")
    if facts.get("version") != FORMAT_VERSION:
        raise InputError(f"{where}: format version {facts.get('version')}, expected {FORMAT_VERSION}")
    if facts.get("facts_sha256") != _facts_digest(facts):
        raise InputError(f"{where}: altered (its sha256 is not the one it names)")
    data = where.with_suffix(".safetensors")
    found = file_digest(data)
    if found != facts.get("sha256"):
        raise InputError(
            f"{data}: truncated or altered (sha256 {found[:12]}…, expected {str(facts.get('sha256'))[:12]}…)"
        )
    return load_file(data), facts


# In the facts of an export whose training tasks are not known.
UNKNOWN_TRAINING = "unknown: the checkpoint does not say"


@dataclass(frozen=True)
class Export:
    """A trained model as adaptation and prediction need it."""

    model: ModelConfig
    halting: HaltingConfig
    weights: Tensors  # RecursiveModel.state_dict(), their moving average if the run kept one
    puzzle_mean: Tensor  # [w]: where new puzzles start
    training_tasks: tuple[str, ...] = ()  # digests of the tasks whose pairs were training labels
    puzzle_table: Tensor | None = None  # [puzzles, w], for exports that keep it
    puzzle_names: tuple[str, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # recipe, leak, steps, source, …

    @property
    def training_known(self) -> bool:
        """True if `training_tasks` is complete; an imported published checkpoint does not say."""
        return self.facts.get("training_tasks") != UNKNOWN_TRAINING


def write_export(folder: Path, export: Export) -> None:
    """Write the export atomically; raises InputError if it cannot be written."""
    tensors = {f"model/{name}": tensor for name, tensor in export.weights.items()}
    tensors["puzzle_mean"] = export.puzzle_mean
    if export.puzzle_table is not None:
        tensors["puzzle_table"] = export.puzzle_table
    facts: dict[str, Any] = {"model": asdict(export.model), "halting": asdict(export.halting)}
    facts |= {"training_tasks": export.training_tasks, "puzzle_names": export.puzzle_names, "facts": export.facts}
    write_folder(folder, EXPORT, tensors, facts)


def read_export(path: Path) -> Export:
    """The export at `path`, which is an export folder, a run folder that holds one, or an export's JSON file."""
    where = standing_json(path, EXPORT)
    if where is None and zipfile.is_zipfile(path):
        command = f"python -m arc_trm.published import {path} PRESET --out DIR"
        raise InputError(f"{path}: a torch file, expected an export; import it with `{command}`")
    if where is None:
        raise InputError(
            f"{path}: no checkpoint here, expected an export folder (export.json) or a run folder with one"
        )
    tensors, facts = read_folder(where.parent, EXPORT, where.stem)
    names = facts["puzzle_names"]
    return Export(
        model=from_json(ModelConfig, facts["model"], f"{where}: model"),
        halting=from_json(HaltingConfig, facts["halting"], f"{where}: halting"),
        weights=below(tensors, "model/"),
        puzzle_mean=tensors["puzzle_mean"],
        training_tasks=tuple(facts["training_tasks"]),
        puzzle_table=tensors.get("puzzle_table"),
        puzzle_names=None if names is None else tuple(names),
        facts=facts["facts"] | {"sha256": facts["sha256"]},
    )


def checkpoint_folders(run: Path) -> list[Path]:
    """List the checkpoint folders of a run, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if path.is_dir())


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step`, which need not exist."""
    return run / "checkpoints" / f"step-{step:08d}"


def write_checkpoint(run: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], keep: int) -> None:
    """Write the state after `step`; keep only the newest `keep` checkpoints."""
    write_folder(checkpoint_folder(run, step), STATE, tensors, {**facts, "step": step})
    tidy_checkpoints(run, step, keep)


def tidy_checkpoints(run: Path, step: int, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints up to `step`, and unfinished ones that kills left."""
    # Later ones are broken ones from before a resumption, which must not displace good ones.
    old = [path for path in checkpoint_folders(run) if path <= checkpoint_folder(run, step)]
    for path in (*old[:-keep], *(run / "checkpoints").glob(".step-*")):
        shutil.rmtree(path, ignore_errors=True)


def read_newest_checkpoint(run: Path, warn: Callable[[str], object]) -> tuple[Tensors, dict[str, Any]] | None:
    """Read the newest checkpoint that is whole; return None if there are none. Calls `warn` for each broken one.

    Raises InputError if there are checkpoints but none is whole.
    """
    folders = checkpoint_folders(run)
    for folder in reversed(folders):
        try:
            return read_folder(folder, STATE)
        except InputError as error:
            warn(f"refused a checkpoint: {error}")
    if folders:
        raise InputError(f"{run}: none of its {len(folders)} checkpoints is whole; start again with another --out")
    return None


# Tensors ------------------------------------------------------------------------------------------------------------


def below(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """Return the tensors whose names begin with `prefix`, which is removed from their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_weights(model: RecursiveModel, weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` into `model`; raises InputError naming the first tensor that is missing, unknown or misshapen."""
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        sizes = [list(tensors[name].shape) if name in tensors else "none" for tensors in (weights, own)]
        if sizes[0] != sizes[1]:
            raise InputError(f"the checkpoint's {name} has the shape {sizes[0]}, this model's has {sizes[1]}")
    model.load_state_dict(dict(weights))


def bit_digest(tensors: Iterable[Tensor]) -> Tensor:
    """Return a digest, int64 [], of every bit of the tensors: their 32-bit words times odd numbers, summed.

    Integer sums wrap around and do not depend on their order, so equal bits give equal digests on any device.
    """
    digest = torch.zeros((), dtype=torch.int64)
    for tensor in tensors:
        for words in torch.split(tensor.detach().flatten().view(torch.int32), WORDS_AT_ONCE):
            odd = torch.arange(1, 2 * len(words), 2, device=words.device)
            digest = 31 * digest.to(words.device) + (words * odd).sum()
    return digest


# Embedding rows by name ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowNames:
    """Names of the N rows of an embedding table, 15 bytes a row: an owner and an augmentation."""

    owners: tuple[str, ...]  # `corpus/task_id`; the digest of a task's demonstrations if rows belong to tasks
    groups: NDArray[np.int32]  # [N] index of the owner
    augmentations: Augmentations  # [N]

    @classmethod
    def of_puzzles(cls, store: ArcStore) -> "RowNames":
        """Name a row for every puzzle of a store."""
        owners = tuple(group.name for group in store.groups)
        return cls(owners, store.puzzle_groups, store.puzzle_augmentations)

    @classmethod
    def of_owners(cls, owners: Sequence[str]) -> "RowNames":
        """Name one row for each owner, without augmentation."""
        count = len(owners)
        return cls(tuple(owners), np.arange(count, dtype=np.int32), Augmentations.identity(count))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], owners: Sequence[str]) -> "RowNames":
        """Undo `tensors`."""
        groups, *arrays = (tensors[name].numpy() for name in ("groups", "dihedrals", "permutations"))
        return cls(tuple(owners), groups, Augmentations(*arrays))

    def tensors(self) -> Tensors:
        """Copy the arrays into tensors for a checkpoint, which keeps the owners as JSON."""
        arrays = {"groups": self.groups, **vars(self.augmentations)}
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def keys(self, owners: Sequence[str]) -> NDArray[np.int64]:
        """Return one number a row, int64 [N], equal for equal names; -1 for an owner that is not in `owners`."""
        numbers = {name: number for number, name in enumerate(owners)}
        group = np.array([numbers.get(name, -1) for name in self.owners], np.int64)[self.groups]
        permutation = self.augmentations.permutations.astype(np.int64) @ (10 ** np.arange(9, -1, -1, dtype=np.int64))
        return np.where(group < 0, -1, (group * 8 + self.augmentations.dihedrals) * 10**10 + permutation)


def carry_over(old: RowNames, table: Tensor, new: RowNames, fresh: Tensor) -> tuple[Tensor, int]:
    """Return the rows [N, w] that `new` names, from `table` [n, w] of `old` or `fresh` [w]; and how many were known."""
    known, wanted = old.keys(new.owners), new.keys(new.owners)
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], wanted), len(order) - 1)
    source = order[place]
    found = known[source] == wanted
    rows = fresh.repeat(len(wanted), 1)
    rows[torch.from_numpy(found)] = table[torch.from_numpy(source[found])].to(rows)
    return rows, int(found.sum())


def with_rows_of_others(names: RowNames, table: Tensor, old: RowNames, old_table: Tensor) -> tuple[RowNames, Tensor]:
    """Append the rows of owners that only `old` has; return names and table [N, w]. Needs one row for each owner."""
    own = set(names.owners)
    others = [place for place, owner in enumerate(old.owners) if owner not in own]
    joined = RowNames.of_owners([*names.owners, *(old.owners[place] for place in others)])
    return joined, torch.cat((table, old_table[others].to(table)))
