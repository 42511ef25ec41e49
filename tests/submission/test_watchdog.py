"""The watchdog that ends a run that hangs."""

import threading

from submission.budget import RunClock, watchdog
from tests.conftest import HANG


def test_it_reports_and_ends_the_program_when_the_time_is_over() -> None:
    said: list[str] = []
    ended = threading.Event()
    with watchdog(RunClock(0.0), lambda: said.append("report"), end=lambda status: ended.set()):
        assert ended.wait(HANG)
    assert said == ["report"]


def test_it_ends_the_program_even_when_the_report_hangs() -> None:
    ended = threading.Event()
    stuck = threading.Event()
    with watchdog(RunClock(0.0), stuck.wait, end=lambda status: ended.set(), patience=0.01):
        assert ended.wait(HANG)
    stuck.set()


def test_it_does_nothing_to_a_program_that_is_done_in_time() -> None:
    calls: list[int] = []
    before = set(threading.enumerate())
    with watchdog(RunClock(HANG), lambda: calls.append(0), end=calls.append):
        [watching] = set(threading.enumerate()) - before
    watching.join(HANG / 2)  # it stops to wait at once
    assert not watching.is_alive()
    assert calls == []


def test_a_limit_within_the_time_ends_the_program_with_status_1() -> None:
    clock, statuses, ended = RunClock(HANG), list[int](), threading.Event()

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    with watchdog(clock, lambda: None, end):
        with clock.limited(HANG):
            pass
        with clock.part(2).limited(0.0):
            assert ended.wait(HANG)
    assert statuses == [1]
