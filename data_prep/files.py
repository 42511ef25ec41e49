"""Reading, writing and failing: the few file habits that every program of the project shares."""

import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

# What a file in a folder of tasks, a run or an export may end in; a picture there may be drawn anew.
DATA_SUFFIXES = {".json", ".jsonl", ".npz", ".safetensors"}


class InputError(Exception):
    """Something the user gave is wrong; the message is one line: where, what was found, what was expected."""


def read_json(path: Path | str) -> Any:
    """Parse the JSON file at `path`; raises InputError when it is missing, empty or not JSON."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    if not data.strip():
        raise InputError(f"{path}: the file is empty, expected JSON")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        reason = "binary data" if b"\0" in data[:1000] else error
        raise InputError(f"{path}: not JSON ({reason})") from error


def read_json_once(path: Path | str) -> Any:
    """As `read_json`, and refuse an object that names a field twice, of which a reader would keep only the last."""
    value = read_json(path)

    def check(fields: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in fields:
            if name in seen:
                raise InputError(f"{path}: {name} occurs twice in one object, expected every name once")
            seen.add(name)

    try:
        # orjson cannot tell; numbers stay texts, for they do not matter here and may be of any length.
        json.loads(Path(path).read_bytes(), object_pairs_hook=check, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise InputError(f"{path}: nested hundreds of levels deep, expected lists of grids") from error
    return value


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
        # mkstemp makes files private; give the result the mode an ordinary open() would have given it.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot write ({error.strerror})") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def refuse_input(out: Path, inputs: Iterable[Path | None]) -> None:
    """Raise InputError when writing `out` would replace an input, or a data file inside an input folder."""
    if not out.is_file():
        return
    for given in filter(None, inputs):
        inside = given.is_dir() and out.suffix in DATA_SUFFIXES and given.resolve() in out.resolve().parents
        if inside or (given.exists() and given.samefile(out)):
            raise InputError(f"{out}: is read by this very command, expected another file to write")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
