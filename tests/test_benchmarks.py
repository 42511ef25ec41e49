"""The program that runs the benchmarks: what it finds, prints and answers when one fails."""

from pathlib import Path

import pytest

from data_prep.files import InputError
from tests.benchmarks.__main__ import choose, find, main
from tests.benchmarks.table import Row, format_table, median_seconds
from tests.conftest import REPOSITORY

GOOD = """
from tests.benchmarks.table import Row

def run():
    return [Row("adding", "7 numbers", 12345.0, "sums/s", 2.5, "planted")]
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one benchmark that works and two that fail, each in its way."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "bench_good.py").write_text(GOOD)
    (folder / "bench_raises.py").write_text("def run():\n    raise RuntimeError('planted failure')\n")
    (folder / "bench_leaves.py").write_text("import os\n\ndef run():\n    os._exit(0)\n")
    (folder / "helper.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(REPOSITORY)
    return folder


def test_it_finds_every_benchmark_of_the_project() -> None:
    folder = REPOSITORY / "tests" / "benchmarks"
    modules = set(find(folder).values())
    assert modules == {f"tests.benchmarks.{path.stem}" for path in folder.glob("bench_*.py")}


def test_it_finds_benchmarks_alone(planted: Path) -> None:
    assert list(find(planted)) == ["good", "leaves", "raises"]


def test_a_name_picks_one(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["good"], planted) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[1].split() == ["adding", "7", "numbers", "12,345", "sums/s", "2.50x", "planted"]
    assert out[2] == "1 benchmarks measured, 0 failed"


def test_failures_are_reported_and_the_rest_is_measured(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], planted) == 1
    captured = capfd.readouterr()
    assert "adding" in captured.out
    assert captured.out.splitlines()[-1] == "1 benchmarks measured, 2 failed leaves raises"
    assert "planted failure" in captured.err
    assert "raises FAILED" in captured.err


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(InputError, match="no benchmark x; there are: one, two"):
        choose({"one": "m.one", "two": "m.two"}, ["one", "x"])


def test_the_table_is_aligned() -> None:
    rows = [Row("a", "b", 0.5, "s"), Row("longer", "b", 1234567.0, "examples/s", 3.0, "note")]
    lines = format_table(rows).splitlines()
    assert [line.index(unit) for line, unit in zip(lines, ("unit", "s", "examples/s"), strict=True)] == [
        lines[0].index("unit")
    ] * 3
    assert "1,234,567" in lines[2]
    assert "3.00x" in lines[2]


def test_the_median_ignores_warm_ups() -> None:
    calls: list[int] = []
    assert median_seconds(lambda: calls.append(1), repeats=3, warmups=2) >= 0
    assert len(calls) == 5
