"""Scores of Sudokus and mazes, and a small model that learns Sudokus from scratch."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from arc_trm import scoring, train
from arc_trm.batches import BoardSource
from arc_trm.config import HaltingConfig, ModelConfig
from arc_trm.model import Output, RecursiveModel
from arc_trm.optim import PuzzleEmbedding
from arc_trm.predict import Predictor
from arc_trm.scoring import score_boards, score_export
from data_prep import build
from data_prep.boards import BoardRows, BoardStore, board_store
from data_prep.files import InputError
from data_prep.maze import solve

STEPS = 5
# A maze with two shortest paths: S in a corner, G in the opposite one of a free 2 × 2 room.
ROOM = np.array([[3, 2, 1], [2, 4, 1], [1, 1, 1]], np.uint8).reshape(1, 9)


def maze_store() -> BoardStore:
    questions = ROOM.repeat(7, axis=0)
    rows = BoardRows(questions, solve(questions), np.zeros(7, np.float32))
    return board_store("maze", 6, rows, rows, {})


def oracle(answers: torch.Tensor, halts_at: int) -> Predictor:
    """A predictor that gives `answers` [n, l] to the rows in turn and wants to halt from step `halts_at` on."""
    model = RecursiveModel(
        ModelConfig(vocab_size=6, seq_len=9, hidden=4, heads=1, mixer="mlp", prefix=1, puzzle_width=4)
    )
    calls = 0

    def forward(state, inputs, puzzle, views) -> Output:
        nonlocal calls
        step, first = calls % STEPS + 1, calls // STEPS * len(inputs)
        calls += 1
        rows = torch.arange(first, first + len(inputs)).clamp(max=len(answers) - 1)
        logits = torch.nn.functional.one_hot(answers[rows].long(), 6).float()
        halting = torch.full((len(inputs),), 1.0 if step >= halts_at else -1.0)
        return Output(state, logits, halting, halting)

    model.forward = forward  # type: ignore[method-assign]
    return Predictor(model, PuzzleEmbedding(1, 4), HaltingConfig(max_supervision_steps=STEPS), torch.float32)


def test_exact_valid_and_cells_are_told_apart_over_uneven_batches():
    store = maze_store()
    label = torch.from_numpy(store.test.answers[0].astype(np.int64))
    other = label.clone()
    free, path = (label.view(3, 3)[:2, :2] == 2).nonzero()[0], (label.view(3, 3)[:2, :2] == 5).nonzero()[0]
    other.view(3, 3)[tuple(free)], other.view(3, 3)[tuple(path)] = 5, 2  # the other shortest path
    wrong = torch.full_like(label, 1)
    answers = torch.stack([label, label, other, other, other, wrong, label])
    figures = score_boards(oracle(answers, halts_at=3), store, 3, Accelerator(cpu=True))
    same = (wrong == label).double().mean().item()
    assert figures["exact_accuracy"] == pytest.approx(3 / 7)
    assert figures["valid"] == pytest.approx(6 / 7)
    assert figures["cell_accuracy"] == pytest.approx((3 + 3 * 7 / 9 + same) / 7)
    assert figures["supervision_steps"] == 3


def test_scoring_that_is_to_stop_has_no_figures():
    store = maze_store()
    answers = torch.from_numpy(store.test.answers.astype(np.int64))
    asked = iter([False, True])
    assert score_boards(oracle(answers, halts_at=1), store, 3, Accelerator(cpu=True), lambda: next(asked)) == {}
    assert next(asked, None) is None


def test_a_row_that_never_halts_counts_all_steps():
    store = maze_store()
    answers = torch.from_numpy(store.test.answers.astype(np.int64))
    assert score_boards(oracle(answers, halts_at=99), store, 4, Accelerator(cpu=True))["supervision_steps"] == STEPS


def test_without_augmentation_puzzles_are_offered_as_they_are():
    store = maze_store()
    plain = BoardSource(store, seed=1, batch_size=5, device="cpu", augment=False).offer(3, slice(0, 5))
    assert plain.inputs.tolist() == ROOM.repeat(5, axis=0).tolist()
    turned = BoardSource(store, seed=1, batch_size=64, device="cpu").offer(3, slice(0, 64))
    assert len({tuple(row) for row in turned.inputs.tolist()}) > 1


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A 4 × 4 Sudoku model of one layer after 120 steps: (run folder, dataset folder)."""
    folder = tmp_path_factory.mktemp("sudoku4")
    data, out = folder / "data", folder / "run"
    words = ["--generate", "--side", "4", "--train-rows", "500", "--test-rows", "61", "--out", str(data)]
    assert build.main(["sudoku", *words]) == 0
    sizes = ["--model.layers", "1", "--train.batch-size", "48", "--train.steps", "120"]
    assert train.main(["sudoku4", "--data", str(data), "--out", str(out), *sizes, "--log.track", "none"]) == 0
    return out, data


@pytest.mark.slow
def test_a_small_model_learns_sudokus_that_it_has_not_seen(learned, capsys):
    out, data = learned
    figures = score_export(out, data, 37, "fp32")
    assert figures["exact_accuracy"] >= 0.8
    assert figures["valid"] == figures["exact_accuracy"], "a Sudoku has one solution"
    assert figures["supervision_steps"] < 16
    assert scoring.main([str(out), "--data", str(data)]) == 0
    assert f"exact_accuracy {figures['exact_accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_and_a_dataset_of_other_sizes_are_refused(learned, tmp_path):
    out, _ = learned
    words = ["--generate", "--side", "6", "--train-rows", "20", "--test-rows", "5", "--out", str(tmp_path / "six")]
    build.main(["sudoku", *words])
    with pytest.raises(InputError, match=r"16 tokens of 6 kinds, .* has 36 of 8"):
        score_export(out, tmp_path / "six", 5, "fp32")
