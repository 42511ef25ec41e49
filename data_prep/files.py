"""Reading, writing and failing: the few file habits that every program of the project shares."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson


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
    try:
        status = main(None)
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is wrong, and nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
