"""Solving from the inside, by a clock of the tests' own: deadlines, memory, failures."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arc_trm.batches import Batch
from arc_trm.checkpoint import read_export
from arc_trm.device import make_accelerator
from arc_trm.predict import Answers, Predictor
from arc_trm.trainer import Supervised, Trainer
from data_prep import progress
from data_prep.canvas import VOCAB_SIZE
from submission import solver as solver_module
from submission.budget import Kind, RunClock
from submission.settings import Settings
from submission.solver import Solver
from submission.submission_file import SubmissionFile, read_submission
from tests.conftest import Clock
from tests.submission.tiny import assert_valid, make_export, tiny_tasks

TASKS = tiny_tasks()


def make_solver(
    folder: Path,
    budget: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    **own: Any,
) -> tuple[Solver, Clock]:
    clock = Clock(1000.0)
    settings = Settings(**({"augmentations": 10, "batch_size": 4, "predict_batch": 1, "precision": "fp32"} | own))
    run_clock = RunClock(budget, clock(), clock)
    file = SubmissionFile(TASKS, folder / "submission.json")
    file.open()
    export = read_export(make_export(folder / "export"))
    accelerator = make_accelerator("none", folder)
    return Solver(export, settings, run_clock, file, accelerator, stop), clock


def slow(monkeypatch: pytest.MonkeyPatch, clock: Clock, step: Callable[[int], float], answer: float) -> None:
    """A machine on which step number n takes step(n) seconds, and an answer takes so many."""
    train, reply = Trainer.train_step, Predictor.answer

    def train_step(trainer: Trainer) -> list[Supervised]:
        results = train(trainer)
        clock.time += step(trainer.step)
        return results

    def answered(predictor: Predictor, batch: Batch) -> Answers:
        clock.time += answer * len(batch.inputs)
        return reply(predictor, batch)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    monkeypatch.setattr(Predictor, "answer", answered)


def undecided(tokens: Tensor) -> Answers:
    """Answers of which the model thinks that they may be right or wrong."""
    rows, costs = len(tokens), 1 - torch.nn.functional.one_hot(tokens.long(), VOCAB_SIZE)
    return Answers(tokens, torch.full((rows,), 0.5), torch.ones(rows, dtype=torch.int64), costs.short())


def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are the questions: every puzzle votes for the input grid."""

    def answer(predictor: Predictor, batch: Batch) -> Answers:
        return undecided(batch.inputs.to(torch.uint8))

    monkeypatch.setattr(Predictor, "answer", answer)


def test_every_augmentation_votes_for_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying(monkeypatch)
    solver, _ = make_solver(tmp_path, steps=1)
    solver.run()
    assert_valid(solver.file.path, TASKS)
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4
    assert solver.file.agreement == 1.0
    attempts = read_submission(solver.file.path)
    for task in TASKS:
        for pair, pair_attempts in zip(task.tests, attempts[task.task_id], strict=True):
            assert np.array_equal(pair_attempts.attempt_1, pair.input)
    assert solver.file.written is not None
    assert solver.file.written.fallback_attempts == 4, "every second attempt is a fallback"


def test_embeddings_start_from_the_mean_and_move_first(tmp_path: Path) -> None:
    solver, _ = make_solver(tmp_path, steps=8, embedding_share=0.5)
    solver.prepare()
    trainer, weights = solver.trainer, solver.export.weights
    assert torch.equal(trainer.embedding.table, solver.export.puzzle_mean.expand_as(trainer.embedding.table))
    moved: dict[int, bool] = {}
    while (unit := solver.decide()).kind != Kind.VOTE:
        if unit.kind in (Kind.EARLY_VOTE, Kind.SAVE):
            {Kind.EARLY_VOTE: solver.vote_early, Kind.SAVE: solver.save}[unit.kind](unit)
        else:
            solver.adapt(unit)
            moved[trainer.step] = not torch.equal(
                trainer.model.state_dict()["halting_head.bias"], weights["halting_head.bias"]
            )
    assert moved == {n: n > 4 for n in range(1, 9)}
    assert not torch.equal(trainer.embedding.table, solver.export.puzzle_mean.expand_as(trainer.embedding.table))


def test_no_steps_leave_the_export_as_it_is(tmp_path: Path) -> None:
    solver, _ = make_solver(tmp_path, steps=0)
    solver.run()
    assert solver.trainer.step == 0
    for name, weights in solver.export.weights.items():
        assert torch.equal(solver.trainer.model.state_dict()[name], weights)
    assert solver.file.votes > len(solver.file.tally.outputs)


def test_settings_reach_the_trainer(tmp_path: Path) -> None:
    solver, _ = make_solver(
        tmp_path,
        lr=3e-4, puzzle_lr=0.02, ema=0.9,
        deep_steps=2, supervision_steps=5, canvas="full", batch_size=13, seed=5, votes=3,
    )  # fmt: skip
    solver.prepare()
    config = solver.trainer.config
    train = config.train
    assert (train.lr, train.puzzle_lr, train.ema, train.batch_size, train.canvas) == (3e-4, 0.02, 0.9, 13, "full")
    assert (config.model.deep_steps, config.halting.max_supervision_steps) == (2, 5)
    assert config.seed == solver.store.manifest["seed"] == 5
    assert solver.order.max() == 2


@pytest.mark.parametrize("answer", [0.01, 0.3])
@pytest.mark.parametrize("step", [0.7, 5.0])
@pytest.mark.parametrize("slowdown", [1, 3])
def test_the_deadline_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, answer: float, slowdown: int
) -> None:
    solver, clock = make_solver(tmp_path)
    factor = [1]

    def seconds(number: int) -> float:
        if number == 5:
            factor[0] = slowdown
        return step * factor[0]

    slow(monkeypatch, clock, seconds, answer)
    real = Predictor.answer

    def answered(predictor: Predictor, batch: Batch) -> Answers:
        clock.time += answer * (factor[0] - 1) * len(batch.inputs)
        return real(predictor, batch)

    monkeypatch.setattr(Predictor, "answer", answered)
    solver.run()
    used = clock.time - solver.clock.started
    assert used <= solver.clock.budget
    assert used >= 0.8 * solver.clock.budget - step * slowdown, "no time is given away"
    assert all(solver.file.tally.total(output) for output in range(4)), "every output had a vote"
    assert_valid(solver.file.path, TASKS)


def test_a_hopelessly_slow_machine_ends_in_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, clock = make_solver(tmp_path)
    slow(monkeypatch, clock, lambda number: 40.0, 3.0)
    solver.run()
    assert solver.trainer.step == 1
    assert clock.time - solver.clock.started <= 60
    assert_valid(solver.file.path, TASKS)


def test_early_votes_come_first_and_half_way_and_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, clock = make_solver(tmp_path)
    slow(monkeypatch, clock, lambda number: 0.5, 0.001)
    copying(monkeypatch)
    found = []
    write = solver.file.write

    def wrote() -> None:
        found.append((clock.time - solver.clock.started, [solver.file.tally.total(output) for output in range(4)]))
        write()

    monkeypatch.setattr(solver.file, "write", wrote)
    solver.run()
    (first, votes), (half_way, again), (_, last), *_ = found
    assert first < 1
    assert 20 < half_way < 40
    assert votes == again == last == [1] * 4
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4
    assert solver.trainer.step > 90


def fixed_work(folder: Path, seconds_a_step: float, seconds_an_answer: float) -> bytes:
    """The submission of so many steps and votes in a budget that is never short."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        solver, clock = make_solver(folder, budget=1e6, steps=23, votes=7)
        slow(patch, clock, lambda number: seconds_a_step, seconds_an_answer)
        solver.file.candidates = folder / "votes.npz"
        solver.run()
    assert solver.trainer.step == 23
    assert [solver.file.tally.total(output) for output in range(4)] == [7] * 4
    return solver.file.path.read_bytes() + solver.file.candidates.read_bytes()


def test_a_fixed_amount_of_work_gives_the_same_at_every_speed(tmp_path: Path) -> None:
    fast = fixed_work(tmp_path / "fast", 1e-3, 1e-4)
    assert fixed_work(tmp_path / "slow", 700.0, 20.0) == fast
    assert fixed_work(tmp_path / "slow answers", 1.0, 3000.0) == fast


def test_a_log_gets_a_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solver, clock = make_solver(tmp_path, budget=1200.0)
    solver.prepare()
    monkeypatch.setattr(solver, "prepare", lambda: None)
    monkeypatch.setattr(progress, "_last_line", clock.time)
    slow(monkeypatch, clock, lambda number: 1.0, 20.0)
    solver.run()
    lines = capsys.readouterr().err.splitlines()
    steps = re.compile(r"adapting: \d+ of \d+ steps, loss \S+, 4 examples/s, 4 votes, \S+ to the deadline, .+")
    adapting = list(filter(steps.fullmatch, lines))
    votes = re.compile(r"(first votes|votes up to \d+ of 11): \d+ of \d+ answers, \S+ to the deadline.*")
    predicting = list(filter(votes.fullmatch, lines))
    assert adapting[0].split(", ")[-2] == "1 steps/s", "first votes, which came before, do not count"
    assert len(adapting) >= 4
    assert len(predicting) >= 3
    assert len(adapting) + len(predicting) == len(lines) >= 12


def test_stopping_before_prediction_keeps_the_file(tmp_path: Path) -> None:
    calls = []
    solver, _ = make_solver(tmp_path, stop=lambda: len(calls) > 0)
    solver.prepare()
    calls.append(1)
    before = solver.file.path.read_bytes()
    solver.run()
    assert solver.trainer.step == 0
    assert solver.file.path.read_bytes() == before


def test_running_out_of_memory_halves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Predictor.answer
    sizes = []

    def answer(predictor: Predictor, batch: Batch) -> Answers:
        sizes.append(len(batch.inputs))
        if len(batch.inputs) > 3:
            raise torch.OutOfMemoryError("no more than 3 rows")
        return real(predictor, batch)

    solver, _ = make_solver(tmp_path, steps=1, predict_batch=2)
    whole, _ = make_solver(tmp_path, steps=1, predict_batch=2)
    whole.run()
    monkeypatch.setattr(Predictor, "answer", answer)
    solver.run()
    assert max(sizes) > 3
    assert solver.file.tally.candidates(1) == whole.file.tally.candidates(1)


@pytest.mark.parametrize(("canvas", "sides"), [("sizes", [11, 30]), ("strict", [11]), ("full", [30])])
def test_answers_that_go_on_beyond_their_window_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canvas: str, sides: list[int]
) -> None:
    found = []

    def answer(predictor: Predictor, batch: Batch) -> Answers:
        """Canvases full of one colour, which no EOS closes."""
        found.append(math.isqrt(batch.inputs.shape[1]))
        return undecided(torch.full_like(batch.inputs, 2).to(torch.uint8))

    monkeypatch.setattr(Predictor, "answer", answer)
    solver, _ = make_solver(tmp_path, steps=1, canvas=canvas, votes=1)
    solver.run()
    assert sorted(set(found)) == sides
    assert solver.file.votes == 4
    [candidate] = solver.file.tally.candidates(0)
    assert candidate.grid.shape == (sides[-1], sides[-1])


def test_a_row_that_is_too_large_ends_the_prediction_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(predictor: Predictor, batch: Batch) -> Answers:
        raise torch.OutOfMemoryError("nothing fits")

    monkeypatch.setattr(Predictor, "answer", answer)
    solver, _ = make_solver(tmp_path, steps=1)
    solver.run()
    assert solver.file.troubles == [f"{name}: OutOfMemoryError: nothing fits" for name in ("first votes", "prediction")]
    assert_valid(solver.file.path, TASKS)


def test_a_failing_adaptation_does_not_prevent_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copying(monkeypatch)

    def train_step(trainer: Trainer) -> None:
        raise RuntimeError("the GPU fell off the bus")

    monkeypatch.setattr(Trainer, "train_step", train_step)
    solver, _ = make_solver(tmp_path)
    solver.run()
    assert solver.file.troubles == ["adaptation: RuntimeError: the GPU fell off the bus"]
    assert solver.file.votes == 44


def breaking(monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bool]) -> None:
    """Weights are no numbers after some of the steps."""
    real = Trainer.train_step

    def train_step(trainer: Trainer) -> list[Supervised]:
        results = real(trainer)
        if broken(trainer.step):
            trainer.embedding.table.fill_(torch.nan)
        return results

    monkeypatch.setattr(Trainer, "train_step", train_step)


def assert_finite_and_voted(solver: Solver) -> None:
    for tensor in (solver.trainer.embedding.table, *solver.trainer.model.parameters()):
        assert tensor.isfinite().all()
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4


@pytest.mark.parametrize("broken", [1, 30])
def test_a_loss_that_is_no_number_goes_back_to_good_weights_and_on_at_half_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    breaking(monkeypatch, lambda step: step == broken)
    solver, _ = make_solver(tmp_path, steps=40)
    solver.run()
    assert solver.trainer.step == 40
    [trouble] = solver.file.troubles
    said = f"adaptation, going on with earlier weights and half the rate: step {broken}: loss or weights are not finite"
    assert trouble.startswith(said)
    train = solver.trainer.config.train
    assert (train.lr, train.puzzle_lr) == (Settings().lr / 2, Settings().puzzle_lr / 2)
    assert_finite_and_voted(solver)


def test_a_loss_that_stays_no_number_ends_the_adaptation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda step: step >= 5)
    solver, _ = make_solver(tmp_path, steps=40)
    solver.run()
    assert (solver.trainer.step, len(solver.file.troubles)) == (8, 4)
    assert_finite_and_voted(solver)


@pytest.mark.parametrize(
    "failure", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")]
)
def test_where_no_step_fits_into_memory_there_are_votes_without_adaptation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def supervise(*arguments: Any) -> Any:
        raise failure

    monkeypatch.setattr(solver_module, "LIMITED", ("cpu",))
    monkeypatch.setattr(Trainer, "_supervise", supervise)
    solver, _ = make_solver(tmp_path)
    solver.run()
    assert solver.file.troubles == ["no adaptation: a single example does not fit into cpu's memory"]
    assert solver.trainer.step == 0
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4


@pytest.mark.parametrize(("pace", "fewest", "most"), [(0.001, 128, 128), (0.3, 16, 127), (3.0, 15, 15)])
def test_a_task_has_as_many_puzzles_as_the_pace_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: float, fewest: int, most: int
) -> None:
    monkeypatch.setattr(Solver, "measured_pace", lambda solver: pace)
    solver, _ = make_solver(tmp_path, budget=900.0, augmentations=None)
    solver.prepare()
    assert fewest <= solver.augmentations <= most
    rows = len(solver.trainer.embedding.table)
    assert rows == 3 * (solver.augmentations + 1)
    if solver.augmentations > 15:
        assert solver.schedule.plan().steps * 4 / rows >= 55
    assert solver.schedule.stepping.seconds == pace


def test_the_plan_is_said_once_its_pace_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solver, clock = make_solver(tmp_path)
    slow(monkeypatch, clock, lambda number: 0.5, 0.01)
    solver.run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan ")]
    assert [line.split()[1] for line in lines] == ["first", "adaptation:", "prediction:", "memory"]
    assert solver.planned is not None
    assert solver.planned.steps == pytest.approx(solver.trainer.step, rel=0.1)
    assert solver.planned.seconds[Kind.ADAPT] == pytest.approx(solver.clock.phases["adaptation"], rel=0.1)
    assert solver.planned.votes == pytest.approx(11, abs=3)


def test_a_state_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, _ = make_solver(tmp_path, steps=3)
    (tmp_path / "submission.state").write_text("in the way")
    monkeypatch.setattr(solver_module, "SAVE_EVERY", 0.0)
    solver.run()
    assert solver.trainer.step == 3
    assert {trouble.split(":")[0] for trouble in solver.file.troubles} == {"saving the state; the last one stays"}
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4


def test_a_state_that_cannot_be_gathered_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(trainer: Trainer) -> None:
        raise MemoryError

    monkeypatch.setattr(Trainer, "state_dict", full)
    solver, _ = make_solver(tmp_path, steps=3)
    solver.run()
    assert solver.file.troubles == ["saving the state: MemoryError: "]
    assert [solver.file.tally.total(output) for output in range(4)] == [11] * 4
