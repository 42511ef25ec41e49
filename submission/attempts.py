"""Two attempts at every asked output: the consensus and the best other candidate, guesses where these are missing."""

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
    """A complete submission, and how much of it the model predicted."""

    submission: Submission
    # For every output the number of its attempts (0-2, the first ones) that are predicted, not fallbacks.
    predicted_attempts: dict[str, tuple[int, ...]]

    @property
    def fallback_attempts(self) -> int:
        """Attempts that no prediction could fill."""
        return 2 * self.outputs - sum(map(sum, self.predicted_attempts.values()))

    @property
    def outputs_without_candidates(self) -> int:
        """Outputs whose attempts are both fallbacks."""
        return sum(counts.count(0) for counts in self.predicted_attempts.values())

    @property
    def outputs(self) -> int:
        """How many outputs it answers."""
        return sum(map(len, self.submission.values()))

    @property
    def summary(self) -> str:
        """`120 tasks, 172 outputs, 0 fallback attempts`."""
        return f"{len(self.submission)} tasks, {self.outputs} outputs, {self.fallback_attempts} fallback attempts"


def draft_submission(tasks: Sequence[Task], tally: Tally) -> Draft:
    """Two different attempts at every output of every task, in order; fallbacks where the tally has too few grids.

    The tally must be one over `outputs_of(tasks)`, else ValueError.
    """
    if tally.outputs != outputs_of(tasks):
        raise ValueError(f"a tally of {len(tally.outputs)} outputs, expected {len(outputs_of(tasks))} of these tasks")
    by_id = {task.task_id: task for task in tasks}
    if len(by_id) != len(tasks):
        raise ValueError(f"{len(tasks)} tasks with {len(by_id)} different ids, expected unique ids in a submission")
    submission: dict[str, list[Attempts]] = {task_id: [] for task_id in by_id}
    predicted: dict[str, list[int]] = {task_id: [] for task_id in by_id}
    for number, (task_id, test) in enumerate(tally.outputs):
        chosen = tally.attempts(number)
        predicted[task_id].append(len(chosen))
        fallbacks = fallback_grids(by_id[task_id], test)  # drawn only as far as they are needed
        while len(chosen) < 2:
            grid = next(fallbacks)
            if not any(np.array_equal(grid, other) for other in chosen):
                chosen.append(grid)
        submission[task_id].append(Attempts(*chosen))
    return Draft(
        {task_id: tuple(outputs) for task_id, outputs in submission.items()},
        {task_id: tuple(counts) for task_id, counts in predicted.items()},
    )


def predictions(submission: Submission, predicted_attempts: Mapping[str, Sequence[int]]) -> dict[str, list[list[Grid]]]:
    """The attempts without fallbacks, for `score_ranked`: fallbacks solve a few tasks, the model did not."""
    return {
        task_id: [list(attempts)[:n] for attempts, n in zip(outputs, predicted_attempts[task_id], strict=True)]
        for task_id, outputs in submission.items()
    }


# Fallbacks --------------------------------------------------------------------------------------------------


def fallback_grids(task: Task, test: int) -> Iterator[Grid]:
    """Guesses at the output of test input number `test`, best first; at least two distinct ones.

    The input where outputs have its size, then one colour alone, those of the outputs first: handed in where the model
    predicted nothing, as in the first minute.
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
    """The output size that the demonstrations imply for `question`.

    Same as the input if they allow it, else what most of the size rules that hold say, else the most common
    size of a demonstration's output.
    """
    asked = implied_shapes(replace(task, tests=(Pair(question, None),)))
    possible = [shape for shape in asked if all(1 <= side <= MAX_SIDE for side in shape)]
    if not possible:
        possible = [pair.output.shape for pair in task.demonstrations if pair.output is not None]
    own = (question.shape[0], question.shape[1])
    return own if own in possible or not possible else Counter(possible).most_common(1)[0][0]
