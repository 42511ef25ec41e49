"""A dataset's folder: manifest.json and one .npy file per array, written as a whole, opened without copying.

Shared by every kind of dataset (data_prep.store for ARC, data_prep.cell_store for Sudoku and mazes).
"""

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from data_prep.files import InputError, file_digest, read_json, sync_folder, write_atomic

FORMAT = "arc-trm-dataset"
VERSION = 1
MANIFEST = "manifest.json"

Manifest: TypeAlias = dict[str, Any]
# name of an array: (type, shape); equal letters in the shapes of a dataset are equal lengths
ArrayTable: TypeAlias = Mapping[str, tuple[type[np.generic], tuple[int | str, ...]]]


def new_manifest(kind: str, facts: Mapping[str, Any]) -> Manifest:
    """A manifest of this format for a dataset of `kind`, with the package version and further facts."""
    return {"format": FORMAT, "version": VERSION, "kind": kind, "package": package_version(), **facts}


def package_version() -> str:
    """The version of the installed project, "unknown" when it runs from a bare source tree."""
    try:
        return importlib.metadata.version("arc-trm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def save_arrays(
    folder: Path | str,
    manifest: Manifest,
    arrays: Mapping[str, NDArray[Any]],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write arrays, further files and a manifest with the digests of both as one dataset folder, atomically."""
    with _replacing(Path(folder), manifest["format"]) as temporary:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        for name, data in (files or {}).items():
            write_atomic(temporary / name, data)
        digests = {file.name: file_digest(file) for file in sorted(temporary.iterdir())}
        for file in temporary.iterdir():
            _flush(file)
        data = orjson.dumps({**manifest, "digests": digests}, option=orjson.OPT_INDENT_2)
        write_atomic(temporary / MANIFEST, data)


@contextmanager
def _replacing(folder: Path, format: str) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block succeeds."""
    refuse_foreign(folder, format)
    folder = folder.resolve()  # a link stays a link, and "." gets a name
    temporary = old = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        # mkdtemp makes folders private; give the result the mode an ordinary mkdir would have given it.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        yield temporary
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
            folder.rename(old / folder.name)
        try:
            temporary.rename(folder)
        except OSError:
            if old is not None:
                (old / folder.name).rename(folder)
            raise
        sync_folder(folder.parent)
    except OSError as error:
        raise InputError(f"{folder}: cannot write ({error.strerror})") from error
    finally:
        for leftover in (temporary, old):
            if leftover is not None:
                shutil.rmtree(leftover, ignore_errors=True)


def refuse_foreign(folder: Path, format: str = FORMAT) -> None:
    """Raise InputError when `folder` exists and is anything but an empty folder or an older one of this format.

    Replacing deletes a folder, so one with files that its manifest does not name is refused as well.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file, expected a folder")
    what = format.removeprefix("arc-trm-")
    names = {file.name for file in folder.iterdir() if not file.name.startswith(".")}
    if not names:
        return
    manifest = read_json(folder / MANIFEST) if MANIFEST in names else None
    if not isinstance(manifest, dict) or manifest.get("format") != format:
        raise InputError(f"{folder}: holds other files, expected a new folder or an older {what}")
    others = sorted(names - {MANIFEST} - set(manifest.get("digests") or []))
    if others:
        raise InputError(f"{folder}: holds {others[0]}, which is no part of the older {what}; move it elsewhere first")


def _flush(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def read_manifest(folder: Path | str, kinds: Sequence[str]) -> Manifest:
    """The manifest of a dataset folder; raises InputError when format, version or kind is not ours."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no dataset, expected a folder that `python -m data_prep.build` wrote")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path}: not the manifest of a dataset, expected format {FORMAT}")
    if manifest.get("version") != VERSION:
        raise InputError(f"{path}: dataset version {manifest.get('version')}, expected {VERSION}")
    if manifest.get("kind") not in kinds:
        raise InputError(f"{path}: dataset of kind {manifest.get('kind')}, expected {' or '.join(kinds)}")
    return manifest


def load_arrays(
    folder: Path,
    expected: ArrayTable,
    lengths: dict[str, int],
) -> dict[str, NDArray[Any]]:
    """Memory maps of the expected arrays; letters in the shapes must agree with each other and `lengths`."""
    arrays = {}
    for name, (kind, letters) in expected.items():
        path = folder / f"{name}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path}: cannot read ({error})") from error
        shape = tuple(
            lengths.setdefault(letter, size) if isinstance(letter, str) else letter
            for letter, size in zip(letters, array.shape, strict=False)
        )
        if array.dtype != kind or array.shape != shape or len(shape) != len(letters):
            raise InputError(f"{path}: found {array.dtype}{list(array.shape)}, expected {kind.__name__}{list(shape)}")
        arrays[name] = array
    return arrays


def verify_digests(folder: Path, manifest: Manifest) -> None:
    """Raise InputError naming the first file whose content is not what the manifest recorded."""
    for name, digest in manifest.get("digests", {}).items():
        if file_digest(folder / name) != digest:
            raise InputError(f"{folder / name}: the content differs from the manifest's digest")
