"""torch.compile: whole graphs, one for every canvas size, none later; eager with one line where it cannot be."""

import signal
import subprocess
import threading
import time

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from arc_trm.config import ModelConfig
from arc_trm.device import compile_failure, compile_or_explain, compile_within
from arc_trm.model import RecursiveModel
from tests.conftest import Clock

CPU = torch.device("cpu")


def tiny(**changes) -> RecursiveModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "seq_len": 49, "hidden": 6, "heads": 3, "layers": 1, "latent_steps": 2, "deep_steps": 2}
    return RecursiveModel(ModelConfig(**sizes, prefix=3, puzzle_width=11, **changes))


def run(
    forward, model: RecursiveModel, tokens: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of one training step, and those of one evaluation step without gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 5, (7, tokens), generator=generator)
    puzzle = torch.randn(7, 11, generator=generator)
    state = tuple(part.contiguous() for part in model.initial_state(7, tokens, dtype))
    trained = forward(state, inputs, puzzle.requires_grad_()).logits
    trained.sum().backward()
    with torch.no_grad():
        return trained.detach(), forward(state, inputs, puzzle.detach()).logits


@pytest.mark.parametrize(
    "changes",
    [{}, {"recursion": "multi_scale_latent"}, {"answer_layers": 1, "gradient_updates": 2}],
    ids=["trm", "multi-scale", "1-step gradient"],
)
def test_every_canvas_size_has_one_graph_with_and_one_without_gradient_and_no_more(changes):
    torch._dynamo.reset()
    model = tiny(**changes)
    compiled = compile_or_explain(model, CPU, backend="eager")
    counters.clear()  # of the tiny function that was tried first
    for tokens in (49, 25):
        for got, wanted in zip(run(compiled, model, tokens, 1), run(model, model, tokens, 1), strict=True):
            torch.testing.assert_close(got, wanted)
    assert counters["stats"]["unique_graphs"] == 4
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (25, 49):
            run(compiled, model, tokens, 2)
        with pytest.raises(RuntimeError, match="recompil"):  # the stance does notice a new size
            run(compiled, model, 36, 3)


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_weights_that_are_cast_stay_within_the_graph(mixer):
    torch._dynamo.reset()
    model = tiny(mixer=mixer)
    compiled = compile_or_explain(model, CPU, backend="eager")
    counters.clear()  # of the tiny function that was tried first
    # Weights are cast to float64 as they are to bf16, and rounding hides nothing.
    found = run(compiled, model, 49, 1, torch.float64)
    gradients = [parameter.grad for parameter in model.net.parameters()]
    model.zero_grad()
    wanted = run(model, model, 49, 1, torch.float64)
    assert counters["stats"]["unique_graphs"] == 2
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected)
    for got, parameter in zip(gradients, model.net.parameters(), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, parameter.grad)


def failing(error: BaseException):
    """A compiler that fails."""

    def backend(module, inputs):
        raise error

    return backend


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("Triton is too new\nfor this GPU"), "RuntimeError: Triton is too new"),
        (FileNotFoundError(2, "No such file or directory", "Python.h"), "'Python.h'"),
        (subprocess.CalledProcessError(1, "gcc"), "CalledProcessError: Command 'gcc' returned non-zero exit status 1"),
    ],
)
def test_where_a_tiny_function_does_not_compile_the_model_runs_as_it_is_and_a_line_says_why(error, said, capsys):
    model = tiny()
    with torch.compiler.set_stance("force_eager"):  # as a solving run has it until its schedule wants to compile
        assert compile_or_explain(model, CPU, backend=failing(error)) is model
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("note: running without torch.compile: ")
    assert said in lines[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_without_a_compiler_nothing_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("/nowhere/g++",))
    torch._dynamo.reset()
    with fresh_cache():
        assert "compiler" in compile_failure(CPU)


def work(clock: Clock, compiled: float, eager: float = 3.0):
    """A compiled function, and a piece of work that takes so many seconds as the stance of the moment has it."""
    graphs: list[str] = []

    def backend(module, inputs):
        graphs.append("compiled")
        clock.time += 20

        def run(*values):
            clock.time += compiled - eager
            return module.forward(*values)

        return run

    function = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)

    def piece(size: int = 5) -> None:
        clock.time += eager
        function(torch.zeros(size))

    return piece, graphs


@pytest.fixture
def stance():
    torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"):
        yield


def test_what_is_faster_is_compiled_and_nothing_else_ever(stance):
    clock = Clock(0.0)
    piece, graphs = work(clock, compiled=1.0)
    pieces = [piece, lambda: piece(7)]
    assert compile_within(pieces, lambda: 100 - clock(), clock) == 2
    assert len(graphs) == 2
    began = clock()
    piece(5)
    piece(7)
    assert clock() - began == 2, "both run compiled"
    piece(11)
    assert clock() - began == 5, "another shape runs as it is"
    assert len(graphs) == 2


def test_the_trial_comes_first_within_the_time_and_says_why_nothing_is_compiled(stance, capsys):
    clock = Clock(0.0)
    piece, graphs = work(clock, compiled=1.0)
    assert compile_within([piece], lambda: 100 - clock(), clock, lambda: "no compiler") == 0
    assert capsys.readouterr().err == "note: running without torch.compile: no compiler\n"

    def endless() -> str | None:
        clock.time = 100
        while True:  # until the time that is left is looked at
            time.sleep(0.01)

    assert compile_within([piece], lambda: 100 - clock(), clock, endless) == 0
    piece()
    assert not graphs


def test_what_is_no_faster_is_left(stance):
    clock = Clock(0.0)
    piece, graphs = work(clock, compiled=3.5)
    assert compile_within([piece, lambda: piece(7)], lambda: 100 - clock(), clock) == 0
    began = clock()
    piece()
    assert clock() - began == 3
    assert len(graphs) == 1, "the first graph has told enough"


@pytest.mark.parametrize("others", [True, False])
def test_all_processes_ask_each_other_once_whether_it_pays_and_one_no_is_enough(stance, others):
    clock, said = Clock(0.0), []

    def all_agree(pays: bool) -> bool:
        said.append(pays)
        return pays and others

    def fails() -> None:
        raise ValueError("planted")

    piece, _ = work(clock, compiled=1.0)
    pieces = [piece, lambda: piece(7)]
    assert compile_within(pieces, lambda: 100 - clock(), clock, all_agree=all_agree) == (2 if others else 0)
    began = clock()
    piece()
    assert clock() - began == (1 if others else 3)
    assert compile_within([piece], lambda: 100.0, clock, lambda: "no compiler", all_agree) == 0
    with pytest.raises(ValueError, match="planted"):
        compile_within([fails], lambda: 100.0, clock, all_agree=all_agree)
    assert said == [True, False, False]


def test_what_may_not_fit_any_more_is_not_begun(stance):
    clock = Clock(0.0)
    piece, graphs = work(clock, compiled=1.0)
    assert compile_within([piece, lambda: piece(7)], lambda: 40 - clock(), clock) == 1
    assert len(graphs) == 1


def test_compiling_that_takes_too_long_is_interrupted(stance):
    """The compiler waits for ever, for an event that never comes."""
    clock = Clock(0.0)

    def backend(module, inputs):
        clock.time += 1000
        threading.Event().wait(100)
        raise AssertionError("not interrupted")

    function = torch.compile(lambda x: x + 1, backend=backend)
    old = signal.getsignal(signal.SIGALRM)
    assert compile_within([lambda: function(torch.zeros(5))], lambda: 100 - clock(), clock) == 0
    assert signal.getsignal(signal.SIGALRM) is old
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert torch.equal(function(torch.zeros(5)), torch.ones(5)), "it runs as it is"


def test_in_another_thread_nothing_is_compiled(stance):
    """Because no signal could end it there."""
    found = []
    thread = threading.Thread(target=lambda: found.append(compile_within([lambda: 1 / 0], lambda: 100.0)))
    thread.start()
    thread.join()
    assert found == [0]
