"""Datasets whose examples are whole squares of cells: Sudokus and mazes, a question and an answer each.

A folder of six arrays beside the manifest. Augmentation is applied when a batch is
made, so only the puzzles themselves are kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.files import Manifest, load_arrays, new_manifest, read_manifest, save_arrays, verify_digests

KINDS = ("sudoku", "maze")
SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class CellRows:
    """Puzzles side by side: tokens uint8[n, L] of questions and answers, ratings float32[n] (higher is harder)."""

    questions: NDArray[np.uint8]
    answers: NDArray[np.uint8]
    ratings: NDArray[np.float32]

    def __len__(self) -> int:
        """The number of puzzles."""
        return len(self.questions)

    def __getitem__(self, index: slice | NDArray[Any]) -> "CellRows":
        """The puzzles at `index`."""
        return CellRows(self.questions[index], self.answers[index], self.ratings[index])

    @classmethod
    def concatenate(cls, parts: Sequence["CellRows"]) -> "CellRows":
        """The puzzles of all parts, at least one, in order."""
        return cls(
            np.concatenate([part.questions for part in parts]),
            np.concatenate([part.answers for part in parts]),
            np.concatenate([part.ratings for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class CellStore:
    """Puzzles to train on and puzzles to test with, of one kind and size; the arrays may be memory maps."""

    manifest: Manifest
    train: CellRows
    test: CellRows

    @property
    def kind(self) -> str:
        """sudoku or maze."""
        return str(self.manifest["kind"])

    @property
    def vocab_size(self) -> int:
        """Number of distinct tokens, PAD included."""
        return int(self.manifest["vocabulary"])

    @property
    def seq_len(self) -> int:
        """Cells of one puzzle."""
        return self.train.questions.shape[1]

    @property
    def side(self) -> int:
        """Cells of one row."""
        return math.isqrt(self.seq_len)


def build_cell_store(
    kind: str, vocabulary: int, train: CellRows, test: CellRows, facts: Mapping[str, Any]
) -> CellStore:
    """The store of these puzzles, in memory; `facts` (seed, source ...) go into the manifest."""
    manifest = new_manifest(
        kind,
        {
            "vocabulary": vocabulary,
            "side": math.isqrt(train.questions.shape[1]),
            **facts,
            "counts": {"training_puzzles": len(train), "test_puzzles": len(test)},
        },
    )
    return CellStore(manifest, train, test)


def save(store: CellStore, folder: Path | str) -> None:
    """Write the store as a whole or not at all; raises InputError as data_prep.files.save_arrays does."""
    arrays = {
        f"{split}_{name}": getattr(getattr(store, split), name)
        for split in SPLITS
        for name in ("questions", "answers", "ratings")
    }
    save_arrays(folder, store.manifest, arrays)


def load(folder: Path | str, verify: bool = False) -> CellStore:
    """Open a dataset without copying it; `verify` also compares every file with its digest.

    Raises InputError when a file is missing, of another shape or type, or (with `verify`) changed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, KINDS)
    if verify:
        verify_digests(folder, manifest)
    cells = int(manifest["side"]) ** 2
    rows = {}
    for split in SPLITS:
        arrays = load_arrays(
            folder,
            {
                f"{split}_questions": (np.uint8, ("n", cells)),
                f"{split}_answers": (np.uint8, ("n", cells)),
                f"{split}_ratings": (np.float32, ("n",)),
            },
            {},
        )
        rows[split] = CellRows(*arrays.values())
    return CellStore(manifest, rows["train"], rows["test"])
