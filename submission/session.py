"""One run of solving: adapt an exported model, let its answers vote in passes, keep the file up to date."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.batches import Batch
from arc_trm.checkpoint import Export, read_export
from arc_trm.device import agreed_values, compile_within, make_accelerator
from arc_trm.predict import Predictor, Voter
from arc_trm.run import stop_on_signal
from arc_trm.sampler import Rows, evaluation_rows
from arc_trm.trainer import NonFiniteLoss, Trainer
from arc_trm.vote import AskedOutput
from data_prep.canvas import CANVAS_SIDE, choose_side
from data_prep.files import InputError
from data_prep.overlap import trained_on
from data_prep.progress import Progress, duration_text
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Task, pairs_digest
from submission.adapt import Adaptation, make_trainer, step_work
from submission.hardware import chosen_precision, table, usable_arithmetic
from submission.likelihood import Likelihood
from submission.plan import LARGEST_PASS, Kind, Schedule, TimePlan, Unit
from submission.settings import Settings
from submission.submission_file import SubmissionFile

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
# Puzzles of a task that weigh its candidates with --likelihood.
WEIGHING_PUZZLES = 8
STOPPED_BY_SIGNAL = 143  # the status that a shell shows for a program ended by SIGTERM


@dataclass
class Session:
    """One run of solving, on all processes; whatever is decided by clock or signal, they decide together."""

    export: Export
    settings: Settings
    plan: TimePlan
    file: SubmissionFile
    accelerator: Accelerator
    stop: Callable[[], bool] = lambda: False  # this process was asked to end
    store: ArcStore = field(init=False)
    trainer: Trainer = field(init=False)
    adaptation: Adaptation = field(init=False)
    voter: Voter = field(init=False)
    rows: Rows = field(init=False)  # all answers that are wanted
    order: NDArray[np.int64] = field(init=False)  # of each row: which puzzle of its task it asks
    schedule: Schedule = field(init=False)

    def run(self) -> None:
        """Do what the schedule says until it says that all is done; the file is complete at any time."""
        # Nothing is compiled but where the schedule wants it.
        with torch.compiler.set_stance("force_eager") if self.settings.compile else nullcontext():
            with self.plan.phase("set-up"):
                self.prepare()
            work = {
                Kind.EARLY_VOTE: ("first votes", self.vote_early),
                Kind.COMPILE: ("compiling", self.compile),
                Kind.ADAPT: ("adaptation", self.adapt),
                Kind.VOTE: ("prediction", self.vote_last),
                Kind.WEIGH: ("prediction", self.weigh),
            }
            with self.adaptation.bar:
                while (unit := self.decide()).kind != Kind.END:
                    name, do = work[unit.kind]
                    with self.plan.phase(name):
                        do(unit)

    def decide(self) -> Unit:
        """What to do next, as the main process sees it; nothing more once any process was asked to stop."""
        if self.trainer.agreed(self.stop()):
            return Unit(Kind.END)
        values = agreed_values([float(value) for value in self.schedule.next()], self.accelerator)
        kind, start, stop, steps, planned_steps, trunk = (int(value) for value in (values[0], *values[2:]))
        return Unit(Kind(kind), values[1], start, stop, steps, planned_steps, bool(trunk))

    def going_on(self, what: str) -> AbstractContextManager[None]:
        """Go on after a failure within this context; not among several processes, where the others would wait for
        the one that failed: there the launcher ends them all, and the last file stays.
        """
        return self.file.tolerated(what) if self.accelerator.num_processes == 1 else nullcontext()

    # --- set-up --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make puzzles of the tasks, the trainer that stands at the export, the rows to be answered, the schedule."""
        settings, accelerator = self.settings, self.accelerator
        self.store = self.make_store()
        self.trainer = make_trainer(settings, self.export, self.store, accelerator)
        quiet = not accelerator.is_main_process
        self.adaptation = Adaptation(self.trainer, Progress("adapting", quiet=quiet, now=self.plan.now))
        windows = self.trainer.config.train.canvas != "full"
        each = PREDICT_BATCHES.get(accelerator.device.type, PREDICT_BATCHES["cpu"])
        batch = settings.predict_batch or each * accelerator.num_processes
        asked = asked_outputs(self.store, self.file.tally.outputs)
        repeats, task_rows = settings.canvas != "strict", self.export.model.embedding_rows == "task"
        self.voter = Voter(self.store, asked, batch, accelerator, windows, repeats, task_rows)
        self.rows = evaluation_rows(self.store, augmentations=settings.votes or None)
        groups = self.store.puzzle_groups[self.rows.puzzles]
        self.order = self.rows.puzzles - self.store.group_puzzles[groups]
        self.schedule = Schedule(
            self.plan,
            int(self.order.max(initial=-1)) + 1,
            cache(lambda start, stop: self.voter.tokens(self.rows_of(start, stop))),
            step_work(self.trainer),
            weighing=self.voter.tokens(self.rows_of(0, WEIGHING_PUZZLES)) if settings.likelihood else 0.0,
            steps=settings.steps or 0,
            adapts=settings.steps != 0,
            embedding_share=settings.embedding_share,
            compiles=self.trainer.running is not self.trainer.model,
        )

    def make_store(self) -> ArcStore:
        """The puzzles of all tasks; without those tasks that cannot be augmented, if there are such."""
        entries = [TaskEntry.demonstrations_only(task) for task in self.file.tasks]
        with self.file.tolerated("augmentation, trying each task alone"):
            return build_store(entries, self.settings.augmentations, self.settings.seed)
        return build_store(list(filter(self._is_usable, entries)), self.settings.augmentations, self.settings.seed)

    def _is_usable(self, entry: TaskEntry) -> bool:
        with self.file.tolerated(f"task {entry.task.task_id} is left out"):
            build_store([entry], self.settings.augmentations, self.settings.seed)
            return True
        return False

    def rows_of(self, start: int, stop: int) -> Rows:
        """The rows that ask the puzzles start..stop of every task."""
        return self.rows[np.flatnonzero((self.order >= start) & (self.order < stop))]

    # --- adaptation ----------------------------------------------------------------------------------------------

    def compile(self, unit: Unit) -> None:
        """Compile what the run is going to do most, as far as that pays within the time given to it."""
        end, trainer = self.plan.now() + unit.seconds, self.trainer
        largest = self.rows_of(0, min(LARGEST_PASS, self.schedule.puzzles))
        predictor = trainer.predictor()
        once = replace(predictor, halting=replace(predictor.halting, max_supervision_steps=2))
        pieces = [partial(trainer.rehearse, [work]) for work in trainer.work]
        pieces += [partial(_answered, once, batch) for batch in self.voter.samples(largest)]
        with self.file.tolerated("compiling, going on without"):
            done = compile_within(pieces, lambda: -math.inf if self.stop() else self.plan.left(end), self.plan.now)
            if self.accelerator.is_main_process:
                print(f"note: compiled {done} of {len(pieces)} kinds of work", file=sys.stderr)
        self.schedule.compiled()

    def adapt(self, unit: Unit) -> None:
        """Some optimiser steps; a loss that is no number ends the adaptation at the last good weights."""
        with self.going_on("adaptation"):
            try:
                loss = "" if self.adaptation.loss is None else f"loss {self.adaptation.loss:.3f}, "
                speed = self.schedule.stepping.seconds
                examples = f"{self.trainer.batch_size / speed:.3g} examples/s, " if speed else ""
                figures = f"{loss}{examples}{self.file.votes} votes, {self.time_left()}"
                self.schedule.stepped(*self.adaptation.go_on(unit, self.plan.now, self.stop, figures))
                return
            except NonFiniteLoss as error:
                with self.file.tolerated("adaptation, going on with earlier weights"):
                    raise InputError(str(error)) from error
        self.schedule.adapts, self.schedule.step = False, self.trainer.step

    def time_left(self) -> str:
        """Words for how much of the budget is left."""
        return f"{duration_text(max(0.0, self.plan.left(self.plan.prediction_end)))} of the budget left"

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
        """A pass of votes that stay."""
        complete = False
        with self.going_on("prediction"), self.trainer.averaged():
            complete = self.vote(self.voter, unit)
        self.schedule.passed(unit.stop, complete)

    def vote(self, voter: Voter, unit: Unit) -> bool:
        """One pass, and the file written anew; False when it had to end early."""
        rows, schedule = self.rows_of(unit.start, unit.stop), self.schedule
        over = self.stopwatch(self.plan.now() + unit.seconds)
        began, tokens = self.plan.now(), 0

        def answered(side: int, size: int) -> None:
            nonlocal began, tokens
            began, schedule.batch_seconds = self.plan.now(), self.plan.now() - began
            tokens += size * side**2
            schedule.answers.add((side, size), size * side**2, schedule.batch_seconds)

        quiet = not self.accelerator.is_main_process
        with Progress(f"vote {unit.stop}", len(rows), unit="answers", quiet=quiet, now=self.plan.now) as bar:

            def settled(count: int) -> None:
                bar.update(count, self.time_left())

            complete = voter.vote(self.trainer.predictor(), rows, self.file.tally, settled, over, answered)
        schedule.answers.settle()
        if complete and tokens:
            schedule.repeats = tokens / schedule.work(unit.start, unit.stop)
        self.file.write()
        return complete

    def stopwatch(self, end: float) -> Callable[[], bool]:
        """What says, after every batch and to all processes alike, whether the next one would end too late."""
        last = self.plan.now()

        def over() -> bool:
            nonlocal last
            batch, last = self.plan.now() - last, self.plan.now()
            return self.trainer.agreed(self.stop() or self.plan.left(end) < batch)

        return over

    def weigh(self, unit: Unit) -> None:
        """With --likelihood, let the model say how likely it finds the leading candidates."""
        self.schedule.weighed = True
        over = self.stopwatch(self.plan.now() + unit.seconds)
        with self.going_on("weighing"), self.trainer.averaged():
            Likelihood(self.voter, WEIGHING_PUZZLES).weigh(self.trainer.predictor(), self.file.tally, over)
        self.file.write()


def _answered(predictor: Predictor, batch: Batch) -> None:
    predictor.answer(batch).halting.cpu()  # waits for the device


def asked_outputs(store: ArcStore, outputs: tuple[AskedOutput, ...]) -> NDArray[np.int32]:
    """int32[P]: which of `outputs` every pair of the store asks for, -1 none."""
    number = {output: i for i, output in enumerate(outputs)}
    names = [store.groups[group].task_id for group in store.pair_groups]
    asked = [number.get(AskedOutput(*pair), -1) for pair in zip(names, store.pair_tests.tolist(), strict=True)]
    return np.array(asked, np.int32)


# From the program ---------------------------------------------------------------------------------------------------


def solve(file: SubmissionFile, checkpoint: Path, settings: Settings, plan: TimePlan) -> None:
    """Solve the file's tasks with the export at `checkpoint`, adding to the facts of its summary.

    Raises InputError where there is no export, or none that fits; the file holds fallbacks then.
    """
    with stop_on_signal() as stop:
        with plan.phase("set-up"):
            export = read_export(checkpoint)
            file.facts |= provenance(file.tasks, export, settings.forget)
            arithmetics = usable_arithmetic()
            accelerator = make_accelerator("none", file.path.parent)
            if accelerator.is_main_process:
                print(table(arithmetics, file, export, plan, file.facts["mode"]), flush=True)
            settings = replace(settings, precision=chosen_precision(settings, export.model, accelerator))
        file.facts |= {"processes": accelerator.num_processes, "device": str(accelerator.device)}
        session = Session(export, settings, plan, file, accelerator, lambda: stop.requested)
        try:
            session.run()
        finally:
            with plan.phase("writing"):
                file.write()
        file.facts |= {"precision": settings.precision, "adaptation_steps": session.trainer.step}
        file.facts |= {"seconds_per_step": session.schedule.stepping.seconds, "loss": session.adaptation.loss}
        if stop.requested:
            file.facts["status"] = STOPPED_BY_SIGNAL
        accelerator.end_training()


def provenance(tasks: Sequence[Task], export: Export, forget: bool) -> dict[str, Any]:
    """What has to be known about the checkpoint: of which tasks it has seen test outputs, and which it knows.

    Those that it knows have an embedding row in it, from training on their demonstrations (the paper's protocol).
    """
    rows = set(export.puzzle_names or ()) if export.model.embedding_rows == "task" and not forget else set()
    seen = set(trained_on(tasks, export.training_tasks).tests)
    return {
        "checkpoint": export.facts["sha256"],
        "leak": bool(export.facts.get("leak")),
        "training_known": export.training_known,
        "trained_on": [task.task_id for task in tasks if task.name in seen],
        "beyond_canvas": beyond_canvas(tasks, export),
        "known": [task.task_id for task in tasks if pairs_digest(task.demonstrations) in rows],
    }


def beyond_canvas(tasks: Sequence[Task], export: Export) -> list[str]:
    """The ids of tasks whose grids need a larger canvas than any that the checkpoint was trained on."""
    largest = export.facts.get("canvas")  # unknown of checkpoints of an older version
    return [task.task_id for task in tasks if isinstance(largest, int) and choose_side(task) > largest]
