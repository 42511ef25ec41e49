"""Solving as the programs that competitors start: several processes, signals, kills, a bare image."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.files import read_json
from tests.conftest import ENDLESS, HANG, REPOSITORY
from tests.submission.kaggle_image import LACKED, WITHOUT_THEM
from tests.submission.tiny import QUICK, assert_valid, make_export, tiny_tasks, write_challenges

TASKS = tiny_tasks()
TWO_PROCESSES = [sys.executable, "-m", "tests.several_processes", "2"]
# What runs on Kaggle, beside submission.solve itself.
RUNTIME = (
    "submission.launch",
    "arc_trm.predict",
    "submission.score",
    "submission.session",
)


def solve_words(folder: Path, *more: str) -> list[str]:
    challenges = write_challenges(folder / "challenges.json", TASKS)
    export = make_export(folder / "export")
    paths = ["--challenges", str(challenges), "--checkpoint", str(export), "--out", str(folder / "submission.json")]
    return [*paths, *QUICK, "--train.precision", "fp32", *more]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=HANG
    )


def test_two_processes_solve_together(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--train.steps", "2", "--canvas", "sizes", "--time-budget", ENDLESS)
    done = run([*TWO_PROCESSES, "submission.solve", *words])
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", TASKS)
    summary = read_json(tmp_path / "submission.summary.json")
    assert summary["processes"] == 2
    assert summary["adaptation_steps"] == 2
    assert summary["troubles"] == []
    assert set(summary["demonstrations"]) == {"a", "b", "c"}
    assert len([line for line in done.stdout.splitlines() if line.startswith("wrote ")]) == 1


def test_two_processes_print_one_plan(tmp_path: Path) -> None:
    done = run([*TWO_PROCESSES, "submission.solve", *solve_words(tmp_path, "--plan", "--rate", "9")])
    assert done.returncode == 0, done.stderr
    [memory] = [line for line in done.stdout.splitlines() if line.startswith("plan      memory")]
    assert "for a step of 4 examples at once" in memory


@pytest.mark.slow
@pytest.mark.parametrize(("where", "step", "votes"), [("adapting", 3, 4), ("voting", 6, 8), ("signalled", 3, 4)])
def test_a_lost_process_leaves_a_valid_file_and_others_go_on(tmp_path: Path, where: str, step: int, votes: int) -> None:
    words = solve_words(tmp_path, "--train.steps", "6", "--time-budget", ENDLESS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    program = str(REPOSITORY / "tests" / "submission" / "lost_process.py")
    done = run([*torchrun, program, where, *words])
    assert done.returncode != 0
    assert_valid(tmp_path / "submission.json", TASKS)
    again = run([sys.executable, "-m", "submission.solve", *words, "--resume"])
    assert again.returncode == 0, again.stderr
    assert f"going on at step {step} with {votes} votes" in again.stdout
    summary = read_json(tmp_path / "submission.summary.json")
    assert (summary["processes"], summary["adaptation_steps"], summary["votes"]) == (1, 6, 44)
    assert not (tmp_path / "submission.state").exists()


@pytest.mark.slow
def test_a_run_that_is_killed_before_any_write_goes_on_to_the_same_votes(quick_folder: Path) -> None:
    done = run([sys.executable, "-m", "tests.submission.resumed", str(quick_folder)])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 20
    assert all(line.endswith(": the same votes") for line in lines), done.stdout
    assert {"none", "step 2, voted 0", "step 4, voted 2"} <= {line.split("state ")[1].split(":")[0] for line in lines}


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


# Two runs of one import, each in a process of its own, because the clock may end the process.
BY_THE_CLOCK = """
import threading
from pathlib import Path
from arc_trm.trainer import Trainer
from submission import session, solve
from tests import kills

def run(words, log):
    assert solve.main(words) == 0

def hang(words, log):
    Trainer.train_step = lambda trainer: threading.Event().wait()
    run(words, log)

children = [kills.fork(lambda: work(words, log), log) for work, (words, log) in zip((run, hang), {runs})]
assert [kills.wait(child) for child in children] == [0, 0], [Path(log).read_text() for _, log in {runs}]
"""


def test_the_clock_ends_what_has_no_other_end_and_what_hangs(tmp_path: Path) -> None:
    """How exactly, test_solver shows by a clock of its own: here a machine may be too slow for anything in time."""
    folders = [tmp_path / name for name in ("working", "hanging")]
    logs = [folder / "log" for folder in folders]
    for folder in folders:
        folder.mkdir()
    runs = [(solve_words(log.parent, "--time-budget", "4s"), str(log)) for log in logs]
    done = run([sys.executable, "-c", BY_THE_CLOCK.format(runs=runs)])
    assert done.returncode == 0, done.stderr
    for folder in folders:
        assert_valid(folder / "submission.json", TASKS)
    said = logs[1].read_text()
    assert said.splitlines()[-1].startswith("wrote ")
    assert "trouble: the time was over before the program had ended" in said


# A run in which no compiler ever comes back, and one that goes on from what it left, each in a process of its own.
WITHOUT_A_COMPILER = """
import threading
from pathlib import Path
from arc_trm import trainer
from submission import budget, solve
from tests import kills

budget.COMPILE_LIMIT = 1.0
trainer.compile_networks = lambda *arguments: threading.Event().wait()
for status, more in ((1, []), (0, ["--resume"])):
    child = kills.fork(lambda: solve.main({words} + more), {log})
    assert kills.wait(child) == status, Path({log}).read_text()
    print(Path({log}).read_text(), flush=True)
"""


def test_a_compiler_that_hangs_leaves_votes_and_the_next_process_goes_on_without(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--train.compile", "--train.steps", "2", "--time-budget", ENDLESS)
    done = run([sys.executable, "-c", WITHOUT_A_COMPILER.format(words=words, log=repr(str(tmp_path / "log")))])
    assert done.returncode == 0, done.stderr
    hung, rest = done.stdout.split("wrote ", 1)
    assert "trouble: compiling took too long; --resume goes on without" in hung
    assert "agreement of the votes 100.0%, 4 votes" in hung, "the first votes are in the file"
    assert "going on at step 0 with 4 votes" in rest
    assert "trouble: compiling did not end in the process before; going on without" in rest
    assert_valid(tmp_path / "submission.json", TASKS)
    assert read_json(tmp_path / "submission.summary.json")["votes"] == 44


@pytest.mark.slow
def test_a_compiled_run_compiles_and_solves(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--train.compile", "--train.steps", "2", "--time-budget", ENDLESS)
    done = run([sys.executable, "-m", "submission.solve", *words])
    assert done.returncode == 0, done.stderr
    assert re.search(r"^note: compiled 2 graphs in \d+ s$", done.stderr, re.MULTILINE)
    assert_valid(tmp_path / "submission.json", TASKS)
    summary = read_json(tmp_path / "submission.summary.json")
    assert (summary["votes"], summary["adaptation_steps"], summary["troubles"]) == (44, 2, [])
    assert summary["seconds"]["compiling"] > 0


@pytest.mark.slow
def test_twenty_kills_find_a_valid_file_each_time(quick_folder: Path) -> None:
    done = run([sys.executable, "-m", "tests.submission.killed", str(quick_folder), "20", "0"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 20
    assert all(": killed after event " in line for line in lines)
    assert sum(line.endswith("a valid file with votes") for line in lines) == 15
    assert sum(line.endswith("a valid file without votes") for line in lines) == 5


# Solves, says what was loaded for that and with it, and what cannot be.
BLOCKED = """
import importlib, sys
from submission import solve
for name in {runtime}:
    importlib.import_module(name)
assert solve.main({words}) == 0
print("loaded", *sys.modules)
for name in ("tyro", "arc_trm.train"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"{{name}}: {{error}}")
"""


def test_a_submission_needs_nothing_that_kaggles_image_lacks(tmp_path: Path) -> None:
    words = solve_words(tmp_path, "--train.steps", "1", "--time-budget", ENDLESS)
    done = run([sys.executable, "-c", WITHOUT_THEM + BLOCKED.format(runtime=RUNTIME, words=words)])
    assert done.returncode == 0, done.stderr
    assert_valid(tmp_path / "submission.json", TASKS)
    loaded, *blocked = done.stdout.splitlines()[-3:]
    assert {"torch", *RUNTIME} <= set(loaded.split())
    assert not set(loaded.split()) & set(LACKED)
    assert blocked == ["tyro: No module named 'tyro'", "arc_trm.train: No module named 'tyro'"], "the block blocks"
