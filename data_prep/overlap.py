"""Which pairs are the same up to symmetry, and what follows: leaks, tasks a checkpoint was trained on.

Symmetry is one of the 8 dihedral elements together with any permutation of all ten colours. Colour 0 may
move too, although augmentations keep it: the wider net catches a task whose background was swapped, and in
the public corpora it catches nothing else. Two pairs are the same up to symmetry exactly when their
canonical digests are equal (the least of the 8 transforms, colours renamed in order of appearance).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from data_prep.grid import COLOURS, dihedral
from data_prep.tasks import Pair, Task

DIGEST_BYTES = 8


@dataclass(frozen=True)
class PairDigest:
    """Canonical digests, 16 hexadecimal digits each, of a whole pair and of its input alone.

    A hidden output leaves `pair` empty; the input still tells which pair it is. As text: `pair:input`.
    """

    pair: str
    input: str

    def __str__(self) -> str:
        """`pair:input`, which `parse` reads."""
        return f"{self.pair}:{self.input}"

    @classmethod
    def parse(cls, text: str) -> "PairDigest":
        """The digests that a text `pair:input` holds; raises ValueError when it is malformed."""
        pair, question = text.split(":")
        return cls(pair, question)


# A build asks for the same digests as leak guard and store.
@lru_cache(maxsize=1 << 14)
def pair_digest(pair: Pair) -> PairDigest:
    """The digests of a pair that no dihedral element and no permutation of the ten colours changes."""
    shapes = [dihedral(pair.input, element).shape for element in range(8)]
    upright = [element for element in range(8) if shapes[element] == min(shapes)]
    whole, question = [], []
    for element in upright:
        grids = [dihedral(pair.input, element)]
        if pair.output is not None:
            grids.append(dihedral(pair.output, element))
        cells = _rename_by_appearance(np.concatenate([grid.reshape(-1) for grid in grids])).tobytes()
        # Renaming by appearance treats the input, which comes first, as if it stood alone.
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
    """The training labels, given as (task name, [(pair index, digest), ...]), that equal a scored test pair.

    Equal means up to symmetry. Where the test output is hidden, a label with the same input counts if its task
    also contains a demonstration of the scored task (small inputs alone are alike by chance). Some tasks show
    a turned copy of their own test pair as a demonstration: labels that hold all demonstrations of the scored
    task, as its own do, leak only when they hold the pair more often than the task shows it.
    """
    answers, questions = _index_tests(scored)
    found = []
    for name, pairs in training:
        labels = Counter(digest.pair for _, digest in pairs)
        inputs = Counter(digest.input for _, digest in pairs)
        for index, digest in pairs:
            hits = [
                asked.name
                for asked in answers.get(digest.pair, ())
                if labels[digest.pair] > (asked.shown[digest.pair] if asked.shown <= labels else 0)
            ]
            hits += [
                asked.name
                for asked in questions.get(digest.input, ())
                if asked.shown & labels
                and inputs[digest.input] > (asked.inputs[digest.input] if asked.shown <= labels else 0)
            ]
            found += [Leak(name, index, hit) for hit in dict.fromkeys(hits)]
    return found


@dataclass(frozen=True)
class _Asked:
    """A scored task by name, and how often its demonstrations show each pair and each input."""

    name: str
    shown: Counter[str]
    inputs: Counter[str]


def _index_tests(scored: Sequence[Task]) -> tuple[dict[str, list[_Asked]], dict[str, list[_Asked]]]:
    """Scored tasks by the digest of each known test pair, and by that of each input with a hidden output."""
    answers: dict[str, list[_Asked]] = defaultdict(list)
    questions: dict[str, list[_Asked]] = defaultdict(list)
    for task in scored:
        shown = [pair_digest(pair) for pair in task.demonstrations]
        asked = _Asked(task.name, Counter(d.pair for d in shown), Counter(d.input for d in shown))
        for test in task.tests:
            digest = pair_digest(test)
            if test.output is None:
                questions[digest.input].append(asked)
            else:
                answers[digest.pair].append(asked)
    return answers, questions


@dataclass(frozen=True)
class Overlap:
    """Scored tasks, by name, of which a checkpoint has seen test outputs, and those seen as demonstrations."""

    tests: tuple[str, ...]
    demonstrations: tuple[str, ...]


def trained_on(scored: Sequence[Task], training: Sequence[str]) -> Overlap:
    """Which scored tasks, perhaps with hidden outputs, a checkpoint was trained on, up to symmetry.

    `training` holds one line a training task, as `ArcStore.training_digests` writes them and exports keep them.
    `tests` are contaminated: a training label equals one of their test pairs (see `find_leaks`). Of
    `demonstrations` all shown pairs were labels of one training task, which is fair, and usual for a recipe
    that trains on the demonstrations of what it scores. Raises ValueError for a malformed line.
    """
    labels = [[PairDigest.parse(text) for text in line.split()[1:]] for line in training]
    leaks = find_leaks(((line, list(enumerate(pairs))) for line, pairs in zip(training, labels, strict=True)), scored)
    leaked = {leak.scored for leak in leaks}
    known = [{digest.pair for digest in pairs} for pairs in labels]
    wanted = {task.name: {pair_digest(pair).pair for pair in task.demonstrations} for task in scored}
    shown = tuple(name for name, digests in wanted.items() if any(digests <= labels_of for labels_of in known))
    return Overlap(tuple(task.name for task in scored if task.name in leaked), shown)
