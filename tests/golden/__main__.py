"""Compare our models, data side and votes with a folder of golden numbers: python -m tests.golden DIR

The folder holds what the published code computed from given weights and data. One line is printed per quantity with its
largest error; the exit status is 1 if any is out of tolerance. Sizes come from the folder.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from data_prep.files import InputError, read_json
from data_prep.program import run_program
from tests.golden.comparison import Report
from tests.golden.grids import check_grids
from tests.golden.models import ModelCheck, check_parts, read_tensors
from tests.golden.votes import check_votes

Result = TypeVar("Result")


def check(folder: Path) -> int:
    """Compare everything in a golden folder; 1 if any quantity is out of tolerance."""
    lines = []
    for report in _reports(folder):
        for line in report:
            print(line)
            lines.append(line)
        for note in report.notes:
            print(f"note: {report.title}: {note}")
    if not lines:
        raise InputError(f"{folder}: nothing to compare, expected models.json, misc.json or arc_data.json")
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
        yield _usable(path, check_votes, facts)


def _usable(path: Path, compare: Callable[..., Result], *arguments: Any) -> Result:
    """The comparison's result; raises InputError where the file lacks something or holds something else."""
    try:
        return compare(*arguments)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path}: not golden numbers of the known format ({type(error).__name__}: {error})") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with models.json, misc.json, arc_data.json")
    return check(parser.parse_args(argv).folder)


if __name__ == "__main__":
    run_program(main)
