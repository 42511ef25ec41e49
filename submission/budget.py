"""The time of a solving run: its clock and deadline, the speed of its work, and what it does next.

First every output gets a vote, then the model is adapted, then votes follow in passes that double; how much of each
fits is decided anew after every piece of work, from the newest measurement.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

# The clock ------------------------------------------------------------------------------------------------


@dataclass
class RunClock:
    """Budget and deadline of a solving run, in seconds of `now`."""

    budget: float = math.inf
    started: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic
    phases: dict[str, float] = field(default_factory=dict)  # seconds spent, by name
    limits: list[float] = field(default_factory=list)  # moments at which a process that hangs is ended earlier

    @property
    def reserve(self) -> float:
        """Seconds kept for the last write, for a last batch that takes longer than those before, and for leaving."""
        return min(0.1 * self.budget, 5 + 0.01 * self.budget, 120.0)

    def part(self, parts: int) -> "RunClock":
        """Return the clock of the first of `parts` equal parts of the time left; the last part has all of it."""
        left = self.left(self.deadline) / parts
        return self if parts == 1 else RunClock(left, self.now(), self.now, self.phases, self.limits)

    def resume(self, spent: float) -> None:
        """Count `spent` seconds of an earlier process as part of this run; the deadline stays."""
        self.started, self.budget = self.started - spent, self.budget + spent

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return self.now() - self.started

    @property
    def deadline(self) -> float:
        """The moment at which the program must have ended."""
        return self.started + self.budget

    @property
    def last_call(self) -> float:
        """The moment at which a process that hangs is ended, with time left to write and report."""
        return min([self.deadline - self.reserve / 3, *self.limits])

    @property
    def prediction_end(self) -> float:
        """The moment at which the last answer must be there."""
        return self.deadline - self.reserve

    def left(self, end: float) -> float:
        """Seconds until `end`."""
        return end - self.now()

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """End the process if this context takes longer than `seconds`; see `watchdog`."""
        self.limits.append(self.now() + seconds)
        try:
            yield
        finally:
            self.limits.pop()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time within this context to phase `name`."""
        began = self.now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.now() - began


@contextmanager
def watchdog(
    clock: RunClock,
    leave: Callable[[], object],
    end: Callable[[int], object] = os._exit,
    patience: float = 5.0,
) -> Iterator[None]:
    """Within this context, at the clock's last call: run `leave`, for at most `patience` seconds, and end the process.

    A collective operation waits for ever for a process that was lost, and no exception or signal handler interrupts
    it; a thread goes on. The file on disk is valid at any moment, so nothing is lost. The exit status is 0 at the end
    of the time, 1 at an earlier limit.
    """
    over = threading.Event()

    def watch() -> None:
        while (seconds := clock.left(clock.last_call)) > 0:
            if over.wait(min(seconds, 1.0)):  # a limit may be set meanwhile
                return
        leaving = threading.Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(patience)
        sys.stdout.flush()
        if not over.is_set():
            end(int(bool(clock.limits)))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@dataclass
class Speed:
    """Seconds per unit of some work, as measured last on work that was warm.

    The first work of a shape (a batch size, a canvas size) makes tables, fills caches and may compile; its time counts
    only as long as nothing better is known.
    """

    seconds: float | None = None
    cold: bool = True  # nothing warm was measured yet
    _known: set[Hashable] = field(default_factory=set)
    _added: list[tuple[bool, float, float]] = field(default_factory=list)  # since `settle`: warm, amount, seconds

    def add(self, shape: Hashable, amount: float, seconds: float) -> None:
        """Note that `amount` of work of this shape took so long."""
        self._added.append((shape in self._known, amount, seconds))
        self._known.add(shape)

    def settle(self) -> None:
        """Let what was added since the last call be the newest measurement."""
        warm = any(is_warm for is_warm, _, _ in self._added)
        measured = [(amount, seconds) for is_warm, amount, seconds in self._added if is_warm == warm]
        if measured and (warm or self.cold):
            amount, seconds = map(sum, zip(*measured, strict=True))
            self.seconds, self.cold = seconds / amount, not warm
        self._added = []

    def cool(self) -> None:
        """Count every shape as cold again, as after compiling."""
        self._known.clear()


# What comes next ------------------------------------------------------------------------------------------


class Kind(Enum):
    """Kinds of work, by the name of the phase that they are."""

    END = "end"
    EARLY_VOTE = "first votes"  # a vote for every output, before the weights are final: later votes replace it
    COMPILE = "compiling"
    ADAPT = "adaptation"  # some optimiser steps
    VOTE = "prediction"  # a pass of votes
    SAVE = "saving"  # keep the state on disk


class Unit(NamedTuple):
    """A piece of work, and the seconds after which it has to end."""

    kind: Kind
    seconds: float = 0.0
    start: int = 0  # of a pass: its puzzles of every task
    stop: int = 0
    steps: int = 0  # of the adaptation: how many now, how many are planned in all, and whether the trunk moves
    planned_steps: int = 0
    trunk: bool = False


class Plan(NamedTuple):
    """Seconds of each kind of work, optimiser steps in all, and votes of an output."""

    seconds: dict[Kind, float]
    steps: int
    votes: int


FIRST_SHARE = 0.25  # of the time, that a first vote of every output may take before anything is adapted or compiled
COMPILE_LEAST = 300.0  # seconds: with less time left nothing is compiled
COMPILE_LIMIT = 1800.0  # seconds, and half of the time left, after which a compiler is taken to hang
COMPILING = 120.0  # seconds that a plan counts for it
HALF_WAY_SHARE = 0.02  # of the whole time, that the vote half-way through the adaptation may take
WORTHWHILE_SHARE = 0.05  # of the whole time, that must be left for another round of adaptation and votes
EMBEDDING_STEPS = 1000  # at most, at first, in which embeddings move alone
SLACK = 1.1  # estimates are multiplied by this
LARGEST_PASS = 32  # puzzles of a task in a pass, at most: the file is written anew at least this often
LOOK_EVERY = 10  # steps between two looks at clock and loss, once the first few are done
MOST_STEPS = 10_000_000  # float32 carries them exactly from process to process
FASTEST = 1e-6  # seconds of a step, in divisions
# Numbers and speeds that a saved schedule consists of.
KEPT = (
    "repeats", "step", "voted", "cast", "early_votes", "adapts", "batch_seconds",
    "_round_began", "_round_step", "_adapting",
)  # fmt: skip
SPEEDS = ("answers", "stepping")


@dataclass
class Schedule:
    """Decides what a solving run does next, from the clock and from what was measured; it does no work itself.

    After the first votes the model may be compiled. Then rounds follow: adaptation as long as the votes leave time, and
    votes in passes. Voting covers all puzzles but takes at most half of a round. Another round begins if the votes took
    less time than expected. If the steps and votes that were asked for fit easily, all of them are done whatever the
    machine's speed: early votes are replaced, so only *when* things happen depends on the clock.
    """

    clock: RunClock
    puzzles: int  # of a task, that are to vote
    work: Callable[[int, int], float]  # tokens to be answered when the puzzles start..stop of every task vote
    step_work: float  # tokens to be answered that take as long as an optimiser step; a guess until one is measured
    steps: int = 0  # optimiser steps at most; 0: as many as the time allows
    embedding_share: float = 0.0  # of the adaptation, in which the trunk does not move
    compiles: bool = False
    save_every: float = math.inf  # seconds between two states on disk; one more before votes begin
    answers: Speed = field(default_factory=Speed)  # of a token
    stepping: Speed = field(default_factory=Speed)  # of an optimiser step
    repeats: float = 1.0  # tokens answered for each that `work` counts, because of answers that are repeated
    step: int = 0
    voted: int = 0  # puzzles of every task that have voted in this round
    cast: int = 0  # puzzles of every task that have voted in all rounds
    early_votes: int = 0  # passes of them
    adapts: bool = True  # nothing speaks against further steps
    over: bool = False  # the last pass ended early
    batch_seconds: float = 0.0  # of the last batch that was answered
    unsaved: bool = False  # something was done since the state was saved last
    # In seconds since the run began: when the state was saved last, the round began, the adaptation began.
    _saved: float = field(init=False)
    _round_began: float | None = None
    _adapting: float | None = None
    _round_step: int = 0  # with which the round began

    def __post_init__(self) -> None:
        """Save for the first time after `save_every`."""
        self._saved = self.clock.spent

    def next(self) -> Unit:
        """Return the next unit of work; `END` when all is done, or nothing more fits."""
        left = self.left
        if left <= 0:
            return Unit(Kind.END)
        if self.early_votes == 0:
            return Unit(Kind.EARLY_VOTE, FIRST_SHARE * left, 0, 1)
        if self.compiles and left >= COMPILE_LEAST:
            return Unit(Kind.COMPILE, min(COMPILE_LIMIT, left / 2))
        if self._round_began is None:
            self._begin_round()
        adapts = self.voted == 0 and self._wants_steps() and self._left_to_adapt() >= self.step_seconds()
        due = self.clock.spent - self._saved >= self.save_every or (self.voted == 0 and not adapts)
        if due and self.unsaved:
            return Unit(Kind.SAVE)
        if adapts:
            if (
                self.early_votes == 1
                and self.step
                and not self.cast
                and self._votes_half_way()
                and self._share() >= 0.5
            ):
                return Unit(Kind.EARLY_VOTE, FIRST_SHARE * left, 0, 1)
            return self._steps()
        if not self.over and (size := self._pass_size()):
            return Unit(Kind.VOTE, left, self.voted, self.voted + size)
        if self._another_round():
            self._begin_round()
            return self.next()
        return Unit(Kind.END)

    def plan(self) -> Plan:
        """Divide the time that is left by the speeds, for one round; what was done before counts."""
        seconds = {kind: self.clock.phases.get(kind.value, 0.0) for kind in Kind}
        left, first = self.left, self.pass_seconds(0, 1)
        early = [min(first, FIRST_SHARE * left)] * (not self.early_votes)
        early += [first] * (self.early_votes < 2 and self._wants_steps() and self._votes_half_way())
        compiling = min(COMPILING, left / 2) if self.compiles and left >= COMPILE_LEAST else 0.0
        left = max(0.0, left - sum(early) - compiling)
        count, votes, voting = 0, self.voted, 0.0
        if self._wants_steps() and not self.voted:
            count = max(0, int((left - self._reserved(left)) / max(self.step_seconds(), FASTEST)))
            count = min(count, self.steps - self.step) if self.steps else count
        left -= count * self.step_seconds()
        while size := self._fitting(votes, left - voting):
            votes, voting = votes + size, voting + self.pass_seconds(votes, votes + size)
        new = {Kind.EARLY_VOTE: sum(early), Kind.COMPILE: compiling, Kind.VOTE: voting}
        for kind, more in (new | {Kind.ADAPT: count * self.step_seconds()}).items():
            seconds[kind] += more
        return Plan(seconds, self.step + count, self.cast - self.voted + votes)

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until the last answer must be there."""
        return self.clock.left(self.clock.prediction_end)

    def step_seconds(self) -> float:
        """Seconds of an optimiser step: measured, or judged by the answers; half as long if these were cold."""
        if self.stepping.seconds is not None:
            return self.stepping.seconds
        return self.step_work * (self.answers.seconds or 0.0) * (0.5 if self.answers.cold else 1.0)

    def pass_seconds(self, start: int, stop: int) -> float:
        """Seconds that a pass should take; 0 if nothing is known."""
        return self.work(start, stop) * self.repeats * (self.answers.seconds or 0.0)

    def _wants_steps(self) -> bool:
        return self.adapts and (not self.steps or self.step < self.steps)

    def _votes_half_way(self) -> bool:
        """Vote in the middle of the adaptation, too, if that is cheap: in case that the adaptation never ends."""
        return self.answers.seconds is not None and self.pass_seconds(0, 1) <= HALF_WAY_SHARE * self.clock.budget

    def _begin_round(self) -> None:
        self._round_began, self._round_step, self.voted = self.clock.spent, self.step, 0

    def _another_round(self) -> bool:
        """Adapt further and vote again if votes took so little time that it is worth it."""
        adapted = self.step > self._round_step and self._wants_steps()
        left, worthwhile = self.left, WORTHWHILE_SHARE * self.clock.budget
        enough = left > max(worthwhile, self._reserved(left) + self.step_seconds())
        return adapted and enough and not self.over and self.voted == self.puzzles

    def _left_to_adapt(self) -> float:
        """Seconds until votes have to begin."""
        assert self._round_began is not None
        left = self.left
        return left - self._reserved(left + self.clock.spent - self._round_began)

    def _reserved(self, round_seconds: float) -> float:
        """Seconds kept for the votes of a round: for as many as fit into half of it, and for a first vote even on a
        machine three times slower. A first vote may take nearly the whole round, if it must.
        """
        half, first = round_seconds / 2, SLACK * self.pass_seconds(0, 1)
        wanted = 0.0
        for start, stop in passes(0, self.puzzles):
            seconds = SLACK * self.pass_seconds(start, stop)
            if wanted + seconds > half:
                break
            wanted += seconds
        careful = min(half, max(wanted, 3 * first, min(0.03 * self.clock.budget, 10.0)))
        return max(careful, min(first, 0.9 * round_seconds))

    def _steps(self) -> Unit:
        """Steps up to the next look."""
        if self._adapting is None:
            self._adapting = self.clock.spent
        left = max(0.0, self._left_to_adapt())
        # The clock ends the adaptation, not an estimate that is some steps old.
        planned = max(self.step + int(left / max(self.step_seconds(), FASTEST)), self.step + LOOK_EVERY + 1)
        planned = self.steps if self._steps_fit(left) else min(planned, self.steps or MOST_STEPS)
        count = 1 if self.step < 8 else LOOK_EVERY - self.step % LOOK_EVERY
        trunk = self._share() >= self.embedding_share or self.step >= EMBEDDING_STEPS
        return Unit(Kind.ADAPT, self._left_to_adapt(), 0, 0, min(count, planned - self.step), planned, trunk)

    def _share(self) -> float:
        """Share of the adaptation that is done."""
        left = max(0.0, self._left_to_adapt())
        if self._steps_fit(left):
            return self.step / self.steps
        spent = 0.0 if self._adapting is None else self.clock.spent - self._adapting
        return spent / max(spent + left, FASTEST)

    def _steps_fit(self, left: float) -> bool:
        """All steps fit into `left` seconds, if a number of them was asked for."""
        return self.steps > 0 and (self.steps - self.step) * self.step_seconds() <= left

    def _pass_size(self) -> int:
        """Puzzles of every task that vote next; 0 if none do."""
        # If one vote of every output is too much, some outputs get theirs rather than none.
        starts = not self.cast and self.puzzles > 0 and SLACK * self.batch_seconds <= self.left
        return self._fitting(self.voted, self.left) or int(starts)

    def _fitting(self, voted: int, left: float) -> int:
        """Puzzles of every task that vote after the first `voted`: as many again, if they fit into `left` seconds.

        The state is saved between passes: one of several puzzles takes no longer than from save to save.
        """
        size = min(max(voted, 1), LARGEST_PASS, self.puzzles - voted)
        while size > 1 and self.pass_seconds(voted, voted + size) > self.save_every:
            size //= 2
        while size and SLACK * self.pass_seconds(voted, voted + size) > left:
            size //= 2
        return size

    # --- what was done -------------------------------------------------------------------------------------------

    def early_voted(self, complete: bool) -> None:
        """Count a pass that later ones replace; nothing is compiled if it took too long for every output."""
        self.early_votes, self.unsaved = self.early_votes + 1, True
        self.compiles &= complete

    def compiled(self) -> None:
        """Compile nothing any more; what was warm is cold."""
        self.compiles = False
        self.answers.cool()
        self.stepping.cool()

    def stepped(self, count: int, seconds: float) -> None:
        """Count optimiser steps, which took so many seconds."""
        self.step += count
        if count:
            self.unsaved = True
            self.stepping.add("step", count, seconds)
            self.stepping.settle()

    def passed(self, stop: int, complete: bool) -> None:
        """Count the votes of the puzzles up to `stop`, or a pass that had to end early."""
        self.cast += stop - self.voted if complete else 0
        self.voted, self.over, self.unsaved = stop, not complete, True

    def saved(self) -> None:
        """Note that the state is on disk, or could not be written."""
        self._saved, self.unsaved = self.clock.spent, False

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to go on, as JSON values."""
        speeds = {name: (getattr(self, name).seconds, getattr(self, name).cold) for name in SPEEDS}
        return {name: getattr(self, name) for name in KEPT} | speeds

    def restore(self, state: Mapping[str, Any], slower: float) -> None:
        """Go on from `state`, on a machine that is `slower` times slower than the one that it was written on."""
        # A step may not fit into the memory of this machine, or none is wanted any more.
        adapts = self.adapts and state["adapts"]
        for name in KEPT:
            setattr(self, name, state[name])
        self.adapts, self._saved = adapts, self.clock.spent
        for name in SPEEDS:
            seconds, cold = state[name]
            setattr(self, name, Speed(None if seconds is None else seconds * slower, cold))


def passes(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut start..stop into passes that double up to LARGEST_PASS: every output soon has a vote, then more and more."""
    while start < stop:
        end = min(stop, start + min(max(start, 1), LARGEST_PASS))
        yield start, end
        start = end
