"""From predicted canvases to ranked candidates: cut, turn back, count, rank, keep on disk, score. No tensors here.

The largest rectangle is cut out of every canvas, its augmentation is undone, and identical grids are counted.
Candidates are ordered by votes, then mean halting probability, then digest.

Predictions that differ in a few cells share no vote, so the probabilities of their cells are combined too: in every
cell the consensus has the colour of the highest mean log-probability over the predictions of the size with most votes;
up to the exponent a product of experts (Hinton 2002).

A grid travels as its key: one byte height, one byte width, then its cells row major. The digest that breaks the last
ties is the SHA-256 of the key, which makes it the published grid hash.
"""

import io
import math
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.augment import Augmentations
from data_prep.canvas import COLOUR_OFFSET, Shape, largest_rectangles
from data_prep.files import InputError, sha256_hex, write_atomic
from data_prep.grid import COLOURS, DIHEDRAL_KEEPS_SHAPE, INVERSE_DIHEDRAL, Grid, dihedral
from data_prep.tasks import Task

# Canvases handled at once, which stay in the processor's cache.
CHUNK = 1024
# Halting probabilities are summed as integers of this many units: integer sums do not depend on the order
# of feeding, and 64 bits hold eight million votes for one grid.
HALT_UNITS = 1 << 40
# A cost is -log probability in these units, MOST_COST at most: 32 bits hold half a million predictions of one cell.
COST_UNITS, MOST_COST = 256, 4096
FILE_FORMAT = "arc-trm candidates 3"
COLUMNS = (
    *("task_ids", "tests", "outputs", "key_lengths", "keys", "votes", "halting"),
    *("cell_outputs", "cell_shapes", "cell_costs"),
)


class AskedOutput(NamedTuple):
    """An output to predict: that of test input number `test` of a task."""

    task_id: str
    test: int


def outputs_of(tasks: Iterable[Task]) -> tuple[AskedOutput, ...]:
    """List the asked outputs of the tasks, in their order."""
    return tuple(AskedOutput(task.task_id, test) for task in tasks for test in range(len(task.tests)))


# Predictions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predictions:
    """n predicted canvases at placement (0, 0), each with its augmentation."""

    tokens: NDArray[np.uint8]  # [n, side * side]
    halting: NDArray[np.float32]  # [n] probability
    outputs: NDArray[np.int32]  # [n] number of the asked output
    augmentations: Augmentations  # [n]
    costs: NDArray[np.int16] | None = None  # [n, side * side, 10] of every colour, if probabilities are known

    def __getitem__(self, index: slice | NDArray[Any]) -> "Predictions":
        columns: list[Any] = [None if column is None else column[index] for column in vars(self).values()]
        return Predictions(*columns)

    @property
    def side(self) -> int:
        """Side of the canvases."""
        return math.isqrt(self.tokens.shape[1])


def candidate_keys(predictions: Predictions) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the rows [m] of predictions that hold a grid, and their keys with the augmentation undone.

    Rows come in no particular order; predictions with an empty cut are left out. Raises ValueError for an augmentation
    that does not exist.
    """
    undone = predictions.augmentations.inverse()
    # The cuts are taken in pieces that stay in the cache.
    pieces = [predictions.tokens[i : i + CHUNK] for i in range(0, max(1, len(predictions.tokens)), CHUNK)]
    cuts = (largest_rectangles(piece, predictions.side) for piece in pieces)
    heights, widths = map(np.concatenate, zip(*cuts, strict=True))
    # Grids of equal shape and dihedral element are turned at once. 13 bits sort by radix.
    kinds = heights.astype(np.uint16) << 8 | widths.astype(np.uint16) << 3 | undone.dihedrals
    rows = np.flatnonzero(heights)
    rows = rows[np.argsort(kinds[rows], kind="stable")]
    kinds = kinds[rows]
    starts = np.flatnonzero(np.diff(kinds, prepend=np.uint16(0))).tolist()
    keys: list[bytes] = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=False):
        kind = int(kinds[start])
        for first in range(start, end, CHUNK):
            chosen = rows[first : min(first + CHUNK, end)]
            keys += _apply(undone[chosen], predictions.tokens[chosen], (kind >> 8, kind >> 3 & 31))
    return rows, keys


def _apply(augmentations: Augmentations, canvases: NDArray[np.uint8], shape: Shape) -> list[bytes]:
    """Return the keys of the augmented grids that stand in the `shape` corner of every canvas."""
    squares = canvases.reshape(len(canvases), math.isqrt(canvases.shape[1]), -1)
    grids = augmentations.apply(squares[:, : shape[0], : shape[1]] - np.uint8(COLOUR_OFFSET))
    keys = np.empty((len(grids), 2 + shape[0] * shape[1]), dtype=np.uint8)
    keys[:, :2] = grids.shape[1:]
    keys[:, 2:] = grids.reshape(len(grids), -1)
    return keys.view(f"V{keys.shape[1]}")[:, 0].tolist()


def _cell_costs(predictions: Predictions, row: int, key: bytes) -> NDArray[np.int16]:
    """Return the cost of each colour in each cell of the grid `key` of `row`, int16 [height, width, 10]."""
    assert predictions.costs is not None
    cells = np.arange(predictions.tokens.shape[1]).reshape(predictions.side, -1)
    element, shape = predictions.augmentations.dihedrals[row], (key[0], key[1])
    height, width = shape if DIHEDRAL_KEEPS_SHAPE[element] else shape[::-1]
    places = dihedral(cells[:height, :width], INVERSE_DIHEDRAL[element])
    return predictions.costs[row][places].take(predictions.augmentations.permutations[row], axis=2)


def _halt_units(halting: NDArray[Any]) -> NDArray[np.int64]:
    """Convert probabilities [n] to integers; NaN counts as 0, to break no tie and lose no good grid."""
    probabilities = np.nan_to_num(halting.astype(np.float64), nan=0.0)
    if probabilities.size and not (probabilities.min() >= 0.0 and probabilities.max() <= 1.0):
        extremes = (float(probabilities.min()), float(probabilities.max()))
        raise ValueError(f"halting probabilities from {extremes[0]:g} to {extremes[1]:g}, expected 0 to 1")
    return np.rint(probabilities * HALT_UNITS).astype(np.int64)


# Candidates and their votes -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Candidate:
    """A distinct grid predicted for one output, with its votes so far."""

    key: bytes = field(repr=False)
    votes: int
    halting: int  # summed probabilities, in units of 1 / HALT_UNITS

    @property
    def grid(self) -> Grid:
        """The grid, uint8 [height, width] (read-only, shares the memory of the key)."""
        return np.frombuffer(self.key, dtype=np.uint8, offset=2).reshape(self.key[0], self.key[1])

    @property
    def mean_halt(self) -> float:
        """Mean halting probability of the predictions that voted for it."""
        return self.halting / (self.votes * HALT_UNITS)

    @property
    def digest(self) -> str:
        """The grid's hash."""
        return sha256_hex(self.key)


# Votes as arrays by name.
Columns: TypeAlias = dict[str, NDArray[Any]]
# Candidates of every output, best first.
Ranked: TypeAlias = dict[AskedOutput, list[Candidate]]


class Tally:
    """Candidates, votes and summed cell costs of a fixed list of outputs.

    Hold its `lock` to read it while another thread adds to it.
    """

    def __init__(self, outputs: Iterable[AskedOutput]) -> None:
        self.outputs = tuple(outputs)
        self.lock = threading.RLock()
        self.provisional: set[int] = set()  # outputs whose votes are discarded by the next one
        self._candidates: list[dict[bytes, Candidate]] = [{} for _ in self.outputs]
        # The summed costs int32[height, width, 10] of an output's predictions of each shape.
        self._cells: list[dict[Shape, NDArray[np.int32]]] = [{} for _ in self.outputs]

    def add(self, predictions: Predictions) -> None:
        """Count the votes of predictions; an empty cut has none. A vote discards provisional ones of its output.

        Raises ValueError (and adds nothing) for an unknown output or a probability outside 0-1.
        """
        rows, keys = candidate_keys(predictions)
        outputs = predictions.outputs[rows]
        if len(outputs) and not 0 <= outputs.min() <= outputs.max() < len(self.outputs):
            raise ValueError(f"output {outputs.max()} of a tally with {len(self.outputs)} outputs")
        halting = _halt_units(predictions.halting[rows])
        cells: list[NDArray[np.int16] | None] = [None] * len(keys)
        if predictions.costs is not None:
            cells = [_cell_costs(predictions, row, key) for row, key in zip(rows.tolist(), keys, strict=True)]
        with self.lock:
            for output in self.provisional & set(outputs.tolist()):
                self._candidates[output], self._cells[output] = {}, {}
                self.provisional.remove(output)
            for output, key, units, costs in zip(outputs.tolist(), keys, halting.tolist(), cells, strict=True):
                candidates, sums = self._candidates[output], self._cells[output]
                candidate = candidates.get(key) or candidates.setdefault(key, Candidate(key, 0, 0))
                candidate.votes += 1
                candidate.halting += units
                if costs is not None:
                    sums[key[0], key[1]] = costs + sums.get((key[0], key[1]), np.int32(0))

    def absorb(self, other: "Tally") -> None:
        """Add the votes and costs of `other`; raises ValueError if its outputs are not ours, in our order."""
        if other.outputs != self.outputs:
            raise ValueError(f"a tally of {len(other.outputs)} outputs, expected our {len(self.outputs)}")
        with self.lock:
            for own, added in zip(self._candidates, other._candidates, strict=True):
                for key, candidate in added.items():
                    mine = own.setdefault(key, Candidate(key, 0, 0))
                    mine.votes += candidate.votes
                    mine.halting += candidate.halting
            for sums, costs in zip(self._cells, other._cells, strict=True):
                sums |= {shape: cells + sums.get(shape, np.int32(0)) for shape, cells in costs.items()}

    def snapshot(self) -> Columns:
        """Return `columns` and which outputs have provisional votes, for `restore`."""
        with self.lock:
            return self.columns() | {"provisional": np.array(sorted(self.provisional), np.int64)}

    def make_provisional(self) -> None:
        """Keep the votes so far only until their output gets another one."""
        with self.lock:
            self.provisional = set(range(len(self.outputs)))

    def candidates(self, output: int, limit: int | None = None) -> list[Candidate]:
        """Return the best `limit` candidates (all by default) of output number `output`, best first.

        Their order does not depend on the order of voting. The list is empty if nothing was predicted.
        """
        ranked: list[Candidate] = []
        # Digests take time, so only those of ties are computed, as far as candidates are wanted.
        for _, tied in groupby(sorted(self._candidates[output].values(), key=_order), key=_order):
            if limit is not None and len(ranked) >= limit:
                break
            several = list(tied)
            ranked += sorted(several, key=lambda candidate: candidate.digest) if len(several) > 1 else several
        return ranked[:limit]

    def consensus(self, output: int) -> Grid | None:
        """Return the grid of the most likely colours by all predictions of the shape with most votes.

        Of several such shapes that of the best candidate counts. None if no probabilities are known.
        """
        votes = Counter[Shape]()
        for candidate in self.candidates(output):
            votes[candidate.key[0], candidate.key[1]] += candidate.votes
        costs = self._cells[output].get(max(votes, key=lambda shape: votes[shape])) if votes else None
        return None if costs is None else costs.argmin(axis=2).astype(np.uint8)

    def attempts(self, output: int) -> list[Grid]:
        """Return two different grids to hand in for output number `output`, fewer if fewer were predicted.

        They are the consensus and the best other candidate, or the two best candidates if no probabilities are known.
        """
        first = self.consensus(output)
        best = [candidate.grid for candidate in self.candidates(output, limit=2)]
        if first is not None:
            best = [first, *(grid for grid in best if not np.array_equal(grid, first))]
        return best[:2]

    def ranked(self) -> Ranked:
        """Return the candidates of all outputs, best first."""
        return {output: self.candidates(number) for number, output in enumerate(self.outputs)}

    def total(self, output: int) -> int:
        """Count the votes for output number `output`."""
        return sum(candidate.votes for candidate in self._candidates[output].values())

    def columns(self) -> Columns:
        """Return all candidates and costs as arrays, by output and key or shape; equal tallies give equal arrays."""
        rows = [(output, own[key]) for output, own in enumerate(self._candidates) for key in sorted(own)]
        candidates = [candidate for _, candidate in rows]
        cells = [(output, shape, own[shape]) for output, own in enumerate(self._cells) for shape in sorted(own)]
        return {
            "outputs": np.array([output for output, _ in rows], dtype=np.int64),
            "key_lengths": np.array([len(candidate.key) for candidate in candidates], dtype=np.int64),
            "keys": np.frombuffer(b"".join(candidate.key for candidate in candidates), dtype=np.uint8),
            "votes": np.array([candidate.votes for candidate in candidates], dtype=np.int64),
            "halting": np.array([candidate.halting for candidate in candidates], dtype=np.int64),
            "cell_outputs": np.array([output for output, _, _ in cells], dtype=np.int64),
            "cell_shapes": np.array([shape for _, shape, _ in cells], dtype=np.int64).reshape(-1, 2),
            "cell_costs": np.concatenate([np.zeros(0, np.int32), *(costs.reshape(-1) for _, _, costs in cells)]),
        }

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Replace all votes by those of `columns` or `snapshot`; raises ValueError if they are inconsistent."""
        self.provisional = set(map(int, columns.get("provisional", ())))
        self._candidates = [{} for _ in self.outputs]
        keys, places = columns["keys"].tobytes(), [0, *np.cumsum(columns["key_lengths"]).tolist()]
        values = (columns[name].tolist() for name in ("outputs", "votes", "halting"))
        for (start, end), output, votes, halting in zip(pairwise(places), *values, strict=True):
            self._candidates[output][keys[start:end]] = Candidate(keys[start:end], votes, halting)
        self._cells = [{} for _ in self.outputs]
        outputs, shapes = columns["cell_outputs"].tolist(), columns["cell_shapes"]
        *pieces, _ = np.split(columns["cell_costs"], np.cumsum(shapes.prod(axis=1) * COLOURS))
        for output, (height, width), costs in zip(outputs, shapes.tolist(), pieces, strict=True):
            self._cells[output][height, width] = costs.reshape(height, width, COLOURS)

    def save(self, path: Path | str) -> None:
        """Write the votes as one .npz, atomically; equal tallies give equal bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format=np.array(FILE_FORMAT),
            task_ids=np.array([output.task_id for output in self.outputs], dtype=np.str_),
            tests=np.array([output.test for output in self.outputs], dtype=np.int64),
            **self.columns(),  # type: ignore[arg-type]
        )
        write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> "Tally":
        """Read a file that `save` wrote; raises InputError naming any other file."""
        try:
            with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
                if str(file["format"]) != FILE_FORMAT:
                    raise InputError(f"{path}: candidates of format {str(file['format'])!r}, expected {FILE_FORMAT!r}")
                columns = {name: file[name] for name in COLUMNS}
            tally = cls(map(AskedOutput, columns["task_ids"].tolist(), columns["tests"].tolist()))
            tally.restore(columns)
        except FileNotFoundError as error:
            raise InputError(f"{path}: cannot read ({error.strerror})") from error
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{path}: no candidates file ({error}), expected what --candidates wrote") from error
        return tally


def _order(candidate: Candidate) -> tuple[int, int]:
    """Return the sort key of a candidate without its digest; the best is lowest."""
    return -candidate.votes, -candidate.halting


# Scores -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskScore:
    """Solved outputs of one task."""

    task_id: str
    solved: int
    total: int


@dataclass(frozen=True)
class Scores:
    """The three scores of a submission as fractions, with their counts and tasks."""

    per_task: tuple[TaskScore, ...]
    outputs_solved: int
    outputs_total: int
    tasks_solved: int  # tasks with every output solved
    task_mean: float  # mean over tasks of the share of solved outputs

    @property
    def tasks_total(self) -> int:
        """Number of tasks."""
        return len(self.per_task)

    @property
    def outputs(self) -> float:
        """Solved outputs / all outputs."""
        return self.outputs_solved / self.outputs_total

    @property
    def tasks(self) -> float:
        """Tasks solved entirely / all tasks."""
        return self.tasks_solved / self.tasks_total

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the three scores as fractions, with their counts."""
        return {
            "outputs": {"solved": self.outputs_solved, "total": self.outputs_total, "score": self.outputs},
            "task_mean": {"score": self.task_mean, "tasks": self.tasks_total},
            "tasks": {"solved": self.tasks_solved, "total": self.tasks_total, "score": self.tasks},
        }

    def lines(self) -> list[str]:
        """Return a printable line for each of the three scores."""
        return [
            f"outputs    {self.outputs:7.2%}  {self.outputs_solved} of {self.outputs_total} outputs solved",
            f"task_mean  {self.task_mean:7.2%}  mean share of solved outputs over {self.tasks_total} tasks",
            f"tasks      {self.tasks:7.2%}  {self.tasks_solved} of {self.tasks_total} tasks solved entirely",
        ]


def score_ranked(
    ranked: Mapping[str, Sequence[Sequence[Grid]]], solutions: Mapping[str, Sequence[Grid]], k: int
) -> Scores:
    """Return the scores of handing in the first k grids for each output (pass@k); task -> outputs -> grids.

    Raises ValueError unless tasks and numbers of outputs are the same in both.
    """
    if not solutions or {t: len(o) for t, o in ranked.items()} != {t: len(o) for t, o in solutions.items()}:
        raise ValueError(
            f"answers to {len(ranked)} tasks, expected all outputs of {len(solutions)} tasks with solutions"
        )
    tasks = []
    for task_id, outputs in solutions.items():
        pairs = zip(outputs, ranked[task_id], strict=True)
        solved = sum(any(np.array_equal(output, grid) for grid in grids[:k]) for output, grids in pairs)
        tasks.append(TaskScore(task_id, solved, len(outputs)))
    return Scores(
        tuple(tasks),
        outputs_solved=sum(task.solved for task in tasks),
        outputs_total=sum(task.total for task in tasks),
        tasks_solved=sum(task.solved == task.total for task in tasks),
        task_mean=math.fsum(task.solved / task.total for task in tasks) / len(tasks),
    )
