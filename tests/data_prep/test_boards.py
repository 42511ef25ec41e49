"""Datasets of Sudokus and mazes on disk."""

from pathlib import Path

import numpy as np
import pytest

from data_prep.boards import BoardRows, BoardStore, board_store, load, save
from data_prep.files import InputError
from data_prep.store import open_store
from tests.data_prep.board_material import random_sudokus


def small_store() -> BoardStore:
    train, test = random_sudokus(6, 13, seed=1), random_sudokus(6, 5, seed=2)
    return board_store("sudoku", 8, train, test, {"seed": 7, "source": "made up"})


def assert_equal(one: BoardRows, other: BoardRows) -> None:
    assert len(one) == len(other)
    for name in ("questions", "answers", "ratings"):
        assert getattr(one, name).dtype == getattr(other, name).dtype
        assert (getattr(one, name) == getattr(other, name)).all()


def test_a_store_comes_back_as_it_was(tmp_path: Path) -> None:
    store = small_store()
    save(store, tmp_path / "data")
    opened = open_store(tmp_path / "data")
    assert isinstance(opened, BoardStore)
    assert_equal(opened.train, store.train)
    assert_equal(opened.test, store.test)
    assert (opened.kind, opened.vocab_size, opened.seq_len, opened.side) == ("sudoku", 8, 36, 6)
    assert (opened.manifest["seed"], opened.manifest["counts"]) == (7, {"training_puzzles": 13, "test_puzzles": 5})


def test_rows_are_picked_and_joined() -> None:
    rows = random_sudokus(4, 11, seed=3)
    assert_equal(BoardRows.concatenate([rows[:4], rows[4:4], rows[np.arange(4, 11)]]), rows)


def test_columns_of_other_lengths_are_refused(tmp_path: Path) -> None:
    save(small_store(), tmp_path / "data")
    np.save(tmp_path / "data" / "test_answers.npy", np.zeros((4, 36), np.uint8))
    with pytest.raises(InputError, match=r"test_answers\.npy: found uint8\[4, 36\], expected uint8\[5, 36\]"):
        load(tmp_path / "data")
