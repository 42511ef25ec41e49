"""Candidate grids and the orders in which they may be handed in.

`count` is the baseline and the default; `python -m submission.compare` measures the others against it.

A grid travels as its key: one byte height, one byte width, then its cells row major. The digest that breaks
the last ties is the SHA-256 of the key, which makes it the published grid hash.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_prep.files import InputError, sha256_hex
from data_prep.grid import Grid
from submission.priors import Question

# Halting probabilities are summed as integers of this many units: integer sums do not depend on the order
# of feeding, and 64 bits hold eight million votes for one grid.
HALT_UNITS = 1 << 40
# The log-probability of a grid that was not measured: finite, because differences are taken.
UNMEASURED = -1e300


def grid_key(grid: Grid) -> bytes:
    """One byte height, one byte width, the cells row major; equal for equal grids only."""
    return bytes(grid.shape) + np.ascontiguousarray(grid, dtype=np.uint8).tobytes()


def key_grid(key: bytes) -> Grid:
    """The grid of a key (read-only, shares the key's memory)."""
    return np.frombuffer(key, dtype=np.uint8, offset=2).reshape(key[0], key[1])


@dataclass(frozen=True)
class Candidate:
    """A distinct grid predicted for one output, with what speaks for it; compared without its cells."""

    grid: Grid = field(compare=False, repr=False)
    votes: int
    mean_halt: float
    digest: str
    puzzles: tuple[int, ...] = ()  # the augmented views that agreed on it, ascending; empty when not recorded


@dataclass(frozen=True, eq=False)
class Ballot:
    """All candidates of one output as columns of length k, in no particular order."""

    keys: tuple[bytes, ...]
    votes: NDArray[np.int64]
    halting: NDArray[np.int64]
    puzzles: tuple[tuple[int, ...], ...]
    # Log-probability of each grid, UNMEASURED where `submission.likelihood` has not looked at it.
    likelihood: NDArray[np.float64] | None = None
    question: Question | None = None  # what is asked, for those rankings that want to know

    @property
    def log_votes(self) -> NDArray[np.float64]:
        """float64[k]."""
        return np.log(self.votes)

    @property
    def log_prior(self) -> NDArray[np.float64]:
        """float64[k]: what speaks against each grid's size and colours; 0 where the question is not known."""
        return np.zeros(len(self.keys)) if self.question is None else self.question.log_prior(self.keys)

    @property
    def log_likelihood(self) -> NDArray[np.float64]:
        """float64[k]."""
        return np.full(len(self.keys), UNMEASURED) if self.likelihood is None else self.likelihood

    @property
    def mean_halt(self) -> NDArray[np.float64]:
        """float64[k]: mean halting probability of the predictions that voted for each grid."""
        return self.halting / (self.votes.astype(np.float64) * HALT_UNITS)

    def candidate(self, i: int, digest: str) -> Candidate:
        """Row i as a value."""
        mean_halt = int(self.halting[i]) / (int(self.votes[i]) * HALT_UNITS)
        puzzles = tuple(sorted(set(self.puzzles[i])))
        return Candidate(key_grid(self.keys[i]), int(self.votes[i]), mean_halt, digest, puzzles)


# A ranking gives its columns, most important first, higher is better; what ties in all is ordered by digest.
Ranking: TypeAlias = Callable[[Ballot], Sequence[NDArray[Any]]]

RANKINGS: dict[str, Ranking] = {
    "count": lambda ballot: (ballot.votes, ballot.mean_halt),
    "halting": lambda ballot: (ballot.mean_halt, ballot.votes),
    "priors": lambda ballot: (ballot.log_votes + ballot.log_prior, ballot.mean_halt),
    "likelihood": lambda ballot: (ballot.log_likelihood, ballot.votes, ballot.mean_halt),
    "all": lambda ballot: (
        ballot.log_votes + ballot.log_prior + ballot.log_likelihood,
        ballot.votes,
        ballot.mean_halt,
    ),
}
# These want a scoring pass of the model over the candidates; without one they are the count.
WANT_LIKELIHOOD = frozenset({"likelihood", "all"})


def find_ranking(name: str) -> Ranking:
    """The ranking of that name; raises InputError with the valid names."""
    if name not in RANKINGS:
        raise InputError(f"unknown ranking {name!r}, expected one of: {', '.join(RANKINGS)}")
    return RANKINGS[name]


def rank(ballot: Ballot, ranking: Ranking | str = "count", limit: int | None = None) -> tuple[Candidate, ...]:
    """The best `limit` candidates (all by default), best first; the same whatever the order of feeding."""
    if not ballot.keys or limit == 0:
        return ()
    chosen = find_ranking(ranking) if isinstance(ranking, str) else ranking
    columns = chosen(ballot)
    order = np.lexsort([-column for column in reversed(columns)])
    differs = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    places = np.concatenate([[0], np.cumsum(differs)])  # equal where candidates tie
    # Digests are dear, so only those that can still come to stand among the first are taken.
    last = len(places) if limit is None else np.searchsorted(places, places[:limit][-1], side="right")
    rows = zip(places[:last].tolist(), order[:last].tolist(), strict=True)
    decided = sorted((place, sha256_hex(ballot.keys[i]), i) for place, i in rows)
    return tuple(ballot.candidate(i, digest) for _, digest, i in decided[:limit])
