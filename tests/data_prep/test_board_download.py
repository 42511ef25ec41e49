"""Fetching published puzzles, from a server of our own: nothing here reaches the network."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_prep import maze, sudoku
from data_prep.boards import Kind, load
from data_prep.build import main
from data_prep.files import InputError
from tests.data_prep.board_material import random_sudokus
from tests.data_prep.test_sudoku import write_csv


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    """A published Sudoku dataset of 7 and 5 puzzles that the command finds under the name of the real one."""
    served = tmp_path / "served"
    served.mkdir()
    write_csv(served / "train.csv", random_sudokus(9, 7, seed=1))
    write_csv(served / "test.csv", random_sudokus(9, 5, seed=2))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{running.server_address[1]}"
        kind = replace(sudoku.KIND, url=url, published_rows=(7, 5))
        monkeypatch.setattr(sudoku, "KIND", kind)
        yield kind
        running.shutdown()
        thread.join()


def build(tmp_path: Path) -> int:
    return main(["sudoku", "--download", "sudoku-extreme", "--out", str(tmp_path / "data")])


def test_files_are_fetched_once_and_named_in_the_manifest(published: Kind, tmp_path: Path) -> None:
    assert build(tmp_path) == 0
    store = load(tmp_path / "data")
    assert (len(store.train), len(store.test)) == (7, 5)
    assert store.manifest["source"] == "sudoku-extreme"
    assert [file["name"] for file in store.manifest["files"]] == ["train.csv", "test.csv"]
    for file in (tmp_path / "served").iterdir():
        file.unlink()
    assert build(tmp_path) == 0


def test_other_numbers_of_rows_are_refused(published: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sudoku, "KIND", replace(published, published_rows=(7, 6)))
    with pytest.raises(InputError, match=r"test\.csv: 5 rows, expected 6 of sudoku-extreme; remove the file"):
        build(tmp_path)
    assert not (tmp_path / "data").exists()


def test_a_missing_file_ends_in_one_clear_line(published: Kind, tmp_path: Path) -> None:
    (tmp_path / "served" / "test.csv").unlink()
    with pytest.raises(InputError, match=r"cannot download http://.*/test\.csv .*404.*name the two files with --csv"):
        build(tmp_path)


def test_being_offline_ends_in_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nowhere = replace(sudoku.KIND, url="http://127.0.0.1:9")  # nothing listens on port 9
    monkeypatch.setattr(sudoku, "KIND", nowhere)
    with pytest.raises(InputError, match=r"cannot download http://127\.0\.0\.1:9/train\.csv") as caught:
        build(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_published_sizes() -> None:
    assert sudoku.KIND.published_rows == (3_831_994, 422_786)
    assert maze.KIND.published_rows == (1000, 1000)
