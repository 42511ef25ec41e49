"""Sudoku and maze examples equal the plain numpy reference, and sampling is a pure function."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.batches import (
    RULES,
    Batch,
    BoardSource,
    Source,
    board_batch,
    board_data,
)
from arc_trm.presets import PRESETS, override
from arc_trm.sampler import BoardSampler, fixed_batches
from data_prep.boards import BoardRows, BoardStore, board_store
from data_prep.files import InputError
from data_prep.maze import solve, views
from data_prep.sudoku import bits_per_shuffle, shuffles, vocab_size
from tests.data_prep.board_material import random_mazes, random_sudokus, shuffled

WHOLE = slice(None)
CPU = torch.device("cpu")


def sudoku_store(side: int = 9, train: int = 11, test: int = 7) -> BoardStore:
    rows = random_sudokus(side, train, seed=1), random_sudokus(side, test, seed=2)
    return board_store("sudoku", vocab_size(side), *rows, {})


def maze_store(side: int = 7, train: int = 11, test: int = 5) -> BoardStore:
    questions = random_mazes(side, train + test, seed=1)
    rows = BoardRows(questions, solve(questions), np.zeros(train + test, np.float32))
    return board_store("maze", 6, rows[:train], rows[train:], {})


STORES = {"sudoku": sudoku_store(), "small sudoku": sudoku_store(6), "maze": maze_store()}


def source(store: BoardStore, **changes: Any) -> BoardSource:
    return BoardSource(store, **{"seed": 3, "batch_size": 8, "device": "cpu", **changes})


def as_arrays(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    assert (batch.inputs.dtype, batch.labels.dtype, batch.puzzle_ids.dtype) == (torch.int32, torch.int32, torch.int64)
    assert batch.inputs.is_contiguous()
    assert batch.labels.is_contiguous()
    assert batch.puzzle_ids.tolist() == [0] * len(batch.inputs)
    return batch.inputs.numpy().astype(np.uint8), batch.labels.numpy().astype(np.uint8)


def equal(one: Batch, other: Batch) -> bool:
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.labels, other.labels)


# Examples ---------------------------------------------------------------------------------------------------


@given(st.sampled_from([4, 6, 9]), st.integers(0, 10**6))
def test_shuffled_sudokus_equal_the_reference(side: int, seed: int) -> None:
    rows = random_sudokus(side, 5, seed)
    made = source(board_store("sudoku", vocab_size(side), rows, rows, {}), seed=seed, batch_size=13)
    puzzles, bits = made.sampler.draw(3, WHOLE)
    inputs, labels = as_arrays(made.offer(3, WHOLE))
    drawn = shuffles(bits, side)
    assert bits.shape == (13, bits_per_shuffle(side))
    assert (inputs == shuffled(rows.questions[puzzles], drawn)).all()
    assert (labels == shuffled(rows.answers[puzzles], drawn)).all()


@given(st.sampled_from([4, 7]), st.integers(0, 10**6))
def test_turned_mazes_equal_the_reference_but_for_published_labels(side: int, seed: int) -> None:
    questions = random_mazes(side, 5, seed)
    published = np.where(np.arange(5)[:, None] == 3, questions, solve(questions))  # of the fourth not the pinned path
    rows = BoardRows(questions, published, np.zeros(5, np.float32))
    made = source(board_store("maze", 6, rows, rows, {}), seed=seed, batch_size=997)
    puzzles, bits = made.sampler.draw(3, WHOLE)
    inputs, labels = as_arrays(made.offer(3, WHOLE))
    elements = (bits[:, 0] >> np.uint64(61)).astype(int)
    shown, solved = views(questions)
    solved[:, 0] = published
    assert {(3, 0), (3, 1)} <= set(zip(puzzles.tolist(), np.minimum(elements, 1).tolist(), strict=True))
    assert (inputs == shown[puzzles, elements]).all()
    assert (labels == solved[puzzles, elements]).all()


# Sampling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_every_example_obeys_the_rules(name: str) -> None:
    store = STORES[name]
    made: Source = source(store)
    assert (made.vocab_size, made.seq_len, made.num_puzzles) == (store.vocab_size, store.seq_len, 1)
    for step in range(9):
        inputs, labels = as_arrays(made.offer(step, WHOLE))
        assert RULES[store.kind](inputs, labels).all()
        assert labels.max() < store.vocab_size


@pytest.mark.parametrize("name", STORES)
def test_what_a_slot_is_offered_depends_on_seed_step_and_slot_alone(name: str) -> None:
    store = STORES[name]
    one, other = source(store), source(store)
    steps = [one.offer(step, WHOLE) for step in range(12)]
    for step in (11, 0, 5, 2):
        parts = [other.offer(step, slice(first, last)) for first, last in ((0, 3), (3, 3), (3, 8))]
        joined = Batch(*(torch.cat([getattr(p, n) for p in parts]) for n in ("inputs", "labels", "puzzle_ids")))
        assert equal(joined, steps[step])
    assert not equal(source(store, seed=4).offer(0, WHOLE), steps[0])
    assert not any(equal(steps[0], later) for later in steps[1:])


def test_an_epoch_visits_every_puzzle_once() -> None:
    sampler = BoardSampler(13, 1, seed=5, batch_size=7)
    stream = np.concatenate([sampler.draw(step, WHOLE)[0] for step in range(26)])
    epochs = stream.reshape(14, 13)
    assert (np.sort(epochs, axis=1) == np.arange(13)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 14


def test_a_batch_may_hold_many_epochs() -> None:
    sampler = BoardSampler(3, 2, seed=5, batch_size=20)
    puzzles, bits = sampler.draw(1, WHOLE)
    assert (np.sort(puzzles[1:19].reshape(6, 3), axis=1) == np.arange(3)).all()
    assert len(np.unique(bits)) == 40


def test_random_bits_never_repeat() -> None:
    sampler = BoardSampler(5, 3, seed=2**64 - 1, batch_size=11)
    bits = np.concatenate([sampler.draw(step, WHOLE)[1] for step in (0, 1, 2, 3, 10**12)])
    assert len(np.unique(bits)) == bits.size
    assert abs((bits / 2**64).mean() - 0.5) < 0.1


def test_embedding_rows_of_tasks_are_refused() -> None:
    config = override(PRESETS["sudoku6"], {"model": {"embedding_rows": "task", "prefix": 12}})
    with pytest.raises(InputError, match="embedding_rows task: a dataset of kind sudoku has no tasks"):
        board_data(STORES["small sudoku"], config, CPU)


def test_a_dataset_without_puzzles_to_train_on_is_refused() -> None:
    rows = random_sudokus(6, 3, seed=1)
    with pytest.raises(InputError, match="kind sudoku without puzzles to train on"):
        board_data(board_store("sudoku", 8, rows[:0], rows, {}), PRESETS["sudoku6"], CPU)


# Evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 7, 10])
def test_evaluation_shows_every_puzzle_once_as_it_is(size: int) -> None:
    rows = STORES["sudoku"].test
    batches = [(board_batch(part, CPU), valid) for part, valid in fixed_batches(rows, size)]
    assert [len(batch.inputs) for batch, _ in batches] == [size] * len(batches)
    inputs, labels = (np.concatenate([as_arrays(batch)[which][:valid] for batch, valid in batches]) for which in (0, 1))
    assert (inputs == rows.questions).all()
    assert (labels == rows.answers).all()
    for cells in as_arrays(batches[-1][0])[0][batches[-1][1] :]:
        assert (cells == rows.questions[-1]).all()
