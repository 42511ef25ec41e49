"""The sanity check: its verdict is about learning alone, and what was cut short has none."""

from pathlib import Path

import pytest

from arc_trm import sanity, train
from arc_trm.device import PRECISIONS
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


@pytest.mark.parametrize(("words", "faster", "precision"), [
    ([], False, "fp32"), ([], True, "bf16"), (["--train.precision", "fp16"], True, "fp16"),
])  # fmt: skip
def test_a_warm_step_is_timed_in_the_precision_that_training_takes(
    arguments: train.Arguments, monkeypatch: pytest.MonkeyPatch, words: list[str], faster: bool, precision: str
) -> None:
    clock, seen, real = [0.0], [], Trainer.train_step

    def train_step(trainer: Trainer) -> None:
        real(trainer)
        seen.append(trainer.dtype)
        clock[0] += (100.0, 5.0, 2.0, 3.0)[len(seen) - 1]

    monkeypatch.setattr("arc_trm.device.bf16_is_faster", lambda model: faster)
    monkeypatch.setattr(Trainer, "train_step", train_step)
    monkeypatch.setattr("arc_trm.device.time.perf_counter", lambda: clock[0])
    asked = train.parse(["sudoku4", "--data", str(arguments.data), "--out", str(arguments.out), *words])
    assert sanity.timed(asked) == (precision, 2.0)
    assert seen == [PRECISIONS[precision]] * 4
    assert not (arguments.out / "metrics.jsonl").exists()
