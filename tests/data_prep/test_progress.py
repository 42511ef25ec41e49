"""Progress is a bar on a terminal and a line a minute elsewhere; measured with a fake clock."""

import sys

import pytest

from data_prep import progress
from data_prep.progress import Progress, duration_text
from tests.conftest import Clock
from tests.data_prep.material import Terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(progress, "_last_line", None)
    return Clock(1000.0)


def test_without_a_terminal_there_is_a_line_a_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("training", total=500, done=100, now=clock) as bar:
        for step in range(101, 401):
            clock.time += 0.5
            bar.update(1, f"loss {step / 1000:.3f}")
    assert capsys.readouterr().err.splitlines() == [
        "training: 220 of 500 steps, loss 0.220, 2 steps/s, 2m20s left",
        "training: 340 of 500 steps, loss 0.340, 2 steps/s, 1m20s left",
    ]


def test_short_pieces_of_work_share_the_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        with Progress(f"votes of {number}", unit="rows", now=clock) as bar:
            clock.time += 25
            bar.update(7)
    assert capsys.readouterr().err.splitlines() == ["votes of 2: 7 rows, 0.28 rows/s"]


def test_work_that_is_slower_than_a_line_a_minute_prints_each_step(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("adapting", total=3, now=clock) as bar:
        for _ in range(3):
            clock.time += 90
            bar.update()
    assert capsys.readouterr().err.splitlines() == [
        "adapting: 1 of 3 steps, 0.0111 steps/s, 3m00s left",
        "adapting: 2 of 3 steps, 0.0111 steps/s, 1m30s left",
        "adapting: 3 of 3 steps, 0.0111 steps/s",
    ]


def test_the_other_processes_are_quiet(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress("training", quiet=True, now=clock) as bar:
        clock.time += 100
        bar.update()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("training", quiet=True, now=clock) as bar:
        bar.update()
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_terminal_shows_a_bar_and_no_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("training", total=5, now=clock) as bar:
        for _ in range(5):
            clock.time += 100
            bar.update(1, "loss 0.1")
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "\rtraining" in shown
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (7.31, "7.3s"), (60, "1m00s"), (245.4, "4m05s"), (41400, "11h30m")]
)
def test_a_duration_is_written(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
