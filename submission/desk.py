"""Where the submission file is kept: complete and valid from the first moment, better after every pass."""

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from arc_trm.vote import AskedOutput, Predictions, Tally, outputs_of
from data_prep.files import InputError
from data_prep.tasks import Task
from submission.attempts import Attempts, Draft, draft_submission, write_submission
from submission.meta import SubmissionMeta, meta_path, write_meta


class SharedTally(Tally):
    """A tally that one thread may read while another adds to it."""

    def __init__(self, outputs: Iterable[AskedOutput]) -> None:
        super().__init__(outputs)
        self.lock = threading.RLock()

    def add(self, predictions: Predictions) -> None:
        """Let predictions vote; see Tally."""
        with self.lock:
            super().add(predictions)


@dataclass
class Desk:
    """The votes so far, and the files that follow from them; only the main process writes."""

    tasks: Sequence[Task]
    out: Path
    candidates: Path | None = None
    writes: bool = True
    meta: SubmissionMeta | None = None
    tally: SharedTally = field(init=False)
    written: Draft | None = None  # what the file holds
    troubles: list[str] = field(default_factory=list)  # what went wrong without ending the run

    def __post_init__(self) -> None:
        """Start without votes."""
        self.tally = SharedTally(outputs_of(self.tasks))

    def open(self) -> None:
        """Write the file with fallbacks alone; raises InputError where it cannot be written."""
        if not self.writes:
            return
        for path in (self.out, self.candidates or self.out):
            make_folder(path.parent)
        try:
            meta_path(self.out).unlink(missing_ok=True)  # it spoke of an older submission
        except OSError as error:
            raise InputError(f"{meta_path(self.out)}: cannot replace ({error.strerror})") from error
        drafts = [self._first_draft(task) for task in self.tasks]
        self.written = Draft(
            {name: attempts for draft in drafts for name, attempts in draft.submission.items()},
            {name: counts for draft in drafts for name, counts in draft.predicted_attempts.items()},
        )
        write_submission(self.out, self.written.submission)

    def _first_draft(self, task: Task) -> Draft:
        with self.tolerated(f"task {task.task_id}: fallbacks"):
            return draft_submission([task], Tally(outputs_of([task])))
        plain = tuple(Attempts(pair.input, np.zeros_like(pair.input)) for pair in task.tests)
        return Draft({task.task_id: plain}, {task.task_id: (0,) * len(plain)})

    def write(self) -> None:
        """Write the file anew from the votes so far; where that fails the last good file stays, with a note."""
        if not self.writes:
            return
        with self.tally.lock, self.tolerated("writing; the last good file stays"):
            draft = draft_submission(self.tasks, self.tally)
            write_submission(self.out, draft.submission)
            self.written = draft
            if self.meta is not None:
                write_meta(self.out, self.meta)
            if self.candidates is not None:
                self.tally.save(self.candidates)

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note what goes wrong within this context, and go on: a valid file must come out whatever happens.

        The one place of the project that catches every exception; none is lost, all are in the summary.
        """
        try:
            yield
        except Exception as error:
            expected = isinstance(error, InputError)
            self.troubles.append(f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}")
            if self.writes:
                print(f"note: {self.troubles[-1]}", file=sys.stderr)
                if not expected:
                    traceback.print_exc()

    @property
    def agreement(self) -> float:
        """Mean share of the votes that the candidate with most of them has, over outputs with votes."""
        counts = [[c.votes for c in self.tally.candidates(output)] for output in range(len(self.tally.outputs))]
        shares = [max(votes) / sum(votes) for votes in counts if votes]
        return float(np.mean(shares)) if shares else 0.0

    @property
    def votes(self) -> int:
        """All votes so far."""
        return sum(self.tally.total(output) for output in range(len(self.tally.outputs)))

    def summary(self) -> dict[str, Any]:
        """What the file holds, as JSON values."""
        assert self.written is not None
        return {
            "tasks": len(self.written.submission),
            "outputs": self.written.outputs,
            "fallback_attempts": self.written.fallback_attempts,
            "outputs_without_candidates": self.written.outputs_without_candidates,
            "votes": self.votes,
            "agreement": round(self.agreement, 4),
            "predicted_attempts": self.written.predicted_attempts,
            "troubles": self.troubles,
        }


def make_folder(folder: Path) -> None:
    """Make the folder and those above it where they are missing; raises InputError when that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder ({error.strerror})") from error


def summary_path(submission: Path) -> Path:
    """`submission.summary.json` beside `submission.json`."""
    return submission.with_name(f"{submission.stem}.summary.json")
