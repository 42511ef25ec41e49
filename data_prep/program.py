"""The command line of a program, and its end: wrong input is one line on stderr and exit status 2."""

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from data_prep.files import InputError


def command_line(module: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser for `python -m module`, whose help shows the description as it is."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m {module}", description=description, formatter_class=form, **options)


def whole(minimum: int = 0, maximum: int = 10**18) -> Callable[[str], int]:
    """Return an argparse type for whole numbers from `minimum` to `maximum`."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"[0-9]{1,19}", text) else -1
        if not minimum <= value <= maximum:
            most = "" if maximum == 10**18 else f" and at most {maximum}"
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least {minimum}{most}")
        return value

    return parse


def run_program(main: Callable[[Sequence[str] | None], int]) -> NoReturn:
    """Run a program's `main` and exit with its status; wrong input prints one line on stderr and exits with 2."""
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
        # The reader of our output (head, less) ended first, which is no error.
        _drop_output()
        status = 0
    except OSError as error:
        # Such as a path that is too long, or a full disk behind stdout.
        _drop_output()
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        status = _fail(f"{place}{error.strerror or error}")
    sys.exit(status)


def _fail(message: str) -> int:
    """Print the message as one line, whatever names it quotes, and return the exit status."""
    escaped = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
    print(f"error: {escaped}", file=sys.stderr)
    return 2


def _drop_output() -> None:
    """Redirect stdout to nowhere, so that the interpreter's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
