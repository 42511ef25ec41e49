"""Votes for candidate grids: count them, add the counts of several passes, keep them on disk.

Grids are told apart by their keys; keys, candidates and rankings are in `submission.ranking`.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.files import InputError, write_atomic
from data_prep.tasks import Task
from submission.priors import Question
from submission.ranking import HALT_UNITS, UNMEASURED, Ballot, Candidate, Ranking, rank

FILE_FORMAT = "arc-trm candidates 1"


class Output(NamedTuple):
    """One asked output: the test input number `test` of a task."""

    task_id: str
    test: int


def outputs_of(tasks: Iterable[Task]) -> tuple[Output, ...]:
    """Every asked output of the tasks, in their order."""
    return tuple(Output(task.task_id, test) for task in tasks for test in range(len(task.tests)))


@dataclass(frozen=True, eq=False)
class Counted:
    """The distinct grids of one pass: columns of length k, and per grid the puzzles that voted for it."""

    outputs: NDArray[np.int64]  # [k] index of the output
    keys: tuple[bytes, ...]  # [k] distinct within an output
    votes: NDArray[np.int64]  # [k]
    halting: NDArray[np.int64]  # [k] summed probabilities, in units of 1 / HALT_UNITS
    puzzles: tuple[tuple[int, ...], ...] | None = None  # [k]


def count_votes(
    outputs: NDArray[Any],
    keys: Sequence[bytes],
    halting: NDArray[Any],
    puzzles: NDArray[Any] | None = None,
) -> Counted:
    """Group n predictions (output index, grid key, halting probability, maybe a puzzle id) by output and grid.

    A probability that is not a number counts as 0: it must break no tie, nor lose a pass of good grids.
    Raises ValueError for a probability outside 0-1.
    """
    first_seen: dict[tuple[int, bytes], int] = {}
    pairs = zip(outputs.tolist(), keys, strict=True)
    first_of = np.fromiter(map(first_seen.setdefault, pairs, count()), np.int64, len(keys))
    firsts = np.fromiter(first_seen.values(), np.int64, len(first_seen))
    slot = np.searchsorted(firsts, first_of)
    sums = np.zeros(len(firsts), dtype=np.int64)
    np.add.at(sums, slot, _halt_units(halting))
    return Counted(
        outputs=outputs[firsts].astype(np.int64),
        keys=tuple(key for _, key in first_seen),
        votes=np.bincount(slot, minlength=len(firsts)),
        halting=sums,
        puzzles=None if puzzles is None else _split(puzzles, slot, len(firsts)),
    )


def _halt_units(halting: NDArray[Any]) -> NDArray[np.int64]:
    probabilities = np.nan_to_num(halting.astype(np.float64), nan=0.0)
    if probabilities.size and not (probabilities.min() >= 0.0 and probabilities.max() <= 1.0):
        extremes = (float(probabilities.min()), float(probabilities.max()))
        raise ValueError(f"halting probabilities from {extremes[0]:g} to {extremes[1]:g}, expected 0 to 1")
    return np.rint(probabilities * HALT_UNITS).astype(np.int64)


def _split(values: NDArray[Any], slot: NDArray[np.int64], slots: int) -> tuple[tuple[int, ...], ...]:
    """The values of every slot."""
    ordered = values[np.argsort(slot, kind="stable")].tolist()
    ends = np.cumsum(np.bincount(slot, minlength=slots)).tolist()
    return tuple(tuple(ordered[start:end]) for start, end in zip([0, *ends], ends, strict=False))


class _Votes:
    """The votes for one grid so far."""

    __slots__ = ("halting", "likelihood", "puzzles", "votes")

    def __init__(self) -> None:
        self.votes = 0
        self.halting = 0
        self.puzzles: tuple[int, ...] = ()
        self.likelihood = UNMEASURED

    def add(self, votes: int, halting: int, puzzles: tuple[int, ...]) -> None:
        self.votes += votes
        self.halting += halting
        self.puzzles += puzzles


class Tally:
    """The votes of all passes so far, for a fixed list of outputs; later votes add to earlier ones."""

    def __init__(self, outputs: Iterable[Output]) -> None:
        self.outputs = tuple(outputs)
        self._votes: list[dict[bytes, _Votes]] = [{} for _ in self.outputs]

    def add(self, counted: Counted) -> None:
        """Add one pass; raises ValueError (and adds nothing) when it speaks of an output that is not ours."""
        if len(counted.outputs) and not 0 <= counted.outputs.min() <= counted.outputs.max() < len(self.outputs):
            raise ValueError(f"output {counted.outputs.max()} of a tally with {len(self.outputs)} outputs")
        columns = (counted.outputs.tolist(), counted.keys, counted.votes.tolist(), counted.halting.tolist())
        puzzles: Iterable[tuple[int, ...]] = counted.puzzles or [()] * len(counted.keys)
        for output, key, votes, halting, voters in zip(*columns, puzzles, strict=True):
            entry = self._votes[output].get(key)
            if entry is None:
                entry = self._votes[output][key] = _Votes()
            entry.add(votes, halting, voters)

    def merge(self, other: "Tally") -> None:
        """Add the votes of another tally over the same outputs, raising ValueError for others."""
        if other.outputs != self.outputs:
            raise ValueError(f"tallies of {len(self.outputs)} and {len(other.outputs)} outputs, expected the same")
        for own, others in zip(self._votes, other._votes, strict=True):
            for key, entry in others.items():
                mine = own.setdefault(key, _Votes())
                mine.add(entry.votes, entry.halting, entry.puzzles)
                if mine.likelihood == UNMEASURED:
                    mine.likelihood = entry.likelihood

    def set_likelihood(self, output: int, keys: Sequence[bytes], values: Sequence[float]) -> None:
        """Remember the log-probabilities of grids that have votes, in place of older ones; else KeyError."""
        for key, value in zip(keys, values, strict=True):
            self._votes[output][key].likelihood = value

    def ballot(self, output: int, question: Question | None = None) -> Ballot:
        """The candidates of output number `output` as columns; `question` is for rankings that want to know it."""
        entries = self._votes[output].values()
        return Ballot(
            tuple(self._votes[output]),
            np.array([entry.votes for entry in entries], dtype=np.int64),
            np.array([entry.halting for entry in entries], dtype=np.int64),
            tuple(entry.puzzles for entry in entries),
            np.array([entry.likelihood for entry in entries], dtype=np.float64),
            question,
        )

    def candidates(
        self,
        output: int,
        ranking: Ranking | str = "count",
        limit: int | None = None,
        question: Question | None = None,
    ) -> tuple[Candidate, ...]:
        """The ranked candidates of output number `output`, none where nothing was predicted."""
        return rank(self.ballot(output, question), ranking, limit)

    @property
    def measured(self) -> bool:
        """Whether any candidate has a log-probability."""
        return any(entry.likelihood != UNMEASURED for entries in self._votes for entry in entries.values())

    def total(self, output: int) -> int:
        """All votes cast for output number `output`."""
        return sum(entry.votes for entry in self._votes[output].values())

    def save(self, path: Path | str) -> None:
        """Write the votes as one .npz, atomically; equal tallies make equal bytes."""
        rows = [(i, key, self._votes[i][key]) for i in range(len(self.outputs)) for key in sorted(self._votes[i])]
        puzzles = [sorted(set(entry.puzzles)) for _, _, entry in rows]
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format=np.array(FILE_FORMAT),
            task_ids=np.array([output.task_id for output in self.outputs], dtype=np.str_),
            tests=np.array([output.test for output in self.outputs], dtype=np.int64),
            outputs=np.array([i for i, _, _ in rows], dtype=np.int64),
            key_lengths=np.array([len(key) for _, key, _ in rows], dtype=np.int64),
            keys=np.frombuffer(b"".join(key for _, key, _ in rows), dtype=np.uint8),
            votes=np.array([entry.votes for _, _, entry in rows], dtype=np.int64),
            halting=np.array([entry.halting for _, _, entry in rows], dtype=np.int64),
            likelihood=np.array([entry.likelihood for _, _, entry in rows], dtype=np.float64),
            puzzle_counts=np.array([len(ids) for ids in puzzles], dtype=np.int64),
            puzzles=np.array([i for ids in puzzles for i in ids], dtype=np.int64),
        )
        write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "Tally":
        """Read what `save` wrote; raises InputError naming the file when it is missing or something else."""
        arrays = _read_arrays(Path(path))
        tally = cls(map(Output, arrays["task_ids"].tolist(), arrays["tests"].tolist()))
        keys = _cut(arrays["keys"].tobytes(), arrays["key_lengths"])
        puzzles = _cut(tuple(arrays["puzzles"].tolist()), arrays["puzzle_counts"])
        tally.add(Counted(arrays["outputs"], tuple(keys), arrays["votes"], arrays["halting"], tuple(puzzles)))
        for output, key, value in zip(arrays["outputs"].tolist(), keys, arrays["likelihood"].tolist(), strict=True):
            tally.set_likelihood(output, [key], [value])
        return tally


_COLUMNS = (
    "task_ids",
    "tests",
    "outputs",
    "key_lengths",
    "keys",
    "votes",
    "halting",
    "likelihood",
    "puzzle_counts",
    "puzzles",
)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            if str(file["format"]) != FILE_FORMAT:
                raise InputError(f"{path}: candidates of format {str(file['format'])!r}, expected {FILE_FORMAT!r}")
            return {name: file[name] for name in _COLUMNS}
    except FileNotFoundError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: no candidates file ({error}), expected what --candidates wrote") from error


def _cut(sequence: Any, lengths: NDArray[np.int64]) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [sequence[start:end] for start, end in zip([0, *ends], ends, strict=False)]
