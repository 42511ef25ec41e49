"""What the demonstrations make likely about an output before any model speaks: its size and its colours.

Soft: a grid that goes against them loses as many nats as such grids are rare among right answers, no more. The rates
were counted on ARC-AGI-2 training (1,076 test outputs) and hold on ARC-AGI-1 and ARC-AGI-2 evaluation too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_prep.canvas import Shape, implied_shapes
from data_prep.grid import COLOURS
from data_prep.tasks import Pair, Task

# 5 of the 926 outputs for which the demonstrations imply a size have another one.
OTHER_SIZE = math.log(5 / 926)
# None of 1,076 has a colour that neither a demonstration's output nor its own input shows; as if half a one had.
OTHER_COLOUR = math.log(0.5 / 1076)


@dataclass(frozen=True, eq=False)
class Question:
    """One asked output as a solver sees it: test input number `test` of a task."""

    task: Task
    test: int

    @cached_property
    def shapes(self) -> frozenset[Shape]:
        """The sizes that the demonstrations imply for this output; empty where they imply none."""
        asked = Pair(self.task.tests[self.test].input, None)
        return frozenset(implied_shapes(replace(self.task, tests=(asked,))))

    @cached_property
    def palette(self) -> NDArray[np.bool_]:
        """bool[10]: the colours of the demonstrations' outputs and of the own input."""
        shown = [pair.output for pair in self.task.demonstrations if pair.output is not None]
        seen = np.zeros(COLOURS, dtype=bool)
        for grid in (*shown, self.task.tests[self.test].input):
            seen[grid] = True
        return seen

    def log_prior(self, keys: Sequence[bytes]) -> NDArray[np.float64]:
        """float64[k], at most 0: what each grid (see `ranking.grid_key`) loses by its size and its colours."""
        prior = np.zeros(len(keys))
        for i, key in enumerate(keys):
            if self.shapes and (key[0], key[1]) not in self.shapes:
                prior[i] += OTHER_SIZE
            if not self.palette[np.frombuffer(key, np.uint8, offset=2)].all():
                prior[i] += OTHER_COLOUR
        return prior


def questions_of(tasks: Sequence[Task]) -> tuple[Question, ...]:
    """Every asked output of the tasks, in their order."""
    return tuple(Question(task, test) for task in tasks for test in range(len(task.tests)))
