"""Two attempts at every asked output: the consensus and the best other candidate, or guesses if these are missing."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from arc_trm.vote import Tally, outputs_of
from data_prep.canvas import Shape, implied_shapes
from data_prep.grid import COLOURS, MAX_SIDE, Grid
from data_prep.tasks import Pair, Task


class Attempts(NamedTuple):
    """The two grids handed in for one output."""

    attempt_1: Grid
    attempt_2: Grid


# For every task, in order, the attempts at its outputs, in order.
Submission: TypeAlias = dict[str, tuple[Attempts, ...]]


@dataclass(frozen=True, eq=False)
class Draft:
    """A complete submission, and the part of it that the model predicted."""

    submission: Submission
    # For every output the number of its attempts (0-2, the first ones) that are no fallbacks.
    predicted_attempts: dict[str, tuple[int, ...]]

    @property
    def fallback_attempts(self) -> int:
        """The number of attempts without a prediction."""
        return 2 * self.outputs - sum(map(sum, self.predicted_attempts.values()))

    @property
    def outputs_without_candidates(self) -> int:
        """The number of outputs whose attempts are both fallbacks."""
        return sum(counts.count(0) for counts in self.predicted_attempts.values())

    @property
    def outputs(self) -> int:
        """The number of outputs that it answers."""
        return sum(map(len, self.submission.values()))

    @property
    def summary(self) -> str:
        """`120 tasks, 172 outputs, 0 fallback attempts`."""
        return f"{len(self.submission)} tasks, {self.outputs} outputs, {self.fallback_attempts} fallback attempts"


def draft_submission(tasks: Sequence[Task], tally: Tally) -> Draft:
    """Return two different attempts at every output of every task, in order; fallbacks fill up what was not predicted.

    Raises ValueError if the outputs of the tally are not those of the tasks, or if two tasks have the same id.
    """
    if tally.outputs != outputs_of(tasks):
        raise ValueError(f"a tally of {len(tally.outputs)} outputs, expected {len(outputs_of(tasks))} of these tasks")
    by_id = {task.task_id: task for task in tasks}
    if len(by_id) != len(tasks):
        raise ValueError(f"{len(tasks)} tasks with {len(by_id)} different ids, expected unique ids in a submission")
    submission: Submission = dict.fromkeys(by_id, ())
    predicted: dict[str, tuple[int, ...]] = dict.fromkeys(by_id, ())
    for number, (task_id, test) in enumerate(tally.outputs):
        chosen = tally.attempts(number)
        predicted[task_id] += (len(chosen),)
        fallbacks = fallback_grids(by_id[task_id], test)
        while len(chosen) < 2:
            grid = next(fallbacks)
            if not any(np.array_equal(grid, other) for other in chosen):
                chosen.append(grid)
        submission[task_id] += (Attempts(*chosen),)
    return Draft(submission, predicted)


def predictions(submission: Submission, predicted_attempts: Mapping[str, Sequence[int]]) -> dict[str, list[list[Grid]]]:
    """Return the attempts without fallbacks, for `score_ranked`: a task that a fallback solves is not the model's."""
    return {
        task_id: [list(attempts)[:n] for attempts, n in zip(outputs, predicted_attempts[task_id], strict=True)]
        for task_id, outputs in submission.items()
    }


# Fallbacks --------------------------------------------------------------------------------------------------


def fallback_grids(task: Task, test: int) -> Iterator[Grid]:
    """Yield guesses at the output of test input number `test`, best first, at least two of them distinct.

    First the input, if the output is likely to have its size; then grids of one colour, the most common in the
    demonstrated outputs first.
    """
    question = task.tests[test].input
    shape = likely_shape(task, question)
    outputs = [pair.output for pair in task.demonstrations if pair.output is not None]
    if shape == question.shape:
        yield question
    counts = sum((np.bincount(output.ravel(), minlength=COLOURS) for output in outputs), np.zeros(COLOURS, np.int64))
    for colour in np.argsort(-counts, kind="stable"):
        yield np.full(shape, colour, dtype=np.uint8)


def likely_shape(task: Task, question: Grid) -> Shape:
    """Return the output size that the demonstrations imply for `question`.

    The size of the input if they allow it; else the size that most of the rules that hold imply; else the most common
    size of a demonstrated output.
    """
    asked = implied_shapes(replace(task, tests=(Pair(question, None),)))
    possible = [shape for shape in asked if all(1 <= side <= MAX_SIDE for side in shape)]
    if not possible:
        possible = [pair.output.shape for pair in task.demonstrations if pair.output is not None]
    own = (question.shape[0], question.shape[1])
    return own if own in possible or not possible else Counter(possible).most_common(1)[0][0]
