"""Show the answers to a few tasks in the terminal: the question, both attempts, and the output where it is known."""

from collections.abc import Mapping, Sequence

import numpy as np

from data_prep.tasks import Task
from data_prep.terminal import beside, render
from submission.attempts import Attempts, Submission
from submission.ranking import grid_key
from submission.vote import Output, Tally

MOST_TASKS = 20


def show_answers(tasks: Sequence[Task], submission: Submission, tally: Tally) -> str:
    """Every test of the first MOST_TASKS tasks: input, attempts with their share of the votes, known output."""
    numbers = {output: number for number, output in enumerate(tally.outputs)}
    texts = []
    for task in tasks[:MOST_TASKS]:
        for test in range(len(task.tests)):
            ballot = tally.ballot(numbers[Output(task.task_id, test)])
            votes = dict(zip(ballot.keys, ballot.votes.tolist(), strict=True))
            texts.append(_show_test(task, test, submission[task.task_id][test], votes))
    if len(tasks) > MOST_TASKS:
        texts.append(f"… and {len(tasks) - MOST_TASKS} more tasks")
    return "\n\n".join(texts)


def _show_test(task: Task, test: int, attempts: Attempts, votes: Mapping[bytes, int]) -> str:
    pair = task.tests[test]
    columns = [f"input\n{render(pair.input)}"]
    for name, attempt in zip(("attempt 1", "attempt 2"), attempts, strict=True):
        own = votes.get(grid_key(attempt), 0)
        merit = f"{own / sum(votes.values()):.0%} of {sum(votes.values())} votes" if own else "a guess"
        if pair.output is not None:
            merit += ", right" if np.array_equal(attempt, pair.output) else ", wrong"
        columns.append(f"{name}: {merit}\n{render(attempt)}")
    if pair.output is not None:
        columns.append(f"output\n{render(pair.output)}")
    return f"{task.task_id}, test {test}\n{beside(columns, gap='    ')}"
