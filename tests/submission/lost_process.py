"""Solving, in which process 1 vanishes: torchrun --nproc_per_node 2 tests/submission/lost_process.py WHERE ...

WHERE: `adapting`, or `voting`, when votes that stay are there, with the state saved after every unit of work; or
`signalled`: it does not vanish but gets SIGTERM while adapting, and nothing was saved before.
"""

import os
import signal
import sys

from arc_trm.trainer import Supervised, Trainer
from submission import solve, solver
from submission.budget import Unit

train_step, vote_last = Trainer.train_step, solver.Solver.vote_last
where = sys.argv.pop(1)


def vanish(now: bool) -> None:
    """As if the machine had taken the process away."""
    if now and os.environ["RANK"] == "1":
        os._exit(9)


def vanishing_step(trainer: Trainer) -> list[Supervised]:
    vanish(where == "adapting" and trainer.step == 3)
    if where == "signalled" and trainer.step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return train_step(trainer)


def vanishing_vote(running: solver.Solver, unit: Unit) -> None:
    vanish(where == "voting" and unit.start == 2)
    vote_last(running, unit)


if __name__ == "__main__":
    if where != "signalled":
        solver.SAVE_EVERY = 0.0
    Trainer.train_step = vanishing_step  # type: ignore[method-assign]
    solver.Solver.vote_last = vanishing_vote  # type: ignore[method-assign]
    sys.exit(solve.main(None))
