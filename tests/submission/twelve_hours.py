"""Solving by a clock that nothing but its work moves, with trouble: python -m tests.submission.twelve_hours CLOCK ...

CLOCK is a file with the seconds that have passed; the words after it are those of submission.solve. A run that does not
resume finds the disk full when it saves its third state and when it writes its second pass of votes, and its process 1
is killed in the middle of a later pass, half of the votes cast.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from arc_trm.batches import Batch
from arc_trm.predict import Answers, Predictor
from arc_trm.trainer import Supervised, Trainer
from submission import solve, solver
from submission.budget import RunClock, Unit
from tests import kills

STEP_SECONDS = 400.0
TOKEN_SECONDS = 0.01
FULL_AT_STATE, FULL_AT_VOTE, KILLED_AT_VOTE = 3, 1, 4


class Clock:
    """Seconds of a machine on which steps and answers take hours; the main process keeps them for those after it."""

    def __init__(self, path: Path) -> None:
        self._kept = np.memmap(path, np.float64, "r+" if path.exists() else "w+", shape=(1,))
        self._time = float(self._kept[0])

    def __call__(self) -> float:
        return self._time

    def move(self, seconds: float) -> None:
        self._time += seconds
        if os.environ["RANK"] == "0":
            self._kept[0] = self._time


def let_work_move(clock: Clock) -> None:
    """A step takes as long as any other, an answer as long as its canvas is large."""
    train_step, answer = Trainer.train_step, Predictor.answer

    def stepping(trainer: Trainer) -> list[Supervised]:
        results = train_step(trainer)
        clock.move(STEP_SECONDS)
        return results

    def answering(predictor: Predictor, batch: Batch) -> Answers:
        clock.move(TOKEN_SECONDS * batch.inputs.numel())
        return answer(predictor, batch)

    Trainer.train_step, Predictor.answer = stepping, answering  # type: ignore[method-assign]
    solve.RunClock = lambda: RunClock(started=clock(), now=clock)  # type: ignore[assignment, misc]


def make_trouble() -> None:
    """A disk that is full twice, and a process that vanishes."""
    save, vote_last = solver.Solver.save, solver.Solver.vote_last
    states = 0

    def saving(running: solver.Solver, unit: Unit) -> None:
        nonlocal states
        states += 1
        with ExitStack() as trouble:
            if states == FULL_AT_STATE:
                trouble.enter_context(kills.full_disk())
            save(running, unit)

    def voting(running: solver.Solver, unit: Unit) -> None:
        with ExitStack() as trouble:
            if unit.start == FULL_AT_VOTE:
                trouble.enter_context(kills.full_disk())
            if unit.start == KILLED_AT_VOTE and os.environ["RANK"] == "1":
                dying = kills.events([(Predictor, "answer")], after=lambda number: kills.die() if number == 3 else None)
                trouble.enter_context(dying)
            vote_last(running, unit)

    solver.Solver.save, solver.Solver.vote_last = saving, voting  # type: ignore[method-assign]


if __name__ == "__main__":
    let_work_move(Clock(Path(sys.argv.pop(1))))
    if "--resume" not in sys.argv:
        make_trouble()
    sys.exit(solve.main())
