"""The sanity check: its verdict is about learning alone, and what was cut short has none."""

import math
from pathlib import Path

import pytest

from arc_trm import sanity, train
from arc_trm.sanity import CHECKS, Check, Outcome, verdict
from arc_trm.trainer import Trainer
from data_prep import build

SMALL = ("sudoku", "--side", "4", "--train-rows", "50", "--test-rows", "10")


@pytest.mark.parametrize(
    ("scores", "line", "status"),
    [
        ((0.95, 0.80), "the model learns: sound", 0),
        ((0.94, 1.0), "not sound: sudoku6: exact_accuracy 94.0% of held-out puzzles after 7 steps, goal 95%", 1),
        ((1.0, None), "not finished: maze6: 5 of 7 steps", 3),
        ((0.0, None), "not sound: sudoku6: exact_accuracy 0.0% of held-out puzzles after 7 steps, goal 95%", 1),
        ((None,), "not finished: sudoku6: 5 of 7 steps", 3),
    ],
)
def test_the_verdict(scores: tuple[float | None, ...], line: str, status: int) -> None:
    checks = zip(CHECKS, scores, strict=False)
    assert verdict([Outcome(check, 5 if score is None else 7, 7, score) for check, score in checks]) == (line, status)


@pytest.mark.parametrize(
    ("goal", "words", "last", "status"),
    [
        (0.9, ["--train.steps", "1"], "not sound: sudoku4: valid 0.0% of held-out puzzles after 1 steps, goal 90%", 1),
        (0.0, ["--train.steps", "1"], "the model learns: sound", 0),
        (0.0, ["--train.steps", "2", "--minutes", "0"], "not finished: sudoku4: 1 of 2 steps", 3),
    ],
)
def test_the_program(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    goal: float,
    words: list[str],
    last: str,
    status: int,
) -> None:
    monkeypatch.setattr(sanity, "CHECKS", (Check("sudoku4", SMALL, "valid", goal),))
    monkeypatch.setattr(sanity, "timed", lambda arguments: ("fp32", 60.0))
    assert sanity.main(["--out", str(tmp_path), *words]) == status
    said = capsys.readouterr().out.splitlines()
    assert f"sudoku4: {words[1]} steps in fp32, about {words[1]}m00s here" in said
    assert said[-1] == last


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> train.Arguments:
    folder = tmp_path_factory.mktemp("sanity")
    build.main([SMALL[0], "--generate", *SMALL[1:], "--out", str(folder / "data")])
    return train.parse(["sudoku4", "--data", str(folder / "data"), "--out", str(folder / "run")])


@pytest.mark.parametrize(("bf16", "chosen"), [(0.5, ("bf16", 0.5)), (0.9, ("fp32", 1.0)), (70.0, ("fp32", 1.0))])
def test_a_cpu_takes_bf16_where_its_own_steps_are_faster_so(
    arguments: train.Arguments, monkeypatch: pytest.MonkeyPatch, bf16: float, chosen: tuple[str, float]
) -> None:
    def step_seconds(config, data, out, enough=math.inf):
        assert enough == (1.0 if config.train.precision == "bf16" else math.inf)
        return {"fp32": 1.0, "bf16": bf16}[config.train.precision]

    monkeypatch.setattr(sanity, "step_seconds", step_seconds)
    assert sanity.timed(arguments) == chosen


def test_a_precision_that_was_asked_for_stays(arguments: train.Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["sudoku4", "--data", str(arguments.data), "--out", str(arguments.out), "--train.precision", "bf16"]
    monkeypatch.setattr(sanity, "step_seconds", lambda config, data, out: 7.0)
    assert sanity.timed(train.parse(words)) == ("bf16", 7.0)


@pytest.mark.parametrize(("enough", "steps", "best"), [(math.inf, 4, 2.0), (0.6, 2, 5.0)])
def test_a_step_is_timed_warm_and_a_slow_one_no_longer_than_needed(
    arguments: train.Arguments, monkeypatch: pytest.MonkeyPatch, enough: float, steps: int, best: float
) -> None:
    clock, seen, real = [0.0], [], Trainer.train_step

    def train_step(trainer: Trainer) -> None:
        real(trainer)
        seen.append(trainer.config.train.precision)
        clock[0] += (100.0, 5.0, 2.0, 3.0)[len(seen) - 1]

    monkeypatch.setattr(Trainer, "train_step", train_step)
    monkeypatch.setattr(sanity.time, "perf_counter", lambda: clock[0])
    assert sanity.step_seconds(arguments.config, arguments.data, arguments.out, enough) == best
    assert len(seen) == steps
    assert not (arguments.out / "metrics.jsonl").exists()
