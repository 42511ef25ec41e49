"""Datasets of boards, which are Sudokus and mazes: squares of cells, a question and an answer each. CSV in, arrays out.

On disk: manifest.json and six arrays (see data_prep.files). Augmentation is applied when a batch is made, so only the
boards themselves are kept. The rules of each kind are in data_prep.sudoku and data_prep.maze.
"""

import csv
import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_prep.files import (
    InputError,
    Manifest,
    file_digest,
    load_arrays,
    new_manifest,
    read_manifest,
    refuse_foreign,
    save_arrays,
    verify_digests,
)
from data_prep.progress import Progress

KINDS = ("sudoku", "maze")
SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class BoardRows:
    """Boards side by side: tokens uint8[n, L] of questions and answers, ratings float32[n] (higher is harder)."""

    questions: NDArray[np.uint8]
    answers: NDArray[np.uint8]
    ratings: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: slice | NDArray[Any]) -> "BoardRows":
        return BoardRows(self.questions[index], self.answers[index], self.ratings[index])

    @classmethod
    def concatenate(cls, parts: Sequence["BoardRows"]) -> "BoardRows":
        """The boards of all parts, at least one, in order."""
        columns = ((part.questions, part.answers, part.ratings) for part in parts)
        return cls(*map(np.concatenate, zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class BoardStore:
    """Boards to train on and boards to test with, of one kind and size; the arrays may be memory maps."""

    manifest: Manifest
    train: BoardRows
    test: BoardRows

    @property
    def kind(self) -> str:
        """Either sudoku or maze."""
        return str(self.manifest["kind"])

    @property
    def vocab_size(self) -> int:
        """Number of distinct tokens, PAD included."""
        return int(self.manifest["vocabulary"])

    @property
    def seq_len(self) -> int:
        """Cells of one board."""
        return self.train.questions.shape[1]

    @property
    def side(self) -> int:
        """Cells of one row."""
        return math.isqrt(self.seq_len)


def board_store(kind: str, vocabulary: int, train: BoardRows, test: BoardRows, facts: Mapping[str, Any]) -> BoardStore:
    """The store of these boards, in memory; `facts` (seed, source ...) go into the manifest."""
    counts = {"training_puzzles": len(train), "test_puzzles": len(test)}
    sizes = {"vocabulary": vocabulary, "side": math.isqrt(train.questions.shape[1])}
    return BoardStore(new_manifest(kind, {**sizes, **facts, "counts": counts}), train, test)


def save(store: BoardStore, folder: Path | str) -> None:
    """Write the store as a whole or not at all; raises InputError as data_prep.files.save_arrays does."""
    arrays = {
        f"{split}_{name}": getattr(getattr(store, split), name)
        for split in SPLITS
        for name in ("questions", "answers", "ratings")
    }
    save_arrays(folder, store.manifest, arrays)


def load(folder: Path | str, verify: bool = False) -> BoardStore:
    """Open a dataset without copying it; `verify` also compares every file with its digest.

    Raises InputError when a file is missing, of another shape or type, or (with `verify`) changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, KINDS)
    if verify:
        verify_digests(folder, manifest)
    cells = int(manifest["side"]) ** 2
    columns: dict[str, tuple[type[np.generic], tuple[int | str, ...]]] = {
        "questions": (np.uint8, ("n", cells)),
        "answers": (np.uint8, ("n", cells)),
        "ratings": (np.float32, ("n",)),
    }
    train, test = (
        BoardRows(*load_arrays(folder, {f"{split}_{name}": of for name, of in columns.items()}, {}).values())
        for split in SPLITS
    )
    return BoardStore(manifest, train, test)


# Published files ----------------------------------------------------------------------------------------------------

HEADER = ["source", "question", "answer", "rating"]
# Rows checked together: enough for fast array operations, a few megabytes of memory.
CHUNK = 8192


class RowError(Exception):
    """A row of a chunk is malformed: its index in the chunk and what is wrong."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


# Texts of questions, answers and ratings -> boards; raises RowError.
Parse: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[str]], BoardRows]


def read_csv(path: Path, parse: Parse) -> Iterator[BoardRows]:
    """The boards of a file in chunks, all of one size; memory does not grow with the file.

    Raises InputError that names file and line for anything that is not as published.
    """
    try:
        with (
            open(path, newline="", encoding="utf-8") as file,
            Progress(f"reading {path.name}", unit="rows") as progress,
        ):
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != HEADER:
                raise InputError(f"{path}: line 1: found {','.join(header)[:80]!r}, expected {','.join(HEADER)}")
            line, cells = 2, None
            while rows := list(itertools.islice(reader, CHUNK)):
                try:
                    chunk = _parse_rows(rows, parse)
                except RowError as error:
                    raise InputError(f"{path}: line {line + error.index}: {error}") from error
                cells = cells or chunk.questions.shape[1]
                if chunk.questions.shape[1] != cells:
                    raise InputError(f"{path}: line {line}: {chunk.questions.shape[1]} cells, expected {cells}")
                line += len(rows)
                if reader.line_num != line - 1:  # then the lines named in messages would be wrong
                    raise InputError(f"{path}: a field before line {reader.line_num} holds a line break")
                progress.update(len(rows))
                yield chunk
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}, expected CSV") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error.reason})") from error


def _parse_rows(rows: Sequence[Sequence[str]], parse: Parse) -> BoardRows:
    for index, row in enumerate(rows):
        if len(row) != len(HEADER):
            raise RowError(index, f"{len(row)} fields, expected {len(HEADER)}: {','.join(HEADER)}")
    _, questions, answers, ratings = zip(*rows, strict=True)
    return parse(questions, answers, ratings)


def encode(texts: Sequence[str], alphabet: Mapping[str, int], sizes: Sequence[int], what: str) -> NDArray[np.uint8]:
    """The tokens of equally long texts, uint8[n, L]; raises RowError for a wrong length or character."""
    size = len(texts[0])
    for index, text in enumerate(texts):
        if len(text) != size or size not in sizes:
            expected = size if size in sizes else f"one of {', '.join(map(str, sizes))}"
            raise RowError(index, f"the {what} has {len(text)} cells, expected {expected}")
    table = np.zeros(256, dtype=np.uint8)
    for character, token in alphabet.items():
        table[ord(character)] = token
    codes = np.frombuffer("".join(texts).encode("latin-1", "replace"), dtype=np.uint8)
    tokens = table[codes].reshape(len(texts), size)
    if not tokens.all():
        index, cell = np.argwhere(tokens == 0)[0].tolist()
        raise RowError(
            index, f"character {texts[index][cell]!r} in cell {cell} of the {what}, expected {''.join(alphabet)!r}"
        )
    return tokens


def require(valid: NDArray[np.bool_], problem: str) -> None:
    """Raise RowError for the first row that is not valid."""
    if not valid.all():
        raise RowError(int(np.argmin(valid)), problem)


def sample(chunks: Iterator[BoardRows], count: int | None, seed: int) -> tuple[BoardRows, int]:
    """(`count` boards drawn without replacement, in drawn order; how many there were); None keeps all in order.

    Every row gets a random number and the smallest are kept: one pass, memory for the kept rows alone.
    """
    kept: list[BoardRows] = []
    keys = np.zeros(0, dtype=np.uint64)
    source = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))
    total = 0
    for chunk in chunks:
        total += len(chunk)
        kept.append(chunk)
        if count is None:
            continue
        keys = np.concatenate([keys, np.asarray(source.random_raw(len(chunk)), np.uint64)])
        if len(keys) > 2 * count + CHUNK:
            best = np.argsort(keys, kind="stable")[:count]
            kept, keys = [BoardRows.concatenate(kept)[best]], keys[best]
    if not total:
        raise InputError("no puzzle in the file, expected rows after the header")
    rows = BoardRows.concatenate(kept)
    return (rows if count is None else rows[np.argsort(keys, kind="stable")[:count]]), total


# Building -----------------------------------------------------------------------------------------------------------

# Training rows drawn beyond those asked for, to take the place of rows that the test file holds as well.
SPARE_ROWS = 100
DEFAULT_ROWS = 1000
# Makes boards from a generator of random numbers: (tries, the boards they gave).
Make: TypeAlias = Callable[[np.random.Generator], tuple[int, BoardRows]]


@dataclass(frozen=True)
class Kind:
    """What differs between Sudokus and mazes when a dataset is built.

    The published files train.csv and test.csv are at `url`, with so many rows; no digests of them are known to us.
    `findings` are figures about labels that the user should see. `maker` makes boards by the arguments in `wish` or
    others, and gives up after `patience` tries without a new board, which takes about half a minute.
    """

    name: str
    published: str
    url: str
    published_rows: tuple[int, int]
    parse: Parse
    class_digests: Callable[[BoardRows], NDArray[np.uint64]]
    vocabulary: Callable[[int], int]
    findings: Callable[[BoardRows], dict[str, int]]
    maker: Callable[..., Make]
    wish: Mapping[str, int]
    patience: int


def build_boards(
    kind: Kind,
    out: Path,
    *,
    files: Sequence[Path] | None = None,
    wish: Mapping[str, int] | None = None,
    train_rows: int = DEFAULT_ROWS,
    test_rows: int | None = None,
    seed: int = 0,
    workers: int | None = None,
) -> BoardStore:
    """Build a dataset, write it to the folder `out`, and print what was found.

    From two CSV files (train, test), or generated as wished (such as {"side": 6}), or from the published files.
    Raises InputError where files are malformed or boards as wished do not seem to exist.
    """
    refuse_foreign(out)
    if wish is not None:
        wish = {**kind.wish, **wish}
        tests = test_rows or DEFAULT_ROWS
        # The test boards come first: they do not depend on how many train.
        rows = _take_distinct(kind, kind.maker(**wish), tests + train_rows, seed, workers or os.cpu_count() or 1)
        train, test, facts = rows[tests:], rows[:tests], {"source": "generated", "generator": wish}
    else:
        train, test, facts = _read(kind, files, train_rows, test_rows, seed)
    sizes = [rows.questions.shape[1] for rows in (train, test)]
    if sizes[0] != sizes[1]:
        raise InputError(f"training puzzles of {sizes[0]} cells and test puzzles of {sizes[1]}, expected one size")
    findings = {split: kind.findings(rows) for split, rows in zip(SPLITS, (train, test), strict=True)}
    for split, rows in zip(SPLITS, (train, test), strict=True):
        for name, figure in findings[split].items():
            print(f"{split}: {name.replace('_', ' ')}: {figure} of {len(rows)}")
    side = math.isqrt(sizes[0])
    store = board_store(kind.name, kind.vocabulary(side), train, test, {"seed": seed, **facts, "findings": findings})
    save(store, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(
        f"wrote {out}: {len(train)} training and {len(test)} test puzzles of {side} x {side}, "
        f"mean rating {train.ratings.mean():.1f} and {test.ratings.mean():.1f}, {size / 1e6:.1f} MB"
    )
    return store


def _read(
    kind: Kind, files: Sequence[Path] | None, train_rows: int, test_rows: int | None, seed: int
) -> tuple[BoardRows, BoardRows, dict[str, Any]]:
    """Rows drawn from two files; training rows that equal a test row up to symmetry are left out and replaced."""
    paths = download(kind) if files is None else files
    train, train_total = sample(read_csv(paths[0], kind.parse), train_rows + SPARE_ROWS, seed)
    test, test_total = sample(read_csv(paths[1], kind.parse), test_rows, seed)
    for path, rows, expected in zip(paths, (train_total, test_total), kind.published_rows, strict=True):
        if files is None and rows != expected:
            raise InputError(
                f"{path}: {rows} rows, expected {expected} of {kind.published}; remove the file to fetch it anew"
            )
    shared = np.zeros(len(train), dtype=bool)
    if train.questions.shape[1] == test.questions.shape[1]:
        shared = np.isin(kind.class_digests(train), kind.class_digests(test))
    if shared.any():
        print(f"left out {int(shared.sum())} drawn training puzzles that equal test puzzles up to symmetry")
    if shared.all():
        raise InputError(f"{paths[0]}: every puzzle drawn equals a test puzzle up to symmetry")
    facts = {
        "source": kind.published if files is None else "csv",
        "files": [
            {"name": path.name, "rows": rows, "digest": file_digest(path)}
            for path, rows in zip(paths, (train_total, test_total), strict=True)
        ],
        "left_out": int(shared.sum()),
    }
    return train[~shared][:train_rows], test, facts


def download(kind: Kind) -> list[Path]:
    """The published training and test file in the cache, fetched with a progress bar when not there yet.

    Raises InputError when the network fails.
    """
    import pooch  # here, because only this function needs it and it takes time to import

    folder = Path(pooch.os_cache("arc-trm")) / kind.published
    pooch.get_logger().setLevel("WARNING")
    paths = []
    for split in SPLITS:
        url, name, show = f"{kind.url}/{split}.csv", f"{split}.csv", sys.stderr.isatty()
        try:
            paths.append(Path(pooch.retrieve(url, known_hash=None, fname=name, path=folder, progressbar=show)))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot download {url} ({reason}); name the two files with --csv instead") from error
    return paths


# Generating ---------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
_LOOPS: list[Callable[..., Any]] = []


def compiled(function: F) -> F:
    """Mark a function for `compile_loops`. Until then it is plain Python, and importing it does not import numba."""
    _LOOPS.append(function)
    return function


def compile_loops() -> None:
    """Let marked functions become machine code on their first call, which then runs without the interpreter lock.

    Raises InputError where numba, which only generating needs, is not installed. The code is not cached on disk: numba
    puts it beside the source, which may be read-only, and it misses changes in functions of other files.
    """
    try:
        import numba
    except ModuleNotFoundError as error:
        raise InputError("--generate needs the package numba: pip install numba") from error
    while _LOOPS:
        function = _LOOPS.pop()
        function.__globals__[function.__name__] = numba.njit(nogil=True)(function)


def generate(make: Make, seed: int, workers: int) -> Iterator[tuple[int, BoardRows]]:
    """What make(generator) gives for chunk 0, 1, 2, … without end, in order, on `workers` threads.

    Chunk i draws from its own counter-based generator of (seed, i), so the number of workers changes nothing but the
    time.
    """

    def chunk(number: int) -> tuple[int, BoardRows]:
        return make(np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64))))

    compile_loops()
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(pool.submit(chunk, number) for number in range(2 * workers))
        try:
            for number in itertools.count(2 * workers):
                yield waiting.popleft().result()
                waiting.append(pool.submit(chunk, number))
        finally:
            pool.shutdown(cancel_futures=True)


def _take_distinct(kind: Kind, make: Make, count: int, seed: int, workers: int) -> BoardRows:
    """The first `count` boards that differ up to symmetry; raises InputError when they do not seem to exist."""
    seen: set[int] = set()
    kept: list[BoardRows] = []
    fruitless = 0
    with Progress("making puzzles", count, unit="puzzles") as progress:
        for tries, rows in generate(make, seed, workers):
            new = []
            for index, digest in enumerate(kind.class_digests(rows).tolist()):
                if digest not in seen and len(seen) < count:
                    seen.add(digest)
                    new.append(index)
            kept.append(rows[np.array(new, dtype=np.int64)])
            progress.update(len(new))
            fruitless = 0 if new else fruitless + tries
            if len(seen) == count:
                break
            if fruitless >= kind.patience:
                raise InputError(
                    f"found {len(seen)} of {count} puzzles that differ up to symmetry, "
                    f"then none in {fruitless} tries: ask for fewer or easier ones"
                )
    return BoardRows.concatenate(kept)
