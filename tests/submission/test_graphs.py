"""A compiled solving run: few graphs, all of them made when it compiles, none later."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from arc_trm.checkpoint import read_export
from arc_trm.device import compiled, make_accelerator
from submission import adapt
from submission.plan import Kind, TimePlan, Unit
from submission.session import Session
from submission.settings import Settings
from submission.submission_file import SubmissionFile
from tests.submission.tiny import make_export, tiny_task

MOST = 10  # of a whole run


def test_a_run_on_two_canvas_sizes_makes_few_graphs_and_none_after_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1000.0

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def run(*values: torch.Tensor) -> Any:
            nonlocal seconds
            seconds -= 1  # what is compiled is faster
            return module.forward(*values)

        return run

    monkeypatch.setattr(adapt, "compiled", partial(compiled, backend=backend))
    monkeypatch.setattr("submission.session.compile_failure", lambda device: None)
    torch._dynamo.reset()
    rng = np.random.default_rng(0)
    file = SubmissionFile([tiny_task("a", rng), tiny_task("b", rng, side=12)], tmp_path / "submission.json")
    file.open()
    settings = Settings(augmentations=5, batch_size=8, predict_batch=2, precision="fp32", compile=True)
    export = read_export(make_export(tmp_path / "export"))
    session = Session(
        export, settings, TimePlan(600, seconds, lambda: seconds), file, make_accelerator("none", tmp_path)
    )
    with torch.compiler.set_stance("force_eager"):
        session.prepare()
        counters.clear()
        session.compile(Unit(Kind.COMPILE, 300.0))
        made = counters["stats"]["unique_graphs"]
        assert len(session.trainer.work) == 2
        assert 2 * 2 <= made <= MOST  # of both sizes, a training step and an answer at least
        for _ in range(3):
            session.trainer.train_step()
        before = seconds
        session.voter.vote(session.trainer.predictor(), session.rows, file.tally, lambda rows: None)
        assert seconds < before, "answers are compiled ones"
        assert counters["stats"]["unique_graphs"] == made
