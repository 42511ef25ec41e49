"""Solving, in which process 1 vanishes while it adapts: torchrun --nproc_per_node 2 tests/submission/lost_process.py"""

import os
import sys

from arc_trm.trainer import Trainer
from submission import solve

train_step = Trainer.train_step


def vanishing(trainer: Trainer) -> None:
    """As if the machine had taken the process away."""
    if trainer.step == 3 and os.environ["RANK"] == "1":
        os._exit(9)
    train_step(trainer)


if __name__ == "__main__":
    Trainer.train_step = vanishing  # type: ignore[method-assign]
    sys.exit(solve.main(None))
