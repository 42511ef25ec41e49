"""torch.compile of the networks: few graphs; eager, with one line, if that fails or computes other numbers."""

import math
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from arc_trm.config import ModelConfig
from arc_trm.device import compile_networks, compiled_graphs, run_eagerly
from arc_trm.model import RecursiveModel
from arc_trm.presets import override
from arc_trm.trainer import Trainer
from tests.arc_trm.training import TINY, losses, snapshot, tiny_trainer


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


def tiny(**changes: Any) -> RecursiveModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "seq_len": 49, "hidden": 6, "heads": 3, "layers": 1, "latent_steps": 2, "deep_steps": 2}
    return RecursiveModel(ModelConfig(**{**sizes, "prefix": 3, "puzzle_width": 11, **changes}))


def run(
    model: RecursiveModel, tokens: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of one training step, and those of one evaluation step without gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 5, (7, tokens), generator=generator)
    puzzle = torch.randn(7, 11, generator=generator)
    state = tuple(part.contiguous() for part in model.initial_state(7, tokens, dtype))
    trained = model(state, inputs, puzzle.requires_grad_()).logits
    trained.sum().backward()
    with torch.no_grad():
        return trained.detach(), model(state, inputs, puzzle.detach()).logits


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [({}, 2), ({"recursion": "multi_scale_latent"}, 2), ({"answer_layers": 1, "gradient_updates": 2}, 2),
     ({"deep_steps": 5, "latent_steps": 7}, 2), ({"activation_checkpointing": True}, 2)],
    ids=["trm", "multi-scale", "two networks", "deeper", "checkpointing"],
)  # fmt: skip
def test_a_network_has_one_graph_a_canvas_size_with_and_one_without_gradient(
    changes: dict[str, Any], graphs: int
) -> None:
    model = tiny(**changes)
    names = list(model.state_dict())
    wanted = [run(model, tokens, 1) for tokens in (49, 25)]
    compile_networks(model, "eager")
    assert list(model.state_dict()) == names
    for tokens, expected in zip((49, 25), wanted, strict=True):
        for got, one in zip(run(model, tokens, 1), expected, strict=True):
            torch.testing.assert_close(got, one)
    assert compiled_graphs() == 2 * graphs
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (25, 49):
            run(model, tokens, 2)
        with pytest.raises(RuntimeError, match="recompil"):  # the stance does notice a new size
            run(model, 36, 3)
        run_eagerly(model)
        run(model, 36, 3)


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_weights_that_are_cast_are_inputs_of_the_same_graph_at_every_step(mixer: str) -> None:
    model = tiny(mixer=mixer)
    # Weights are cast to float64 as they are to bf16, and rounding hides nothing.
    wanted = run(model, 49, 1, torch.float64)
    gradients = [parameter.grad for parameter in model.net.parameters()]
    model.zero_grad()
    compile_networks(model, "eager")
    found = run(model, 49, 1, torch.float64)
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected)
    for got, parameter in zip(gradients, model.net.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(got, parameter.grad)
    # Copies that were cast without gradient, for answers, are other inputs than those of a training step.
    assert compiled_graphs() == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        run(model, 49, 2, torch.float64)


Backend = Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]


def failing(error: BaseException, after: int = 0) -> Backend:
    """A compiler that fails after so many graphs."""
    made = []

    def backend(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        made.append(module)
        if len(made) > after:
            raise error
        return module.forward

    return backend


def assert_eager(trainer: Trainer) -> None:
    """It goes on from where it stood, without another graph."""
    torch._dynamo.reset()
    graphs = compiled_graphs()
    assert losses(trainer, 3) == losses(tiny_trainer(sides=(3, 5)), 3)
    assert compiled_graphs() == graphs


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("Triton is too new\nfor this GPU"), "RuntimeError: Triton is too new"),
        (FileNotFoundError(2, "No such file or directory", "Python.h"), "'Python.h'"),
        (subprocess.CalledProcessError(1, "gcc"), "CalledProcessError: Command 'gcc' returned non-zero exit status 1"),
    ],
)
def test_if_any_graph_does_not_compile_all_run_eager_and_a_line_says_why(
    error: Exception, said: str, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(sides=(3, 5))
    assert not trainer.compile(failing(error, after))  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("note: running without torch.compile: ")
    assert said in lines[0]
    assert_eager(trainer)


@pytest.mark.parametrize(("factor", "good"), [(1 + 1e-6, True), (1.01, False), (math.nan, False)])
def test_compiled_numbers_that_are_not_the_eager_ones_are_not_used(
    factor: float, good: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def backend(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        return lambda *values: tuple(value * factor for value in module.forward(*values))

    trainer = tiny_trainer(sides=(3, 5))
    before = snapshot(trainer)
    assert trainer.compile(backend) == good  # type: ignore[arg-type]
    [line] = capsys.readouterr().err.splitlines()
    if good:
        assert line.startswith("note: compiled 4 graphs in ")
        return
    assert line.startswith("note: running without torch.compile: loss ")
    assert ", eager " in line
    for name, tensor in snapshot(trainer)[0].items():
        assert torch.equal(tensor, before[0][name])
    assert_eager(trainer)


def test_bf16_may_differ_by_two_percent() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        return lambda *values: tuple(value * 1.004 for value in module.forward(*values))

    for precision, good in (("fp32", False), ("bf16", True)):
        trainer = tiny_trainer(override(TINY, {"train": {"precision": precision}}))
        assert trainer.compile(backend) == good  # type: ignore[arg-type]


def test_a_failure_in_another_process_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(sides=(3, 5))
    said: list[bool] = []

    def agreed(mine: bool) -> bool:
        said.append(mine)
        return True

    monkeypatch.setattr(trainer, "agreed", agreed)
    assert not trainer.compile("eager")
    assert said == [False], "asked once"
    assert capsys.readouterr().err == "note: running without torch.compile: it failed in another process\n"
    assert_eager(trainer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_without_a_compiler_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("/nowhere/g++",))
    with fresh_cache():
        assert not tiny_trainer().compile()
    assert "compiler" in capsys.readouterr().err
