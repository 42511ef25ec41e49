"""Maze rules, the pinned shortest path, symmetries, generator and the command, against plain references."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import boards
from data_prep import maze as rules
from data_prep.boards import HEADER, BoardRows, load, make_boards, read_csv
from data_prep.build import main
from data_prep.files import InputError
from data_prep.grid import dihedral
from data_prep.maze import (
    FREE,
    GOAL,
    PATH,
    START,
    VOCAB_SIZE,
    WALL,
    WALLS,
    is_valid_shortest,
    least_length,
    make,
    parse,
    shortest_lengths,
    solve,
    views,
)
from data_prep.maze import class_digests as maze_digests
from tests.data_prep.board_material import (
    CHARACTERS,
    Tokens,
    maze,
    plain_label,
    plain_path,
    random_mazes,
    text,
    write_csv,
)
from tests.data_prep.material import verified

SIZES = st.sampled_from([4, 5, 7, 11])
SEEDS = st.integers(0, 10**6)


def test_the_tokens_are_the_published_ones() -> None:
    assert (WALL, FREE, START, GOAL, PATH, VOCAB_SIZE) == (1, 2, 3, 4, 5, 6)


# The pinned path --------------------------------------------------------------------------------------------


def test_among_shortest_paths_down_comes_first_then_left_then_right_then_up() -> None:
    question = maze("S    ", "     ", "    G", "     ", "     ")
    assert text(solve(question[None])[0]) == "S    " + "o    " + "ooooG" + " " * 10
    question = maze("     ", "  G  ", "     ", "S    ", "     ")
    assert text(solve(question[None])[0]) == " " * 5 + "  G  " + "  o  " + "Soo  " + " " * 5


@given(SIZES, SEEDS)
def test_solve_finds_the_path_of_a_plain_search(side: int, seed: int) -> None:
    questions = random_mazes(side, 5, seed)
    expected = np.stack([plain_label(question) for question in questions])
    assert (solve(questions) == expected).all()


@given(SIZES, SEEDS)
def test_views_are_solved_as_they_look(side: int, seed: int) -> None:
    questions = random_mazes(side, 3, seed)
    shown, labels = views(questions)
    for question, view, label in zip(questions, shown, labels, strict=True):
        for t in range(8):
            expected = dihedral(question.reshape(side, side), t).ravel()
            assert (view[t] == expected).all()
            assert (label[t] == plain_label(expected)).all()


# Validity ---------------------------------------------------------------------------------------------------


def plainly_valid(question: np.ndarray, answer: np.ndarray) -> bool:
    """The marked cells with S and G form a path as short as the shortest one, all else is as it was."""
    path = plain_path(question)
    marked = answer == PATH
    if path is None or (question[marked] != FREE).any() or (answer[~marked] != question[~marked]).any():
        return False
    within = np.where(marked | (question == START) | (question == GOAL), question, WALL).astype(np.uint8)
    inner = plain_path(within)
    return inner is not None and len(inner) == len(path) == marked.sum() + 2


@given(SIZES, SEEDS)
def test_labels_are_valid_in_every_view(side: int, seed: int) -> None:
    shown, labels = views(random_mazes(side, 3, seed))
    assert is_valid_shortest(shown.reshape(-1, side * side), labels.reshape(-1, side * side)).all()


@given(SIZES, SEEDS)
def test_is_valid_shortest_judges_changed_answers_as_the_plain_rule(side: int, seed: int) -> None:
    """One or two cells of a right answer replaced by any token, sometimes right still."""
    rng = np.random.default_rng(seed)
    questions = random_mazes(side, 8, seed, walls=0.2)
    answers = solve(questions)
    for answer in answers:
        answer[rng.integers(side * side, size=2)] = rng.integers(0, 8, size=2)
    expected = [plainly_valid(question, answer) for question, answer in zip(questions, answers, strict=True)]
    assert is_valid_shortest(questions, answers).tolist() == expected


def test_any_shortest_path_is_valid_and_no_detour() -> None:
    question = maze("S   ", "    ", "  # ", "  G#")
    rows = np.stack(
        [
            maze("S   ", "oo  ", " o# ", " oG#"),
            maze("So  ", " o  ", " o# ", " oG#"),
            maze("Soo ", " oo ", " o# ", " oG#"),
            maze("S   ", "    ", " o# ", " oG#"),
            maze("So  ", "o   ", " o# ", " oG#"),
            maze("S   ", "o   ", "oo# ", " oG#"),
        ]
    )
    questions = np.repeat(question[None], len(rows), axis=0)
    assert is_valid_shortest(questions, rows).tolist() == [True, True, False, False, False, True]


def test_is_valid_shortest_wants_no_mark_between_neighbours() -> None:
    question = maze("SG  ", "    ", "    ", "    ")[None]
    assert is_valid_shortest(question, question).tolist() == [True]
    assert is_valid_shortest(question, maze("SG  ", "o   ", "    ", "    ")[None]).tolist() == [False]
    assert shortest_lengths(question).tolist() == [1]


def test_a_maze_without_a_way_has_no_valid_answer() -> None:
    question = maze("S#  ", "##G ", "    ", "    ")[None]
    assert is_valid_shortest(question, question).tolist() == [False]
    assert shortest_lengths(question).tolist() == [-1]


@given(SIZES, SEEDS)
def test_shortest_lengths_are_those_of_the_plain_path(side: int, seed: int) -> None:
    questions = random_mazes(side, 5, seed)
    paths = [plain_path(question) for question in questions]
    assert shortest_lengths(questions).tolist() == [len(path) - 1 for path in paths if path is not None]


# Symmetry ---------------------------------------------------------------------------------------------------


def class_digests(questions: Tokens) -> Tokens:
    return maze_digests(BoardRows(questions, questions, np.zeros(len(questions), np.float32)))


@given(SIZES, SEEDS)
def test_digests_ignore_symmetry(side: int, seed: int) -> None:
    questions = random_mazes(side, 3, seed)
    shown, _ = views(questions)
    digests = class_digests(questions)
    for t in range(8):
        assert (class_digests(shown[:, t]) == digests).all()
        exchanged = np.array([0, WALL, FREE, GOAL, START], np.uint8)[shown[:, t]]
        assert (class_digests(exchanged) == digests).all()


def test_digests_tell_different_mazes_apart() -> None:
    """All places of S and G in an empty room: as many digests as classes under symmetry."""
    places = [(s, g) for s in range(16) for g in range(16) if s != g]
    questions = np.full((len(places), 16), FREE, np.uint8)
    for question, (s, g) in zip(questions, places, strict=True):
        question[s], question[g] = START, GOAL
    classes = set()
    for question in questions:
        turned = [dihedral(question.reshape(4, 4), t) for t in range(8)]
        forms = [form for cells in turned for form in (cells, np.choose(cells, [0, 1, 2, GOAL, START]))]
        classes.add(min(form.astype(np.uint8).tobytes() for form in forms))
    assert len(set(class_digests(questions).tolist())) == len(classes)


# Making -----------------------------------------------------------------------------------------------------


def test_make_gives_solved_mazes_with_long_paths_and_the_share_of_walls() -> None:
    rows = make(np.random.default_rng(3), side=11)
    assert len(rows) > 10
    assert (rows.answers == solve(rows.questions)).all()
    assert (rows.ratings == shortest_lengths(rows.questions)).all()
    assert rows.ratings.min() > least_length(11) == 31
    share = (rows.questions == WALL).mean(axis=1)
    assert WALLS[0] - 0.5 / 121 <= share.min() < share.max() <= WALLS[1] + 0.5 / 121
    assert ((rows.questions == START).sum(axis=1) == 1).all()
    assert ((rows.questions == GOAL).sum(axis=1) == 1).all()


def test_walls_are_drawn_uniformly_and_no_end_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """If any path is long enough, next to nothing is rejected."""
    monkeypatch.setattr(rules, "HARD_LENGTH", 0)
    rows = make(np.random.default_rng(3), side=11)
    count = len(rows)
    assert count > 2000
    walls = (rows.questions == WALL).mean(axis=0)
    assert abs(walls - sum(WALLS) / 2).max() < 5 * (0.25 / count) ** 0.5
    first = (rows.questions == START).argmax(axis=1) < (rows.questions == GOAL).argmax(axis=1)
    assert abs(first.mean() - 0.5) < 5 * 0.5 / count**0.5


def test_make_depends_on_the_seed() -> None:
    one, same, other = (make(np.random.default_rng(seed), side=7) for seed in (3, 3, 4))
    assert (one.questions == same.questions).all()
    assert len(one) != len(other) or (one.questions != other.questions).any()


# The command ------------------------------------------------------------------------------------------------


def test_the_threshold_is_the_published_one_at_side_30() -> None:
    assert least_length(30) == 110
    assert least_length(10) == 28


def test_the_command_writes_a_generated_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--side", "7", "--train-rows", "23", "--test-rows", "11"]
    assert main(["maze", "--generate", *arguments, "--out", str(tmp_path / "data")]) == 0
    store = load(verified(tmp_path / "data"))
    lines = capsys.readouterr().out.splitlines()
    ratings = f"mean rating {store.train.ratings.mean():.1f} and {store.test.ratings.mean():.1f}, "
    assert lines[-1].startswith(f"wrote {tmp_path / 'data'}: 23 training and 11 test puzzles of 7 x 7, {ratings}")
    assert (store.kind, store.vocab_size, store.seq_len) == ("maze", 6, 49)
    questions = np.concatenate([store.train.questions, store.test.questions])
    assert len(set(class_digests(questions).tolist())) == 34
    assert store.manifest["generator"] == {"side": 7}
    assert store.train.ratings.min() > least_length(7) == 18


def test_the_command_refuses_a_side_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["maze", "--generate", "--side", "65", "--out", str(tmp_path / "data")])
    assert "found '65', expected a whole number of at least 4 and at most 64" in capsys.readouterr().err


def test_make_boards_gives_up_in_one_line_if_no_board_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "PATIENCE", 3)
    monkeypatch.setattr(rules, "HARD_LENGTH", 16 * 30)  # no way in 4 × 4 cells
    with pytest.raises(InputError, match=r"found 0 of 2000 puzzles .*: ask for fewer or easier ones"):
        make_boards(partial(make, side=4), maze_digests, 2000, seed=0)


def labelled(side: int, count: int, seed: int) -> BoardRows:
    questions = random_mazes(side, count, seed)
    return BoardRows(questions, solve(questions), np.zeros(count, np.float32))


def test_the_command_reads_published_files(tmp_path: Path) -> None:
    train, test = labelled(7, 29, seed=1), labelled(7, 13, seed=2)
    train.answers[5] = train.questions[5]  # a label that marks nothing is kept
    named = {"train.csv": train, "test.csv": test}
    files = [str(write_csv(tmp_path / name, rows, CHARACTERS)) for name, rows in named.items()]
    assert main(["maze", "--csv", *files, "--out", str(tmp_path / "data")]) == 0
    store = load(verified(tmp_path / "data"))
    assert (store.test.questions == test.questions).all()
    assert (store.test.answers == test.answers).all()
    assert sorted(map(bytes, store.train.questions)) == sorted(map(bytes, train.questions))
    assert (store.test.ratings == shortest_lengths(test.questions)).all()


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        ("S   G" + " " * 10, "S   G" + " " * 10, "the question has 15 cells, expected one of 16, 25"),
        ("S   o  G" + " " * 8, "S   o  G" + " " * 8, "character 'o' in cell 4 of the question, expected '# SG'"),
        ("S   x  G" + " " * 8, "S   o  G" + " " * 8, "character 'x' in cell 4 of the question"),
        ("SS     G" + " " * 8, "SS     G" + " " * 8, "not exactly one S in the question"),
        ("S       " + " " * 8, "S       " + " " * 8, "not exactly one G in the question"),
        ("S#     G" + " " * 8, "So     G" + " " * 8, "the answer changes more than free cells into path"),
        ("S      G" + " " * 8, " oo    G" + " " * 8, "the answer changes more than free cells into path"),
        ("S#  ## G" + " " * 8, "S#  ## G" + " " * 8, "no way from S to G in the question"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(tmp_path: Path, question: str, answer: str, message: str) -> None:
    good = "s,S   " + " " * 8 + "   G,Sooo" + "   o" * 2 + "   G,1"
    first = [] if "expected one of" in message else [good]
    path = tmp_path / "bad.csv"
    path.write_text("\n".join([HEADER, *first, f"s,{question},{answer},1", good]))
    with pytest.raises(InputError, match=rf"bad\.csv: line {2 + len(first)}: {message}"):
        read_csv(path, parse, None, 0)
