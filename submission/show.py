"""Look at attempts in the terminal, beside the test inputs and, where they are known, the true outputs.

    python -m submission.show submission.json 00576224 --challenges challenges.json --solutions solutions.json

Without a terminal, or with NO_COLOR set, grids are printed as digits. The page of `python -m submission.report` shows
the same and more.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arc_trm.vote import AskedOutput, Candidate, Ranked
from data_prep.files import command_line, run_program
from data_prep.grid import Grid
from data_prep.show import beside, pick, render
from data_prep.tasks import Task, read_tasks
from submission.attempts import Submission
from submission.submission_file import read_answers


def show_attempts(tasks: Sequence[Task], submission: Submission, ranked: Ranked | None = None) -> str:
    """Input, both attempts and truth of every test next to each other, below what there is to say of the attempts.

    `ranked` are the candidates of every output, where they are known.
    """
    return "\n\n".join(_show_test(task, test, submission, ranked) for task in tasks for test in range(len(task.tests)))


def _show_test(task: Task, test: int, submission: Submission, ranked: Ranked | None) -> str:
    truth = task.tests[test].output
    lines = [f"{task.task_id}, test {test}"]
    grids = {"input": task.tests[test].input}
    for name, grid in zip(("attempt 1", "attempt 2"), submission[task.task_id][test], strict=True):
        facts = [] if ranked is None else [_support(ranked[AskedOutput(task.task_id, test)], grid, name == "attempt 1")]
        facts += [] if truth is None else [comparison(grid, truth)]
        lines += [f"{name}: {', '.join(facts)}"] if facts else []
        grids[name] = grid
    if truth is not None:
        grids["truth"] = truth
    return "\n".join([*lines, beside([f"{name}\n{render(grid)}" for name, grid in grids.items()])])


def _support(candidates: Sequence[Candidate], grid: Grid, first: bool) -> str:
    """`62% of 13 votes`; where no vote was cast for the grid, what is said of a consensus (the first attempt alone may
    be one) or `a guess`.
    """
    own = sum(candidate.votes for candidate in candidates if np.array_equal(candidate.grid, grid))
    total = sum(candidate.votes for candidate in candidates)
    if own:
        return f"{own / total:.0%} of {total} votes"
    return (put_together(candidates, grid) if first else "") or "a guess"


def put_together(candidates: Sequence[Candidate], grid: Grid) -> str:
    """`put together from 8 of 13 votes`, those of its size; empty where it is a candidate, or none has its size."""
    same = [candidate for candidate in candidates if candidate.grid.shape == grid.shape]
    if not same or any(np.array_equal(candidate.grid, grid) for candidate in same):
        return ""
    own, total = (sum(candidate.votes for candidate in each) for each in (same, candidates))
    return f"put together from {own} of {total} votes"


def comparison(grid: Grid, truth: Grid) -> str:
    """`right`, `6 of 36 cells differ` or `4 × 4 instead of 6 × 6`."""
    if grid.shape != truth.shape:
        return f"{grid.shape[0]} × {grid.shape[1]} instead of {truth.shape[0]} × {truth.shape[1]}"
    wrong = int(np.count_nonzero(grid != truth))
    return f"{wrong} of {truth.size} cells differ" if wrong else "right"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the attempts at some tasks; the exit status."""
    parser = command_line("submission.show", __doc__)
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to show")
    add("tasks", metavar="TASK_ID", nargs="*", help="tasks to show (all)")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks it answers: a file or a folder")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs, to compare with")
    arguments = parser.parse_args(argv)
    tasks = read_tasks(arguments.challenges, arguments.solutions)
    submission = read_answers(arguments.submission, tasks, arguments.challenges)
    names = arguments.tasks or list(submission)
    chosen = [task for name in names for task in pick(tasks, name, str(arguments.challenges))]
    print(show_attempts(chosen, submission))
    return 0


if __name__ == "__main__":
    run_program(main)
