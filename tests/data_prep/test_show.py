"""Grids, tasks, corpora and datasets in the terminal."""

import io
import re
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given

from data_prep.boards import BoardRows, board_store
from data_prep.boards import save as save_cells
from data_prep.corpus import find_tasks, pick
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.maze import CHARACTERS
from data_prep.show import BOARD_SYMBOLS, beside, main, render, render_symbols, show_task, visible_width, wants_colour
from data_prep.store import TaskEntry, build_store, save
from data_prep.tasks import Pair, Task
from tests.data_prep.material import Terminal, grids


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def cells(text: str) -> list[list[int]]:
    """Read a picture of escape sequences back: the colour of every cell."""
    xterm = {16: 0, 32: 1, 203: 2, 41: 3, 220: 4, 248: 5, 199: 6, 208: 7, 117: 8, 88: 9}
    rows = []
    for line in text.split("\n")[1:-1]:
        runs = re.findall(r"\x1b\[48;5;(\d+)m( +)", line)
        rows.append([xterm[int(number)] for number, run in runs for _ in range(len(run) // 2)])
    return rows


@given(grids())
def test_digits_are_the_grid(grid: Grid) -> None:
    rows = [list(map(int, line.split(" "))) for line in render(grid).split("\n")]
    np.testing.assert_array_equal(rows, grid)


@given(grids())
def test_colours_are_the_grid(grid: Grid) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FORCE_COLOR", "1")
        drawn = render(grid)
    np.testing.assert_array_equal(cells(drawn), grid)
    assert (visible_width(drawn), drawn.count("\n") + 1) == (2 * grid.shape[1] + 2, grid.shape[0] + 2)


def test_a_canvas_shows_border_and_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["3e.", "ee."]
    assert render_symbols(rows) == "3 e .\ne e ."
    monkeypatch.setenv("FORCE_COLOR", "1")
    grey, green = "5;237", "5;41"
    blocks = render_symbols(rows).split("\n")
    assert f"\x1b[48;{green}m  \x1b[48;{grey}m  \x1b[49m  \x1b[0m" in blocks[1]
    assert f"\x1b[48;{grey}m    \x1b[49m  \x1b[0m" in blocks[2]


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


def test_texts_stand_beside_each_other() -> None:
    assert beside(["ab\nc", "\x1b[2mx\x1b[0m\ny\nz"], gap="|") == "ab|\x1b[2mx\x1b[0m\nc |y\n  |z"


def test_what_a_terminal_has_no_room_for_stands_below(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a" * 17, "b" * 17, "c" * 37]
    monkeypatch.setenv("COLUMNS", "37")
    assert beside(texts, gap="   ") == "   ".join(texts)  # a file is as wide as it takes
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert beside(texts, gap="   ").split("\n") == ["   ".join(texts[:2]), texts[2]]
    monkeypatch.setenv("COLUMNS", "5")
    assert beside(texts, gap="   ").split("\n") == texts


def own_task(hidden: bool = False) -> Task:
    a, b = np.array([[1, 2]], np.uint8), np.array([[3], [4]], np.uint8)
    return Task("abc", "own", (Pair(a, b),), (Pair(b, None if hidden else a),))


def test_a_task_shows_roles_sizes_and_grids() -> None:
    assert show_task(own_task()).split("\n") == [
        "own/abc: 1 demonstration, 1 test",
        "",
        "demonstration 0: 1 × 2 → 2 × 1",
        "1 2    3",
        "       4",
        "",
        "test 0: 2 × 1 → 1 × 2",
        "3    1 2",
        "4",
    ]
    assert "test 0: 2 × 1 → hidden\n3    ?\n4" in show_task(own_task(hidden=True))


def test_a_pinned_task_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arc1-training", "007bbfb7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arc1-training/007bbfb7: 5 demonstrations, 1 test\n")
    assert "demonstration 0: 3 × 3 → 9 × 9\n0 7 7    0 0 0 0 7 7 0 7 7\n" in out


def test_without_names_all_of_a_corpus_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arc1-evaluation"]) == 0
    names = capsys.readouterr().out.split()
    assert (len(names), names[0]) == (400, "arc1-evaluation/00576224")


def test_own_files_with_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    challenges, solutions = tmp_path / "c.json", tmp_path / "s.json"
    task = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}
    challenges.write_bytes(orjson.dumps({"t1": task}))
    solutions.write_bytes(orjson.dumps({"t1": [[[7, 8]]]}))
    assert main([str(challenges), "t1"]) == 0
    assert "test 0: 1 × 1 → hidden" in capsys.readouterr().out
    assert main([str(challenges), "t1", "--solutions", str(solutions)]) == 0
    assert "test 0: 1 × 1 → 1 × 2\n3    7 8" in capsys.readouterr().out


def test_conceptarc_is_found_by_its_folder(conceptarc_dir: Path) -> None:
    assert len(find_tasks("conceptarc", conceptarc_dir)) == 160


def test_the_tasks_of_a_dataset_are_named_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    save(build_store([TaskEntry.demonstrations_only(own_task())], 5, 3), folder)
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out == "own/abc\n"
    assert main([str(folder), "own/abc"]) == 0
    assert capsys.readouterr().out == show_task(own_task()) + "\n"


def test_sudokus_and_mazes_are_shown_with_their_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = np.array([[1, 1, 4, 5, 1, 1, 2, 3, 2, 3, 1, 1, 4, 5, 1, 1]], np.uint8)
    answer = np.array([[2, 3, 4, 5, 4, 5, 2, 3, 2, 3, 5, 4, 4, 5, 3, 2]], np.uint8)
    rows = BoardRows(question, answer, np.array([1.5], np.float32))
    folder = tmp_path / "sudoku"
    save_cells(board_store("sudoku", 6, rows, rows, {"source": "made", "seed": 3}), folder)
    assert main([str(folder)]) == 0
    first = capsys.readouterr().out
    assert main([str(folder), "test/0"]) == 0
    assert capsys.readouterr().out == first
    assert first.split("\n") == [
        "sudoku test/0, rating 1.5",
        ". . 3 4    1 2 3 4",
        ". . 1 2    3 4 1 2",
        "1 2 . .    1 2 4 3",
        "3 4 . .    3 4 2 1",
        "",
    ]
    assert BOARD_SYMBOLS["maze"][1:] == CHARACTERS
    with pytest.raises(InputError, match="no puzzle test/1, expected train/0 to train/0 or test/0 to test/0"):
        main([str(folder), "test/1"])


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such file or folder, nor a corpus: arc1-training, .*conceptarc"):
        find_tasks("nowhere")
    with pytest.raises(InputError, match="name its folder with --conceptarc DIR"):
        find_tasks("conceptarc")
    with pytest.raises(InputError, match="knows its outputs, expected no --solutions"):
        find_tasks("arc1-training", solutions=tmp_path / "s.json")
    with pytest.raises(InputError, match=r"here: no task abd among its 1 task; near it: abc$"):
        pick([own_task()], "abd", "here")
