"""What a compiled solving run compiles: python -m tests.several_processes 2 tests.submission.compiled_run FOLDER"""

import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import counters

from arc_trm.checkpoint import read_export
from arc_trm.device import make_accelerator
from arc_trm.trainer import Trainer
from submission import solver
from submission.budget import Kind, RunClock, Unit
from submission.settings import Settings
from submission.submission_file import SubmissionFile
from tests.submission.tiny import make_export, tiny_task

MOST = 10  # graphs of a whole run


def count_graphs(folder: Path) -> int:
    """A run on two canvas sizes makes few graphs, all of them when it compiles; of how many processes it was one."""
    answered = 0

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def run(*values: torch.Tensor) -> Any:
            nonlocal answered
            answered += not torch.is_grad_enabled()
            return module.forward(*values)

        return run

    Trainer.compile = partialmethod(Trainer.compile, backend)  # type: ignore[assignment, method-assign]
    rng = np.random.default_rng(0)
    accelerator = make_accelerator("none", folder)
    tasks = [tiny_task("a", rng), tiny_task("b", rng, side=12)]
    file = SubmissionFile(tasks, folder / "submission.json", writes=accelerator.is_main_process)
    file.open()
    settings = Settings(augmentations=5, batch_size=8, predict_batch=4, precision="fp32", compile=True)
    export = read_export(make_export(folder / f"export{accelerator.process_index}"))
    running = solver.Solver(export, settings, RunClock(600), file, accelerator)
    with torch.compiler.set_stance("default"):
        running.prepare()
        counters.clear()
        running.compile(Unit(Kind.COMPILE, 300.0))
        made = counters["stats"]["unique_graphs"]
        assert len(running.trainer.work) == 2
        assert 2 * 2 <= made <= MOST, made  # of both sizes, a training step and an answer at least
        for _ in range(3):
            running.trainer.train_step()
        answered = 0
        running.voter.vote(running.trainer.predictor(), running.rows, file.tally, lambda rows: None)
        assert answered > 0, "answers are compiled ones"
        assert counters["stats"]["unique_graphs"] == made
    accelerator.end_training()
    return accelerator.num_processes


if __name__ == "__main__":
    torch.set_num_threads(1)
    processes = count_graphs(Path(sys.argv[1]))
    print(f"one of {processes} is fine", flush=True)
