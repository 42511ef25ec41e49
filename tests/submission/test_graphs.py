"""A compiled solving run: few graphs, all of them made when it compiles, none later; in one process and in two."""

from pathlib import Path

import pytest

from tests.conftest import run_module


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_on_two_canvas_sizes_makes_few_graphs_and_none_after_compiling(tmp_path: Path, processes: int) -> None:
    done = run_module("tests.several_processes", str(processes), "tests.submission.compiled_run", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"one of {processes} is fine") == processes
