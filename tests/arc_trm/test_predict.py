"""Prediction and evaluation: every row answered once, by the averaged weights, in pieces that fit the memory."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from arc_trm.batches import ArcBatches, Batch, Part
from arc_trm.predict import Answers, MemoryLimit, Predictor, Voter, outputs_of_store
from arc_trm.sampler import evaluation_rows, voting_views
from arc_trm.scoring import evaluation
from arc_trm.supervision import token_loss
from arc_trm.trainer import Trainer
from arc_trm.vote import COST_UNITS, MOST_COST, Tally
from data_prep.canvas import VOCAB_SIZE
from data_prep.store import ArcStore, TaskEntry, build_store
from tests.arc_trm.arc_stores import random_task
from tests.arc_trm.training import TINY, ToySource, identical, lively_model, losses, tiny_trainer, with_settings

WINDOW = 11
ARC = with_settings(
    TINY,
    model={"vocab_size": 12, "seq_len": 900, "latent_steps": 1, "deep_steps": 1},
    halting={"max_supervision_steps": 2},
    train={"canvas": "sizes", "steps": 3, "batch_size": 3},
    log={"evaluation_augmentations": 2},
)


def small_store() -> ArcStore:
    """Three scored tasks with 1, 2 and 1 tests of small grids, and one that only trains."""
    rng = np.random.default_rng(2)
    pair = ((3, 5), (2, 7))
    tasks = [random_task(rng, f"t{number}", [pair, pair], [pair] * tests) for number, tests in enumerate((1, 2, 1, 1))]
    entries = [*map(TaskEntry.demonstrations_only, tasks[:3]), TaskEntry.all_pairs(tasks[3])]
    return build_store(entries, 6, seed=3)


def arc_trainer() -> Trainer:
    store = small_store()
    source = ToySource(5, WINDOW, vocab_size=12, num_puzzles=len(store.puzzle_groups))
    return Trainer(ARC, [Part(source, 8)], Accelerator(cpu=True), 3, lively_model(ARC).double())


def some_batch() -> Batch:
    return ToySource(1).offer(0, slice(0, 7))


def test_an_answer_is_that_of_the_last_supervision_step() -> None:
    trainer = tiny_trainer(double=True)
    losses(trainer, 3)
    batch = some_batch()
    tokens, halting, _, costs = trainer.predictor().answer(batch)
    state = trainer.model.initial_state(7, 25, torch.float64)
    with torch.no_grad():
        for _ in range(TINY.halting.max_supervision_steps):
            output = trainer.model(state, batch.inputs, trainer.embedding.table[batch.puzzle_ids])
            state = output.state
    assert torch.equal(tokens.long(), output.logits.argmax(-1))
    torch.testing.assert_close(halting, output.halt_logits.sigmoid())
    assert tokens.dtype == torch.uint8
    assert not halting.requires_grad
    labels = torch.full(tokens.shape, 3)
    exact = token_loss(output.logits, labels, TINY.halting.token_loss).clamp(max=MOST_COST / COST_UNITS)
    torch.testing.assert_close(costs[..., 3] / COST_UNITS, exact.float(), rtol=0, atol=0.5 / COST_UNITS)


def test_logits_that_are_no_numbers_cost_most() -> None:
    trainer = tiny_trainer()
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    assert set(trainer.predictor().answer(some_batch()).costs.unique().tolist()) == {MOST_COST}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 31])  # 7, 14, 22 and 32 small windows at once
def test_every_row_is_answered_once_whatever_the_batch(batch_size: int) -> None:
    store, trainer = small_store(), arc_trainer()
    rows = evaluation_rows(store, augmentations=6)
    assert len(rows) == 24
    voter = Voter(store, outputs_of_store(store)[1], batch_size, trainer.accelerator)
    answers = list(voter.answers(trainer.predictor(), rows, WINDOW))
    assert len(answers[0][0]) == min(24, voter.at_once(24, WINDOW))
    for name in ("puzzles", "pairs"):
        together = np.concatenate([getattr(own, name) for own, _ in answers])
        assert np.array_equal(together, getattr(rows, name))
    tokens, halting, *_ = trainer.predictor().answer(ArcBatches(store, "cpu", WINDOW).make(rows))
    assert np.array_equal(np.concatenate([predictions.tokens for _, predictions in answers]), tokens.numpy())
    np.testing.assert_allclose(
        np.concatenate([predictions.halting for _, predictions in answers]), halting.numpy(), rtol=1e-6
    )


@dataclass(frozen=True)
class Narrow(Predictor):
    """A predictor that memory allows two rows at once."""

    def answer(self, batch: Batch) -> Answers:
        if len(batch.inputs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().answer(batch)


def test_answers_without_memory_are_given_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    plain = tiny_trainer(double=True).predictor()
    narrow = Narrow(plain.model, plain.embedding, plain.halting, plain.dtype)
    limit = MemoryLimit(7)
    tokens, halting, *_ = limit.answer(narrow, some_batch())
    expected = plain.answer(some_batch())
    assert torch.equal(tokens, expected[0])
    torch.testing.assert_close(halting, expected[1])
    assert limit.at_once == 2
    notes = capsys.readouterr().err.splitlines()
    assert notes == [f"note: out of memory, going on with {rows} rows at once" for rows in (4, 2)]


def test_a_second_pass_knows_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    store, trainer = small_store(), arc_trainer()
    outputs, asked = outputs_of_store(store)
    plain = trainer.predictor()
    narrow = Narrow(plain.model, plain.embedding, plain.halting, plain.dtype)
    voter, rows = Voter(store, asked, 8, trainer.accelerator), evaluation_rows(store, augmentations=2)
    for notes in (2, 0):
        assert voter.vote(narrow, rows, Tally(outputs), lambda count: None)
        assert len(capsys.readouterr().err.splitlines()) == notes


def test_memory_for_not_even_one_row_is_an_error() -> None:
    @dataclass(frozen=True)
    class Impossible(Predictor):
        def answer(self, batch: Batch) -> Answers:
            raise torch.OutOfMemoryError("CUDA out of memory")

    plain = tiny_trainer().predictor()
    impossible = Impossible(plain.model, plain.embedding, plain.halting, plain.dtype)
    with pytest.raises(torch.OutOfMemoryError):
        MemoryLimit(5).answer(impossible, some_batch())


# The competition's score while training -----------------------------------------------------------------------------


def test_an_evaluation_judges_the_averaged_weights_and_puts_the_others_back() -> None:
    trainer, seen = arc_trainer(), []
    losses(trainer, 3)
    weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    assert trainer.ema is not None
    averages = [average.clone() for average in trainer.ema.averages]

    forward = trainer.model.forward

    def looked_at(*arguments: torch.Tensor) -> object:
        seen.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        return forward(*arguments)  # type: ignore[arg-type]

    trainer.model.forward = looked_at  # type: ignore[assignment]
    evaluate = evaluation(small_store())
    assert evaluate is not None
    evaluate(trainer)
    assert seen
    assert all(map(identical, seen[0], averages))
    assert all(map(identical, (parameter.detach() for parameter in trainer.model.parameters()), weights))


def test_an_evaluation_that_is_to_stop_has_no_scores() -> None:
    trainer = arc_trainer()
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == 2

    trainer.should_stop = stop
    evaluate = evaluation(small_store())
    assert evaluate is not None
    assert evaluate(trainer) == {}
    assert len(asked) == 2


def test_nothing_scored_is_nothing_to_evaluate() -> None:
    rng = np.random.default_rng(2)
    task = random_task(rng, "t", [((3, 5), (2, 7))], [((3, 5), None)])
    assert evaluation(build_store([TaskEntry.all_pairs(task)], 3, seed=1)) is None
    assert evaluation(build_store([TaskEntry.demonstrations_only(task)], 3, seed=1)) is None


@dataclass(frozen=True)
class Right(Predictor):
    """A predictor that answers what is right."""

    def answer(self, batch: Batch) -> Answers:
        ones, tokens = torch.ones(len(batch.labels)), batch.labels.clamp(min=0)
        costs = 1 - torch.nn.functional.one_hot(tokens.long(), VOCAB_SIZE)
        return Answers(tokens.to(torch.uint8), ones, ones.long(), costs.short())


def test_the_perfect_model_solves_everything() -> None:
    """Votes, inversion and scores hang together: a model that answers right under every augmentation scores 1."""
    trainer = arc_trainer()
    plain = trainer.predictor()
    trainer.predictor = lambda: Right(plain.model, plain.embedding, plain.halting, plain.dtype)  # type: ignore[method-assign]
    trainer.config = with_settings(ARC, log={"evaluation_augmentations": 7})
    evaluate = evaluation(small_store())
    assert evaluate is not None
    assert set(evaluate(trainer).values()) == {1.0}


@pytest.mark.parametrize("windows", [True, False])
def test_views_at_any_placement_and_in_any_colours_vote_for_the_same_grid(windows: bool) -> None:
    store, plain = small_store(), arc_trainer().predictor()
    right = Right(plain.model, plain.embedding, plain.halting, plain.dtype)
    outputs, asked = outputs_of_store(store)
    rows, _ = voting_views(store, 53, own_colours=0.5, seed=7)
    assert rows.top.any()
    assert rows.left.any()
    tally = Tally(outputs)
    voter = Voter(store, asked, 8, Accelerator(cpu=True), windows=windows, task_rows=True)
    assert voter.vote(right, rows, tally, lambda count: None)
    assert voter.unclosed == 0
    for number, pair in enumerate(np.flatnonzero(asked >= 0)):
        (candidate,) = tally.candidates(number)
        assert candidate.votes == 53
        solution = store.output(int(pair))
        assert solution is not None
        np.testing.assert_array_equal(candidate.grid, solution)
        np.testing.assert_array_equal(tally.consensus(number), solution)


def test_views_vote_wherever_a_known_output_that_is_larger_than_all_that_is_visible_would_lie() -> None:
    rng = np.random.default_rng(2)
    task = random_task(rng, "t", [((3, 5), (2, 7))], [((3, 5), (10, 10))])
    store = build_store([TaskEntry.demonstrations_only(task)], 0, seed=3)
    rows, _ = voting_views(store, 53, own_colours=0.5, seed=7)
    assert max(rows.top.max(), rows.left.max()) > WINDOW - 10
    outputs, asked = outputs_of_store(store)
    tally = Tally(outputs)
    assert Voter(store, asked, 8, Accelerator(cpu=True), windows=True, task_rows=True).vote(
        arc_trainer().predictor(), rows, tally, lambda count: None
    )
    hidden = replace(task, tests=(replace(task.tests[0], output=None),))
    same = build_store([TaskEntry.demonstrations_only(hidden)], 0, seed=3)
    batches = (ArcBatches(each, "cpu", WINDOW, task_rows=True).make(rows) for each in (store, same))
    one, other = (batch.inputs for batch in batches)
    assert torch.equal(one, other)
