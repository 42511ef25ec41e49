"""Generated Sudokus, judged by a plain backtracking solver."""

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep import generators
from data_prep.boards import BoardRows, load
from data_prep.build import main
from data_prep.files import InputError
from data_prep.generators import ATTEMPTS_PER_CHUNK, generate, make_sudokus, search
from data_prep.sudoku import BLANK, class_digests, is_valid, units
from tests.data_prep.board_material import random_sudokus
from tests.data_prep.material import verified

# Arto Inkala's puzzle of 2012, among the hardest for people.
HARD = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."


def tokens(text: str) -> NDArray[np.uint8]:
    return np.array([[1 if cell == "." else int(cell) + 1 for cell in text]], dtype=np.uint8)


def made(side: int, guesses: int = 0, *, chunks: int, seed: int = 3, workers: int = 1) -> BoardRows:
    stream = generate(partial(make_sudokus, side=side, guesses=guesses), seed, workers)
    return BoardRows.concatenate(list(islice(stream, chunks)))


def rate(questions: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Solutions (counted up to 2) and guesses of question tokens uint8[n, L], each int64[n]."""
    side = round(questions.shape[1] ** 0.5)
    masks = np.where(questions == BLANK, 2**side - 1, 1 << np.maximum(questions.astype(int) - 2, 0)).astype(np.uint16)
    first = np.zeros(side * side, np.int64)
    rated = np.array([search(puzzle, units(side), first, 2, puzzle.copy()) for puzzle in masks])
    return rated[:, 0], rated[:, 1]


def count_solutions(question: NDArray[np.uint8], limit: int = 2) -> int:
    """Solutions up to a limit, by trying every digit in the first blank cell."""
    blanks = np.flatnonzero(question == BLANK)
    if not len(blanks):
        return int(is_valid(question, question))
    cell = int(blanks[0])
    side = round(len(question) ** 0.5)
    taken = {int(question[other]) for unit in units(side) if cell in unit for other in unit}
    found = 0
    for token in range(2, side + 2):
        if token not in taken and found < limit:
            trial = question.copy()
            trial[cell] = token
            found += count_solutions(trial, limit - found)
    return found


@pytest.mark.parametrize(("side", "givens"), [(4, 0.25), (4, 0.4), (6, 0.35), (6, 0.5)])
def test_the_solver_counts_as_plain_backtracking_does(side: int, givens: float) -> None:
    questions = random_sudokus(side, 40, seed=6, givens=givens).questions
    solutions, _ = rate(questions)
    assert solutions.tolist() == [count_solutions(question) for question in questions]
    assert len(set(solutions.tolist())) == 2


def test_a_puzzle_without_solution_has_none() -> None:
    questions = np.full((2, 16), BLANK, np.uint8)
    questions[0, [0, 3]] = 2  # the same digit twice in a row
    questions[1, [0, 1, 6]] = 2, 3, 4  # leaves 4 and 5 for cells 2 and 3, and cell 2 may be neither
    questions[1, 10] = 5
    assert rate(questions)[0].tolist() == [0, 0]


def test_ratings_of_known_puzzles() -> None:
    (solutions,), (guesses,) = rate(tokens(HARD))
    assert solutions == 1
    assert guesses > 10
    easy = random_sudokus(9, 1, seed=1, givens=0.9).questions
    assert [array.tolist() for array in rate(easy)] == [[1], [0]]


@pytest.mark.parametrize("side", [6, 9])
def test_minimal_puzzles_have_one_solution_and_need_every_given(side: int) -> None:
    rows = made(side, chunks=2)
    assert len(rows) == 2 * ATTEMPTS_PER_CHUNK
    assert is_valid(rows.questions, rows.answers).all()
    solutions, guesses = rate(rows.questions)
    assert (solutions == 1).all()
    assert (guesses == rows.ratings).all()
    if side < 9:
        assert all(count_solutions(question) == 1 for question in rows.questions[:10])
    puzzles, cells = np.nonzero(rows.questions != BLANK)
    poorer = rows.questions[puzzles]
    poorer[np.arange(len(cells)), cells] = BLANK
    assert (rate(poorer)[0] == 2).all()


def test_solutions_do_not_repeat_a_pattern() -> None:
    answers = made(9, chunks=8).answers
    order = np.argsort(answers[:, :9], axis=1)
    renumbered = np.take_along_axis(order, answers.astype(int) - 2, axis=1)
    assert len(set(map(bytes, renumbered.astype(np.uint8)))) == len(answers)
    frequencies = np.stack([(answers == token).mean(axis=0) for token in range(2, 11)])
    assert frequencies.max() < 1 / 9 + 6 * (8 / 81 / len(answers)) ** 0.5


def test_small_puzzles_have_givens_beyond_a_minimal_one() -> None:
    rows = made(4, chunks=40)
    assert is_valid(rows.questions, rows.answers).all()
    assert (rate(rows.questions)[0] == 1).all()
    givens = (rows.questions != BLANK).sum(axis=1)
    puzzles, cells = np.nonzero(rows.questions != BLANK)
    poorer = rows.questions[puzzles]
    poorer[np.arange(len(cells)), cells] = BLANK
    needed = np.bincount(puzzles, weights=rate(poorer)[0] == 2, minlength=len(rows))
    assert set(givens[needed == givens].tolist()) <= {4, 5, 6}  # what minimal puzzles have
    assert 0.1 < (needed == givens).mean() < 0.5
    assert 4 <= givens.min() < 8 <= givens.max() <= 10


def test_puzzles_need_the_wished_guesses() -> None:
    rows = made(9, guesses=15, chunks=10)
    assert len(rows) > 5
    assert rows.ratings.min() >= 15
    solutions, guesses = rate(rows.questions)
    assert (solutions == 1).all()
    assert (guesses == rows.ratings).all()


def test_puzzles_depend_on_the_seed_and_not_on_the_workers() -> None:
    one, two = (made(4, chunks=5, workers=workers) for workers in (1, 2))
    assert (one.questions == two.questions).all()
    assert (one.questions != made(4, chunks=5, seed=4).questions).any()


def test_the_command_makes_puzzles_that_differ_up_to_symmetry(tmp_path: Path) -> None:
    def build(train: int) -> BoardRows:
        sizes = ["--train-rows", str(train), "--test-rows", "50"]
        assert (
            main(["sudoku", "--generate", "--side", "4", "--seed", "5", *sizes, "--out", str(tmp_path / "data")]) == 0
        )
        store = load(verified(tmp_path / "data"))
        assert (len(store.train), len(store.test), store.vocab_size) == (train, 50, 6)
        everything = BoardRows.concatenate([store.train, store.test])
        assert is_valid(everything.questions, everything.answers).all()
        assert len(set(class_digests(everything).tolist())) == train + 50
        assert store.manifest["generator"] == {"side": 4}
        return store.test

    assert (build(170).questions == build(40).questions).all()


def test_too_many_wishes_end_in_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generators.KEPT_CELLS, 4, 0)
    with pytest.raises(InputError, match=r"found \d\d of 2000 puzzles that differ up to symmetry, then none in"):
        main(["sudoku", "--generate", "--side", "4", "--out", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()
