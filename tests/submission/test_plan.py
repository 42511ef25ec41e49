"""The plan of a time budget."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from submission.plan import TimePlan, duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("11h30m", 41400), ("1h1m1s", 3661), ("1.5m", 90), ("0.5h", 1800)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "5x", "0s", "1e3s", "10m extra", "999999999h"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        duration(text)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


budgets = st.floats(1, 50_000)


@given(budgets, st.floats(0, 1e9), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1)))
def test_the_phases_follow_each_other(budget: float, work: float, first: float, speed: float | None) -> None:
    clock = Clock()
    plan = TimePlan(budget, clock(), clock, prediction_work=work, first_pass=first, seconds_per_token=speed)
    assert plan.started < plan.adaptation_end <= plan.prediction_end < plan.last_call < plan.deadline
    assert plan.deadline - plan.started == pytest.approx(budget)
    # Half of the time is for adaptation, whatever prediction would like.
    assert plan.adaptation_end - plan.started >= 0.499 * (budget - plan.reserve)


def test_prediction_gets_what_it_needs_and_adaptation_the_rest() -> None:
    clock = Clock()
    plan = TimePlan(1000, clock(), clock, prediction_work=1e5, first_pass=0.01, seconds_per_token=1e-3)
    assert plan.prediction_end - plan.adaptation_end == pytest.approx(110)
    # A single pass must fit even if it takes three times as long.
    plan.first_pass = 1.0
    assert plan.prediction_end - plan.adaptation_end == pytest.approx(300)


def test_phases_add_up() -> None:
    clock = Clock()
    plan = TimePlan(10, clock(), clock)
    for seconds in (2, 3):
        with plan.phase("a"):
            clock.time += seconds
    failing = plan.phase("b")
    failing.__enter__()
    clock.time += 7
    assert not failing.__exit__(KeyError, KeyError(), None)
    assert plan.phases == {"a": 5, "b": 7}
    assert plan.left(plan.deadline) == -2
