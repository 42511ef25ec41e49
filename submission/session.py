"""One run of solving: adapt an exported model, let its answers vote in passes, keep the file up to date."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from tqdm import tqdm

from arc_trm.checkpoint import Export, read_export
from arc_trm.run import agreed, make_accelerator, stop_on_signal
from arc_trm.sampler import Rows, evaluation_rows
from arc_trm.trainer import Trainer
from data_prep.overlap import trained_on
from data_prep.store import ArcStore, TaskEntry, build_store
from submission.adapt import Pace, adapt, agreed_values, make_trainer, prediction_seconds_per_token
from submission.desk import Desk
from submission.meta import SubmissionMeta
from submission.plan import TimePlan
from submission.predict import Voter
from submission.settings import Settings
from submission.vote import Output

PREDICT_BATCHES = {"cuda": 256, "cpu": 8}
# Puzzles of a task in the largest pass: the file is written anew at least this often.
LARGEST_PASS = 32
# The early pass, half-way through the adaptation, may take at most this share of the whole time.
EARLY_SHARE = 0.02


def passes(votes: int) -> Iterator[slice]:
    """Slices of 0..votes that double up to LARGEST_PASS: every output soon has a vote, and then more and more."""
    start = 0
    while start < votes:
        stop = min(votes, start + min(max(start, 1), LARGEST_PASS))
        yield slice(start, stop)
        start = stop


@dataclass
class Session:
    """One run of solving, on all processes."""

    export: Export
    settings: Settings
    plan: TimePlan
    desk: Desk
    accelerator: Accelerator
    stop: Callable[[], bool] = lambda: False  # this process was asked to end
    store: ArcStore = field(init=False)
    trainer: Trainer = field(init=False)
    voter: Voter = field(init=False)
    rows: Rows = field(init=False)
    order: NDArray[np.int64] = field(init=False)  # of each row: which puzzle of its task it asks
    pace: Pace = field(init=False)

    def run(self) -> None:
        """Adapt and predict within the plan; the file is complete at any time."""
        with self.plan.phase("set-up"):
            self.prepare()
        with self.plan.phase("adaptation"):
            if self.plan.left(self.plan.adaptation_end) > 0 and not self.stop():
                adapt(self.trainer, self.pace, self.stop, self.early_pass)
        with self.plan.phase("prediction"), self.trainer.averaged():
            self.predict()

    def prepare(self) -> None:
        """Make puzzles of the tasks, and the trainer that stands at the export."""
        settings, device = self.settings, self.accelerator.device
        entries = [TaskEntry.demonstrations_only(task) for task in self.desk.tasks]
        self.store = build_store(entries, settings.augmentations, settings.seed)
        self.trainer = make_trainer(settings, self.export, self.store, self.accelerator)
        windows = self.trainer.config.train.canvas != "full"
        batch = settings.predict_batch or PREDICT_BATCHES[device.type] * self.accelerator.num_processes
        asked = asked_outputs(self.store, self.desk.tally.outputs)
        self.voter = Voter(self.store, asked, batch, self.accelerator, windows)
        self.rows = evaluation_rows(self.store, augmentations=settings.votes or None)
        groups = self.store.puzzle_groups[self.rows.puzzles]
        self.order = self.rows.puzzles - self.store.group_puzzles[groups]
        self.plan.prediction_work = self.tokens(self.rows)
        self.plan.first_pass = self.tokens(self.rows_of(slice(0, 1))) / self.plan.prediction_work
        self.pace = Pace(self.plan, settings, self.accelerator, self.estimate)

    def rows_of(self, part: slice) -> Rows:
        """The rows that ask the puzzles `part` of every task."""
        return self.rows[np.flatnonzero((self.order >= part.start) & (self.order < part.stop))]

    def tokens(self, rows: Rows) -> float:
        """Tokens to be answered for `rows`."""
        if not self.voter.windows:
            return float(len(rows) * self.trainer.config.model.seq_len)
        sides = np.array([group.side for group in self.store.groups])
        return float((sides[self.store.pair_groups[rows.pairs]] ** 2).sum())

    def estimate(self, step_seconds: float) -> None:
        """Judge the speed of prediction by that of the adaptation, until it has been measured itself."""
        if not self.voter_measured:
            self.plan.seconds_per_token = prediction_seconds_per_token(self.trainer, step_seconds)

    voter_measured: bool = False

    def early_pass(self) -> None:
        """A first vote for every output, in case that the adaptation never ends; and a measure of its speed."""
        part = slice(0, 1)
        cost = self.plan.first_pass * self.plan.prediction_work * (self.plan.seconds_per_token or 0.0)
        [worthwhile] = agreed_values([float(cost <= EARLY_SHARE * self.plan.budget)], self.accelerator)
        if worthwhile:
            with self.trainer.averaged():
                self.vote(part, self.plan.adaptation_end)

    def predict(self) -> None:
        """Pass after pass, until all puzzles have voted or the time is over."""
        total = int(self.order.max()) + 1
        for part in passes(total):
            if not self.vote(part, self.plan.prediction_end):
                return

    def vote(self, part: slice, end: float) -> bool:
        """One pass, and the file written anew; False when it had to end early."""
        rows = self.rows_of(part)
        began = last = time.monotonic()

        def over() -> bool:
            nonlocal last
            now = time.monotonic()
            batch, last = now - last, now
            return agreed(self.trainer, self.stop() or now + batch > end)

        quiet = None if self.accelerator.is_main_process else True
        with tqdm(total=len(rows), unit="row", desc=f"votes {part.stop}", disable=quiet, leave=False) as bar:
            complete = self.voter.vote(self.trainer.predictor(), rows, self.desk.tally, bar.update, over)
        if complete:
            self.plan.seconds_per_token = (time.monotonic() - began) / self.tokens(rows)
            self.voter_measured = True
        self.desk.write()
        return complete


def asked_outputs(store: ArcStore, outputs: tuple[Output, ...]) -> NDArray[np.int32]:
    """int32[P]: which of `outputs` every pair of the store asks for, -1 none."""
    number = {output: i for i, output in enumerate(outputs)}
    names = [store.groups[group].task_id for group in store.pair_groups]
    return np.array(
        [number.get(Output(name, test), -1) for name, test in zip(names, store.pair_tests.tolist(), strict=True)],
        np.int32,
    )


def solve(desk: Desk, checkpoint: Path, settings: Settings, plan: TimePlan) -> dict[str, Any]:
    """Solve the desk's tasks with the export at `checkpoint`; returns facts for the summary."""
    with plan.phase("set-up"):
        export = read_export(checkpoint)
        accelerator = make_accelerator("none", desk.out.parent)
        seen = trained_on(desk.tasks, export.training_tasks).tests
        desk.meta = SubmissionMeta(
            export.facts["sha256"], bool(export.facts.get("leak")), tuple(name.split("/", 1)[1] for name in seen)
        )
    with stop_on_signal() as stop:
        session = Session(export, settings, plan, desk, accelerator, lambda: stop.requested)
        session.run()
    return {
        "processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "precision": str(session.trainer.dtype).removeprefix("torch."),
        "adaptation_steps": session.trainer.step,
        "seconds_per_step": session.pace.step_seconds,
        "checkpoint": export.facts["sha256"],
        "contaminated": list(desk.meta.trained_on),
        "stopped_by_signal": stop.requested,
    }
