"""What a solving run does next: decided anew after every piece of work, from the clock and what was measured."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from submission.clock import RunClock, Speed


class Kind(Enum):
    """What a solving run can do next, by the name of the phase in which it does that."""

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


FIRST_SHARE = 0.25  # of the time, that a first vote of every output may take before anything is adapted or compiled
COMPILE_LEAST = 300.0  # seconds: with less time left nothing is compiled
COMPILE_LIMIT = 1800.0  # seconds, and half of the time left, after which a compiler is taken to hang
HALF_WAY_SHARE = 0.02  # of the whole time, that the vote half-way through the adaptation may take
WORTHWHILE_SHARE = 0.05  # of the whole time, that must be left for another round of adaptation and votes
EMBEDDING_STEPS = 1000  # at most, at first, in which embeddings move alone
SLACK = 1.1  # estimates are multiplied by this
LARGEST_PASS = 32  # puzzles of a task in a pass, at most: the file is written anew at least this often
LOOK_EVERY = 10  # steps between two looks at clock and loss, once the first few are done
MOST_STEPS = 10_000_000  # float32 carries them exactly from process to process
# What a saved schedule consists of: numbers, and speeds.
KEPT = (
    "repeats", "step", "voted", "cast", "early_votes", "adapts", "batch_seconds",
    "_round_began", "_round_step", "_adapting",
)  # fmt: skip
SPEEDS = ("answers", "stepping")


@dataclass
class Schedule:
    """Decides what a solving run does next, from the clock and from what was measured; it does no work itself.

    First every output gets an early vote, so that no later trouble leaves it with a guess; then the model may be
    compiled. Then rounds follow: adaptation as long as the votes leave time, then votes in passes, each as large as the
    newest measurement allows. Votes want all puzzles, but at most half of a round. A round more is begun
    where the votes took less time than expected.

    Where the steps and votes that were asked for fit easily, all of them are done whatever the machine's speed: early
    votes are replaced, so only *when* things happen depends on the clock.
    """

    clock: RunClock
    puzzles: int  # of a task, that are to vote
    work: Callable[[int, int], float]  # tokens to be answered when the puzzles start..stop of every task vote
    step_work: float  # what an optimiser step is like, in tokens to be answered; a guess until a step is measured
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

    # --- what next -----------------------------------------------------------------------------------------------

    def next(self) -> Unit:
        """The next unit of work; `END` when all is done, or nothing more fits."""
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
            return self._half_way() or self._steps()
        if not self.over and (size := self._pass_size()):
            return Unit(Kind.VOTE, self.left, self.voted, self.voted + size)
        if self._another_round():
            self._begin_round()
            return self.next()
        return Unit(Kind.END)

    def _half_way(self) -> Unit | None:
        """A vote in the middle of the adaptation, where it is cheap: in case that the adaptation never ends."""
        known = self.answers.seconds is not None
        cheap = known and self.pass_seconds(0, 1) <= HALF_WAY_SHARE * self.clock.budget
        if not self.cast and self.early_votes == 1 and self.step and cheap and self._share() >= 0.5:
            return Unit(Kind.EARLY_VOTE, FIRST_SHARE * self.left, 0, 1)
        return None

    def _steps(self) -> Unit:
        """Steps up to the next look."""
        if self._adapting is None:
            self._adapting = self.clock.spent
        count = 1 if self.step < 8 else LOOK_EVERY - self.step % LOOK_EVERY
        planned = self._planned_steps()
        trunk = self._share() >= self.embedding_share or self.step >= EMBEDDING_STEPS
        return Unit(Kind.ADAPT, self._left_to_adapt(), 0, 0, min(count, planned - self.step), planned, trunk)

    def _begin_round(self) -> None:
        self._round_began, self._round_step, self.voted = self.clock.spent, self.step, 0

    def _another_round(self) -> bool:
        """Whether votes took so little time that adapting further and voting again is worth it."""
        adapted = self.step > self._round_step and self._wants_steps()
        left, worthwhile = self.left, WORTHWHILE_SHARE * self.clock.budget
        enough = left > max(worthwhile, self._reserved(left) + self.step_seconds())
        return adapted and enough and not self.over and self.voted == self.puzzles

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds until the last answer must be there."""
        return self.clock.left(self.clock.prediction_end)

    def _wants_steps(self) -> bool:
        return self.adapts and (not self.steps or self.step < self.steps)

    def step_seconds(self) -> float:
        """Of an optimiser step: measured, or judged by the answers; half as long where these were cold."""
        if self.stepping.seconds is not None:
            return self.stepping.seconds
        return self.step_work * (self.answers.seconds or 0.0) * (0.5 if self.answers.cold else 1.0)

    def pass_seconds(self, start: int, stop: int) -> float:
        """What a pass should take; 0 where nothing is known."""
        return self.work(start, stop) * self.repeats * (self.answers.seconds or 0.0)

    def _left_to_adapt(self) -> float:
        """Seconds until votes have to begin."""
        left = self.left
        assert self._round_began is not None
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

    def _pass_size(self) -> int:
        """How many puzzles of every task vote next: twice as many as voted, if they fit; 0 when none do.

        The state is saved between passes: one of several puzzles takes no longer than from save to save.
        """
        size = min(max(self.voted, 1), LARGEST_PASS, self.puzzles - self.voted)
        while size > 1 and self.pass_seconds(self.voted, self.voted + size) > self.save_every:
            size //= 2
        while size and SLACK * self.pass_seconds(self.voted, self.voted + size) > self.left:
            size //= 2
        # Where one vote of every output is too much, some outputs get theirs rather than none.
        starts = not self.cast and self.puzzles > 0 and SLACK * self.batch_seconds <= self.left
        return 1 if size == 0 and starts else size

    def _share(self) -> float:
        """How much of the adaptation is done."""
        left = max(0.0, self._left_to_adapt())
        if self._steps_fit(left):
            return self.step / self.steps
        spent = 0.0 if self._adapting is None else self.clock.spent - self._adapting
        return spent / max(spent + left, 1e-6)

    def _steps_fit(self, left: float) -> bool:
        """Whether a number of steps was asked for, and all of them fit into `left` seconds."""
        return self.steps > 0 and (self.steps - self.step) * self.step_seconds() <= left

    def _planned_steps(self) -> int:
        """Of the whole adaptation; a schedule of rates is stretched to them."""
        left = max(0.0, self._left_to_adapt())
        if self._steps_fit(left):
            return self.steps
        planned = self.step + int(left / max(self.step_seconds(), 1e-6))
        # The clock ends the adaptation, not an estimate that is some steps old.
        return min(max(planned, self.step + LOOK_EVERY + 1), self.steps or MOST_STEPS)

    # --- what was done -------------------------------------------------------------------------------------------

    def early_voted(self, complete: bool) -> None:
        """A vote that later ones replace is cast; nothing is compiled where that took too long for every output."""
        self.early_votes, self.unsaved = self.early_votes + 1, True
        self.compiles &= complete

    def compiled(self) -> None:
        """Compiling is over, however it ended; what was warm is cold."""
        self.compiles = False
        self.answers.cool()
        self.stepping.cool()

    def stepped(self, count: int, seconds: float) -> None:
        """So many optimiser steps took so long."""
        self.step += count
        if count:
            self.unsaved = True
            self.stepping.add("step", count, seconds)
            self.stepping.settle()

    def passed(self, stop: int, complete: bool) -> None:
        """The puzzles up to `stop` have voted, or the pass had to end early."""
        self.cast += stop - self.voted if complete else 0
        self.voted, self.over, self.unsaved = stop, not complete, True

    def saved(self) -> None:
        """The state is on disk, or could not be written."""
        self._saved, self.unsaved = self.clock.spent, False

    # --- on disk -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on, as JSON values."""
        speeds = {name: (getattr(self, name).seconds, getattr(self, name).cold) for name in SPEEDS}
        return {name: getattr(self, name) for name in KEPT} | speeds

    def restore(self, state: Mapping[str, Any], slower: float) -> None:
        """Go on from `state`, on a machine that is so many times slower than the one that it was written on."""
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
