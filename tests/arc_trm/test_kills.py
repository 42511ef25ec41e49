"""A run that is killed at any moment and resumed equals one that nobody killed: weights, carry, reports, export."""

from pathlib import Path

import pytest

from tests.conftest import run_module


def kill_runs(folder: Path, how: str) -> str:
    done = run_module("tests.arc_trm.kill_runs", str(folder), how, "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_killed_before_and_after_every_change_of_a_file(quick_folder: Path) -> None:
    said = kill_runs(quick_folder, "events")
    kills = int(said.split()[2])
    assert kills > 80


@pytest.mark.slow
def test_killed_again_and_again_at_random_moments(quick_folder: Path) -> None:
    assert "each run went on to the same end" in kill_runs(quick_folder, "moments")
