"""One run of solving: adapt an exported model, let its answers vote in passes, keep file and state up to date."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
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
from arc_trm.config import RunConfig
from arc_trm.device import agreed_values, compile_failure, compile_within, make_accelerator
from arc_trm.predict import Predictor, Voter
from arc_trm.run import MetricLog, stop_on_signal
from arc_trm.sampler import Rows, evaluation_rows, voting_views
from arc_trm.trainer import NonFiniteLoss, Trainer
from arc_trm.vote import AskedOutput, Votes
from data_prep.canvas import CANVAS_SIDE, VOCAB_SIZE, choose_side
from data_prep.files import InputError
from data_prep.overlap import trained_on
from data_prep.progress import Progress, duration_text
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Task, pairs_digest
from submission.adapt import BATCH_SIZES, Adaptation, TaskFigures, make_trainer, measure_step, run_config, step_work
from submission.forecast import Forecast, against_fact, forecast, plan_lines
from submission.hardware import chosen_precision, describe_tasks, leave_broken_gpu, table
from submission.plan import LARGEST_PASS, Kind, Schedule, TimePlan, Unit
from submission.resume import Saved, forget_state, identity, read_state, write_state
from submission.settings import LEAST_AUGMENTATIONS, LEAST_VISITS, MOST_AUGMENTATIONS, Settings
from submission.submission_file import SubmissionFile

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
STOPPED_BY_SIGNAL = 143  # the status that a shell shows for a program ended by SIGTERM
LIMITED = ("cuda",)  # devices that say when their memory runs out
SAVE_EVERY = 20 * 60.0  # seconds
TASKS = "task_figures"  # the tensor of a state
PLACE = ("number", "earlier_steps", "step")  # the facts of a state that say where a run was
MOST_DIVERGENCES = 3  # losses that are no numbers, after which the adaptation goes on at half the rate


@dataclass
class Session:
    """One run of solving, on all processes; whatever is decided by clock or signal, they decide together."""

    export: Export
    settings: Settings
    plan: TimePlan
    file: SubmissionFile
    accelerator: Accelerator
    stop: Callable[[], bool] = lambda: False  # this process was asked to end
    identity: dict[str, Any] = field(default_factory=dict)  # what a saved state must agree on with its run
    number: int = 0  # which of several checkpoints this is; votes of those before stay
    saved: Saved | None = None  # where an earlier process was
    log: MetricLog | None = None  # of all checkpoints
    earlier_steps: int = 0  # of the checkpoints before
    divergences: int = 0
    planned: Forecast | None = None
    votes_before: int = 0  # that the plan does not count: of checkpoints and rounds before
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
        # Nothing is compiled but where the schedule wants it.
        with torch.compiler.set_stance("force_eager") if self.settings.compile else nullcontext():
            with self.plan.phase("set-up"):
                self.prepare()
            work = {
                Kind.EARLY_VOTE: ("first votes", self.vote_early),
                Kind.COMPILE: ("compiling", self.compile),
                Kind.ADAPT: ("adaptation", self.adapt),
                Kind.VOTE: ("prediction", self.vote_last),
                Kind.SAVE: ("saving", self.save),
            }
            with self.adaptation.bar:
                while (unit := self.decide()).kind != Kind.END:
                    self.say_plan()
                    name, do = work[unit.kind]
                    with self.plan.phase(name):
                        do(unit)
                if self.trainer.agreed(self.stop()) and self.schedule.unsaved:
                    with self.plan.phase("saving"):
                        self.save(unit)

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
        """Make everything that the run needs, for as many puzzles as its pace allows, or as an earlier process had."""
        if self.saved is not None:
            self.build(self.saved.facts["augmentations"])
            self.restore(self.saved)
        elif self.settings.augmentations is not None:
            self.build(self.settings.augmentations)
        else:
            self.build(MOST_AUGMENTATIONS)
            if self.schedule.adapts:
                [pace] = agreed_values([measure_step(self.trainer, self.plan.now)], self.accelerator)
                self.fit_puzzles(pace)

    def fit_puzzles(self, pace: float) -> None:
        """Note what a step takes, in seconds; fewer puzzles where that leaves an embedding row too few steps."""
        self.guess_pace(pace)
        if self.export.model.embedding_rows == "task" or pace <= 0:
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

    def build(self, augmentations: int) -> None:
        """Make puzzles of the tasks, the trainer that stands at the export, the rows to be answered, the schedule."""
        settings, accelerator, self.augmentations = self.settings, self.accelerator, augmentations
        self.store = self.make_store()
        self.trainer = make_trainer(settings, self.export, self.store, accelerator)
        quiet = not accelerator.is_main_process
        self.adaptation = Adaptation(self.trainer, Progress("adapting", quiet=quiet, now=self.plan.now))
        self.figures = TaskFigures(self.store, self.trainer)
        windows = self.trainer.config.train.canvas != "full"
        each = PREDICT_BATCHES.get(accelerator.device.type, PREDICT_BATCHES["cpu"])
        batch = settings.predict_batch or each * accelerator.num_processes
        asked = asked_outputs(self.store, self.file.tally.outputs)
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
            self.plan,
            int(self.order.max(initial=-1)) + 1,
            cache(lambda start, stop: self.voter.tokens(self.rows_of(start, stop))),
            step_work(self.trainer),
            steps=settings.steps or 0,
            adapts=settings.steps != 0 and self.fits(),
            embedding_share=settings.embedding_share,
            compiles=self.trainer.running is not self.trainer.model,
            save_every=SAVE_EVERY,
        )
        if self.number:  # every output has votes that must stay
            self.schedule.early_votes, self.schedule.complete = 2, True

    def fits(self) -> bool:
        """Whether a step fits into memory, in pieces if need be; otherwise there are votes without adaptation."""
        if self.accelerator.device.type in LIMITED:
            try:
                self.trainer.fit_memory()
            except torch.OutOfMemoryError as error:
                with self.file.tolerated("no adaptation"):
                    raise InputError(str(error)) from error
                return False
        return True

    def make_store(self) -> ArcStore:
        """The puzzles of all tasks; without those tasks that cannot be augmented, if there are such."""
        entries = [TaskEntry.demonstrations_only(task) for task in self.file.tasks]
        with self.file.tolerated("augmentation, trying each task alone"):
            return build_store(entries, self.augmentations, self.settings.seed)
        return build_store(list(filter(self._is_usable, entries)), self.augmentations, self.settings.seed)

    def _is_usable(self, entry: TaskEntry) -> bool:
        with self.file.tolerated(f"task {entry.task.task_id} is left out"):
            build_store([entry], self.augmentations, self.settings.seed)
            return True
        return False

    def rows_of(self, start: int, stop: int) -> Rows:
        """The rows that ask the puzzles start..stop of every task."""
        return self.rows[np.flatnonzero((self.order >= start) & (self.order < stop))]

    # --- state and plan ------------------------------------------------------------------------------------------

    def save(self, unit: Unit) -> None:
        """Keep all that another process needs to go on from here."""
        with self.going_on("saving the state"):
            tensors, facts = self.trainer.state_dict()
            tensors[TASKS] = self.figures.sums()
            facts |= {"run": self.identity, "number": self.number, "augmentations": self.augmentations}
            facts |= {"earlier_steps": self.earlier_steps}
            facts |= {"schedule": self.schedule.state(), "divergences": self.divergences}
            facts |= {"processes": self.accelerator.num_processes, "phases": self.plan.phases}
            facts |= {"spent": self.plan.now() - self.plan.started}
            write_state(self.file, tensors, facts, self.interrupted or self.file.tally.snapshot())
        self.schedule.saved()

    def restore(self, saved: Saved) -> None:
        """Go on from a state: its clock, its weights, its pace, its votes."""
        facts = saved.facts
        self.plan.go_on(facts["spent"])
        for name, seconds in facts["phases"].items():
            self.plan.phases[name] = self.plan.phases.get(name, 0.0) + seconds
        self.trainer.load_state_dict(saved.tensors, facts)
        self.figures.restore(saved.tensors[TASKS].to(self.accelerator.device))
        self.divergences = facts["divergences"]
        self.adaptation.halve_rates(self.divergences)
        self.schedule.restore(facts["schedule"], facts["processes"] / self.accelerator.num_processes)
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
            self.votes_before = self.file.lasting_votes - schedule.voted * len(self.file.tally.outputs)
            if self.accelerator.is_main_process:
                processes = self.accelerator.num_processes
                print("\n".join(plan_lines(self.planned, schedule, self.trainer, processes)), flush=True)

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
            done = compile_within(
                pieces,
                lambda: -math.inf if self.stop() else self.plan.left(end),
                self.plan.now,
                partial(compile_failure, self.accelerator.device),
            )
            if self.accelerator.is_main_process:
                print(f"note: compiled {done} of {len(pieces)} kinds of work", file=sys.stderr)
        self.schedule.compiled()

    def adapt(self, unit: Unit) -> None:
        """Some optimiser steps; after a loss that is no number the last good weights go on at half the rate."""
        with self.going_on("adaptation"):
            try:
                metrics, speed = self.adaptation.metrics, self.schedule.stepping.seconds
                loss = f"loss {metrics['loss']:.3f}, " if metrics else ""
                examples = f"{self.trainer.batch_size / speed:.3g} examples/s, " if speed else ""
                figures = f"{loss}{examples}{self.file.votes} votes"
                done = self.adaptation.go_on(unit, self.plan.now, self.stop, lambda: f"{figures}, {self.time_left()}")
                self.schedule.stepped(*done)
                metrics = self.adaptation.metrics
                steps_per_second = metrics["examples_per_second"] / self.trainer.batch_size
                self.record({**metrics, "steps_per_second": steps_per_second})
                return
            except NonFiniteLoss as error:
                self.divergences += 1
                with self.file.tolerated("adaptation, going on with earlier weights and half the rate"):
                    raise InputError(str(error)) from error
                if self.divergences <= MOST_DIVERGENCES:
                    self.schedule.step = self.trainer.step
                    return
        self.schedule.adapts, self.schedule.step = False, self.trainer.step

    def record(self, figures: Mapping[str, float]) -> None:
        """Report figures of this step, as long as that works."""
        if self.log is not None:
            log, self.log = self.log, None
            with self.file.tolerated("figures of the run"):
                log.add(dict(figures), self.earlier_steps + self.trainer.step)
                self.log = log

    def time_left(self) -> str:
        """Words for how much of the budget is left."""
        return f"{duration_text(max(0.0, self.plan.left(self.plan.prediction_end)))} to the deadline"

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
        over = self.stopwatch(self.plan.now() + unit.seconds)
        began, tokens = self.plan.now(), 0

        def answered(side: int, size: int) -> None:
            nonlocal began, tokens
            began, schedule.batch_seconds = self.plan.now(), self.plan.now() - began
            tokens += size * side**2
            schedule.answers.add((side, size), size * side**2, schedule.batch_seconds)

        lasting = f"votes up to {unit.stop} of {schedule.puzzles}"
        what = "first votes" if unit.kind == Kind.EARLY_VOTE else lasting
        quiet = not self.accelerator.is_main_process
        with Progress(what, len(rows), unit="answers", quiet=quiet, now=self.plan.now) as bar:

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
        """What says, after every batch and to all processes alike, whether the next one would end too late."""
        last = self.plan.now()

        def over() -> bool:
            nonlocal last
            batch, last = self.plan.now() - last, self.plan.now()
            return self.trainer.agreed(self.stop() or self.plan.left(end) < batch)

        return over


def _answered(predictor: Predictor, batch: Batch) -> None:
    predictor.answer(batch).halting.cpu()  # waits for the device


def asked_outputs(store: ArcStore, outputs: tuple[AskedOutput, ...]) -> NDArray[np.int32]:
    """int32[P]: which of `outputs` every pair of the store asks for, -1 none."""
    number = {output: i for i, output in enumerate(outputs)}
    names = [store.groups[group].task_id for group in store.pair_groups]
    asked = [number.get(AskedOutput(*pair), -1) for pair in zip(names, store.pair_tests.tolist(), strict=True)]
    return np.array(asked, np.int32)


# From the program ---------------------------------------------------------------------------------------------------


def solve(
    file: SubmissionFile, checkpoints: Sequence[Path], settings: Settings, plan: TimePlan, resumes: bool = False
) -> None:
    """Solve the file's tasks with the exports at `checkpoints`, which share the time, and whose votes add up.

    Adds to the facts of the file's summary. A run that `resumes` goes on from the state beside the file. Raises
    InputError where there is no export, or none that fits; the file holds fallbacks then.
    """
    with stop_on_signal() as stop:
        with plan.phase("set-up"):
            exports = read_exports(checkpoints)
            file.note(**provenance(file.tasks, exports, settings.forget))
            leave_broken_gpu()
            accelerator = make_accelerator(settings.track, file.path.parent)
            # All processes end by the clock of the first.
            plan.started = plan.now() - agreed_values([plan.now() - plan.started], accelerator)[0]
            settings = replace(settings, precision=chosen_precision(settings, exports[0].model, accelerator))
            if accelerator.is_main_process:
                print(table(accelerator, settings.precision, file, exports, plan), flush=True)
            run = identity(file.tasks, exports, settings)
            saved = read_state(file, run) if resumes else None
            if saved is None:
                forget_state(file)
        file.note(processes=accelerator.num_processes, device=str(accelerator.device), precision=settings.precision)
        first, steps, step = (0, 0, 0) if saved is None else (saved.facts[name] for name in PLACE)
        config = run_config(settings, exports[0], accelerator.device, accelerator.num_processes)
        log, stopped = open_log(file, config, accelerator, steps + step), False
        for number in range(first, len(exports)):
            part = plan.part(len(exports) - number)
            place = number, saved, log, steps
            session = Session(exports[number], settings, part, file, accelerator, lambda: stop.requested, run, *place)
            try:
                session.run()
            finally:
                with plan.phase("writing"):
                    file.write()
            report_session(session)
            saved, steps = None, steps + session.trainer.step
            # A signal to one process has ended the work of all.
            stopped = session.trainer.agreed(stop.requested)
            if stopped:
                file.note(status=STOPPED_BY_SIGNAL)
                break
        if not stopped:
            forget_state(file)
        accelerator.end_training()


def open_log(file: SubmissionFile, config: RunConfig, accelerator: Accelerator, step: int) -> MetricLog | None:
    """Where figures of a run that stands at `step` are reported; None, and a trouble, where that is impossible."""
    with file.tolerated("figures of the run"):
        return MetricLog(accelerator, file.path.parent, config, step, f"{file.path.stem}.")
    return None


def read_exports(checkpoints: Sequence[Path]) -> list[Export]:
    """The exports of ARC models at `checkpoints`; raises InputError for another model, and where two are one.

    The votes of one that is there twice would only be repeated.
    """
    exports = [read_export(checkpoint) for checkpoint in checkpoints]
    first: dict[str, Path] = {}
    for checkpoint, export in zip(checkpoints, exports, strict=True):
        if (export.model.seq_len, export.model.vocab_size) != (CANVAS_SIDE**2, VOCAB_SIZE):
            found = f"{export.model.seq_len} tokens of {export.model.vocab_size} kinds"
            raise InputError(f"{checkpoint}: a model for {found}, expected one for ARC")
        other = first.setdefault(export.facts["sha256"], checkpoint)
        if other is not checkpoint:
            raise InputError(f"--checkpoint {checkpoint}: has the weights of {other}, expected another checkpoint")
    return exports


def report_session(session: Session) -> None:
    """Note in the summary, and print, how one checkpoint's run went."""
    file, step, plan = session.file, session.trainer.step, session.planned
    file.note(adaptation_steps=step, seconds_per_step=session.schedule.stepping.seconds)
    file.note(loss=session.adaptation.metrics.get("loss"), augmentations=session.augmentations)
    with session.going_on("figures of the tasks"):
        file.note(demonstrations=session.figures.means())
    if plan is not None and session.accelerator.is_main_process:
        votes = (file.votes - session.votes_before) / len(file.tally.outputs)
        print("\n".join(against_fact(plan, session.plan.phases, step, votes)), flush=True)


def show_plan(
    file: SubmissionFile, checkpoints: Sequence[Path], settings: Settings, plan: TimePlan, rate: float, gpus: int
) -> None:
    """Print what a run would do, without solving; `rate`: training examples per second (0: measured here), `gpus`: of
    the machine that it is for (0: this one).
    """
    exports, accelerator = read_exports(checkpoints), make_accelerator("none", file.path.parent)
    compiles, half = settings.compile, gpus > 0 and settings.precision == "auto"
    settings = replace(settings, compile=False, precision="bf16" if half else settings.precision)
    if gpus:
        sizes = settings.batch_size or BATCH_SIZES["cuda"], settings.predict_batch or PREDICT_BATCHES["cuda"] * gpus
        settings = replace(settings, batch_size=sizes[0], predict_batch=sizes[1])
    session = Session(exports[0], settings, plan.part(len(checkpoints)), file, accelerator)
    session.build(MOST_AUGMENTATIONS if settings.augmentations is None else settings.augmentations)
    session.schedule.compiles = compiles
    pace = session.trainer.batch_size / rate if rate else measure_step(session.trainer, plan.now)
    (session.guess_pace if settings.augmentations is not None else session.fit_puzzles)(pace)
    session.schedule.compiles = compiles
    lines = [f"plan      {describe_tasks(file.tasks)}; {duration_text(session.plan.budget)} for each checkpoint"]
    planned = forecast(session.schedule)
    lines += plan_lines(planned, session.schedule, session.trainer, gpus or accelerator.num_processes)
    if accelerator.is_main_process:
        print("\n".join(lines), flush=True)


def provenance(tasks: Sequence[Task], exports: Sequence[Export], forget: bool) -> dict[str, Any]:
    """What has to be known about the checkpoints: of which tasks one has seen test outputs, and which one knows.

    Those that it knows have an embedding row in it, from training on their demonstrations (the paper's protocol).
    """
    knowing = [export for export in exports if export.model.embedding_rows == "task" and not forget]
    rows = {name for export in knowing for name in export.puzzle_names or ()}
    seen = {name for export in exports for name in trained_on(tasks, export.training_tasks).tests}
    return {
        "checkpoint": " + ".join(export.facts["sha256"] for export in exports),
        "leak": any(export.facts.get("leak") for export in exports),
        "training_known": all(export.training_known for export in exports),
        "trained_on": [task.task_id for task in tasks if task.name in seen],
        "beyond_canvas": beyond_canvas(tasks, exports),
        "known": [task.task_id for task in tasks if pairs_digest(task.demonstrations) in rows],
    }


def beyond_canvas(tasks: Sequence[Task], exports: Sequence[Export]) -> list[str]:
    """The ids of tasks whose grids need a larger canvas than any that the checkpoints were trained on."""
    # Unknown of checkpoints of an older version, which may have been trained on any.
    largest = max(int(export.facts.get("canvas") or CANVAS_SIDE) for export in exports)
    return [task.task_id for task in tasks if choose_side(task) > largest]
