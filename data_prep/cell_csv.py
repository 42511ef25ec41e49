"""Reading published puzzle files: CSV with the header source,question,answer,rating, streamed and checked."""

import csv
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.cell_store import CellRows
from data_prep.files import InputError
from data_prep.progress import Progress

HEADER = ["source", "question", "answer", "rating"]
# Rows checked together: enough for fast array operations, a few megabytes of memory.
CHUNK = 8192


class RowError(Exception):
    """A row of a chunk is malformed: its index in the chunk and what is wrong."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


# Texts of questions, answers and ratings -> puzzles; raises RowError.
Parse = Callable[[Sequence[str], Sequence[str], Sequence[str]], CellRows]


def read_csv(path: Path, parse: Parse) -> Iterator[CellRows]:
    """The puzzles of a file in chunks, all of one size; memory does not grow with the file.

    Raises InputError that names file and line for anything that is not as published.
    """
    try:
        with (
            open(path, newline="", encoding="utf-8") as file,
            Progress(f"reading {path.name}", unit="rows") as bar,
        ):
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != HEADER:
                raise InputError(f"{path}: line 1: found {','.join(header)[:80]!r}, expected {','.join(HEADER)}")
            line, cells = 2, None
            while rows := list(islice(reader, CHUNK)):
                chunk = _parse_chunk(path, line, rows, parse)
                cells = cells or chunk.questions.shape[1]
                if chunk.questions.shape[1] != cells:
                    raise InputError(f"{path}: line {line}: {chunk.questions.shape[1]} cells, expected {cells}")
                line += len(rows)
                if reader.line_num != line - 1:  # then the lines named in messages would be wrong
                    raise InputError(f"{path}: a field before line {reader.line_num} holds a line break")
                bar.update(len(rows))
                yield chunk
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}, expected CSV") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error.reason})") from error


def _parse_chunk(path: Path, line: int, rows: Sequence[Sequence[str]], parse: Parse) -> CellRows:
    try:
        return _parse_rows(rows, parse)
    except RowError as error:
        raise InputError(f"{path}: line {line + error.index}: {error}") from error


def _parse_rows(rows: Sequence[Sequence[str]], parse: Parse) -> CellRows:
    for index, row in enumerate(rows):
        if len(row) != len(HEADER):
            raise RowError(index, f"{len(row)} fields, expected {len(HEADER)}: {','.join(HEADER)}")
    _, questions, answers, ratings = zip(*rows, strict=True)
    return parse(questions, answers, ratings)


def encode(texts: Sequence[str], alphabet: dict[str, int], sizes: Sequence[int], what: str) -> NDArray[np.uint8]:
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


def sample(chunks: Iterator[CellRows], count: int | None, seed: int) -> tuple[CellRows, int]:
    """(`count` puzzles drawn without replacement, in drawn order; how many there were); None keeps all in order.

    Every row gets a random number and the smallest are kept: one pass, memory for the kept rows alone.
    """
    kept: list[CellRows] = []
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
            kept, keys = [CellRows.concatenate(kept)[best]], keys[best]
    if not total:
        raise InputError("no puzzle in the file, expected rows after the header")
    rows = CellRows.concatenate(kept)
    return (rows if count is None else rows[np.argsort(keys, kind="stable")[:count]]), total
