"""Datasets of boards, which are Sudokus and mazes: squares of cells, each with a question and an answer.

On disk: manifest.json and six arrays (see data_prep.files). Augmentation is applied when a batch is made, so only the
boards themselves are kept. data_prep.sudoku and data_prep.maze have the rules of each kind and make new boards.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.files import ArrayTable, InputError, Manifest, load_arrays, new_manifest, read_manifest, save_arrays
from data_prep.progress import Progress

SPLITS = ("train", "test")
COLUMNS: ArrayTable = {  # n boards of L cells
    "questions": (np.uint8, ("n", "L")),
    "answers": (np.uint8, ("n", "L")),
    "ratings": (np.float32, ("n",)),
}


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
        """Join the boards of all parts, at least one, in order."""
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
    """Make a store of these boards, in memory; `facts` (seed, source ...) go into the manifest."""
    counts = {"training_puzzles": len(train), "test_puzzles": len(test)}
    sizes = {"vocabulary": vocabulary, "side": math.isqrt(train.questions.shape[1])}
    return BoardStore(new_manifest(kind, {**sizes, **facts, "counts": counts}), train, test)


def save(store: BoardStore, folder: Path | str) -> None:
    """Write the store as a whole or not at all; raises InputError as data_prep.files.save_arrays does."""
    arrays = {f"{split}_{name}": getattr(getattr(store, split), name) for split in SPLITS for name in COLUMNS}
    save_arrays(folder, store.manifest, arrays)


def load(folder: Path | str) -> BoardStore:
    """Open a dataset without copying it; raises InputError if a file is missing or of another shape or type."""
    manifest = read_manifest(folder, ("sudoku", "maze"))
    cells = int(manifest["side"]) ** 2
    train, test = (
        BoardRows(
            *load_arrays(Path(folder), {f"{split}_{name}": of for name, of in COLUMNS.items()}, {"L": cells}).values()
        )
        for split in SPLITS
    )
    return BoardStore(manifest, train, test)


# Generated boards ---------------------------------------------------------------------------------------------------

PATIENCE = 64  # calls of a maker without a new board, after which there seem to be no more


def make_boards(
    make: Callable[[np.random.Generator], BoardRows],
    class_digests: Callable[[BoardRows], NDArray[np.uint64]],
    count: int,
    seed: int,
) -> BoardRows:
    """Call `make` until `count` boards differ up to symmetry; the first ones do not depend on `count`.

    Raises InputError if there do not seem to be so many.
    """
    rng, fruitless = np.random.default_rng(seed), 0
    seen: set[int] = set()
    kept: list[BoardRows] = []
    with Progress("making puzzles", count, unit="puzzles") as progress:
        while len(seen) < count and fruitless < PATIENCE:
            rows, new = make(rng), []
            for index, digest in enumerate(class_digests(rows).tolist()):
                if digest not in seen and len(seen) < count:
                    seen.add(digest)
                    new.append(index)
            kept.append(rows[np.array(new, dtype=np.int64)])
            fruitless = 0 if new else fruitless + 1
            progress.update(len(new))
    if len(seen) < count:
        raise InputError(
            f"found {len(seen)} of {count} puzzles that differ up to symmetry, "
            "then none in a long search: ask for fewer or easier ones"
        )
    return BoardRows.concatenate(kept)


# Published files ----------------------------------------------------------------------------------------------------

HEADER = "source,question,answer,rating"


class RowError(Exception):
    """(index, problem) of a malformed row among those that are parsed."""


# Texts of questions, answers and ratings -> boards; raises RowError.
Parse: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[str]], BoardRows]


def read_csv(path: Path, parse: Parse, count: int | None, seed: int) -> BoardRows:
    """Draw `count` boards without replacement, in drawn order, of which fewer are the first; None takes all, in order.

    The file is read twice, so that memory holds only the drawn rows. Raises InputError that names file and line for
    the first drawn row that is not as published.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header = file.readline().rstrip("\r\n")
            if header != HEADER:
                raise InputError(f"{path}: line 1: found {header[:80]!r}, expected {HEADER}")
            total = sum(1 for _ in file)
            rows = np.arange(total) if count is None else np.random.default_rng(seed).permutation(total)[:count]
            drawn = rows.tolist()
            lines = dict.fromkeys(drawn, "")
            file.seek(0)
            lines.update((row, line) for row, line in enumerate(file, start=-1) if row in lines)
        if not lines:
            raise InputError(f"{path}: no puzzle in the file, expected rows after the header")
        return parse(*_columns(lines[row] for row in drawn))
    except RowError as error:
        index, problem = error.args
        raise InputError(f"{path}: line {drawn[index] + 2}: {problem}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error.reason})") from error


def _columns(lines: Iterable[str]) -> list[tuple[str, ...]]:
    """Split lines into their questions, answers and ratings; raises RowError."""
    rows = []
    for index, line in enumerate(lines):
        try:
            [row] = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as error:
            raise RowError(index, f"{error}, expected CSV") from error
        if len(row) != 4:
            raise RowError(index, f"{len(row)} fields, expected 4: {HEADER}")
        rows.append(row[1:])
    return list(zip(*rows, strict=True))


def parse_tokens(
    texts: Sequence[str], alphabet: Mapping[str, int], sizes: Sequence[int], what: str
) -> NDArray[np.uint8]:
    """Parse texts of one length into tokens uint8[n, L]; raises RowError for a wrong length or character."""
    size = len(texts[0])
    for index, text in enumerate(texts):
        if len(text) != size or size not in sizes:
            expected = size if size in sizes else f"one of {', '.join(map(str, sizes))}"
            raise RowError(index, f"the {what} has {len(text)} cells, expected {expected}")
        if strange := set(text) - alphabet.keys():
            cell, expected = min(map(text.index, strange)), "".join(alphabet)
            raise RowError(index, f"character {text[cell]!r} in cell {cell} of the {what}, expected {expected!r}")
    tokens = "".join(texts).translate({ord(character): token for character, token in alphabet.items()})
    return np.frombuffer(tokens.encode(), np.uint8).reshape(-1, size)


def require(valid: NDArray[np.bool_], problem: str) -> None:
    """Raise RowError for the first row that is not valid."""
    if not valid.all():
        raise RowError(int(np.argmin(valid)), problem)
