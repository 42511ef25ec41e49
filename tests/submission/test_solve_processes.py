"""Solving as the programs that competitors start: several processes, signals, kills, a bare image."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep.files import read_json
from tests.conftest import ENDLESS, HANG, REPOSITORY
from tests.submission.kaggle_image import WITHOUT_THEM
from tests.submission.tiny import QUICK, assert_valid, make_export, tiny_task, tiny_tasks, write_challenges

TASKS = tiny_tasks()


def solve_words(folder: Path, *more: str) -> list[str]:
    challenges = write_challenges(folder / "challenges.json", TASKS)
    export = make_export(folder / "export")
    paths = ["--challenges", str(challenges), "--checkpoint", str(export), "--out", str(folder / "submission.json")]
    return [*paths, *QUICK, "--precision", "fp32", *more]


def torchrun(program: list[str]) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *program]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )


def test_two_processes_solve_together(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--steps", "2", "--canvas", "sizes", "--time-budget", ENDLESS)
    done = run(torchrun(["-m", "submission.solve", *words]))
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", TASKS)
    summary = read_json(tmp_path / "submission.summary.json")
    assert summary["processes"] == 2
    assert summary["adaptation_steps"] == 2
    assert summary["troubles"] == []
    assert len([line for line in done.stdout.splitlines() if line.startswith("wrote ")]) == 1


def test_a_lost_process_leaves_a_valid_file(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--time-budget", ENDLESS)
    done = run(torchrun([str(REPOSITORY / "tests" / "submission" / "lost_process.py"), *words]))
    assert done.returncode != 0
    assert_valid(tmp_path / "submission.json", TASKS)


def test_sigterm_ends_the_run_with_a_valid_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "submission.solve", *solve_words(tmp_path, "--time-budget", ENDLESS)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("software"):  # the end of the table of what was found: from now on signals are waited for
            break
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=HANG)
    assert process.returncode == 143, errors
    assert rest.splitlines()[-1].startswith("wrote ")
    assert_valid(tmp_path / "submission.json", TASKS)


def test_the_clock_ends_what_has_no_other_end(tmp_path: Path) -> None:
    """How exactly, test_session shows by a clock of its own: here a machine may be too slow for anything in time."""
    done = run([sys.executable, "-m", "submission.solve", *solve_words(tmp_path, "--time-budget", "6s")])
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", TASKS)


def test_a_machine_that_hangs_is_left_in_time(tmp_path: Path) -> None:
    hanging = (
        "import sys, threading\n"
        "from arc_trm.trainer import Trainer\n"
        "from submission import session, solve\n"  # now, not within the time
        "Trainer.train_step = lambda trainer: threading.Event().wait()\n"
        f"sys.exit(solve.main({solve_words(tmp_path, '--time-budget', '6s')}))"
    )
    done = run([sys.executable, "-c", hanging])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("wrote ")
    assert "trouble: the time was over before the program had ended" in done.stdout
    assert_valid(tmp_path / "submission.json", TASKS)


@pytest.mark.slow
def test_twenty_kills_find_a_valid_file_each_time(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "tests.submission.killed", str(tmp_path), "20", "0"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 20
    assert all(": killed after event " in line for line in lines)
    assert sum(line.endswith("a valid file with votes") for line in lines) == 15
    assert sum(line.endswith("a valid file without votes") for line in lines) == 5


def test_solving_needs_nothing_that_kaggles_image_lacks(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--steps", "1", "--time-budget", ENDLESS)
    code = f"{WITHOUT_THEM}\nimport sys\nfrom submission import solve\nsys.exit(solve.main({words}))"
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", TASKS)


@pytest.mark.slow
def test_as_many_tasks_as_the_competition_has(tmp_path: Path) -> None:
    """240 tasks, 40.8 % of them with two outputs, on two processes."""
    rng = np.random.default_rng(0)
    tasks = [tiny_task(f"{i:08x}", rng, tests=1 + (i % 5 in (0, 2)), side=3 + i % 23) for i in range(240)]
    words = solve_words(tmp_path, "--steps", "3", "--votes", "2", "--time-budget", ENDLESS)
    write_challenges(tmp_path / "challenges.json", tasks)
    done = run(torchrun(["-m", "submission.solve", *words]))
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", tasks)
    assert read_json(tmp_path / "submission.summary.json")["processes"] == 2
