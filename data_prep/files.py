"""Reading, writing and failing, done alike by every program: JSON, files and folders written whole, one-line errors.

A dataset's folder (data_prep.store for ARC, data_prep.boards for Sudoku and mazes) is manifest.json and one .npy
file per array, opened without copying.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

# What a file in a folder of tasks, a run or an export may end in; a picture there may be drawn anew.
DATA_SUFFIXES = {".json", ".jsonl", ".npz", ".safetensors"}


class InputError(Exception):
    """Something the user gave is wrong; the message is one line: where, what was found, what was expected."""


def read_json(path: Path | str) -> Any:
    """The content of the JSON file at `path`.

    Raises InputError when it is missing, empty or not JSON, nested hundreds of levels deep, or when an object names a
    field twice, of which only the last would be kept.
    """

    def once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(fields)
        if len(value) < len(fields):
            [(name, _)] = Counter(name for name, _ in fields).most_common(1)
            raise InputError(f"{path}: {name} occurs twice in one object, expected every name once")
        return value

    try:
        data = Path(path).read_bytes()
        if not data.strip():
            raise InputError(f"{path}: the file is empty, expected JSON")
        return json.loads(data, object_pairs_hook=once)
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from error


def write_atomic(path: Path | str, data: bytes) -> None:
    """Write `data` so that `path` holds either its old content or all of the new, even after a power cut.

    Raises InputError when the folder is missing or not writable, or the disk is full; the old file stays.
    """
    path = Path(path)
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
        raise InputError(f"{path}: cannot write ({error.strerror})") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as JSON that is indented for readers, atomically."""
    write_atomic(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def make_folder(folder: Path) -> None:
    """Make the folder and those above it where they are missing; raises InputError when that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder ({error.strerror})") from error


def refuse_input(out: Path, inputs: Iterable[Path | None]) -> None:
    """Raise InputError when writing `out` would replace an input, or a data file inside an input folder."""
    if not out.is_file():
        return
    for given in filter(None, inputs):
        inside = given.is_dir() and out.suffix in DATA_SUFFIXES and given.resolve() in out.resolve().parents
        if inside or (given.exists() and given.samefile(out)):
            raise InputError(f"{out}: is read by this very command, expected another file to write")


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path | str) -> str:
    """The SHA-256 of a file's content, read in pieces; raises InputError when it cannot be read."""
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
    """Flush a file, or a folder's list of names, to disk, so that it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Folders ------------------------------------------------------------------------------------------------------------


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write files into; it takes the place of `folder`, whole and on disk, when the block succeeds.

    A folder cannot be renamed over a full one, so the old one steps aside first: killed between the two renames, it
    stands at `set_aside(folder)`. Raises InputError when the place cannot be written; the old folder stays.
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
        raise InputError(f"{folder}: cannot write ({error.strerror})") from error
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Where an older folder stands while `new_folder` puts a new one into its place."""
    return folder.parent / f".{folder.name}.old"


def standing_json(path: Path, name: str) -> Path | None:
    """The file `name`.json: `path` itself, or in the folder `path` or its folder `name` (or where a kill left these
    set aside); None where there is none.
    """
    folders = (path, set_aside(path), path / name, set_aside(path / name))
    files = (path, *(folder / f"{name}.json" for folder in folders))
    return next((file for file in files if file.is_file()), None)


def refuse_other_files(folder: Path, what: str, known: Iterable[str]) -> None:
    """Raise InputError when `folder` is a file, or holds one that is not in `known`, which replacing would delete."""
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
# name of an array: (type, shape); equal letters in the shapes of a dataset are equal lengths
ArrayTable: TypeAlias = Mapping[str, tuple[type[np.generic], tuple[int | str, ...]]]


def new_manifest(kind: str, facts: Mapping[str, Any]) -> Manifest:
    """A manifest of this format for a dataset of `kind`, with the package version and further facts."""
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
    """Write arrays, further files and a manifest with the digests of both as one folder, atomically."""
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
    """Raise InputError when `folder` holds files that the manifest of an older one of this format does not name."""
    known: set[str] = set()
    if (folder / MANIFEST).is_file():
        manifest = read_json(folder / MANIFEST)
        if isinstance(manifest, dict) and manifest.get("format") == format:
            known = {MANIFEST, *(manifest.get("digests") or ())}
    refuse_other_files(folder, format.removeprefix("arc-trm-"), known)


def read_manifest(folder: Path | str, kinds: Sequence[str] = KINDS) -> Manifest:
    """The manifest of a dataset folder; raises InputError when format, version or kind is none of ours."""
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


def megabytes(folder: Path) -> str:
    """The size of all files in a folder."""
    return f"{sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6:.1f} MB"


def verify_digests(folder: Path, manifest: Manifest) -> None:
    """Raise InputError naming the first file whose content is not what the manifest recorded."""
    for name, digest in manifest.get("digests", {}).items():
        if file_digest(folder / name) != digest:
            raise InputError(f"{folder / name}: the content differs from the manifest's digest")


# Programs -----------------------------------------------------------------------------------------------------------


def command_line(module: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """A parser for `python -m module`, whose help is the module's own description as it stands."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m {module}", description=description, formatter_class=form, **options)


def whole(minimum: int = 0, maximum: int = 10**18) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `minimum` and at most `maximum`."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"[0-9]{1,19}", text) else -1
        if not minimum <= value <= maximum:
            most = "" if maximum == 10**18 else f" and at most {maximum}"
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least {minimum}{most}")
        return value

    return parse


def run_program(main: Callable[[Sequence[str] | None], int]) -> NoReturn:
    """Run a command's `main`; wrong input ends in one line on stderr and exit status 2, no traceback."""
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):  # file names may hold what the terminal's encoding does not
            sys.stdout.reconfigure(errors="backslashreplace")
        status = main(None)
        sys.stdout.flush()
    except InputError as error:
        status = _fail(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is wrong, and nothing more can be printed.
        _drop_output()
        status = 0
    except OSError as error:
        # A path too long to look at, a full disk behind our own output: what no reader or writer of ours expects.
        _drop_output()
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        status = _fail(f"{place}{error.strerror or error}")
    sys.exit(status)


def _fail(message: str) -> int:
    """Say what is wrong in one line, whatever names it quotes; the exit status."""
    escaped = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
    print(f"error: {escaped}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Send what is still to be printed nowhere, so that the interpreter's own flush at the end cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
