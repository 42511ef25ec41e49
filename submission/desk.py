"""Where the submission file is kept: complete and valid from the first moment, better after every pass."""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.files import InputError
from data_prep.tasks import Task
from submission.attempts import Draft, draft_submission, write_submission
from submission.meta import SubmissionMeta, meta_path, write_meta
from submission.vote import Tally, outputs_of


@dataclass
class Desk:
    """The votes so far, and the files that follow from them; only the main process writes."""

    tasks: Sequence[Task]
    out: Path
    candidates: Path | None = None
    ranking: str = "count"
    writes: bool = True
    meta: SubmissionMeta | None = None
    tally: Tally = field(init=False)
    written: Draft | None = None  # what the file holds
    failures: int = 0  # writes that failed after the first one

    def __post_init__(self) -> None:
        """Start without votes."""
        self.tally = Tally(outputs_of(self.tasks))
        # The watchdog writes from its own thread.
        self.lock = threading.RLock()

    def open(self) -> None:
        """Write the file with fallbacks alone; raises InputError where it cannot be written."""
        if not self.writes:
            return
        make_folder(self.out.parent)
        try:
            meta_path(self.out).unlink(missing_ok=True)  # it spoke of an older submission
        except OSError as error:
            raise InputError(f"{meta_path(self.out)}: cannot replace ({error.strerror})") from error
        draft = draft_submission(self.tasks, self.tally, self.ranking)
        write_submission(self.out, draft.submission)
        self.written = draft

    def write(self) -> None:
        """Write the file anew from the votes so far; where that fails the last good file stays, with a note."""
        if not self.writes:
            return
        with self.lock:
            try:
                draft = draft_submission(self.tasks, self.tally, self.ranking)
                write_submission(self.out, draft.submission)
                self.written = draft
                if self.meta is not None:
                    write_meta(self.out, self.meta)
                if self.candidates is not None:
                    self.tally.save(self.candidates)
            except InputError as error:
                self.failures += 1
                print(f"note: {error}; the last good file stays", file=sys.stderr)

    @property
    def agreement(self) -> float:
        """Mean share of the votes that the leading candidate of an output has, over outputs with votes."""
        shares = []
        for output in range(len(self.tally.outputs)):
            leading = self.tally.candidates(output, self.ranking, limit=1)
            if leading:
                shares.append(leading[0].votes / self.tally.total(output))
        return sum(shares) / len(shares) if shares else 0.0

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
            "failed_writes": self.failures,
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
