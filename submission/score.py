"""Score a submission against the known outputs, or validate it against the challenges.

    python -m submission.score submission.json --solutions solutions.json [--challenges FILE] [--per-task] [--json]
    python -m submission.score submission.json --check --challenges challenges.json

Three definitions of the score circulate; all three are printed, by name:

    outputs    solved test outputs / all test outputs (the competition's text)
    task_mean  mean over tasks of the share of solved outputs (the leaderboard's numbers)
    tasks      tasks with every output solved / all tasks
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from data_prep.files import InputError, run_program
from data_prep.grid import Grid
from data_prep.tasks import read_solutions, read_tasks
from submission.attempts import Submission, check_complete, read_submission
from submission.meta import meta_path, read_meta


@dataclass(frozen=True)
class TaskScore:
    """How many outputs of one task are solved."""

    task_id: str
    solved: int
    total: int


@dataclass(frozen=True)
class Scores:
    """The three scores of a submission and the tasks behind them."""

    per_task: tuple[TaskScore, ...]

    @property
    def outputs_solved(self) -> int:
        """Solved test outputs."""
        return sum(task.solved for task in self.per_task)

    @property
    def outputs_total(self) -> int:
        """All test outputs."""
        return sum(task.total for task in self.per_task)

    @property
    def tasks_solved(self) -> int:
        """Tasks with every output solved."""
        return sum(task.solved == task.total for task in self.per_task)

    @property
    def tasks_total(self) -> int:
        """All tasks."""
        return len(self.per_task)

    @property
    def outputs(self) -> float:
        """Solved outputs / all outputs."""
        return self.outputs_solved / self.outputs_total

    @property
    def task_mean(self) -> float:
        """Mean over tasks of the share of solved outputs."""
        return math.fsum(task.solved / task.total for task in self.per_task) / self.tasks_total

    @property
    def tasks(self) -> float:
        """Tasks solved entirely / all tasks."""
        return self.tasks_solved / self.tasks_total

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The three scores as fractions, with the counts behind them."""
        return {
            "outputs": {"solved": self.outputs_solved, "total": self.outputs_total, "score": self.outputs},
            "task_mean": {"score": self.task_mean, "tasks": self.tasks_total},
            "tasks": {"solved": self.tasks_solved, "total": self.tasks_total, "score": self.tasks},
        }

    def lines(self) -> list[str]:
        """The three scores for a reader."""
        return [
            f"outputs    {self.outputs:7.2%}  {self.outputs_solved} of {self.outputs_total} outputs solved",
            f"task_mean  {self.task_mean:7.2%}  mean share of solved outputs over {self.tasks_total} tasks",
            f"tasks      {self.tasks:7.2%}  {self.tasks_solved} of {self.tasks_total} tasks solved entirely",
        ]


def score(submission: Submission, solutions: Mapping[str, Sequence[Grid]]) -> Scores:
    """The scores of a submission that answers every output of the solutions; ValueError for any other."""
    return score_ranked(submission, solutions, k=2)


def score_ranked(
    ranked: Mapping[str, Sequence[Sequence[Grid]]], solutions: Mapping[str, Sequence[Grid]], k: int
) -> Scores:
    """pass@k: the scores if the first k grids listed for each output were handed in (task -> outputs -> grids).

    Raises ValueError unless tasks and numbers of outputs are the same in both.
    """
    if not solutions or {t: len(o) for t, o in ranked.items()} != {t: len(o) for t, o in solutions.items()}:
        raise ValueError(
            f"answers to {len(ranked)} tasks, expected all outputs of {len(solutions)} tasks with solutions"
        )
    return Scores(
        tuple(
            TaskScore(task_id, sum(map(_is_among, outputs, [grids[:k] for grids in ranked[task_id]])), len(outputs))
            for task_id, outputs in solutions.items()
        )
    )


def _is_among(solution: Grid, grids: Sequence[Grid]) -> bool:
    return any(np.array_equal(solution, grid) for grid in grids)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.check:
        return _check(arguments)
    if arguments.solutions is None:
        raise InputError("--solutions FILE is missing (or --check --challenges FILE to validate without scoring)")
    submission = read_submission(arguments.submission)
    solutions = read_solutions(arguments.solutions)
    if arguments.challenges is not None:
        _check_against_challenges(submission, arguments)
    expected = {task_id: len(outputs) for task_id, outputs in solutions.items()}
    check_complete(arguments.submission, submission, expected, arguments.solutions)
    scores = score(submission, solutions)
    # With --json the scores stand alone on stdout; whatever else is said goes to stderr.
    for line in _remarks(arguments, scores):
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    print(orjson.dumps(scores.to_json()).decode() if arguments.json else "\n".join(scores.lines()))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    if arguments.challenges is None:
        raise InputError("--check needs --challenges FILE")
    for name in ("solutions", "json", "per_task"):
        if getattr(arguments, name):
            raise InputError(f"--check only validates and prints one line, expected no --{name.replace('_', '-')}")
    submission = read_submission(arguments.submission)
    _check_against_challenges(submission, arguments)
    outputs = sum(map(len, submission.values()))
    print(f"{arguments.submission}: valid, {len(submission)} tasks, {outputs} outputs")
    return 0


def _check_against_challenges(submission: Submission, arguments: argparse.Namespace) -> None:
    expected = {task.task_id: len(task.tests) for task in read_tasks(arguments.challenges)}
    check_complete(arguments.submission, submission, expected, arguments.challenges)


def _remarks(arguments: argparse.Namespace, scores: Scores) -> list[str]:
    meta = read_meta(arguments.submission)
    lines = [] if meta is None else [f"{meta_path(arguments.submission).name}: {line}" for line in meta.lines()]
    if arguments.per_task:
        lines += [f"{task.task_id}  {task.solved}/{task.total}" for task in scores.per_task]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission.score",
        description="Score a submission by the three definitions in use, or validate it (--check).",
    )
    parser.add_argument("submission", metavar="SUBMISSION", help="the submission.json to score")
    parser.add_argument("--solutions", metavar="FILE", help="the known outputs: {task_id: [grid, ...], ...}")
    parser.add_argument("--challenges", metavar="FILE", help="the tasks; the submission must answer just these")
    parser.add_argument("--check", action="store_true", help="validate against --challenges, do not score")
    parser.add_argument("--per-task", action="store_true", help="also print each task's solved and asked outputs")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON, alone on stdout")
    return parser


if __name__ == "__main__":
    run_program(main)
