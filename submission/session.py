"""One run of solving: adapt an exported model, let its answers vote in passes, keep the file up to date."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from arc_trm.checkpoint import Export, read_export
from arc_trm.predict import Voter
from arc_trm.run import agreed, make_accelerator, stop_on_signal
from arc_trm.sampler import Rows, evaluation_rows
from arc_trm.trainer import NonFiniteLoss, Trainer
from arc_trm.vote import AskedOutput
from data_prep.files import InputError
from data_prep.overlap import trained_on
from data_prep.progress import Progress
from data_prep.store import ArcStore, TaskEntry, build_store
from data_prep.tasks import Task, pairs_digest
from submission.adapt import Pace, adapt, agreed_values, make_trainer, prediction_seconds_per_token
from submission.likelihood import Likelihood
from submission.plan import TimePlan
from submission.preflight import chosen_precision, table, usable_arithmetic
from submission.settings import Settings
from submission.submission_file import SubmissionFile

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
# Puzzles of a task in the largest pass: the file is written anew at least this often.
LARGEST_PASS = 32
# Puzzles of a task that weigh its candidates with --likelihood.
WEIGHING_PUZZLES = 8
# The early pass, half-way through the adaptation, may take at most this share of the whole time.
EARLY_SHARE = 0.02
# Another round of adaptation and votes is worth the trouble when at least this share of the whole time is left for it.
WORTHWHILE_SHARE = 0.05
STOPPED_BY_SIGNAL = 143  # the status that a shell shows for a program ended by SIGTERM


def passes(votes: int) -> Iterator[slice]:
    """Slices of 0..votes that double up to LARGEST_PASS: every output soon has a vote, and then more and more."""
    start = 0
    while start < votes:
        stop = min(votes, start + min(max(start, 1), LARGEST_PASS))
        yield slice(start, stop)
        start = stop


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
    voter: Voter = field(init=False)
    rows: Rows = field(init=False)  # all answers that are wanted
    order: NDArray[np.int64] = field(init=False)  # of each row: which puzzle of its task it asks
    pace: Pace = field(init=False)
    measured: bool = False  # the speed of prediction is known, not only judged by that of the adaptation

    def run(self) -> None:
        """Adapt and predict within the plan; the file is complete at any time."""
        with self.plan.phase("set-up"):
            self.prepare()
        again = True
        while again:
            step, complete = self.trainer.step, False
            with self.plan.phase("adaptation"), self.going_on("adaptation"):
                if not self.ends(self.plan.adaptation_end):
                    self.adapt()
            with self.plan.phase("prediction"), self.going_on("prediction"), self.trainer.averaged():
                complete = self.predict()
            adapts = self.trainer.step > step and self.pace.goes_on(self.trainer)
            again = complete and adapts and self.time_is_left()

    def time_is_left(self) -> bool:
        """Whether prediction was so much faster than expected that adapting further and voting again is worth it."""
        left = self.plan.left(self.plan.adaptation_end) > WORTHWHILE_SHARE * self.plan.budget
        return bool(agreed_values([float(left)], self.accelerator)[0]) and not agreed(self.trainer, self.stop())

    def going_on(self, what: str) -> AbstractContextManager[None]:
        """Go on after a failure within this context; not among several processes, where the others would wait for
        the one that failed: there the launcher ends them all, and the last file stays.
        """
        return self.file.tolerated(what) if self.accelerator.num_processes == 1 else nullcontext()

    def ends(self, end: float) -> bool:
        """Whether any process was asked to stop, or sees `end` on its clock."""
        return agreed(self.trainer, self.stop() or self.plan.left(end) <= 0)

    # --- set-up --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make puzzles of the tasks, the trainer that stands at the export, and the rows to be answered."""
        settings, accelerator = self.settings, self.accelerator
        self.store = self.make_store()
        self.trainer = make_trainer(settings, self.export, self.store, accelerator)
        windows = self.trainer.config.train.canvas != "full"
        each = PREDICT_BATCHES.get(accelerator.device.type, PREDICT_BATCHES["cpu"])
        batch = settings.predict_batch or each * accelerator.num_processes
        asked = asked_outputs(self.store, self.file.tally.outputs)
        repeats, task_rows = settings.canvas != "strict", self.export.model.embedding_rows == "task"
        self.voter = Voter(self.store, asked, batch, accelerator, windows, repeats, task_rows)
        self.rows = evaluation_rows(self.store, augmentations=settings.votes or None)
        groups = self.store.puzzle_groups[self.rows.puzzles]
        self.order = self.rows.puzzles - self.store.group_puzzles[groups]
        self.plan.prediction_work = self.tokens(self.rows) + self.weighing_work
        self.plan.first_pass = self.tokens(self.rows_of(slice(0, 1))) / self.plan.prediction_work
        self.pace = Pace(self.plan, settings, accelerator, self.judge_speed)

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

    def rows_of(self, part: slice) -> Rows:
        """The rows that ask the puzzles `part` of every task."""
        return self.rows[np.flatnonzero((self.order >= part.start) & (self.order < part.stop))]

    def tokens(self, rows: Rows) -> float:
        """Tokens to be answered for `rows`."""
        if not self.voter.windows:
            return float(len(rows) * self.trainer.config.model.seq_len)
        sides = np.array([group.side for group in self.store.groups])
        return float((sides[self.store.pair_groups[rows.pairs]] ** 2).sum())

    # --- adaptation ----------------------------------------------------------------------------------------------

    def adapt(self) -> None:
        """Adapt until it is time to predict; a loss that is no number ends it at the last good weights."""
        try:
            adapt(self.trainer, self.pace, self.stop, self.early_pass)
        except NonFiniteLoss as error:
            with self.file.tolerated("adaptation, going on with earlier weights"):
                raise InputError(str(error)) from error
            self.pace.restore(self.trainer)

    def judge_speed(self, step_seconds: float) -> None:
        """Judge the speed of prediction by that of the adaptation, until it has been measured itself."""
        if not self.measured:
            self.plan.seconds_per_token = prediction_seconds_per_token(self.trainer, step_seconds)

    def early_pass(self) -> None:
        """A first vote for every output, in case that the adaptation never ends; and a measure of its speed."""
        cost = self.plan.first_pass * self.plan.prediction_work * (self.plan.seconds_per_token or 0.0)
        [cheap] = agreed_values([float(cost <= EARLY_SHARE * self.plan.budget)], self.accelerator)
        if cheap:
            with self.going_on("early pass"), self.trainer.averaged():
                self.vote(slice(0, 1), self.plan.adaptation_end)

    # --- prediction ----------------------------------------------------------------------------------------------

    def predict(self) -> bool:
        """Pass after pass, until all puzzles have voted or the time is over; whether all have."""
        for part in passes(int(self.order.max()) + 1):
            # Weighing candidates comes last, and its time is kept for it.
            end = self.plan.prediction_end - 1.2 * self.weighing_work * (self.plan.seconds_per_token or 0.0)
            if self.ends(end) or not self.vote(part, end):
                self.weigh()
                return False
        self.weigh()
        return True

    @property
    def weighing_work(self) -> float:
        """Tokens to be answered for weighing the candidates."""
        return self.tokens(self.rows_of(slice(0, WEIGHING_PUZZLES))) if self.settings.likelihood else 0.0

    def weigh(self) -> None:
        """With --likelihood, let the model say how likely it finds the leading candidates."""
        if self.settings.likelihood and not self.ends(self.plan.prediction_end):
            voter = self.voter
            likelihood = Likelihood(self.store, voter.asked, voter.batch_size, self.accelerator, WEIGHING_PUZZLES)
            likelihood.weigh(self.trainer.predictor(), self.file.tally, self.stopwatch(self.plan.prediction_end))
            self.file.write()

    def stopwatch(self, end: float) -> Callable[[], bool]:
        """What says, after every batch and to all processes alike, whether the next one would end too late."""
        last = self.plan.now()

        def over() -> bool:
            nonlocal last
            batch, last = self.plan.now() - last, self.plan.now()
            return agreed(self.trainer, self.stop() or self.plan.left(end) < batch)

        return over

    def vote(self, part: slice, end: float) -> bool:
        """One pass, and the file written anew; False when it had to end early."""
        rows = self.rows_of(part)
        began, over = self.plan.now(), self.stopwatch(end)
        quiet = not self.accelerator.is_main_process
        with Progress(f"predicting up to vote {part.stop}", len(rows), unit="answers", quiet=quiet) as bar:
            complete = self.voter.vote(self.trainer.predictor(), rows, self.file.tally, bar.update, over)
        if complete:
            self.plan.seconds_per_token = (self.plan.now() - began) / self.tokens(rows)
            self.measured = True
        self.file.write()
        return complete


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
            settings = replace(settings, precision=chosen_precision(settings, arithmetics, accelerator))
        file.facts |= {"processes": accelerator.num_processes, "device": str(accelerator.device)}
        session = Session(export, settings, plan, file, accelerator, lambda: stop.requested)
        try:
            session.run()
        finally:
            with plan.phase("writing"):
                file.write()
        file.facts |= {"precision": settings.precision, "adaptation_steps": session.trainer.step}
        file.facts |= {"seconds_per_step": session.pace.step_seconds, "loss": session.pace.loss}
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
        "trained_on": [task.task_id for task in tasks if task.name in seen],
        "known": [task.task_id for task in tasks if pairs_digest(task.demonstrations) in rows],
    }
