"""Building datasets of Sudokus and mazes: what the two commands of data_prep.build share."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.cell_csv import Parse, read_csv, sample
from data_prep.cell_store import CellRows, build_cell_store, save
from data_prep.files import InputError, file_digest, refuse_foreign
from data_prep.progress import Progress

# Training rows drawn beyond those asked for, to take the place of rows that the test file holds as well.
SPARE_ROWS = 100
DEFAULT_ROWS = 1000
SPLIT_FILES = {"train": "train.csv", "test": "test.csv"}


@dataclass(frozen=True)
class Published:
    """A published pair of files and how many rows each has; no digests of them are known to us."""

    name: str
    url: str
    train_rows: int
    test_rows: int


@dataclass(frozen=True)
class Kind:
    """What differs between Sudokus and mazes when a dataset is built."""

    name: str
    published: Published
    parse: Parse
    class_digests: Callable[[CellRows], NDArray[np.uint64]]
    vocabulary: Callable[[int], int]
    # Figures about labels that the user should see, by name.
    findings: Callable[[CellRows], dict[str, int]]


@dataclass(frozen=True)
class Generator:
    """An endless source of (tries, puzzles) and when to give up: after so many tries without a new puzzle."""

    make: Callable[[int, int], Iterator[tuple[int, CellRows]]]
    facts: dict[str, Any]
    patience: int
    advice: str


def add_arguments(parser: argparse.ArgumentParser, kind: Kind) -> None:
    """The options of both commands."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--csv", nargs=2, metavar=("TRAIN", "TEST"), type=Path, help="the two published files")
    source.add_argument("--download", choices=[kind.published.name], help="fetch the published files into the cache")
    source.add_argument("--generate", action="store_true", help="make puzzles here")
    add("--train-rows", metavar="N", type=whole(1), default=DEFAULT_ROWS, help="training puzzles, drawn (1000)")
    add("--test-rows", metavar="N", type=whole(1), help="test puzzles, drawn (published files: all, generated: 1000)")
    add("--seed", metavar="N", type=whole(0), default=0, help="which rows are drawn, which puzzles are made (0)")
    add("--workers", metavar="N", type=whole(1), default=os.cpu_count(), help="threads that generate (all cores)")
    add("--out", metavar="DIR", type=Path, required=True, help="the dataset's folder, new or to be replaced")


def whole(minimum: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `minimum` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 18 or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least {minimum}")
        return int(text)

    return parse


def refuse_unless_generating(arguments: argparse.Namespace, names: list[str]) -> None:
    """Raise InputError for options that only steer the generator when nothing is generated."""
    for name in names:
        if not arguments.generate and getattr(arguments, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} goes with --generate, found it without")


def build(kind: Kind, arguments: argparse.Namespace, generator: Callable[[], Generator]) -> int:
    """Build, save and report the dataset that the arguments describe; the exit status."""
    refuse_foreign(arguments.out)
    if arguments.generate:
        train, test, facts = _generated(kind, arguments, generator())
    else:
        train, test, facts = _read(kind, arguments)
    if train.questions.shape[1] != test.questions.shape[1]:
        raise InputError(
            f"training puzzles of {train.questions.shape[1]} cells and test puzzles of {test.questions.shape[1]}, "
            "expected one size"
        )
    side = round(train.questions.shape[1] ** 0.5)
    findings = {split: kind.findings(rows) for split, rows in (("train", train), ("test", test))}
    for split, figures in findings.items():
        for name, figure in figures.items():
            print(f"{split}: {name.replace('_', ' ')}: {figure} of {len(train if split == 'train' else test)}")
    facts = {"seed": arguments.seed, **facts, "findings": findings}
    save(build_cell_store(kind.name, kind.vocabulary(side), train, test, facts), arguments.out)
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(
        f"wrote {arguments.out}: {len(train)} training and {len(test)} test puzzles of {side} x {side}, "
        f"mean rating {train.ratings.mean():.1f} and {test.ratings.mean():.1f}, {size / 1e6:.1f} MB"
    )
    return 0


# Generating -------------------------------------------------------------------------------------------------


def import_numba() -> None:
    """Raise InputError when numba, which only generating needs, is not installed."""
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("--generate needs the package numba: pip install numba") from error


def _generated(
    kind: Kind, arguments: argparse.Namespace, generator: Generator
) -> tuple[CellRows, CellRows, dict[str, Any]]:
    """Puzzles no two of which are equal up to symmetry; the test puzzles do not depend on how many train."""
    tests = arguments.test_rows or DEFAULT_ROWS
    stream = generator.make(arguments.seed, arguments.workers)
    rows = take_distinct(stream, kind.class_digests, tests + arguments.train_rows, generator)
    return rows[tests:], rows[:tests], {"source": "generated", "generator": generator.facts}


def take_distinct(
    stream: Iterator[tuple[int, CellRows]],
    class_digests: Callable[[CellRows], NDArray[np.uint64]],
    count: int,
    generator: Generator,
) -> CellRows:
    """The first `count` puzzles that differ up to symmetry; raises InputError when they do not seem to exist."""
    seen: set[int] = set()
    kept: list[CellRows] = []
    fruitless = 0
    with Progress("generating", count, unit="puzzles") as bar:
        for tries, rows in stream:
            before = len(seen)
            new = []
            for index, digest in enumerate(class_digests(rows).tolist()):
                if digest not in seen and len(seen) < count:
                    seen.add(digest)
                    new.append(index)
            kept.append(rows[np.array(new, dtype=np.int64)])
            bar.update(len(seen) - before)
            fruitless = 0 if new else fruitless + tries
            if len(seen) == count:
                break
            if fruitless >= generator.patience:
                raise InputError(
                    f"found {len(seen)} of {count} puzzles that differ up to symmetry, "
                    f"then none in {fruitless} tries: {generator.advice}"
                )
    return CellRows.concatenate(kept)


# Published files --------------------------------------------------------------------------------------------


def _read(kind: Kind, arguments: argparse.Namespace) -> tuple[CellRows, CellRows, dict[str, Any]]:
    """Rows drawn from two files; training rows that equal a test row up to symmetry are left out and replaced."""
    paths = download(kind.published) if arguments.download else arguments.csv
    train, train_total = sample(read_csv(paths[0], kind.parse), arguments.train_rows + SPARE_ROWS, arguments.seed)
    test, test_total = sample(read_csv(paths[1], kind.parse), arguments.test_rows, arguments.seed)
    if arguments.download:
        _check_counts(kind.published, paths, (train_total, test_total))
    shared = np.zeros(len(train), dtype=bool)
    if train.questions.shape == (len(train), test.questions.shape[1]):
        shared = np.isin(kind.class_digests(train), kind.class_digests(test))
    if shared.any():
        print(f"left out {int(shared.sum())} drawn training puzzles that equal test puzzles up to symmetry")
    if shared.all():
        raise InputError(f"{paths[0]}: every puzzle drawn equals a test puzzle up to symmetry")
    facts = {
        "source": arguments.download or "csv",
        "files": [
            {"name": path.name, "rows": rows, "digest": file_digest(path)}
            for path, rows in zip(paths, (train_total, test_total), strict=True)
        ],
        "left_out": int(shared.sum()),
    }
    return train[~shared][: arguments.train_rows], test, facts


def _check_counts(published: Published, paths: list[Path], found: tuple[int, int]) -> None:
    for path, rows, expected in zip(paths, found, (published.train_rows, published.test_rows), strict=True):
        if rows != expected:
            raise InputError(
                f"{path}: {rows} rows, expected {expected} of {published.name}; remove the file to fetch it anew"
            )


def download(published: Published, cache: Path | None = None) -> list[Path]:
    """The published training and test file in the cache, fetched with a progress bar when not there yet.

    Their digests are not known to us: the number of rows is what is checked, and the manifest records the digests.
    Raises InputError when the network fails.
    """
    import pooch  # here, because only this function needs it and it takes time to import

    folder = (Path(pooch.os_cache("arc-trm")) if cache is None else cache) / published.name
    pooch.get_logger().setLevel("WARNING")
    paths = []
    for name in SPLIT_FILES.values():
        url = f"{published.url}/{name}"
        try:
            show = sys.stderr.isatty()
            paths.append(Path(pooch.retrieve(url, known_hash=None, fname=name, path=folder, progressbar=show)))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot download {url} ({reason}); name the two files with --csv instead") from error
    return paths
