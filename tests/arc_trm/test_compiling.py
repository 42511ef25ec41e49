"""torch.compile: whole graphs, one for every canvas size, none later; eager with one line where it cannot be."""

import pytest
import torch
from torch._dynamo.utils import counters

from arc_trm import compiling
from arc_trm.compiling import compile_or_explain
from arc_trm.config import ModelConfig
from arc_trm.model import RecursiveModel

CPU = torch.device("cpu")


def tiny(**changes) -> RecursiveModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "seq_len": 49, "hidden": 6, "heads": 3, "latent_steps": 2, "deep_steps": 2}
    return RecursiveModel(ModelConfig(**sizes, prefix=3, puzzle_width=11, **changes))


def run(forward, model: RecursiveModel, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of one training step, and those of one evaluation step without gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 5, (7, tokens), generator=generator)
    puzzle = torch.randn(7, 11, generator=generator)
    state = tuple(part.contiguous() for part in model.initial_state(7, tokens, torch.float32))
    trained = forward(state, inputs, puzzle.requires_grad_()).logits
    trained.sum().backward()
    with torch.no_grad():
        return trained.detach(), forward(state, inputs, puzzle.detach()).logits


@pytest.mark.parametrize(
    "changes",
    [{}, {"recursion": "multi_scale_latent"}, {"answer_layers": 2, "graded_updates": 2}],
    ids=["trm", "multi-scale", "1-step gradient"],
)
def test_every_canvas_size_has_one_graph_with_and_one_without_gradient_and_no_more(changes):
    torch._dynamo.reset()
    counters.clear()
    model = tiny(**changes)
    compiled = compile_or_explain(model, CPU, backend="eager")
    for tokens in (49, 25):
        for got, wanted in zip(run(compiled, model, tokens, 1), run(model, model, tokens, 1), strict=True):
            torch.testing.assert_close(got, wanted)
    assert counters["stats"]["unique_graphs"] == 4
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (25, 49):
            run(compiled, model, tokens, 2)
        with pytest.raises(RuntimeError, match="recompil"):  # the stance does notice a new size
            run(compiled, model, 36, 3)


def test_without_a_toolchain_it_runs_eagerly_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    model = tiny()
    assert compile_or_explain(model, CPU) is model
    assert capsys.readouterr().err == "note: running without torch.compile: there is no C++ compiler\n"
