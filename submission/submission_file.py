"""The submission on disk: complete and valid from the first moment, better after every pass; its facts beside it.

    {"task_id": [{"attempt_1": grid, "attempt_2": grid}, ... one for each test input, in order], ...}

Beside `submission.json` stands `submission.summary.json`: which checkpoint made it, whether its score can be trusted,
how the run went.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from arc_trm.vote import Tally, outputs_of
from data_prep.files import InputError, make_folder, read_json, write_atomic, write_json
from data_prep.grid import describe, parse_grid
from data_prep.tasks import Task
from submission.attempts import Attempts, Draft, Submission, draft_submission

# Reading and writing --------------------------------------------------------------------------------------


def write_submission(path: Path | str, submission: Submission) -> None:
    """Write the file atomically; raises InputError if that is impossible, and the old file stays."""
    table = {
        task_id: [{name: grid.tolist() for name, grid in attempts._asdict().items()} for attempts in outputs]
        for task_id, outputs in submission.items()
    }
    write_atomic(path, orjson.dumps(table))


def read_submission(path: Path | str) -> Submission:
    """Read and validate a submission; raises InputError that names file, task, output and field."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path}: found {describe(value)}, expected {{task_id: [attempts, ...], ...}}")
    return {task_id: _parse_outputs(outputs, f"{path}: task {task_id}") for task_id, outputs in value.items()}


def _parse_outputs(value: object, where: str) -> tuple[Attempts, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: found {describe(value)}, expected a list with one entry for each test input")
    return tuple(_parse_attempts(entry, f"{where}, output {i}") for i, entry in enumerate(value))


def _parse_attempts(value: object, where: str) -> Attempts:
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {describe(value)}, expected an object with attempt_1 and attempt_2")
    if value.keys() != set(Attempts._fields):
        raise InputError(f"{where}: found fields {sorted(value)[:5]}, expected attempt_1 and attempt_2")
    return Attempts(*(parse_grid(value[name], f"{where}, {name}") for name in Attempts._fields))


def read_answers(path: Path | str, tasks: Sequence[Task], source: Path | str) -> Submission:
    """Read a submission that answers exactly the tasks of `source`; raises InputError for any other."""
    submission = read_submission(path)
    check_complete(path, submission, {task.task_id: len(task.tests) for task in tasks}, source)
    return submission


def check_complete(path: Path | str, submission: Submission, expected: Mapping[str, int], source: Path | str) -> None:
    """Raise InputError unless the submission holds exactly the tasks and the numbers of outputs of `source`."""
    missing = [task_id for task_id in expected if task_id not in submission]
    unknown = [task_id for task_id in submission if task_id not in expected]
    if len(missing) == len(expected):
        raise InputError(f"{path}: none of the {len(expected)} tasks of {source} is in it; is that another set?")
    if missing:
        raise InputError(f"{path}: lacks task {listed(missing)}, expected all tasks of {source}")
    if unknown:
        raise InputError(f"{path}: unknown task {listed(unknown)}, expected only tasks of {source}")
    for task_id, count in expected.items():
        if len(submission[task_id]) != count:
            found = len(submission[task_id])
            raise InputError(f"{path}: task {task_id} has {found} outputs, expected {count} as in {source}")


def listed(names: Sequence[str]) -> str:
    """Return `a` or `a and 3 more`."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


# While solving --------------------------------------------------------------------------------------------


@dataclass
class SubmissionFile:
    """The votes so far and the files that are made from them; only the main process writes."""

    tasks: Sequence[Task]
    path: Path
    candidates: Path | None = None  # file of all votes
    writes: bool = True
    facts: dict[str, Any] = field(default_factory=dict)  # about the run, for the summary
    tally: Tally = field(init=False)
    written: Draft | None = None  # what the file holds
    least_votes: int = 0  # votes in the file of an earlier process, which stays until there are as many
    kept_checkpoint: str | None = None  # digest of the checkpoint that gave them
    troubles: list[str] = field(default_factory=list)  # errors that did not end the run

    def __post_init__(self) -> None:
        """Start without votes."""
        self.tally = Tally(outputs_of(self.tasks))

    def open(self) -> None:
        """Write the file with only fallbacks; raises InputError if it cannot be written."""
        if not self.writes:
            return
        for path in (self.path, self.candidates or self.path):
            make_folder(path.parent)
        for stale in (summary_path(self.path), self.path.with_name(f"{self.path.stem}.metrics.jsonl")):
            try:
                stale.unlink(missing_ok=True)  # of an older submission
            except OSError as error:
                raise InputError(f"{stale}: cannot replace ({error.strerror})") from error
        self.written = Draft({}, {})
        for task in self.tasks:
            plain = tuple(Attempts(pair.input, np.zeros_like(pair.input)) for pair in task.tests)
            draft = Draft({task.task_id: plain}, {task.task_id: (0,) * len(plain)})
            with self.tolerated(f"task {task.task_id}: fallbacks"):
                draft = draft_submission([task], Tally(outputs_of([task])))
            self.written.submission.update(draft.submission)
            self.written.predicted_attempts.update(draft.predicted_attempts)
        write_submission(self.path, self.written.submission)

    def goes_on(self) -> bool:
        """Keep the file of an earlier process until there are as many votes; returns False if it has none to keep.

        It is kept if it answers exactly these tasks and its summary says how many votes it holds.
        """
        with suppress(InputError, KeyError, ValueError, TypeError):
            submission = read_answers(self.path, self.tasks, self.path)
            summary = read_summary(self.path)
            self.written, self.least_votes = Draft(submission, summary["predicted_attempts"]), int(summary["votes"])
            self.kept_checkpoint = summary.get("checkpoint")
        return self.least_votes > 0

    def write(self) -> None:
        """Write the files from the votes so far; if that fails, the last good file stays, with a note."""
        if not self.writes or self.votes < self.least_votes:
            return
        with self.tally.lock, self.tolerated("writing; the last good file stays"):
            draft = draft_submission(self.tasks, self.tally)
            write_submission(self.path, draft.submission)
            self.written = draft
            self.write_summary()
            if self.candidates is not None:
                self.tally.save(self.candidates)

    def write_summary(self) -> None:
        """Write the summary, unless an earlier process's file is kept; raises InputError if that is impossible."""
        if self.votes < self.least_votes:
            return
        with self.tally.lock:
            write_json(summary_path(self.path), self.summary())

    def note(self, **facts: Any) -> None:
        """Add facts about the run to the summary."""
        with self.tally.lock:
            self.facts |= facts

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note an error within this context and go on, because a valid file must come out whatever happens.

        The only place of the project that catches every exception; the summary lists them all.
        """
        try:
            yield
        except Exception as error:
            expected = isinstance(error, InputError)
            self.trouble(f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}")
            if self.writes and not expected:
                traceback.print_exc()

    def trouble(self, text: str) -> None:
        """Note an error that does not end the run, and print it on stderr."""
        self.troubles.append(text)
        if self.writes:
            print(f"note: {text}", file=sys.stderr)

    @property
    def agreement(self) -> float:
        """Mean share of the votes that the leading candidate has, over outputs with votes."""
        with self.tally.lock:
            counts = [[c.votes for c in self.tally.candidates(output)] for output in range(len(self.tally.outputs))]
        shares = [max(votes) / sum(votes) for votes in counts if votes]
        return float(np.mean(shares)) if shares else 0.0

    @property
    def votes(self) -> int:
        """The number of votes so far."""
        with self.tally.lock:
            return sum(self.tally.total(output) for output in range(len(self.tally.outputs)))

    def summary(self) -> dict[str, Any]:
        """Return the facts and the counts of the file as JSON values."""
        assert self.written is not None
        return {
            **self.facts,
            "tasks": len(self.written.submission),
            "outputs": self.written.outputs,
            "fallback_attempts": self.written.fallback_attempts,
            "outputs_without_candidates": self.written.outputs_without_candidates,
            "votes": self.votes,
            "agreement": round(self.agreement, 4),
            "predicted_attempts": self.written.predicted_attempts,
            "troubles": self.troubles,
        }


# The summary ----------------------------------------------------------------------------------------------

# The fields of a summary that remarks and reports read, and their types; docs/formats.md describes them.
PROVENANCE = {"checkpoint": str, "leak": bool, "training_known": bool, "demonstrations": dict}
PROVENANCE |= dict.fromkeys(("trained_on", "known", "beyond_canvas"), list)
EXPECTED = {str: "a text", bool: "true or false", list: "a list of ids", dict: "an object of tasks"}


def summary_path(submission: Path) -> Path:
    """Return the path `submission.summary.json` for `submission.json`."""
    return submission.with_name(f"{submission.stem}.summary.json")


def read_summary(submission: Path) -> dict[str, Any]:
    """Read the summary of a submission, empty if there is none; raises InputError if a field has another type."""
    path = summary_path(submission)
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {describe(value)}, expected an object")
    for name, kind in PROVENANCE.items():
        if not isinstance(value.get(name, kind()), kind):
            raise InputError(f"{path}: {name} is {describe(value[name])}, expected {EXPECTED[kind]}")
    return value


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Return the remarks that a reader of the score needs, one line each."""
    known, seen, beyond = summary.get("training_known", True), summary.get("trained_on"), summary.get("beyond_canvas")
    lines = [f"checkpoint {summary['checkpoint']}"] if "checkpoint" in summary else []
    if summary.get("leak"):
        lines.append("LEAK: the checkpoint was trained on a dataset built with --allow-leak")
    if not known:
        lines.append("UNKNOWN: the checkpoint does not say what it was trained on; it may have seen these test outputs")
    if seen:
        lines.append(f"CONTAMINATED: the checkpoint was trained on {len(seen)} of its tasks: {_some(seen)}")
    elif seen is not None and known:
        lines.append("none of its test outputs was a training label of the checkpoint")
    if beyond:
        lines.append(f"{len(beyond)} of its tasks need a larger canvas than the checkpoint trained on: {_some(beyond)}")
    if rows := summary.get("known"):
        lines.append(
            f"the checkpoint was trained on the demonstrations of {len(rows)} of its tasks (the paper's protocol)"
        )
    return lines


def _some(names: Sequence[Any]) -> str:
    """Return the first five names as text."""
    return ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
