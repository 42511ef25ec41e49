"""Checkpoints and exports: whole or not there, refused by name when they are not what was written."""

import ast
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.checkpoint import (
    EXPORT,
    STATE,
    Export,
    RowNames,
    carry_over,
    checkpoint_folder,
    checkpoint_folders,
    read_export,
    read_folder,
    read_newest_checkpoint,
    write_checkpoint,
    write_export,
    write_folder,
)
from data_prep.files import InputError
from tests.arc_trm.arc_stores import mixed_store, puzzle_names
from tests.arc_trm.training import TINY, identical, lively_model
from tests.conftest import REPOSITORY
from tests.data_prep.material import Augmentation, puzzle_name, together

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"of/{str(kind).removeprefix('torch.')}": (torch.rand(3, 5, generator=generator) * 7).to(kind)
        for kind in DTYPES
    } | {"scalar": torch.tensor(2.0), "empty": torch.zeros(0)}


def keep(run: Path, *steps: int, kept: int = 9) -> None:
    for step in steps:
        write_checkpoint(run, step, some_tensors(step), {"step": step, "name": "x"}, kept)


def newest(run: Path) -> tuple[int | None, list[str]]:
    """The step that is read, and what was said about refused ones."""
    notes: list[str] = []
    found = read_newest_checkpoint(run, notes.append)
    if found is None:
        return None, notes
    tensors, facts = found
    assert all(identical(tensors[name], tensor) for name, tensor in some_tensors(facts["step"]).items())
    return facts["step"], notes


def test_what_is_written_is_read(tmp_path: Path) -> None:
    facts = {"a": 1.5, "b": [1, "zwei", None], "c": {"d": True}}
    write_folder(tmp_path / "x", STATE, some_tensors(), facts)
    tensors, read = read_folder(tmp_path / "x", STATE)
    assert tensors.keys() == some_tensors().keys()
    assert all(identical(tensors[name], tensor) for name, tensor in some_tensors().items())
    assert {name: read[name] for name in facts} == facts
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["state.json", "state.safetensors"]


def test_files_have_ordinary_modes(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_folder(tmp_path / "x", STATE, some_tensors(), {})
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "x", *(tmp_path / "x").iterdir())}
    assert modes == {"x": 0o750, "state.json": 0o640, "state.safetensors": 0o640}


def test_a_missing_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path) == (None, [])
    with pytest.raises(InputError, match=r"state\.json: cannot read"):
        read_folder(tmp_path / "x", STATE)


# What was damaged ---------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors cut": (lambda folder: cut(folder / "state.safetensors"), "state.safetensors: truncated or altered"),
    "tensors altered": (lambda folder: flip(folder / "state.safetensors"), "state.safetensors: truncated or altered"),
    "tensors gone": (lambda folder: (folder / "state.safetensors").unlink(), "state.safetensors: cannot read"),
    "facts cut": (lambda folder: cut(folder / "state.json"), "state.json: not JSON"),
    "facts gone": (lambda folder: (folder / "state.json").unlink(), "state.json: cannot read"),
    "facts empty": (lambda folder: os.truncate(folder / "state.json", 0), "state.json: the file is empty"),
    "facts altered": (
        lambda folder: (folder / "state.json").write_text((folder / "state.json").read_text().replace('"x"', '"y"')),
        "state.json: altered",
    ),
    "of another version": (
        lambda folder: (folder / "state.json").write_text(
            (folder / "state.json").read_text().replace('"version": 1', '"version": 2')
        ),
        "state.json: format version 2, expected 1",
    ),
    "of another kind": (
        lambda folder: (folder / "state.json").write_text('{"format": "other"}'),
        "state.json: not a file of format arc-trm-checkpoint",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    keep(tmp_path, 7, 11)
    harm, said = DAMAGES[damage]
    harm(checkpoint_folder(tmp_path, 11))
    step, notes = newest(tmp_path)
    assert step == 7
    assert len(notes) == 1
    assert f"step-00000011/{said}" in notes[0]


@given(st.data())
def test_no_altered_byte_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("bytes") / "x"
    write_folder(folder, STATE, some_tensors(), {"step": 3, "list": [0.1, "a"]})
    path = folder / data.draw(st.sampled_from(["state.json", "state.safetensors"]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        tensors, facts = read_folder(folder, STATE)
    except InputError:
        return
    # White space between the words of a JSON file says nothing.
    assert path.name == "state.json"
    assert all(identical(tensors[name], tensor) for name, tensor in some_tensors().items())
    assert (facts["step"], facts["list"]) == (3, [0.1, "a"])


# What is kept -------------------------------------------------------------------------------------------------------


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    keep(tmp_path, 5, 10, 100, 12345678, kept=2)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000100", "step-12345678"]
    keep(tmp_path, 20000000, kept=1)
    assert newest(tmp_path) == (20000000, [])


def test_a_broken_later_checkpoint_pushes_no_good_one_out(tmp_path: Path) -> None:
    keep(tmp_path, 10, 20, kept=1)
    cut(checkpoint_folder(tmp_path, 20) / "state.safetensors")
    keep(tmp_path, 15, kept=1)
    assert newest(tmp_path)[0] == 15
    keep(tmp_path, 20, kept=1)
    assert newest(tmp_path) == (20, [])
    assert len(checkpoint_folders(tmp_path)) == 1


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    keep(tmp_path, 10)
    for name in (".step-00000020.new-abc", ".step-00000010.old"):
        shutil.copytree(checkpoint_folder(tmp_path, 10), tmp_path / "checkpoints" / name)
    (tmp_path / ".export.new-abc").mkdir()
    keep(tmp_path, 30)
    write_folder(tmp_path / "export", EXPORT, {}, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000030"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "export"]


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_export(tmp_path / "export", tiny_export())

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        rename = Path.rename
        patch.setattr(Path, "rename", lambda self, to: killed() if to.name == "export" else rename(self, to))
        with pytest.raises(KeyboardInterrupt):
            write_export(tmp_path / "export", tiny_export())
    assert not (tmp_path / "export").exists()
    assert identical(read_export(tmp_path).puzzle_mean, tiny_export().puzzle_mean)
    write_export(tmp_path / "export", tiny_export())
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


# A full disk --------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_last_good_checkpoint(small_disk: Path) -> None:
    keep(small_disk, 5)
    large = {"large": torch.zeros(1000, 1000)}
    with pytest.raises(InputError, match=r"step-00000009: cannot write \(.*[Nn]o space left on device") as refusal:
        write_checkpoint(small_disk, 9, large, {}, 2)
    assert "\n" not in str(refusal.value)
    assert newest(small_disk) == (5, [])
    assert [path.name for path in (small_disk / "checkpoints").iterdir()] == ["step-00000005"]
    keep(small_disk, 10)


@pytest.mark.parametrize("call", ["fsync", "chmod", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_whatever_fails_in_writing_the_last_good_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    keep(tmp_path, 5)

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(InputError, match=os.strerror(number)):
            keep(tmp_path, 9)
    assert newest(tmp_path) == (5, [])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/checkpoints/step-00000001: cannot write \(Not a directory\)"):
        keep(tmp_path / "file", 1)


# Exports ------------------------------------------------------------------------------------------------------------


def tiny_export() -> Export:
    model = lively_model(TINY)
    return Export(
        TINY.model, TINY.halting, model.state_dict(), torch.arange(17.0), ("digest a", "digest b"), facts={"steps": 3}
    )


def test_an_export_is_read_from_its_folder_and_from_its_run(tmp_path: Path) -> None:
    export = tiny_export()
    write_export(tmp_path / "export", export)
    for place in (tmp_path, tmp_path / "export"):
        read = read_export(place)
        assert (read.model, read.halting, read.training_tasks) == (export.model, export.halting, export.training_tasks)
        assert read.weights.keys() == export.weights.keys()
        assert all(identical(read.weights[name], tensor) for name, tensor in export.weights.items())
        assert identical(read.puzzle_mean, export.puzzle_mean)
        assert read.puzzle_table is None
        assert read.facts["steps"] == 3
        assert len(read.facts["sha256"]) == 64


def test_an_export_replaces_nothing_but_an_export(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for place in (tmp_path / "photos" / "holiday.jpg", tmp_path / "file"):
        place.write_text("precious")
    with pytest.raises(InputError, match=r"photos: holds holiday\.jpg, expected a new folder or an older export"):
        write_export(tmp_path / "photos", tiny_export())
    with pytest.raises(InputError, match="file: is a file, expected a folder"):
        write_export(tmp_path / "file", tiny_export())
    assert (tmp_path / "photos" / "holiday.jpg").read_text() == (tmp_path / "file").read_text() == "precious"


# Loading never unpickles --------------------------------------------------------------------------------------------


def unpickling(path: Path) -> list[str]:
    """Uses of pickle, and of torch.load without weights_only=True, in a program file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names) if any(name.name.split(".")[0] in LOADERS for name in names):
                found.append(f"{path.name}:{node.lineno} import")
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in LOADERS:
                found += [f"{path.name}:{node.lineno} {name.name}" for name in names]
            case ast.Call(func=ast.Attribute(attr="load" | "load_state" | "loads", value=ast.Name(id=owner))):
                safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
                if owner in ("torch", "accelerator", "pickle") and not safe:
                    found.append(f"{path.name}:{node.lineno} {owner}.load")
                if owner == "np" and any(
                    k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
                ):
                    found.append(f"{path.name}:{node.lineno} np.load")
    return found


LOADERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve"}


def test_nothing_is_unpickled() -> None:
    found = [
        line
        for room in ("arc_trm", "data_prep", "submission")
        for path in (REPOSITORY / room).glob("*.py")
        for line in unpickling(path)
    ]
    # Its exceptions are what torch.load(weights_only=True) raises for a file that is not to be trusted.
    assert [line for line in found if not line.startswith("published.py") or not line.endswith("import")] == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from pickle import loads", "torch.load(path)", "torch.load(path, weights_only=False)",
     "np.load(path, allow_pickle=True)", "accelerator.load_state(path)"],
)  # fmt: skip
def test_a_planted_unpickling_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line)
    assert unpickling(tmp_path / "x.py")


# Embedding rows find their puzzles again when the data grow, shrink or change their order -----------------------------


# A puzzle by name: (group, dihedral element, which of a few permutations)
Names = list[tuple[str, int, int]]
PERMUTATIONS = (tuple(range(10)), (0, 9, 8, 7, 6, 5, 4, 3, 2, 1), (0, 2, 1, 3, 4, 5, 6, 7, 8, 9))

names_strategy = st.lists(
    st.tuples(st.sampled_from(["a/1", "a/2", "b/1", "b/11"]), st.integers(0, 7), st.integers(0, 2)),
    unique=True,
    min_size=1,
    max_size=30,
)


def naming(names: Names) -> RowNames:
    groups = tuple(sorted({group for group, _, _ in names}, reverse=len(names) % 2 == 0))
    return RowNames(
        groups,
        np.array([groups.index(group) for group, _, _ in names], np.int32),
        together([Augmentation(element, PERMUTATIONS[which]) for _, element, which in names]),
    )


@given(names_strategy, names_strategy)
def test_known_puzzles_keep_their_rows_and_new_ones_start_at_the_mean(old: Names, new: Names) -> None:
    table = torch.arange(3 * len(old), dtype=torch.float32).view(-1, 3) ** 1.5
    rows, known = carry_over(naming(old), table, naming(new), table.mean(0))
    expected = torch.stack([table[old.index(name)] if name in old else table.mean(0) for name in new])
    assert torch.equal(rows, expected)
    assert known == len(set(old) & set(new))


@given(names_strategy)
def test_a_naming_survives_a_checkpoint(names: Names) -> None:
    before = naming(names)
    after = RowNames.from_tensors(before.tensors(), list(before.owners))
    assert after.owners == before.owners
    for name in ("groups", "dihedrals", "permutations"):
        one, two = ((vars(named) | vars(named.augmentations))[name] for named in (before, after))
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)


def test_the_naming_of_a_store_is_that_of_its_puzzles() -> None:
    store = mixed_store()
    named = RowNames.of_puzzles(store)
    keys = named.keys(named.owners)
    assert len(np.unique(keys)) == len(keys) == len(store.puzzle_groups)
    for puzzle, name in enumerate(puzzle_names(store)):
        augmentation = Augmentation.of_row(named.augmentations, puzzle)
        assert puzzle_name(named.owners[named.groups[puzzle]], augmentation) == name
