"""Generating pairs: which ones a task gets, time limits, resuming, wrong input. Needs no generators but fake ones."""

import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import generate as program
from data_prep.files import InputError, read_json
from data_prep.generate import Settings, Worker, attempt, load_generators, main, make_task
from data_prep.generated import SOURCE
from data_prep.overlap import pair_digest
from data_prep.tasks import read_tasks
from tests.conftest import run_module
from tests.data_prep import fake_generators as fake

MODULE = fake.__name__
SETTINGS = Settings(MODULE, seed=3, pairs=7, canvas=11, difficulty=(0.0, 0.2), time_limit=1)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process is started sooner than several
    return tmp_path / "generated"


def run(out: Path, *words: str, pairs: int = 7) -> None:
    fixed = ["--source", MODULE, "--pairs", str(pairs), "--canvas", "11", "--time-limit", "1", "--seed", "3"]
    assert main([*fixed, "--out", str(out), *words]) == 0


def pairs_of(path: Path) -> list[Any]:
    value = read_json(path)
    return value["train"] + value["test"]


class Here(Worker):
    """Makes attempts in this process with one generator, whatever the task."""

    def __init__(self, generator: program.Generator, settings: Settings) -> None:
        self.generator, self.settings = generator, settings

    def attempts(self, task_id: str, numbers: range) -> list[program.Answer]:
        return [attempt(self.generator, task_id, number, self.settings) for number in numbers]


def made_here(generator: program.Generator, task_id: str, settings: Settings = SETTINGS) -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(orjson.dumps(make_task(Here(generator, settings), task_id, settings)))
    return made


NUMBERS = st.integers(0, 10**6)


@given(NUMBERS, NUMBERS, st.sampled_from(["plain", "wide", "few"]))
def test_an_attempt_depends_on_seed_task_and_number_only(seed: int, number: int, task_id: str) -> None:
    generator, settings = load_generators(MODULE)[task_id], replace(SETTINGS, seed=seed)
    random.seed(number)
    assert attempt(generator, task_id, number, settings) == attempt(
        generator, task_id, number, replace(settings, pairs=1000, time_limit=9)
    )
    other_draws = {
        attempt(fake.generate_plain, name, at, replace(settings, seed=key))
        for name, at, key in (
            (task_id, number, seed),
            ("x", number, seed),
            (task_id, number + 1, seed),
            ("x", 0, seed + 1),
        )
    }
    assert len(other_draws) == 4


@given(st.integers(2, 40), st.integers(0, 1000))
def test_fewer_pairs_are_the_first_of_more(count: int, seed: int) -> None:
    for name in ("wide", "few", "unsteady"):
        few, many = (
            made_here(load_generators(MODULE)[name], name, replace(SETTINGS, seed=seed, pairs=pairs))
            for pairs in (count, count + 13)
        )
        few, many = few["train"] + few["test"], many["train"] + many["test"]
        assert many[: len(few)] == few
        assert len({orjson.dumps(pair) for pair in many}) == len(many), "all are distinct"
        assert all(max(len(pair[role]), len(pair[role][0])) <= 10 for pair in many for role in pair)
        assert len(few) == (min(count, 3) if name == "few" else count)


def test_difficulty_is_passed_on() -> None:
    easy, hard = (
        made_here(fake.generate_harder, "harder", replace(SETTINGS, difficulty=difficulty))
        for difficulty in ((0.0, 0.0), (0.5, 0.5))
    )
    assert {len(pair["input"][0]) for pair in easy["train"]} == {2}
    assert {len(pair["input"][0]) for pair in hard["train"]} == {7}


def test_the_files_are_ordinary_tasks(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(out, "--tasks", "wide", "plain", "large", "few")
    tasks = {task.task_id: task for task in read_tasks(out)}
    assert {name: (len(task.demonstrations), len(task.tests)) for name, task in tasks.items()} == {
        "plain": (6, 1),
        "wide": (6, 1),
        "few": (2, 1),
    }
    for name in ("plain", "wide"):
        assert read_json(out / f"{name}.json") == made_here(load_generators(MODULE)[name], name)
        assert len({pair_digest(pair) for pair in tasks[name].pairs}) == 7
    assert read_json(out / SOURCE) == {
        "format": "arc-trm-generated", "version": None, "source": MODULE, "seed": 3, "pairs": 7, "canvas": 11,
        "difficulty": [0, 0.2], "time_limit": 1,
    }  # fmt: skip
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    assert capsys.readouterr().out == (
        f"wrote {out}: 3 tasks, 17 pairs, 1 tasks without any that fit, 0 failed attempts, {size:.1f} MB\n"
    )


def test_an_attempt_that_hangs_or_dies_changes_no_other_pair(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(out, "--tasks", "halts", "killed", "unsteady")
    ended = "time limit, or the end of its process"
    for name, reason in (("halts", ended), ("killed", ended), ("unsteady", "ValueError: bad luck")):
        expected, found = made_here(fake.unsteady, name), read_json(out / f"{name}.json")
        assert (found["train"], found["test"]) == (expected["train"], expected["test"])
        assert list(found["failed"]) == list(expected["failed"])
        assert set(found["failed"].values()) == {reason}, "at least one attempt fails"
    lines = capsys.readouterr().out.splitlines()
    number = next(iter(made_here(fake.unsteady, "halts")["failed"]))
    assert lines[0].startswith(f"failed attempts: halts {number} ({ended}), ")


def test_an_attempt_is_limited_in_processor_time_and_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    def looking(rng: random.Random, low: float, high: float) -> fake.Example:
        seen.append((signal.getitimer(signal.ITIMER_PROF)[0], signal.getitimer(signal.ITIMER_REAL)[0]))
        return fake.generate_plain(rng, low, high)

    monkeypatch.setattr(fake, "generate_plain", looking)
    before = [signal.signal(timeout, signal.SIG_IGN) for timeout in (signal.SIGPROF, signal.SIGALRM)]
    try:
        assert len(program.attempts("plain", range(3), replace(SETTINGS, time_limit=1000))) == 3
        assert signal.getitimer(signal.ITIMER_PROF)[0] == signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        for timeout, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(timeout, handler)
    assert all(900 < processor <= 1001 and 19000 < clock <= 20001 for processor, clock in seen)


def test_an_interrupted_run_is_completed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = make_task

    def interrupted(worker: Worker, task_id: str, settings: Settings) -> dict[str, Any]:
        if task_id == "unsteady":
            raise KeyboardInterrupt
        return original(worker, task_id, settings)

    with monkeypatch.context() as patched:
        patched.setattr(program, "make_task", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(out, "--tasks", "plain", "unsteady", "wide")
    kept = out / "plain.json"
    assert not (out / "unsteady.json").exists()
    before = kept.stat().st_mtime_ns
    run(out, "--tasks", "plain", "unsteady", "wide")
    assert kept.stat().st_mtime_ns == before
    run(out.with_name("whole"), "--tasks", "wide", "unsteady", "plain")
    names = ["plain.json", SOURCE, "unsteady.json", "wide.json"]
    assert [path.name for path in sorted(out.iterdir())] == names
    assert all((out / name).read_bytes() == (out.with_name("whole") / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "4"], "holds pairs of seed 3, expected 4 or another --out"),
        (
            ["--difficulty", "0", "1"],
            "holds pairs of difficulty [0.0, 0.2], expected [0.0, 1.0] or another --out",
        ),
        (["--canvas", "16"], "holds pairs of canvas 11, expected 16"),
        (["--tasks", "plain", "none"], "--tasks: no generator for none in tests.data_prep.fake_generators"),
        (["--source", "no_such_module"], "generators no_such_module: no module no_such_module"),
        (["--source", "tests.data_prep.material"], "no function generate_ID, expected one for each task"),
    ],
)
def test_other_settings_or_unknown_names_end_in_one_line(out: Path, words: list[str], message: str) -> None:
    run(out, "--tasks", "few", pairs=2)
    with pytest.raises(InputError) as caught:
        run(out, *words, pairs=2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in out.iterdir()) == ["few.json", SOURCE]


def test_a_folder_of_something_else_is_refused(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds notes\.txt, expected a new folder or an older folder of generated"):
        run(out, "--tasks", "few")


def test_a_grid_that_is_none_fails_its_attempt() -> None:
    made = made_here(fake.generate_wrong, "wrong")
    assert made["train"] == made["test"] == []
    assert set(made["failed"].values()) == {"InputError: input: found 10 at row 0, column 0, expected a colour 0-9"}
    assert len(made["failed"]) == program.PATIENCE


def test_without_the_package_the_program_says_how_to_get_it(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "REARC_FOLDER", tmp_path / "nowhere")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if ".generators" not in path])
    with pytest.raises(InputError, match=r"generators rearc_utils\.generators: not installed: run `make generators`"):
        main(["--pairs", "2", "--out", str(out)])
    assert not out.exists()


def test_wrong_words_exit_with_2(tmp_path: Path) -> None:
    ended = run_module("data_prep.generate", "--pairs", "2", "--difficulty", "0.5", "0.2", "--out", str(tmp_path / "x"))
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].endswith(
        "--difficulty: found 0.5 0.2, expected two numbers in order within 0 to 1"
    )
