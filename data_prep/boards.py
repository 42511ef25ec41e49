"""Datasets of boards, which are Sudokus and mazes: squares of cells, a question and an answer each. CSV in, arrays out.

On disk: manifest.json and six arrays (see data_prep.files). Augmentation is applied when a batch is made, so only the
boards themselves are kept. The rules of each kind are in data_prep.sudoku and data_prep.maze.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.files import ArrayTable, InputError, Manifest, load_arrays, new_manifest, read_manifest, save_arrays

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
    arrays = {f"{split}_{name}": getattr(getattr(store, split), name) for split in SPLITS for name in COLUMNS}
    save_arrays(folder, store.manifest, arrays)


def load(folder: Path | str) -> BoardStore:
    """Open a dataset without copying it; raises InputError when a file is missing or of another shape or type."""
    folder = Path(folder)
    manifest = read_manifest(folder, ("sudoku", "maze"))
    cells = int(manifest["side"]) ** 2
    train, test = (
        BoardRows(*load_arrays(folder, {f"{split}_{name}": of for name, of in COLUMNS.items()}, {"L": cells}).values())
        for split in SPLITS
    )
    return BoardStore(manifest, train, test)


# Published files ----------------------------------------------------------------------------------------------------

HEADER = ["source", "question", "answer", "rating"]


class RowError(Exception):
    """A row is malformed: its place among those that are read and what is wrong."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


# Texts of questions, answers and ratings -> boards; raises RowError.
Parse: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[str]], BoardRows]


def read_csv(path: Path, parse: Parse, count: int | None, seed: int) -> BoardRows:
    """`count` boards drawn without replacement, in drawn order; None takes all, in order.

    Every row gets a random number, and the smallest are drawn. The file is read twice, so that memory holds the drawn
    rows alone. Raises InputError that names file and line for anything drawn that is not as published.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header = next(csv.reader([file.readline()]), [])
            if header != HEADER:
                raise InputError(f"{path}: line 1: found {','.join(header)[:80]!r}, expected {','.join(HEADER)}")
            total = sum(1 for _ in file)
            keys = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)).random_raw(total)
            drawn = (np.arange(total) if count is None else np.argsort(keys, kind="stable")[:count]).tolist()
            file.seek(0)
            wanted = set(drawn)
            lines = {row: line for row, line in enumerate(file, start=-1) if row in wanted}
        if not lines:
            raise InputError(f"{path}: no puzzle in the file, expected rows after the header")
        return _parse_lines([lines[row] for row in drawn], parse)
    except RowError as error:
        raise InputError(f"{path}: line {drawn[error.index] + 2}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error.reason})") from error


def _parse_lines(lines: Sequence[str], parse: Parse) -> BoardRows:
    rows = []
    for index, line in enumerate(lines):
        try:
            [row] = csv.reader([line], strict=True)
        except (csv.Error, ValueError) as error:
            raise RowError(index, f"{error}, expected CSV") from error
        if len(row) != len(HEADER):
            raise RowError(index, f"{len(row)} fields, expected {len(HEADER)}: {','.join(HEADER)}")
        rows.append(row)
    _, questions, answers, ratings = zip(*rows, strict=True)
    return parse(questions, answers, ratings)


def parse_tokens(
    texts: Sequence[str], alphabet: Mapping[str, int], sizes: Sequence[int], what: str
) -> NDArray[np.uint8]:
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
