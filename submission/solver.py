"""Solve with one checkpoint: adapt it to the tasks, let its answers vote in passes, keep file and state up to date."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.batches import Batch
from arc_trm.checkpoint import Export
from arc_trm.device import agreed_values, best_seconds
from arc_trm.metrics import MetricLog
from arc_trm.predict import Predictor, Voter, outputs_of_store
from arc_trm.sampler import Rows, evaluation_rows, voting_views
from arc_trm.trainer import NonFiniteLoss, Trainer
from arc_trm.vote import Votes
from data_prep.canvas import CANVAS_SIDE
from data_prep.progress import Progress, duration_text
from data_prep.store import ArcStore, TaskEntry, build_store
from submission.adapt import MOST_HALVINGS, Adaptation, TaskFigures, make_trainer, step_work
from submission.clock import RunClock
from submission.forecast import Forecast, forecast, plan_lines
from submission.resume import Saved, write_state
from submission.schedule import LARGEST_PASS, Kind, Schedule, Unit
from submission.settings import LEAST_AUGMENTATIONS, LEAST_VISITS, MOST_AUGMENTATIONS, Settings
from submission.submission_file import SubmissionFile

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
LIMITED = ("cuda",)  # devices that say when their memory runs out
SAVE_EVERY = 20 * 60.0  # seconds
TASKS = "task_figures"  # the tensor of a state


@dataclass
class Solver:
    """What solves with one checkpoint, on all processes; whatever clock or signal decides, they decide together."""

    export: Export
    settings: Settings
    clock: RunClock
    file: SubmissionFile
    accelerator: Accelerator
    stop: Callable[[], bool] = lambda: False  # this process was asked to end
    identity: dict[str, Any] = field(default_factory=dict)  # what a saved state must agree on with its run
    number: int = 0  # which of several checkpoints this is; votes of those before stay
    saved: Saved | None = None  # where an earlier process was
    log: MetricLog | None = None  # of all checkpoints
    earlier_steps: int = 0  # of the checkpoints before
    planned: Forecast | None = None
    augmentations: int = field(init=False)
    store: ArcStore = field(init=False)
    trainer: Trainer = field(init=False)
    adaptation: Adaptation = field(init=False)
    figures: TaskFigures = field(init=False)
    voter: Voter = field(init=False)
    interrupted: Votes | None = None  # those before a pass that a signal ended
    rows: Rows = field(init=False)  # all answers that are wanted
    order: NDArray[np.int64] = field(init=False)  # of each row: which puzzle (or view) of its task it asks
    schedule: Schedule = field(init=False)

    def run(self) -> None:
        """Do what the schedule says until it says that all is done; the file is complete at any time."""
        with torch.compiler.set_stance("default"):  # which compiling changes; the caller's comes back
            with self.clock.phase("set-up"):
                self.prepare()
            work = {
                Kind.EARLY_VOTE: self.vote_early,
                Kind.COMPILE: self.compile,
                Kind.ADAPT: self.adapt,
                Kind.VOTE: self.vote_last,
                Kind.SAVE: self.save,
            }
            with self.adaptation.bar:
                while (unit := self.decide()).kind != Kind.END:
                    self.say_plan()
                    with self.clock.phase(unit.kind.value):
                        work[unit.kind](unit)
                if self.trainer.agreed(self.stop()) and self.schedule.unsaved:
                    with self.clock.phase(Kind.SAVE.value):
                        self.save(unit)

    def decide(self) -> Unit:
        """What to do next, as the main process sees it; nothing more once any process was asked to stop."""
        if self.trainer.agreed(self.stop()):
            return Unit(Kind.END)
        kinds, unit = list(Kind), self.schedule.next()
        number, seconds, *counts = agreed_values([kinds.index(unit.kind), *unit[1:]], self.accelerator)
        start, stop, steps, planned_steps, trunk = map(int, counts)
        return Unit(kinds[int(number)], seconds, start, stop, steps, planned_steps, bool(trunk))

    def going_on(self, what: str) -> AbstractContextManager[None]:
        """Go on after a failure within this context; not among several processes, where the others would wait for
        the one that failed: there the launcher ends them all, and the last file stays.
        """
        return self.file.tolerated(what) if self.accelerator.num_processes == 1 else nullcontext()

    # --- set-up --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make everything that the run needs, for as many puzzles as its pace allows, or as an earlier process had."""
        asked = self.settings.augmentations
        self.build(asked if self.saved is None else self.saved.facts["augmentations"])
        if self.saved is not None:
            self.restore(self.saved)
        elif asked is None and self.schedule.adapts:
            [pace] = agreed_values([self.measured_pace()], self.accelerator)
            self.fit_puzzles(pace)

    def measured_pace(self) -> float:
        """Seconds of the forward and backward passes of a step; moves nothing."""
        return best_seconds(lambda: self.trainer.rehearse(self.trainer.work), 1, self.clock.now)

    def fit_puzzles(self, pace: float) -> None:
        """Note what a step takes, in seconds; fewer puzzles where that leaves an embedding row too few steps, unless
        their number was asked for.
        """
        self.guess_pace(pace)
        if self.settings.augmentations is not None or self.export.model.embedding_rows == "task" or pace <= 0:
            return
        visits = forecast(self.schedule).steps * self.trainer.batch_size / len(self.store.groups)
        # Every process has its own clock, and all must build the same.
        [fewer] = agreed_values([max(LEAST_AUGMENTATIONS, visits // LEAST_VISITS - 1)], self.accelerator)
        if fewer < self.augmentations:
            self.build(int(fewer))
            self.guess_pace(pace)

    def guess_pace(self, pace: float) -> None:
        """Judge steps, and answers by them, until they are measured."""
        if pace > 0:
            self.schedule.stepping.seconds, self.schedule.answers.seconds = pace, pace / self.schedule.step_work

    def build(self, wanted: int | None) -> None:
        """Make puzzles of the tasks, the trainer that stands at the export, the rows to be answered, the schedule.

        `wanted` are the augmentations of a task, MOST_AUGMENTATIONS where it is None.
        """
        settings, accelerator = self.settings, self.accelerator
        augmentations = self.augmentations = MOST_AUGMENTATIONS if wanted is None else wanted
        entries = [TaskEntry.demonstrations_only(task) for task in self.file.tasks]
        self.store = build_store(entries, augmentations, settings.seed)
        self.trainer = make_trainer(settings, self.export, self.store, accelerator)
        quiet = not accelerator.is_main_process
        self.adaptation = Adaptation(self.trainer, Progress("adapting", quiet=quiet, now=self.clock.now))
        self.figures = TaskFigures(self.store, self.trainer)
        windows = self.trainer.config.train.canvas != "full"
        each = PREDICT_BATCHES.get(accelerator.device.type, PREDICT_BATCHES["cpu"])
        batch = settings.predict_batch or each * accelerator.num_processes
        _, asked = outputs_of_store(self.store)
        repeats, task_rows = settings.canvas != "strict", self.export.model.embedding_rows == "task"
        self.voter = Voter(self.store, asked, batch, accelerator, windows, repeats, task_rows)
        if task_rows:
            share, count = self.trainer.config.train.own_colours, settings.votes or augmentations + 1
            self.rows, self.order = voting_views(self.store, count, own_colours=share, seed=settings.seed)
        else:
            self.rows = evaluation_rows(self.store, augmentations=settings.votes or None)
            groups = self.store.puzzle_groups[self.rows.puzzles]
            self.order = self.rows.puzzles - self.store.group_puzzles[groups]
        self.schedule = Schedule(
            self.clock,
            int(self.order.max(initial=-1)) + 1,
            cache(lambda start, stop: self.voter.tokens(self.rows_of(start, stop))),
            step_work(self.trainer),
            steps=settings.steps or 0,
            adapts=settings.steps != 0 and self.fits(),
            embedding_share=settings.embedding_share,
            compiles=settings.compile,
            save_every=SAVE_EVERY,
        )
        if self.number:  # every output has votes that must stay
            self.schedule.early_votes = 2

    def fits(self) -> bool:
        """Whether a step fits into memory, in pieces if need be; otherwise there are votes without adaptation."""
        if self.accelerator.device.type in LIMITED:
            try:
                self.trainer.fit_memory()
            except torch.OutOfMemoryError as error:
                self.file.trouble(f"no adaptation: {error}")
                return False
        return True

    def rows_of(self, start: int, stop: int) -> Rows:
        """The rows that ask the puzzles start..stop of every task."""
        return self.rows[np.flatnonzero((self.order >= start) & (self.order < stop))]

    # --- state and plan ------------------------------------------------------------------------------------------

    def save(self, unit: Unit, compiling: bool = False) -> None:
        """Keep all that another process needs to go on from here; `compiling` is what comes next."""
        with self.going_on("saving the state"):
            tensors, facts = self.trainer.state_dict()
            tensors[TASKS] = self.figures.sums()
            facts |= {"run": self.identity, "number": self.number, "augmentations": self.augmentations}
            facts |= {"earlier_steps": self.earlier_steps, "halvings": self.adaptation.halvings}
            facts |= {"schedule": self.schedule.state(), "processes": self.accelerator.num_processes}
            facts |= {"compiling": compiling}
            facts |= {"spent": self.clock.spent, "phases": self.clock.phases}
            write_state(self.file, tensors, facts, self.interrupted or self.file.tally.snapshot())
        self.schedule.saved()

    def restore(self, saved: Saved) -> None:
        """Go on from a state: its clock, its weights, its pace, its votes."""
        facts = saved.facts
        self.clock.resume(facts["spent"])
        for name, seconds in facts["phases"].items():
            self.clock.phases[name] = self.clock.phases.get(name, 0.0) + seconds
        self.trainer.load_state_dict(saved.tensors, facts)
        self.figures.restore(saved.tensors[TASKS].to(self.accelerator.device))
        self.adaptation.halve_rates(facts["halvings"])
        self.schedule.restore(facts["schedule"], facts["processes"] / self.accelerator.num_processes)
        if facts["compiling"] and self.schedule.compiles:
            self.schedule.compiles = False
            self.file.trouble("compiling did not end in the process before; going on without")
        saved.restore_votes(self.file)
        self.file.write()
        if self.accelerator.is_main_process:
            step, votes = self.trainer.step, self.file.votes
            print(f"going on at step {step} with {votes} votes; the plan counts what was done before", flush=True)

    def say_plan(self) -> None:
        """Print, once its pace is known, what the run is going to do, with what it has done."""
        schedule = self.schedule
        paced = schedule.early_votes and (schedule.stepping.seconds is not None or not schedule.adapts)
        if self.planned is None and paced and schedule.answers.seconds is not None:
            self.planned = forecast(schedule)
            if self.accelerator.is_main_process:
                processes = self.accelerator.num_processes
                print("\n".join(plan_lines(self.planned, schedule, self.trainer, processes)), flush=True)

    # --- adaptation ----------------------------------------------------------------------------------------------

    def compile(self, unit: Unit) -> None:
        """Compile the networks for a step and for answers; from here on nothing else is compiled.

        The state is saved before: if the compiler hangs or ends the process, the one that goes on compiles nothing.
        """
        self.schedule.compiled()
        self.save(unit, compiling=True)
        predictor = self.trainer.predictor()
        once = replace(predictor, halting=replace(predictor.halting, max_supervision_steps=2))
        largest = self.rows_of(0, min(LARGEST_PASS, self.schedule.puzzles))
        answers = [partial(_answered, once, batch) for batch in self.voter.samples(largest)]
        with self.file.tolerated("compiling"), self.clock.limited(unit.seconds):
            self.trainer.compile(more=answers)
        self.save(unit)
        torch.compiler.set_stance("eager_on_recompile")

    def adapt(self, unit: Unit) -> None:
        """Some optimiser steps; after a loss that is no number the last good weights go on at half the rate."""
        adaptation, adapts = self.adaptation, False
        with self.going_on("adaptation"):
            try:
                words, began = self.adaptation_words(), self.clock.now()
                over = self.stopwatch(began + unit.seconds)
                count = adaptation.take_steps(unit, over, lambda: f"{words}, {self.time_left()}")
                self.schedule.stepped(count, self.clock.now() - began)
                steps_per_second = adaptation.metrics["examples_per_second"] / self.trainer.batch_size
                self.record({**adaptation.metrics, "steps_per_second": steps_per_second})
                adapts = True
            except NonFiniteLoss as error:
                self.file.trouble(f"adaptation, going on with earlier weights and half the rate: {error}")
                adapts = adaptation.halvings <= MOST_HALVINGS
        self.schedule.adapts, self.schedule.step = adapts, self.trainer.step

    def adaptation_words(self) -> str:
        """Words for loss, speed and votes, as far as they are known."""
        metrics, speed = self.adaptation.metrics, self.schedule.stepping.seconds
        words = [f"loss {metrics['loss']:.3f}"] if metrics else []
        words += [f"{self.trainer.batch_size / speed:.3g} examples/s"] if speed else []
        return ", ".join([*words, f"{self.file.votes} votes"])

    def record(self, figures: Mapping[str, float]) -> None:
        """Report figures of this step, as long as that works."""
        if self.log is not None:
            log, self.log = self.log, None
            with self.file.tolerated("figures of the run"):
                log.add(dict(figures), self.earlier_steps + self.trainer.step)
                self.log = log

    def time_left(self) -> str:
        """Words for how much of the budget is left."""
        return f"{duration_text(max(0.0, self.schedule.left))} to the deadline"

    # --- prediction ----------------------------------------------------------------------------------------------

    def vote_early(self, unit: Unit) -> None:
        """A vote for every output from weights that are not final yet, and a measure of the speed of answers.

        Answers that go on beyond their window are not repeated here, but counted: they will take their time later.
        """
        voter, complete = replace(self.voter, repeats=False, unclosed=0), False
        with self.going_on("first votes"), self.trainer.averaged():
            complete = self.vote(voter, unit)
        self.file.tally.replace_later()
        asked = self.schedule.work(unit.start, unit.stop)
        if complete and self.voter.repeats and asked:
            self.schedule.repeats = 1 + voter.unclosed * CANVAS_SIDE**2 / asked
        self.schedule.early_voted(complete)

    def vote_last(self, unit: Unit) -> None:
        """A pass of votes that stay; one that a signal ends is cast anew by the process that goes on."""
        complete, before = False, self.file.tally.snapshot()
        with self.going_on("prediction"), self.trainer.averaged():
            complete = self.vote(self.voter, unit)
        if not complete and self.trainer.agreed(self.stop()):
            self.interrupted = before
        else:
            self.schedule.passed(unit.stop, complete)

    def vote(self, voter: Voter, unit: Unit) -> bool:
        """One pass, and the file written anew; False when it had to end early."""
        rows, schedule = self.rows_of(unit.start, unit.stop), self.schedule
        over = self.stopwatch(self.clock.now() + unit.seconds)
        began, tokens = self.clock.now(), 0

        def answered(side: int, size: int) -> None:
            nonlocal began, tokens
            began, schedule.batch_seconds = self.clock.now(), self.clock.now() - began
            tokens += size * side**2
            schedule.answers.add((side, size), size * side**2, schedule.batch_seconds)

        early = unit.kind == Kind.EARLY_VOTE
        what = unit.kind.value if early else f"votes up to {unit.stop} of {schedule.puzzles}"
        quiet = not self.accelerator.is_main_process
        with Progress(what, len(rows), unit="answers", quiet=quiet, now=self.clock.now) as bar:

            def settled(count: int) -> None:
                bar.update(count, self.time_left())

            complete = voter.vote(self.trainer.predictor(), rows, self.file.tally, settled, over, answered)
        schedule.answers.settle()
        if complete and tokens:
            schedule.repeats = tokens / schedule.work(unit.start, unit.stop)
        self.file.write()
        self.record({"votes": self.file.votes, "agreement": self.file.agreement})
        return complete

    def stopwatch(self, end: float) -> Callable[[], bool]:
        """What says, after every step or batch and to all processes alike, whether the next one would end too late."""
        last = self.clock.now()

        def over() -> bool:
            nonlocal last
            took, last = self.clock.now() - last, self.clock.now()
            return self.trainer.agreed(self.stop() or self.clock.left(end) < took)

        return over


def _answered(predictor: Predictor, batch: Batch) -> None:
    predictor.answer(batch).halting.cpu()  # waits for the device
