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
from torch import Tensor

from arc_trm.batches import Batch
from arc_trm.checkpoint import Export, Tensors
from arc_trm.device import agreed_values, best_seconds
from arc_trm.metrics import MetricLog
from arc_trm.predict import Predictor, Voter, outputs_of_store
from arc_trm.sampler import Rows, evaluation_rows, voting_views
from arc_trm.trainer import NonFiniteLoss, Trainer
from arc_trm.vote import Columns
from data_prep.canvas import CANVAS_SIDE
from data_prep.progress import Progress, duration_text
from data_prep.store import ArcStore, TaskEntry, build_store
from submission.adapt import TaskFigures, make_trainer, moving, step_work
from submission.budget import LARGEST_PASS, Kind, Plan, RunClock, Schedule, Unit
from submission.resume import Saved, write_state
from submission.settings import LEAST_AUGMENTATIONS, LEAST_VISITS, MOST_AUGMENTATIONS, Settings
from submission.submission_file import SubmissionFile

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
LIMITED = ("cuda",)  # devices that say when their memory runs out
# Numbers that are kept for the backward pass, in units of tokens × width, by a layer in one pass of the network: as
# counted for the paper's model.
SAVED_BY_LAYER = 22
# Copies of the weights: themselves, gradients, two moments, the average; weights and averages when last finite.
COPIES = 7
SAVE_EVERY = 20 * 60.0  # seconds
MOST_HALVINGS = 3  # of the rates, after losses that are not finite; the next such loss ends the adaptation
TASKS = "task_figures"  # the tensor of a state


@dataclass
class Solver:
    """Solve with one checkpoint, and own the state of that; all processes decide together what clock or signal ask."""

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
    planned: Plan | None = None
    augmentations: int = field(init=False)
    store: ArcStore = field(init=False)
    trainer: Trainer = field(init=False)
    bar: Progress = field(init=False)  # of the adaptation
    metrics: dict[str, float] = field(default_factory=dict)  # of the newest steps
    halvings: int = 0  # of the learning rates
    good: list[Tensor] = field(default_factory=list)  # what training moves, when it was last seen to be finite
    figures: TaskFigures = field(init=False)
    voter: Voter = field(init=False)
    interrupted: Columns | None = None  # those before a pass that a signal ended
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
            with self.bar:
                while (unit := self.decide()).kind != Kind.END:
                    self.say_plan()
                    with self.clock.phase(unit.kind.value):
                        work[unit.kind](unit)
                if self.trainer.agreed(self.stop()) and self.schedule.unsaved:
                    with self.clock.phase(Kind.SAVE.value):
                        self.save(unit)

    def decide(self) -> Unit:
        """Return what comes next, as the main process sees it; END once any process was asked to stop."""
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
            self.load_state_dict(self.saved)
        elif asked is None and self.schedule.adapts:
            [pace] = agreed_values([self.measured_pace()], self.accelerator)
            self.fit_puzzles(pace)

    def measured_pace(self) -> float:
        """Measure the forward and backward passes of a step, in seconds; moves nothing."""
        return best_seconds(lambda: self.trainer.rehearse(self.trainer.work), 1, self.clock.now)

    def fit_puzzles(self, pace: float) -> None:
        """Note the seconds of a step; make fewer puzzles, unless their number was asked for, if an embedding row would
        get too few steps.
        """
        self.guess_pace(pace)
        if self.settings.augmentations is not None or self.export.model.embedding_rows == "task" or pace <= 0:
            return
        visits = self.schedule.plan().steps * self.trainer.batch_size / len(self.store.groups)
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
        self.bar = Progress("adapting", quiet=quiet, now=self.clock.now)
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
        """Return True if a step fits into memory, in pieces if need be; else there are votes without adaptation."""
        if self.accelerator.device.type in LIMITED:
            try:
                self.trainer.fit_memory()
            except torch.OutOfMemoryError as error:
                self.file.trouble(f"no adaptation: {error}")
                return False
        return True

    def rows_of(self, start: int, stop: int) -> Rows:
        """Return the rows that ask the puzzles start..stop of every task."""
        return self.rows[np.flatnonzero((self.order >= start) & (self.order < stop))]

    # --- state and plan ------------------------------------------------------------------------------------------

    def save(self, unit: Unit, compiling: bool = False) -> None:
        """Write the state of the run; `compiling` is what comes next."""
        with self.going_on("saving the state"):
            tensors, facts = self.state_dict()
            votes = self.interrupted or self.file.tally.snapshot()
            write_state(self.file, tensors, facts | {"compiling": compiling}, votes)
        self.schedule.saved()

    def state_dict(self) -> tuple[Tensors, dict[str, Any]]:
        """Return all that another process needs to go on, except the votes, as tensors and JSON facts; collective."""
        tensors, facts = self.trainer.state_dict()
        return {**tensors, TASKS: self.figures.sums()}, {
            **facts,
            "run": self.identity,
            "number": self.number,
            "earlier_steps": self.earlier_steps,
            "augmentations": self.augmentations,
            "halvings": self.halvings,
            "schedule": self.schedule.state(),
            "processes": self.accelerator.num_processes,
            "spent": self.clock.spent,
            "phases": self.clock.phases,
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from a state: its clock, weights, speeds and votes."""
        facts = saved.facts
        self.clock.resume(facts["spent"])
        for name, seconds in facts["phases"].items():
            self.clock.phases[name] = self.clock.phases.get(name, 0.0) + seconds
        self.trainer.load_state_dict(saved.tensors, facts)
        self.figures.restore(saved.tensors[TASKS].to(self.accelerator.device))
        self.halve_rates(facts["halvings"])
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
            self.planned = schedule.plan()
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
        """Take some optimiser steps; after a loss that is not finite, go back to the last good weights, at half the
        rate.
        """
        adapts = False
        with self.going_on("adaptation"):
            try:
                began = self.clock.now()
                count = self.take_steps(unit)
                self.schedule.stepped(count, self.clock.now() - began)
                steps_per_second = self.metrics["examples_per_second"] / self.trainer.batch_size
                self.record({**self.metrics, "steps_per_second": steps_per_second})
                adapts = True
            except NonFiniteLoss as error:
                for tensor, good in zip(moving(self.trainer), self.good, strict=True):
                    tensor.copy_(good)
                self.trainer.forget_momentum()
                self.halve_rates()
                self.file.trouble(f"adaptation, going on with earlier weights and half the rate: {error}")
                adapts = self.halvings <= MOST_HALVINGS
        self.schedule.adapts, self.schedule.step = adapts, self.trainer.step

    def take_steps(self, unit: Unit) -> int:
        """Take the steps of `unit`, fewer if its time is over; return how many.

        Raises NonFiniteLoss, in all processes alike, if loss or weights are not finite afterwards.
        """
        trainer, over = self.trainer, self.stopwatch(self.clock.now() + unit.seconds)
        trainer.planned_steps, trainer.trunk_factor = unit.planned_steps, float(unit.trunk)
        if trainer.step == 0:
            self.bar.begin()
        if not self.good:  # the export, should the first steps diverge
            self.good = [tensor.clone() for tensor in moving(trainer)]
        first, words = trainer.step, self.adaptation_words()
        while trainer.step < first + unit.steps:
            self.figures.add(trainer.train_step())
            # Before anything is measured, how many are planned is a guess.
            self.bar.total = trainer.planned_steps if self.metrics else None
            self.bar.update(1, f"{words}, {self.time_left()}")
            if over():
                break
        self.metrics = trainer.read_metrics()
        trainer.check_finite()
        self.good = [tensor.clone() for tensor in moving(trainer)]
        return trainer.step - first

    def halve_rates(self, times: int = 1) -> None:
        """Halve the learning rates from here on, so many times."""
        self.halvings += times
        config, factor = self.trainer.config, 0.5**times
        train = replace(config.train, lr=config.train.lr * factor, puzzle_lr=config.train.puzzle_lr * factor)
        self.trainer.config = replace(config, train=train)

    def adaptation_words(self) -> str:
        """Words for loss, speed and votes, as far as they are known."""
        speed = self.schedule.stepping.seconds
        words = [f"loss {self.metrics['loss']:.3f}"] if self.metrics else []
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
        self.file.tally.make_provisional()
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
        """Return a collective that is True, after a step or batch, if the next one would end too late."""
        last = self.clock.now()

        def over() -> bool:
            nonlocal last
            took, last = self.clock.now() - last, self.clock.now()
            return self.trainer.agreed(self.stop() or self.clock.left(end) < took)

        return over


def _answered(predictor: Predictor, batch: Batch) -> None:
    predictor.answer(batch).halting.cpu()  # waits for the device


# The plan, for readers -----------------------------------------------------------------------------------


def plan_lines(planned: Plan, schedule: Schedule, trainer: Trainer, processes: int) -> list[str]:
    """Lines that say what is planned, and what it means for the rows of the embedding table and for memory."""
    batch, rows, pace = trainer.batch_size, len(trainer.embedding.table), schedule.step_seconds()
    figures = {Kind.VOTE: f", {planned.votes} votes an output"}
    if pace:
        figures[Kind.ADAPT] = (
            f", {planned.steps} steps of {batch} examples, {batch / pace:.4g} examples/s, "
            f"{round(planned.steps * batch / rows, 1):g} supervision steps for each of {rows} embedding rows"
        )
    lines = [
        f"plan      {kind.value}: {duration_text(seconds)}{figures.get(kind, '')}"
        for kind, seconds in planned.seconds.items()
        if seconds
    ]
    share = batch // processes
    state, activations = memory(trainer, share)
    held = f"{state / 1e9:.2g} GB of state, about {activations / 1e9:.2g} GB for a step of {share} examples at once"
    return [*lines, f"plan      memory a process: {held}"]


def memory(trainer: Trainer, examples: int) -> tuple[float, float]:
    """Bytes of a process's state, and about the bytes that a step takes for `examples` at once."""
    weights = sum(parameter.numel() for parameter in trainer.model.parameters())
    state = 4.0 * (COPIES * weights + 2 * trainer.embedding.table.numel())
    model = trainer.config.model
    tokens = sum(part.slots * (part.source.seq_len + model.prefix) for part in trainer.parts) / trainer.batch_size
    passes = model.layers * (model.latent_steps + 1)
    kept = SAVED_BY_LAYER * tokens * model.hidden * passes * trainer.dtype.itemsize
    return state, kept * examples


def plan_beside_fact(planned: Plan, schedule: Schedule) -> str:
    """One line: what was planned, and what came of it."""
    phases = schedule.clock.phases
    parts = [
        f"{kind.value} {duration_text(seconds)} / {duration_text(phases.get(kind.value, 0.0))}"
        for kind, seconds in planned.seconds.items()
        if seconds
    ]
    parts += [f"steps {planned.steps} / {schedule.step}", f"votes an output {planned.votes} / {schedule.cast}"]
    return f"plan / fact: {', '.join(parts)}"
