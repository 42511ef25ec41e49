"""The clock of a solving run: what it does next, on machines of every speed."""

import argparse
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from submission.budget import (
    COMPILE_LEAST,
    COMPILE_LIMIT,
    FIRST_SHARE,
    LARGEST_PASS,
    Kind,
    RunClock,
    Schedule,
    Speed,
    Unit,
    passes,
)
from submission.settings import duration
from tests.conftest import Clock


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("11h30m", 41400), ("1h1m1s", 3661), ("1.5m", 90), ("0.5h", 1800)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "5x", "0s", "1e3s", "10m extra", "999999999h"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        duration(text)


# What a solving run does on a machine of the tests' own -----------------------------------------------------


@dataclass
class Machine:
    """Does what the schedule says; its work moves a clock and nothing else.

    Times are in seconds: of a step, of an answer, of compiling. The first work of a shape takes `cold` times as long.
    Compiled code takes `gain` of the time. Every `drift` units of work the machine turns slower or faster.
    """

    budget: float
    outputs: int
    puzzles: int
    step_time: float
    answer_time: float
    compile_time: float = math.inf
    compiles: bool = False
    gain: float = 1.0
    batch: int = 8
    cold: float = 1.0
    repeats: float = 1.0  # answers that a vote takes, once it is no early one
    guess: float = 1.0  # how wrong the first guess of a step's time is
    steps: int = 0
    save_every: float = math.inf
    speeds: tuple[float, ...] = (1.0,)
    clock: Clock = field(default_factory=lambda: Clock(100.0))
    spent: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(Kind, 0.0))
    votes: list[int] = field(default_factory=list)
    early: list[bool] = field(default_factory=list)
    order: list[Unit] = field(default_factory=list)
    longest: float = 0.0  # of the pieces that nothing interrupts: steps and batches
    is_compiled: bool = False
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.votes, self.early = [0] * self.outputs, [False] * self.outputs
        self.plan = RunClock(self.budget, self.clock(), self.clock)
        step_work = self.step_time / self.answer_time * self.guess
        self.schedule = Schedule(
            self.plan, self.puzzles, lambda start, stop: float((stop - start) * self.outputs), step_work,
            steps=self.steps, compiles=self.compiles, save_every=self.save_every,
        )  # fmt: skip

    @property
    def available(self) -> float:
        return self.budget - self.plan.reserve

    @property
    def factor(self) -> float:
        """How much slower the machine is at present."""
        share = (self.clock() - self.plan.started) / self.budget
        return self.speeds[min(int(share * len(self.speeds)), len(self.speeds) - 1)]

    def run(self) -> "Machine":
        """Until the schedule says that it is over."""
        while (unit := self.schedule.next()).kind != Kind.END:
            began = self.clock()
            assert began < self.plan.prediction_end, "a unit of work begins in time"
            self.order.append(unit)
            self.work(unit)
            self.spent[unit.kind] += self.clock() - began
            assert len(self.order) < 100_000, "it comes to an end"
        return self

    def work(self, unit: Unit) -> None:
        kinds = {Kind.COMPILE: self.compile, Kind.ADAPT: self.adapt, Kind.SAVE: lambda unit: self.schedule.saved()}
        kinds.get(unit.kind, self.vote)(unit)

    def works(self, shape: str, seconds: float) -> float:
        seconds *= self.factor * (self.gain if self.is_compiled else 1.0) * (1.0 if shape in self.seen else self.cold)
        self.seen.add(shape)
        self.clock.time += seconds
        self.longest = max(self.longest, seconds)
        return seconds

    def vote(self, unit: Unit) -> None:
        end = self.clock() + unit.seconds
        early = unit.kind == Kind.EARLY_VOTE
        asked = np.repeat(np.arange(self.outputs), unit.stop - unit.start)
        complete = True
        for first in range(0, len(asked), self.batch):
            rows = asked[first : first + self.batch]
            seconds = self.works("vote", len(rows) * self.answer_time * (1.0 if early else self.repeats))
            self.schedule.answers.add("vote", len(rows) * (1.0 if early else self.repeats), seconds)
            self.schedule.batch_seconds = seconds
            for output in rows.tolist():
                self.votes[output] = 1 if early or self.early[output] else self.votes[output] + 1
                self.early[output] = early
            if self.plan.left(end) < seconds and first + self.batch < len(asked):
                complete = False
                break
        self.schedule.answers.settle()
        if early:
            self.schedule.repeats = self.repeats
            self.schedule.early_voted(complete)
        else:
            self.schedule.passed(unit.stop, complete)

    def compile(self, unit: Unit) -> None:
        assert min(self.votes) > 0, "every output has a vote before anything is compiled"
        seconds = self.compile_time * self.factor
        self.is_compiled = seconds <= unit.seconds and self.gain < 1
        self.clock.time += min(seconds, unit.seconds)
        self.seen.clear()
        self.schedule.compiled()

    def adapt(self, unit: Unit) -> None:
        end, began, done = self.clock() + unit.seconds, self.clock(), 0
        for _ in range(unit.steps):
            done += 1
            seconds = self.works("step", self.step_time)
            if self.plan.left(end) < seconds:
                break
        self.schedule.stepped(done, self.clock() - began)


def spans(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers over orders of magnitude."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def machines(draw: st.DrawFn, fine: bool = False) -> Machine:
    """From one step in the whole budget to thousands, from a vote that takes all of it to one that takes nothing;
    `fine`: no piece of work takes more than a few hundredths.
    """
    budget, outputs, batch = draw(spans(20, 50_000)), draw(st.integers(1, 50)), draw(st.integers(3, 60))
    most = 3 if fine else 20
    return Machine(
        budget,
        outputs,
        puzzles=draw(st.integers(1, 100)),
        step_time=budget * draw(spans(3e-4, 2e-3 if fine else 1)),
        answer_time=budget / outputs * draw(spans(1e-4, max(2e-4, 5e-3 * outputs / batch) if fine else 1)),
        compile_time=budget * draw(spans(1e-3, 1)),
        compiles=draw(st.booleans()),
        gain=draw(st.floats(0.3, 1.2)),
        batch=batch,
        cold=draw(st.floats(1, most)),
        repeats=draw(st.floats(1, min(most, 7))),
        guess=draw(spans(0.1, most / 2)),
    )


steady = machines().map(lambda machine: machine.run())


def next_unit(machine: Machine) -> float:
    """Seconds of one more vote of every output, on the machine as it is."""
    gain = machine.gain if machine.is_compiled else 1.0
    return machine.outputs * machine.answer_time * machine.repeats * machine.factor * gain


def would_fit(machine: Machine) -> bool:
    """Whether the next unit of work would surely fit: another vote of every output; before it, a step where all votes
    are in.
    """
    unit = 1.25 * next_unit(machine) + machine.longest
    if min(machine.votes) >= machine.puzzles and not any(machine.early):
        # A step that was never tried is judged by a guess.
        tried = machine.spent[Kind.ADAPT] > 0
        unit += machine.step_time * (1.25 if tried else 1.25 * machine.cold * max(1.0, machine.guess) * machine.repeats)
    return unit < machine.plan.left(machine.plan.prediction_end)


@given(steady)
def test_the_time_is_used(machine: Machine) -> None:
    """At least 90 % of it, or the next unit would not fit."""
    left = machine.plan.left(machine.plan.prediction_end)
    assert left < 0.1 * machine.available or not would_fit(machine)


@given(steady)
def test_votes_are_even(machine: Machine) -> None:
    assert max(machine.votes) - min(machine.votes) <= max((unit.stop - unit.start for unit in machine.order), default=0)
    assert len(machine.order) == 0 or max(unit.stop - unit.start for unit in machine.order) <= LARGEST_PASS


@given(machines(), st.lists(st.floats(0.3, 3), min_size=1, max_size=5))
def test_no_deadline_is_passed(machine: Machine, speeds: list[float]) -> None:
    """On a machine that turns slower and faster, work ends in time, but for the piece that began in time."""
    machine.speeds = tuple(speeds)
    machine.run()
    assert machine.plan.left(machine.plan.prediction_end) >= -machine.longest


@given(machines(fine=True).map(lambda machine: machine.run()))
def test_the_adaptation_gets_what_votes_do_not_need(machine: Machine) -> None:
    rest = machine.available - machine.spent[Kind.EARLY_VOTE] - machine.spent[Kind.COMPILE]
    every = next_unit(machine) * machine.puzzles
    assert machine.spent[Kind.ADAPT] >= 0.8 * min(rest / 2, rest - every)


@given(steady)
def test_compiling_has_its_limit_and_a_first_vote_comes_before(machine: Machine) -> None:
    kinds = [unit.kind for unit in machine.order]
    assert kinds[0] == Kind.EARLY_VOTE
    assert kinds.count(Kind.COMPILE) <= machine.compiles
    assert machine.spent[Kind.COMPILE] <= min(COMPILE_LIMIT, 0.5 * machine.available)
    left = machine.available - machine.spent[Kind.EARLY_VOTE]
    assert Kind.COMPILE not in kinds or left >= COMPILE_LEAST
    assert machine.spent[Kind.EARLY_VOTE] <= FIRST_SHARE * 1.1 * machine.available + 2 * machine.longest


def test_speed_is_that_of_warm_work() -> None:
    speed = Speed()
    speed.add("a", 10, 500.0)
    speed.settle()
    assert speed.seconds == 50, "better than nothing"
    for shape, seconds in (("a", 20.0), ("b", 900.0), ("a", 40.0)):
        speed.add(shape, 10, seconds)
    speed.settle()
    assert speed.seconds == 3
    speed.cool()
    speed.add("a", 10, 700.0)
    speed.settle()
    assert speed.seconds == 3, "a cold measurement replaces no warm one"


def test_passes_double_and_then_stay() -> None:
    found = list(passes(0, 100))
    assert found[:7] == [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64)]
    assert found[-1] == (96, 100)
    assert [start for start, _ in found[1:]] == [stop for _, stop in found[:-1]]
    assert list(passes(0, 0)) == []


def test_an_asked_for_amount_of_work_is_done_in_the_same_order_at_every_speed() -> None:
    orders = []
    for step_time, answer_time in ((1e-3, 1e-5), (1.0, 1e-3), (1e-3, 0.1)):
        machine = Machine(1e6, 7, 11, step_time, answer_time, steps=53).run()
        lasting = [unit[2:] for unit in machine.order if unit.kind != Kind.EARLY_VOTE]
        orders.append(lasting)
        assert machine.votes == [11] * 7
    assert orders[0] == orders[1] == orders[2]


def test_phases_add_up() -> None:
    clock = Clock(100.0)
    plan = RunClock(10, clock(), clock)
    for seconds in (2, 3):
        with plan.phase("a"):
            clock.time += seconds
    failing = plan.phase("b")
    failing.__enter__()
    clock.time += 7
    assert not failing.__exit__(KeyError, KeyError(), None)
    assert plan.phases == {"a": 5, "b": 7}
    assert plan.left(plan.deadline) == -2


def test_no_early_vote_follows_votes_that_stay() -> None:
    # A cold first vote looks dear, so that none is cast half-way; the warm ones leave time for another round.
    machine = Machine(600, 7, 65, step_time=1.0, answer_time=0.02, batch=7, cold=120).run()
    kinds = [unit.kind for unit in machine.order]
    assert kinds.count(Kind.ADAPT) > kinds[: kinds.index(Kind.VOTE)].count(Kind.ADAPT) > 0, "no second round"
    assert Kind.EARLY_VOTE not in kinds[kinds.index(Kind.VOTE) :]


# The state on disk, and the plan ------------------------------------------------------------------------------


def test_the_state_is_saved_every_so_often_and_before_votes() -> None:
    machine = Machine(7200, 7, 65, step_time=1.0, answer_time=0.5, save_every=1200).run()
    kinds = [unit.kind for unit in machine.order]
    assert kinds[kinds.index(Kind.VOTE) - 1] == Kind.SAVE
    assert 4 <= kinds.count(Kind.SAVE) <= 8
    assert not any(one == other == Kind.SAVE for one, other in pairwise(kinds))


def test_no_pass_of_several_puzzles_takes_longer_than_from_save_to_save() -> None:
    machine = Machine(72_000, 7, 65, step_time=1.0, answer_time=50, batch=7, save_every=1200).run()
    sizes = [unit.stop - unit.start for unit in machine.order if unit.kind == Kind.VOTE]
    assert machine.votes == [65] * 7
    assert max(sizes) * 7 * 50 <= 1200
    assert max(sizes) > 1


@given(machines())
def test_a_schedule_that_is_restored_goes_on_as_if_nothing_had_been(machine: Machine) -> None:
    units = iter(range(13))
    while next(units, None) is not None and (unit := machine.schedule.next()).kind != Kind.END:
        machine.work(unit)
    kept = machine.schedule.state()
    clock = replace(machine.plan)
    spent = clock.now() - clock.started
    later = RunClock(clock.budget - spent, clock.now(), clock.now)
    later.resume(spent)
    again = replace(
        machine.schedule, clock=later, answers=Speed(), stepping=Speed(), step=0, voted=0, early_votes=0,
        cast=0, adapts=True, repeats=1.0, batch_seconds=0.0, over=False,
    )  # fmt: skip
    again.restore(orjson.loads(orjson.dumps(kept)), slower=1.0)
    machine.schedule.over = False
    assert again.next()[2:] == machine.schedule.next()[2:]
    again.restore(kept, slower=2.0)
    assert again.answers.seconds == (machine.schedule.answers.seconds or 0) * 2
    again.adapts = False
    again.restore(kept, slower=1.0)
    assert not again.adapts, "where no step fits into memory, a state does not change that"


def test_the_plan_is_what_then_happens() -> None:
    machine = Machine(7200, 7, 65, step_time=1.0, answer_time=0.5)
    machine.schedule.stepping.seconds, machine.schedule.answers.seconds = 1.0, 0.5
    planned = machine.schedule.plan()
    assert (machine.schedule.step, machine.clock.time) == (0, 100.0), "it is only thought"
    machine.schedule.stepping.add("step", 1, 500.0)
    machine.schedule.stepping.settle()
    assert machine.schedule.stepping.cold, "nothing is warm because of a thought"
    machine.schedule.stepping.seconds = 1.0
    machine.run()
    assert planned.steps == pytest.approx(machine.schedule.step, rel=0.05)
    assert planned.seconds[Kind.ADAPT] == pytest.approx(machine.spent[Kind.ADAPT], rel=0.05)
    assert planned.seconds[Kind.VOTE] == pytest.approx(machine.spent[Kind.VOTE], rel=0.05)
    assert planned.votes == max(machine.votes)


def test_the_plan_leaves_votes_their_time_where_steps_take_minutes() -> None:
    machine = Machine(42_300, 7, 8, step_time=400.0, answer_time=60.0, batch=7)
    machine.schedule.stepping.seconds, machine.schedule.answers.seconds = 400.0, 60.0
    assert machine.schedule.plan().votes == 8
    assert machine.run().votes == [8] * 7


def test_embeddings_move_alone_in_a_thousand_steps_at_most() -> None:
    machine = Machine(50_000, 7, 65, step_time=1.0, answer_time=0.5)
    machine.schedule.embedding_share = 0.25
    machine.run()
    adapting = [unit for unit in machine.order if unit.kind == Kind.ADAPT]
    assert sum(unit.steps for unit in adapting if not unit.trunk) == 1000


def test_parts_share_the_time_that_is_left() -> None:
    clock = Clock(100.0)
    plan = RunClock(90, clock(), clock)
    clock.time += 30
    part = plan.part(2)
    assert (part.budget, part.left(part.deadline)) == (30, 30)
    clock.time += 40
    assert plan.part(1) is plan
