"""Show the answers to a few tasks in the terminal: the question, both attempts, and the output where it is known."""

from collections.abc import Sequence

import numpy as np

from data_prep.tasks import Task
from data_prep.terminal import beside, render
from submission.attempts import Submission
from submission.ranking import Candidate
from submission.vote import Output, Tally

MOST_TASKS = 20


def show_answers(tasks: Sequence[Task], submission: Submission, tally: Tally, ranking: str) -> str:
    """Every test of the first MOST_TASKS tasks: input, attempts with their share of the votes, known output."""
    numbers = {output: number for number, output in enumerate(tally.outputs)}
    texts = []
    for task in tasks[:MOST_TASKS]:
        for test in range(len(task.tests)):
            number = numbers[Output(task.task_id, test)]
            ranked = tally.candidates(number, ranking, limit=2)
            texts.append(_show_test(task, test, submission, ranked, tally.total(number)))
    if len(tasks) > MOST_TASKS:
        texts.append(f"… and {len(tasks) - MOST_TASKS} more tasks")
    return "\n\n".join(texts)


def _show_test(task: Task, test: int, submission: Submission, ranked: Sequence[Candidate], total: int) -> str:
    pair, attempts = task.tests[test], submission[task.task_id][test]
    columns = [f"input\n{render(pair.input)}"]
    for name, attempt in zip(("attempt 1", "attempt 2"), attempts, strict=True):
        votes = [candidate.votes for candidate in ranked if np.array_equal(candidate.grid, attempt)]
        merit = f"{votes[0] / total:.0%} of {total} votes" if votes else "a guess"
        if pair.output is not None:
            merit += ", right" if np.array_equal(attempt, pair.output) else ", wrong"
        columns.append(f"{name}: {merit}\n{render(attempt)}")
    if pair.output is not None:
        columns.append(f"output\n{render(pair.output)}")
    return f"{task.task_id}, test {test}\n{beside(columns, gap='    ')}"
