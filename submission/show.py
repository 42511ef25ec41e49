"""Look at attempts in the terminal, beside the test inputs and, where they are known, the true outputs.

    python -m submission.show submission.json 00576224 --challenges challenges.json --solutions solutions.json

Without a terminal, or with NO_COLOR set, grids are printed as digits. The page of `python -m submission.report` shows
the same and more.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.files import run_program
from data_prep.grid import Grid
from data_prep.show import pick
from data_prep.tasks import Pair, Task, read_tasks
from data_prep.terminal import beside, fitting_style, render
from submission.attempts import Attempts, check_complete, read_submission


def show_attempts(task: Task, answers: Sequence[Attempts]) -> str:
    """Input, both attempts and truth of every test output next to each other, under a line that compares them."""
    texts = []
    for test, (pair, attempts) in enumerate(zip(task.tests, answers, strict=True)):
        grids = [pair.input, *attempts, *([] if pair.output is None else [pair.output])]
        style = fitting_style([grid.shape[1] for grid in grids])
        shown = beside([render(grid, style) for grid in grids], gap="    ")
        texts.append(f"{task.task_id}, test {test}: {_verdict(pair, attempts)}\n{shown}")
    return "\n\n".join(texts)


def _verdict(pair: Pair, attempts: Attempts) -> str:
    """What stands in the row of grids, and how the attempts compare with the truth."""
    if pair.output is None:
        return "input, attempt 1, attempt 2"
    compared = [f"attempt {i} {comparison(grid, pair.output)}" for i, grid in enumerate(attempts, start=1)]
    return f"input, {', '.join(compared)}, truth"


def comparison(grid: Grid, truth: Grid) -> str:
    """`(right)`, `(6 of 36 cells differ)` or `(4 × 4 instead of 6 × 6)`."""
    if grid.shape != truth.shape:
        return f"({grid.shape[0]} × {grid.shape[1]} instead of {truth.shape[0]} × {truth.shape[1]})"
    wrong = int(np.count_nonzero(grid != truth))
    return f"({wrong} of {truth.size} cells differ)" if wrong else "(right)"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the attempts at some tasks; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m submission.show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to show")
    add("tasks", metavar="TASK_ID", nargs="*", help="tasks to show (all)")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks it answers: a file or a folder")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs, to compare with")
    arguments = parser.parse_args(argv)
    tasks = read_tasks(arguments.challenges, arguments.solutions)
    submission = read_submission(arguments.submission)
    expected = {task.task_id: len(task.tests) for task in tasks}
    check_complete(arguments.submission, submission, expected, arguments.challenges)
    names = arguments.tasks or list(expected)
    chosen = [task for name in names for task in pick(tasks, name, str(arguments.challenges))]
    print("\n\n".join(show_attempts(task, submission[task.task_id]) for task in chosen))
    return 0


if __name__ == "__main__":
    run_program(main)
