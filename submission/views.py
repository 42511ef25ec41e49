"""Which augmentation each puzzle number in a candidates file stands for, in a small file beside it.

`candidates.npz` names the puzzles that voted for a grid by number; `candidates.views.npz` says what the numbers mean.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.files import InputError, write_atomic
from data_prep.grid import COLOURS, DIHEDRALS, IDENTITY, Augmentation
from data_prep.store import ArcStore

FILE_FORMAT = "arc-trm views 1"


@dataclass(frozen=True, eq=False)
class Views:
    """The augmentations of N puzzles."""

    dihedrals: NDArray[np.uint8]  # [N]
    permutations: NDArray[np.uint8]  # [N, 10]

    @classmethod
    def of(cls, store: ArcStore) -> "Views":
        """The views that a store's puzzles are."""
        return cls(np.asarray(store.puzzle_dihedrals), np.asarray(store.puzzle_permutations))

    def augmentation(self, puzzle: int) -> Augmentation:
        """The augmentation of one puzzle."""
        return Augmentation(int(self.dihedrals[puzzle]), tuple(map(int, self.permutations[puzzle])))

    def is_identity(self, puzzle: int) -> bool:
        """Whether a puzzle is the task as it was given."""
        return self.augmentation(puzzle) == IDENTITY

    def count_dihedrals(self, puzzles: Iterable[int]) -> list[int]:
        """How many of the puzzles have each of the eight dihedral elements."""
        chosen = np.fromiter(puzzles, np.int64)
        return np.bincount(self.dihedrals[chosen], minlength=len(DIHEDRALS)).tolist()


def views_path(candidates: Path | str) -> Path:
    """`candidates.views.npz` beside `candidates.npz`."""
    path = Path(candidates)
    return path.with_name(f"{path.stem}.views.npz")


def write_views(candidates: Path | str, views: Views) -> None:
    """Write the views of the candidates file at that path, atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, format=np.array(FILE_FORMAT), dihedrals=views.dihedrals, permutations=views.permutations
    )
    write_atomic(views_path(candidates), buffer.getvalue())


def read_views(candidates: Path | str) -> Views | None:
    """The views beside the candidates file at that path, None when there are none; InputError when malformed."""
    path = views_path(candidates)
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            found, dihedrals, permutations = str(file["format"]), file["dihedrals"], file["permutations"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: no file of views ({error})") from error
    if found != FILE_FORMAT:
        raise InputError(f"{path}: views of format {found!r}, expected {FILE_FORMAT!r}")
    if permutations.shape != (len(dihedrals), COLOURS) or (len(dihedrals) and dihedrals.max() >= len(DIHEDRALS)):
        raise InputError(f"{path}: {dihedrals.shape} dihedral elements and {permutations.shape} colours do not match")
    return Views(dihedrals, permutations)
