"""Reading and writing, shared by every program: JSON, atomic files and folders, and the error of wrong input.

A dataset's folder (data_prep.store for ARC, data_prep.boards for Sudoku and mazes) holds manifest.json and one .npy
file per array, which is opened without copying.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

# Suffixes of the files that a folder of tasks, a run or an export is read from; a picture there may be replaced.
DATA_SUFFIXES = {".json", ".jsonl", ".npz", ".safetensors"}


class InputError(Exception):
    """Wrong input; the message is one line that says where, what was found and what was expected."""


def read_json(path: Path | str) -> Any:
    """Return the content of the JSON file at `path`.

    Raises InputError if the file is missing, empty, not JSON or nested hundreds of levels deep, or if an object has a
    field twice, because only the last would be kept.
    """

    def refuse_repeats(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(fields)
        if len(value) < len(fields):
            [(name, _)] = Counter(name for name, _ in fields).most_common(1)
            raise InputError(f"{path}: {name} occurs twice in one object, expected every name once")
        return value

    try:
        data = Path(path).read_bytes()
        if not data.strip():
            raise InputError(f"{path}: the file is empty, expected JSON")
        return json.loads(data, object_pairs_hook=refuse_repeats)
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from error


def write_atomic(path: Path | str, data: bytes) -> None:
    """Replace the file at `path` by `data`, so that even a power cut leaves the old content or all of the new.

    Raises InputError if the folder is missing or not writable, if the disk is full, or if `path` is a device or a
    folder; what is there stays.
    """
    path = Path(path)
    refuse_irregular(path)
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _share(Path(temporary))
        os.replace(temporary, path)
        temporary = None
        _flush(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot write ({_reason(error)})") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    """Name the cause of a failed write; NumPy reports a full disk without the system's text for it."""
    return error.strerror or f"the disk seems to be full: {error}"


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` to `path` as indented JSON, atomically."""
    write_atomic(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents if they are missing; raises InputError if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder ({error.strerror})") from error


def refuse_irregular(out: Path) -> None:
    """Raise InputError if `out` exists and is no regular file: a device or a folder must not be replaced by a file."""
    if out.exists() and not out.is_file():
        raise InputError(f"{out}: cannot write (is no regular file), expected a file")


def refuse_input(out: Path, inputs: Iterable[Path | None]) -> None:
    """Raise InputError if writing `out` would replace an input, a data file inside an input folder, or a device."""
    refuse_irregular(out)
    if not out.exists():
        return
    for given in filter(None, inputs):
        inside = given.is_dir() and out.suffix in DATA_SUFFIXES and given.resolve() in out.resolve().parents
        if inside or (given.exists() and given.samefile(out)):
            raise InputError(f"{out}: is read by this very command, expected another file to write")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path | str) -> str:
    """Return the SHA-256 of a file, which is read in pieces; raises InputError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error


def _share(path: Path) -> None:
    """Give a temporary file or folder, which is private, the mode of an ordinary one."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def _flush(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Folders ------------------------------------------------------------------------------------------------------------


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write files into, and replace `folder` by it, flushed to disk, if the block succeeds.

    A folder cannot be renamed over a full one, so the old one is renamed first. A kill between the two renames leaves
    it at `set_aside(folder)`. Raises InputError if the folder cannot be written; the old one stays.
    """
    folder = folder.resolve()  # a link stays a link, and "." gets a name
    fresh, aside = None, set_aside(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in folder.parent.glob(f".{folder.name}.new-*"):  # by a write that was killed
            shutil.rmtree(abandoned, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.new-"))
        yield fresh
        for path in (*fresh.iterdir(), fresh):
            _share(path)
            _flush(path)
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
        try:
            fresh.rename(folder)
        except OSError:
            if aside.exists():
                aside.rename(folder)
            raise
        _flush(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write ({_reason(error)})") from error
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Return the path of the older folder while `new_folder` replaces it."""
    return folder.parent / f".{folder.name}.old"


def standing_json(path: Path, name: str) -> Path | None:
    """Return the file `name`.json: `path` itself, or the one in the folder `path` or in its folder `name`.

    Also finds it in folders that a kill left set aside. Returns None if there is none.
    """
    folders = (path, set_aside(path), path / name, set_aside(path / name))
    files = (path, *(folder / f"{name}.json" for folder in folders))
    return next((file for file in files if file.is_file() and file.suffix == ".json"), None)


def refuse_other_files(folder: Path, what: str, known: Iterable[str]) -> None:
    """Raise InputError if `folder` is a file, or holds a file that is not `known` and that replacing would delete."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, expected a folder for the {what}")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    others = sorted(names - set(known))
    if others:
        raise InputError(f"{folder}: holds {others[0]}, expected a new folder or an older {what}")


# Datasets -----------------------------------------------------------------------------------------------------------

FORMAT = "arc-trm-dataset"
VERSION = 2
KINDS = ("arc", "sudoku", "maze")
MANIFEST = "manifest.json"

Manifest: TypeAlias = dict[str, Any]
# Name of an array: (type, shape). Equal letters in the shapes of a dataset stand for equal lengths.
ArrayTable: TypeAlias = Mapping[str, tuple[type[np.generic], tuple[int | str, ...]]]


def new_manifest(kind: str, facts: Mapping[str, Any]) -> Manifest:
    """Return a manifest for a dataset of `kind`, with the package version and `facts`."""
    try:
        package = importlib.metadata.version("arc-trm")
    except importlib.metadata.PackageNotFoundError:  # a bare source tree
        package = "unknown"
    return {"format": FORMAT, "version": VERSION, "kind": kind, "package": package, **facts}


def save_arrays(
    folder: Path | str,
    manifest: Manifest,
    arrays: Mapping[str, NDArray[Any]],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a folder of arrays, further files and a manifest with the digests of both, atomically."""
    folder = Path(folder)
    refuse_foreign(folder, manifest["format"])
    with new_folder(folder) as fresh:
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array, allow_pickle=False)
        for name, data in (files or {}).items():
            (fresh / name).write_bytes(data)
        digests = {file.name: file_digest(file) for file in sorted(fresh.iterdir())}
        described = orjson.dumps({**manifest, "digests": digests}, option=orjson.OPT_INDENT_2)
        (fresh / MANIFEST).write_bytes(described)


def refuse_foreign(folder: Path, format: str = FORMAT) -> None:
    """Raise InputError if `folder` holds files other than those of an older folder of the same format."""
    known: set[str] = set()
    if (folder / MANIFEST).is_file():
        manifest = read_json(folder / MANIFEST)
        if isinstance(manifest, dict) and manifest.get("format") == format:
            known = {MANIFEST, *(manifest.get("digests") or ())}
    refuse_other_files(folder, format.removeprefix("arc-trm-"), known)


def read_manifest(folder: Path | str, kinds: Sequence[str] = KINDS) -> Manifest:
    """Return the manifest of a dataset folder; raises InputError for an unknown format, version or kind."""
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


def load_arrays(folder: Path, expected: ArrayTable, lengths: dict[str, int]) -> dict[str, NDArray[Any]]:
    """Return memory maps of the expected arrays, and add the lengths of new letters to `lengths`.

    Raises InputError if an array is missing, or if its type or shape differs.
    """
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


def megabytes(folder: Path) -> str:
    """Return the total size of the files in a folder, such as `3.4 MB`."""
    return f"{sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6:.1f} MB"


def verify_digests(folder: Path, manifest: Manifest) -> None:
    """Raise InputError for the first file whose content differs from the manifest's digest."""
    for name, digest in manifest.get("digests", {}).items():
        if file_digest(folder / name) != digest:
            raise InputError(f"{folder / name}: the content differs from the manifest's digest")
