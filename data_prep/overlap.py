"""Pairs that are equal up to symmetry: leaks, and the tasks on which a checkpoint was trained.

A symmetry is one of the 8 dihedral elements together with any permutation of all ten colours. Colour 0 may change too,
although augmentations keep it: this also finds a task whose background was exchanged, and in the public corpora
nothing else. Two pairs are equal up to symmetry if and only if their canonical digests are equal (the least of the 8
transforms, colours renamed in order of appearance).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import COLOURS, dihedral
from data_prep.tasks import Pair, Task

DIGEST_BYTES = 8
# Begins the line of ArcStore.training_digests that describes a source of generated pairs.
GENERATED = "generated"


class PairDigest(NamedTuple):
    """Canonical digests, 16 hexadecimal digits each, of a whole pair and of its input; as text `pair:input`.

    If the output is hidden, `pair` is empty and the input identifies the pair.
    """

    pair: str
    input: str

    def __str__(self) -> str:
        """Return `pair:input`, as training_labels reads it."""
        return ":".join(self)


def training_labels(line: str) -> list[PairDigest]:
    """Parse the digests of a training task's labels from its line in `ArcStore.training_digests`.

    Returns none for a line about generated pairs. Raises TypeError for a malformed line.
    """
    if line.startswith(f"{GENERATED} "):
        return []
    return [PairDigest(*text.split(":")) for text in line.split()[1:]]


# A build asks for the same digests twice, for leaks and for the store.
@lru_cache(maxsize=1 << 14)
def pair_digest(pair: Pair) -> PairDigest:
    """Return the digests of a pair, which no dihedral element and no permutation of the ten colours changes."""
    shapes = [dihedral(pair.input, element).shape for element in range(8)]
    upright = [element for element in range(8) if shapes[element] == min(shapes)]
    whole, question = [], []
    for element in upright:
        grids = [dihedral(pair.input, element)]
        if pair.output is not None:
            grids.append(dihedral(pair.output, element))
        cells = _rename_by_appearance(np.concatenate([grid.reshape(-1) for grid in grids])).tobytes()
        # The input comes first, so renaming by appearance does not depend on the output.
        question.append(cells[: pair.input.size])
        whole.append(bytes(grids[-1].shape) + cells)
    shape = bytes(min(shapes))
    return PairDigest("" if pair.output is None else _short(shape + min(whole)), _short(shape + min(question)))


def _rename_by_appearance(cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    first = np.full(COLOURS, cells.size)
    first[cells[::-1]] = np.arange(cells.size - 1, -1, -1)  # the last assignment wins: the first appearance
    names = np.empty(COLOURS, dtype=np.uint8)
    names[np.argsort(first, kind="stable")] = np.arange(COLOURS, dtype=np.uint8)
    return names[cells]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES].hex()


# Leaks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leak:
    """A training label that gives away a test output to be scored: task and pair index, and the scored task."""

    training: str
    pair: int
    scored: str


def find_leaks(training: Iterable[tuple[str, Sequence[tuple[int, PairDigest]]]], scored: Sequence[Task]) -> list[Leak]:
    """Find training labels, given as (task name, [(pair index, digest), ...]), that equal a scored test pair.

    Equal means up to symmetry. If the test output is hidden, a label with the same input counts if its task also
    contains a demonstration of the scored task (small inputs may be equal by chance). Some tasks show a turned copy of
    their own test pair as a demonstration: labels that hold all demonstrations of the scored task, as its own do, leak
    only if they hold the pair more often than the task shows it.
    """
    tests = _index_tests(scored)
    found = []
    for name, pairs in training:
        held = Counter(part for _, digest in pairs for part in digest)
        for index, digest in pairs:
            hits = [asked.name for part in digest for asked in tests.get(part, ()) if asked.is_given_away(part, held)]
            found += [Leak(name, index, hit) for hit in dict.fromkeys(hits)]
    return found


@dataclass(frozen=True)
class _Asked:
    """A test of a scored task, and how often the task's demonstrations show each pair and each input."""

    name: str
    hidden: bool
    pairs: frozenset[str]
    shown: Counter[str]

    def is_given_away(self, part: str, held: Counter[str]) -> bool:
        """Return whether a training task with labels `held` gives away the test with pair or input `part`."""
        confirmed = not self.hidden or not self.pairs.isdisjoint(held)
        return confirmed and held[part] > (self.shown[part] if self.shown <= held else 0)


def _index_tests(scored: Sequence[Task]) -> dict[str, list[_Asked]]:
    """Index the tests of scored tasks by the digest of the pair, or of the input if the output is hidden."""
    tests: dict[str, list[_Asked]] = defaultdict(list)
    for task in scored:
        shown = [pair_digest(pair) for pair in task.demonstrations]
        pairs, parts = frozenset(digest.pair for digest in shown), Counter(part for digest in shown for part in digest)
        for digest in map(pair_digest, task.tests):
            hidden = not digest.pair
            tests[digest.input if hidden else digest.pair].append(_Asked(task.name, hidden, pairs, parts))
    return tests


@dataclass(frozen=True)
class Overlap:
    """Names of the scored tasks of which a checkpoint has seen test outputs, or all demonstrations."""

    tests: tuple[str, ...]
    demonstrations: tuple[str, ...]


def trained_on(scored: Sequence[Task], training: Sequence[str]) -> Overlap:
    """Find the scored tasks, perhaps with hidden outputs, on which a checkpoint was trained, up to symmetry.

    `training` holds a line for each training task, as `ArcStore.training_digests` writes them and exports keep them.
    The result's `tests` are contaminated: a training label equals one of their test pairs (see `find_leaks`). Of its
    `demonstrations` all shown pairs were labels of one training task, which is fair, and usual for a recipe that
    trains on the demonstrations of the tasks that it scores. Raises TypeError for a malformed line.
    """
    labels = [training_labels(line) for line in training]
    leaks = find_leaks(((line, list(enumerate(pairs))) for line, pairs in zip(training, labels, strict=True)), scored)
    leaked = {leak.scored for leak in leaks}
    known = [{digest.pair for digest in pairs} for pairs in labels]
    wanted = {task.name: {pair_digest(pair).pair for pair in task.demonstrations} for task in scored}
    shown = tuple(name for name, digests in wanted.items() if any(digests <= labels_of for labels_of in known))
    return Overlap(tuple(task.name for task in scored if task.name in leaked), shown)
