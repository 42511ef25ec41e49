"""Sudoku rules, symmetries, published files, the solver, the generator and the command, against plain references."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import boards
from data_prep.boards import HEADER, BoardRows, BoardStore, load
from data_prep.build import main
from data_prep.files import InputError
from data_prep.store import open_store
from data_prep.sudoku import (
    BLANK,
    BOXES,
    KEPT_CELLS,
    class_digests,
    is_valid,
    make,
    parse,
    search,
    units,
    vocab_size,
)
from tests.data_prep import board_material
from tests.data_prep.board_material import pattern_grid, random_shuffles, random_sudokus, shuffled, shuffled_rows
from tests.data_prep.material import refused, verified

SIDES = st.sampled_from(list(BOXES))
SEEDS = st.integers(0, 10**6)


def write_csv(path: Path, rows: BoardRows) -> Path:
    return board_material.write_csv(path, rows, "?.123456789")


# Rules ------------------------------------------------------------------------------------------------------


def test_units_are_rows_columns_and_boxes() -> None:
    table = units(6)
    assert table[1].tolist() == [6, 7, 8, 9, 10, 11]
    assert table[7].tolist() == [1, 7, 13, 19, 25, 31]
    assert table[12 + 3].tolist() == [15, 16, 17, 21, 22, 23]  # boxes are two rows high, three columns wide
    for side in BOXES:
        assert (np.bincount(units(side).ravel()) == 3).all()


def test_the_vocabulary_is_the_published_one() -> None:
    assert (vocab_size(9), vocab_size(6), vocab_size(4)) == (11, 8, 6)


@given(SIDES, SEEDS)
def test_is_valid_refuses_an_answer_with_a_changed_cell(side: int, seed: int) -> None:
    rows = random_sudokus(side, 7, seed)
    assert is_valid(rows.questions, rows.answers).all()
    rng = np.random.default_rng(seed)
    changed = rows.answers.copy()
    cells = rng.integers(side * side, size=7)
    other = np.array([rng.choice([t for t in range(side + 3) if t != changed[i, c]]) for i, c in enumerate(cells)])
    changed[np.arange(7), cells] = other
    assert not is_valid(rows.questions, changed).any()
    assert is_valid(rows.questions[0], rows.answers[0])


def test_is_valid_refuses_an_answer_that_ignores_the_givens() -> None:
    rows = random_sudokus(9, 2, seed=5)
    assert is_valid(np.full((2, 81), BLANK, np.uint8), rows.answers).all()
    assert is_valid(rows.questions, rows.answers[::-1]).tolist() == [False, False]


def broken(kind: str) -> np.ndarray:
    """A 6×6 square that breaks only this kind of unit, int64[6, 6]."""
    square = pattern_grid(6).reshape(6, 6).astype(np.int64)
    if kind == "row":
        square[:2, :3] = square[1::-1, :3]
    if kind == "column":
        square[:2, :2] = square[:2, 1::-1]
    if kind == "box":
        square = (np.arange(6)[:, None] + np.arange(6)) % 6 + 2
    return square


@pytest.mark.parametrize("kind", ["row", "column", "box"])
def test_is_valid_looks_at_rows_columns_and_boxes(kind: str) -> None:
    answer = broken(kind).ravel().astype(np.uint8)
    right = [all(len(set(answer[unit].tolist())) == 6 for unit in units(6)[i : i + 6]) for i in (0, 6, 12)]
    assert right == [kind != name for name in ("row", "column", "box")]
    assert not is_valid(np.full(36, BLANK, np.uint8), answer)


# Symmetries -------------------------------------------------------------------------------------------------


@given(SIDES, SEEDS)
def test_shuffled_puzzles_are_puzzles(side: int, seed: int) -> None:
    rows = random_sudokus(side, 5, seed)
    drawn = random_shuffles(side, 5, seed + 1)
    moved = shuffled_rows(rows, drawn)
    assert is_valid(moved.questions, moved.answers).all()
    assert ((moved.questions == BLANK).sum(axis=1) == (rows.questions == BLANK).sum(axis=1)).all()


@given(SIDES, SEEDS)
def test_a_shuffle_maps_wrong_answers_to_wrong_answers(side: int, seed: int) -> None:
    """It is a bijection of squares that keeps the rules in both directions, so solutions stay as many as they are."""
    rng = np.random.default_rng(seed)
    squares = rng.integers(2, side + 2, (3, side * side), dtype=np.uint8)
    drawn = random_shuffles(side, 3, seed)
    blank = np.full_like(squares, BLANK)
    assert (is_valid(blank, shuffled(squares, drawn)) == is_valid(blank, squares)).all()
    positions = np.arange(side * side)
    for one in range(3):
        shown = np.stack(
            [shuffled(np.tile(np.where(positions == cell, 2, 1), (3, 1)), drawn)[one] for cell in positions]
        )
        assert (np.sort((shown > 1).argmax(axis=1)) == positions).all()
        assert sorted(drawn[1][one].tolist()) == list(range(side + 2))
        assert drawn[1][one, :2].tolist() == [0, 1]


def test_only_square_boxes_are_transposed() -> None:
    """Then the first row shows cells of one column."""
    for side, low, high in ((4, 60, 140), (6, 0, 0), (9, 60, 140)):
        cells, _ = random_shuffles(side, 200, seed=3)
        assert low <= (cells[:, 0] % side == cells[:, 1] % side).sum() <= high


def test_shuffles_reach_every_geometry() -> None:
    """4×4: 2 orders of bands and of stacks, 4 of the rows and columns within, transposed or not."""
    cells, tokens = random_shuffles(4, 4000, seed=1)
    assert len(set(map(tuple, cells.tolist()))) == 8 * 8 * 2
    assert len(set(map(tuple, tokens.tolist()))) == 24


@given(SIDES, SEEDS)
def test_digests_ignore_symmetry(side: int, seed: int) -> None:
    rows = random_sudokus(side, 5, seed)
    drawn = random_shuffles(side, 5, seed + 1)
    assert (class_digests(shuffled_rows(rows, drawn)) == class_digests(rows)).all()


def test_digests_tell_different_puzzles_apart() -> None:
    rows = random_sudokus(9, 3000, seed=8)
    assert len(set(class_digests(rows).tolist())) == 3000


def canonical(question: np.ndarray, answer: np.ndarray) -> bytes:
    """The smallest of all shuffles of a 4×4 puzzle, digits numbered as they come."""
    orders = [
        [2 * band + line for band, lines in zip(bands, within, strict=True) for line in lines]
        for bands in itertools.permutations(range(2))
        for within in itertools.product(itertools.permutations(range(2)), repeat=2)
    ]
    square, shown = answer.reshape(4, 4), (question > BLANK).reshape(4, 4)
    forms = []
    for (turned, mask), rows, columns in itertools.product(((square, shown), (square.T, shown.T)), orders, orders):
        cells = turned[np.ix_(rows, columns)].ravel().tolist()
        names = {token: name for name, token in enumerate(dict.fromkeys(cells))}
        forms.append(bytes(names[token] for token in cells) + mask[np.ix_(rows, columns)].tobytes())
    return min(forms)


def test_digests_agree_with_the_canonical_form_of_small_puzzles() -> None:
    rows = random_sudokus(4, 60, seed=2, givens=0.25)
    forms = [canonical(question, answer) for question, answer in zip(rows.questions, rows.answers, strict=True)]
    digests = class_digests(rows).tolist()
    assert 20 < len(set(forms)) < 60
    assert len(set(zip(forms, digests, strict=True))) == len(set(forms)) == len(set(digests))


# Published files --------------------------------------------------------------------------------------------


def test_parse_gives_the_published_tokens() -> None:
    question, answer = "1..4" + "..1." + ".1.." + "4..1", "1234" + "3412" + "2143" + "4321"
    parsed = parse([question, question.replace(".", "0")], [answer] * 2, ["0", "7"])
    assert parsed.answers[0].tolist() == [int(digit) + 1 for digit in answer]
    assert parsed.questions[0].tolist() == [1 if cell == "." else int(cell) + 1 for cell in question]
    assert (parsed.questions[0] == parsed.questions[1]).all()
    assert parsed.ratings.tolist() == [0, 7]


GOOD = ("1..4..1..1..4..1", "1234341221434321", "3")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("1..4..1..1..4..", *GOOD[1:]), "the question has 15 cells, expected 16"),
        (("1..4..1..1..4..x", *GOOD[1:]), r"character 'x' in cell 15 of the question, expected '\.01234'"),
        (("5..4..1..1..4..1", *GOOD[1:]), "character '5' in cell 0 of the question"),
        (("ü..4..1..1..4..1", *GOOD[1:]), "character 'ü' in cell 0 of the question"),
        ((GOOD[0], "1234341221434.21", "3"), "character '.' in cell 13 of the answer"),
        ((GOOD[0], "123434122143432", "3"), "the answer has 15 cells, expected 16"),
        ((GOOD[0], "2134341221434321", "3"), "the answer changes a given digit"),
        (("....34..........", "1234341221434312", "3"), "the answer repeats a digit in a row, column or box"),
        ((*GOOD[:2], "hard"), "rating 'hard', expected a number"),
        ((*GOOD[:2],), "3 fields, expected 4: source,question,answer,rating"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(tmp_path: Path, row: tuple[str, ...], message: str) -> None:
    path = tmp_path / "bad.csv"
    lines = [HEADER, *[",".join(("s", *GOOD))] * 4, ",".join(("s", *row)), ",".join(("s", *GOOD)), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=rf"bad\.csv: line 6: {message}"):
        boards.read_csv(path, parse, None, 0)


SMALL, LARGER = f"s,{','.join(GOOD)}".encode(), f"s,{36 * '.'},{36 * '1'},0".encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"bad\.csv: cannot read \(No such file or directory\)"),
        (b"\n".join([HEADER.encode(), *[SMALL] * 5, LARGER]), "line 7: the question has 36 cells, expected 16"),
        (b"", "line 1: found '', expected source,question,answer,rating"),
        (b"question,answer\n", "line 1: found 'question,answer', expected source"),
        (b'source,question,answer,rating\n"s\ns",1..4..1..1..4..1,1234341221434321,1\n', "line 2: .*, expected CSV"),
        (b'source,question,answer,rating\n"s"x,1,1,1\n', "line 2: .*, expected CSV"),
        (b"source,question,answer,rating\n\xff,1,1,1\n", "not text in UTF-8"),
        (
            b"source,question,answer,rating\ns,1.34,1234,1\n",
            "line 2: the question has 4 cells, expected one of 16, 36, 81",
        ),
    ],
)
def test_read_csv_refuses_a_missing_or_malformed_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        boards.read_csv(path, parse, None, 0)


def sampled(path: Path, count: int | None, seed: int) -> BoardRows:
    return boards.read_csv(path, parse, count, seed)


def test_read_csv_draws_rows_by_seed(tmp_path: Path) -> None:
    """The rating is the number of the row, so that drawn rows can be recognised."""
    rows = random_sudokus(6, 211, seed=4)
    path = write_csv(tmp_path / "a.csv", rows)
    drawn = sampled(path, 23, seed=7)
    index = drawn.ratings.astype(int)
    assert (sampled(path, 13, seed=7).ratings == drawn.ratings[:13]).all()
    assert len(set(index.tolist())) == 23
    assert (drawn.questions == rows.questions[index]).all()
    assert (drawn.answers == rows.answers[index]).all()
    assert set(sampled(path, 23, seed=8).ratings.tolist()) != set(drawn.ratings.tolist())
    everything = sampled(path, None, seed=7)
    assert (everything.questions == rows.questions).all()
    assert sorted(sampled(path, 500, seed=7).ratings.tolist()) == rows.ratings.tolist()


def test_read_csv_draws_every_row_equally_often(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", random_sudokus(4, 53, seed=4))
    counts = np.zeros(53)
    for seed in range(300):
        counts[sampled(path, 11, seed).ratings.astype(int)] += 1
    expected = 300 * 11 / 53
    assert abs(counts - expected).max() < 5 * expected**0.5


# Solving and making -----------------------------------------------------------------------------------------

# Arto Inkala's puzzle of 2012, among the hardest for people.
HARD = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."


def rate(questions: np.ndarray, limit: int = 2) -> tuple[list[int], list[int]]:
    """Solutions (counted up to the limit) and guesses of question tokens uint8[n, L]."""
    side = round(questions.shape[1] ** 0.5)
    masks = np.where(questions == BLANK, 2**side - 1, 1 << np.maximum(questions.astype(int) - 2, 0))
    solutions, guesses = search(masks.T.astype(np.uint16), limit)
    return solutions.tolist(), guesses.tolist()


def count_solutions(question: np.ndarray, limit: int = 2) -> int:
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


def poorer(questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Which question, the question without one of its givens) for every given."""
    puzzles, cells = np.nonzero(questions != BLANK)
    without = questions[puzzles]
    without[np.arange(len(cells)), cells] = BLANK
    return puzzles, without


@pytest.mark.parametrize(("side", "givens"), [(4, 0.25), (4, 0.4), (6, 0.35), (6, 0.5)])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_search_counts_solutions_as_plain_backtracking_does(side: int, givens: float, limit: int) -> None:
    questions = random_sudokus(side, 40, seed=6, givens=givens).questions
    questions[::5, 0] = questions[::5, 1] = 2  # two of a digit in a row: no solution
    solutions, _ = rate(questions, limit)
    assert solutions == [count_solutions(question, limit) for question in questions]
    assert {0, 1, limit} <= set(solutions)


def test_search_finds_no_solution_of_a_contradictory_puzzle() -> None:
    questions = np.full((2, 16), BLANK, np.uint8)
    questions[0, [0, 3]] = 2  # the same digit twice in a row
    questions[1, [0, 1, 6]] = 2, 3, 4  # leaves 4 and 5 for cells 2 and 3, and cell 2 may be neither
    questions[1, 10] = 5
    assert rate(questions)[0] == [0, 0]


def test_search_rates_known_puzzles() -> None:
    hard = np.array([[1 if cell == "." else int(cell) + 1 for cell in HARD]], dtype=np.uint8)
    easy = random_sudokus(9, 1, seed=1, givens=0.9).questions
    (one, other), (most, none) = rate(np.concatenate([hard, easy]))
    assert (one, other, none) == (1, 1, 0)
    assert most > 10


def test_search_leaves_the_boards_as_they_are() -> None:
    boards = np.full((16, 3), 15, np.uint16)
    search(boards, limit=1)
    assert (boards == 15).all()


@pytest.mark.parametrize("side", [6, 9])
def test_made_puzzles_have_one_solution_and_need_every_given(side: int) -> None:
    rows = make(np.random.default_rng(3), side)
    assert len(rows) > 400
    assert is_valid(rows.questions, rows.answers).all()
    solutions, guesses = rate(rows.questions)
    assert set(solutions) == {1}
    assert guesses == rows.ratings.tolist()
    if side < 9:
        assert all(count_solutions(question) == 1 for question in rows.questions[:10])
    assert set(rate(poorer(rows.questions[:64])[1])[0]) == {2}


def test_made_solutions_do_not_repeat_a_pattern() -> None:
    answers = make(np.random.default_rng(3), 6).answers
    order = np.argsort(answers[:, :6], axis=1)
    renumbered = np.take_along_axis(order, answers.astype(int) - 2, axis=1)
    assert len(set(map(bytes, renumbered.astype(np.uint8)))) > 0.95 * len(answers)
    frequencies = np.stack([(answers == token).mean(axis=0) for token in range(2, 8)])
    assert abs(frequencies - 1 / 6).max() < 6 * (5 / 36 / len(answers)) ** 0.5


def test_small_puzzles_have_givens_beyond_a_minimal_one() -> None:
    rows = make(np.random.default_rng(3), 4)
    assert is_valid(rows.questions, rows.answers).all()
    assert set(rate(rows.questions)[0]) == {1}
    givens = (rows.questions != BLANK).sum(axis=1)
    puzzles, without = poorer(rows.questions)
    needed = np.bincount(puzzles, weights=np.array(rate(without)[0]) == 2, minlength=len(rows))
    assert set(givens[needed == givens].tolist()) <= {4, 5, 6}  # what minimal puzzles have
    assert 0.1 < (needed == givens).mean() < 0.5
    assert 4 <= givens.min() < 8 <= givens.max() <= 10


def test_make_gives_puzzles_that_need_the_least_guesses_asked_for() -> None:
    hard, every = (make(np.random.default_rng(3), 6, guesses) for guesses in (2, 0))
    assert 5 < len(hard) == (every.ratings >= 2).sum() < len(every)
    assert hard.ratings.min() == 2 < hard.ratings.max()
    assert rate(hard.questions) == ([1] * len(hard), hard.ratings.tolist())


# The command ------------------------------------------------------------------------------------------------


def build(out: Path, *arguments: str) -> BoardStore:
    assert main(["sudoku", "--out", str(out), *arguments]) == 0
    return load(verified(out))


def test_the_command_reads_published_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = random_sudokus(9, 41, seed=1), random_sudokus(9, 17, seed=2)
    files = [str(write_csv(tmp_path / "train.csv", train)), str(write_csv(tmp_path / "test.csv", test))]
    store = build(tmp_path / "data", "--csv", *files, "--train-rows", "13")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"wrote {tmp_path / 'data'}: 13 training and 17 test puzzles of 9 x 9, mean rating ")
    assert (store.kind, store.vocab_size, store.seq_len, store.side) == ("sudoku", 11, 81, 9)
    assert (store.test.questions == test.questions).all()
    index = store.train.ratings.astype(int)
    assert (store.train.answers == train.answers[index]).all()
    assert [file["name"] for file in store.manifest["files"]] == ["train.csv", "test.csv"]
    fewer = build(tmp_path / "data", "--csv", *files, "--train-rows", "7", "--test-rows", "5")
    assert (fewer.train.ratings == store.train.ratings[:7]).all()
    assert len(fewer.test) == 5
    opened = open_store(tmp_path / "data")
    assert isinstance(opened, BoardStore)
    assert opened.manifest["counts"] == {"training_puzzles": 7, "test_puzzles": 5}


def test_what_the_test_file_holds_is_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = random_sudokus(6, 30, seed=1)
    drawn = random_shuffles(6, 30, seed=2)
    same = shuffled_rows(train, drawn)[:10]
    files = [str(write_csv(tmp_path / "train.csv", train)), str(write_csv(tmp_path / "test.csv", same))]
    store = build(tmp_path / "data", "--csv", *files, "--train-rows", "19")
    assert "left out 10 drawn training puzzles that equal test puzzles up to symmetry" in capsys.readouterr().out
    assert len(store.train) == 19
    assert store.train.ratings.min() >= 10
    with pytest.raises(InputError, match="every puzzle drawn equals a test puzzle"):
        build(tmp_path / "data", "--csv", files[1], files[1])
    assert len(load(tmp_path / "data").train) == 19


def test_the_command_makes_puzzles_that_differ_up_to_symmetry(tmp_path: Path) -> None:
    def generate(train: int, seed: str = "5") -> BoardStore:
        sizes = ["--train-rows", str(train), "--test-rows", "50"]
        store = build(tmp_path / "data", "--generate", "--side", "4", "--seed", seed, *sizes)
        assert (len(store.train), len(store.test), store.vocab_size) == (train, 50, 6)
        everything = BoardRows.concatenate([store.train, store.test])
        assert is_valid(everything.questions, everything.answers).all()
        assert len(set(class_digests(everything).tolist())) == train + 50
        assert store.manifest["generator"] == {"side": 4}
        return store

    many, few = generate(170).test, generate(40).test
    assert (many.questions == few.questions).all()
    assert (generate(40, seed="6").test.questions != few.questions).any()


def test_the_command_makes_hard_puzzles_of_side_9(tmp_path: Path) -> None:
    store = build(tmp_path / "data", "--generate", "--guesses", "15", "--train-rows", "5", "--test-rows", "2")
    assert (store.side, store.manifest["generator"]) == (9, {"guesses": 15})
    assert min(store.train.ratings.min(), store.test.ratings.min()) >= 15


def test_the_command_gives_up_in_one_line_if_too_few_puzzles_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KEPT_CELLS, 4, 0)
    with pytest.raises(InputError, match=r"found \d\d of 2000 puzzles that differ up to symmetry, then none in"):
        build(tmp_path / "data", "--generate", "--side", "4")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4.csv", "6.csv"], "training puzzles of 16 cells and test puzzles of 36, expected one size"),
        (["empty.csv", "empty.csv"], "no puzzle in the file"),
        (["4.csv", "4.csv", "--guesses", "3"], "--guesses goes with --generate"),
    ],
)
def test_the_command_refuses_files_and_options_that_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, side, count in (("4.csv", 4, 3), ("6.csv", 6, 3), ("empty.csv", 4, 0)):
        write_csv(tmp_path / name, random_sudokus(side, count, seed=1))
    with refused(message):
        main(["sudoku", "--out", "data", "--csv", *arguments])


@pytest.mark.parametrize(
    "arguments", [[], ["--generate", "--csv", "a", "b"], ["--generate", "--seed", "-1"], ["--generate", "--side", "8"]]
)
def test_the_command_exits_with_2_for_wrong_options(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sudoku", "--out", str(tmp_path / "data"), *arguments])
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err
