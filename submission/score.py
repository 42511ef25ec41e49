"""Score a submission against the known outputs, or validate it against the challenges.

    python -m submission.score submission.json --solutions solutions.json [--challenges FILE] [--per-task] [--json]
    python -m submission.score submission.json --check --challenges challenges.json

Three definitions of the score are in use; all three are printed, by name:

    outputs    solved test outputs / all test outputs (the competition's text)
    task_mean  mean over tasks of the share of solved outputs (the leaderboard's numbers)
    tasks      tasks with every output solved / all tasks
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import orjson

from arc_trm.vote import Scores, score_ranked
from data_prep.files import InputError
from data_prep.grid import Grid
from data_prep.program import command_line, run_program
from data_prep.tasks import Task, read_solutions, read_tasks
from submission.attempts import Submission
from submission.submission_file import (
    check_complete,
    listed,
    read_answers,
    read_submission,
    read_summary,
    remarks,
    summary_path,
)


def score(submission: Submission, solutions: Mapping[str, Sequence[Grid]]) -> Scores:
    """Return the scores of the attempts {task_id: (attempts at each output, …)} against {task_id: [grid, …]}.

    Raises ValueError unless the attempts answer exactly the outputs of `solutions`.
    """
    return score_ranked(submission, solutions, k=2)


def known_scores(tasks: Iterable[Task], submission: Submission) -> Scores | None:
    """Return the scores over the tasks whose outputs are all known, or None if there is no such task."""
    outputs = {task.task_id: [pair.output for pair in task.tests if pair.output is not None] for task in tasks}
    known = {task_id: grids for task_id, grids in outputs.items() if len(grids) == len(submission[task_id])}
    return score({task_id: submission[task_id] for task_id in known}, known) if known else None


def main(argv: Sequence[str] | None = None) -> int:
    """Score or validate a submission and return the exit status."""
    parser = command_line("submission.score", __doc__)
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to score")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs: {task_id: [grid, ...], ...}")
    add("--challenges", metavar="FILE", type=Path, help="the tasks; the submission must answer exactly these")
    add("--check", action="store_true", help="validate against --challenges, do not score")
    add("--per-task", action="store_true", help="also print the solved and asked outputs of each task")
    add("--json", action="store_true", help="print only the scores on stdout, as JSON")
    arguments = parser.parse_args(argv)
    path, check, source = arguments.submission, arguments.check, arguments.solutions
    if check and arguments.challenges is None:
        raise InputError("--check needs --challenges FILE")
    for option in ("--solutions", "--json", "--per-task"):
        if check and vars(arguments)[option[2:].replace("-", "_")]:
            raise InputError(f"--check only validates and prints one line, expected no {option}")
    if not check and source is None:
        raise InputError("--solutions FILE is missing (or --check --challenges FILE to validate without scoring)")
    submission = read_submission(path)
    if arguments.challenges is not None:
        read_answers(path, read_tasks(arguments.challenges), arguments.challenges)
    if check:
        print(f"{path}: valid, {len(submission)} tasks, {sum(map(len, submission.values()))} outputs")
        return 0
    solutions = read_solutions(source)
    lacking = [task_id for task_id in submission if task_id not in solutions]
    if 0 < len(lacking) < len(submission) and solutions.keys() <= submission.keys():
        raise InputError(f"{source}: lacks task {listed(lacking)}, expected all tasks of {path}")
    check_complete(path, submission, {task_id: len(outputs) for task_id, outputs in solutions.items()}, source)
    scores = score(submission, solutions)
    lines = [f"{summary_path(path).name}: {line}" for line in remarks(read_summary(path))]
    if arguments.per_task:
        lines += [f"{task.task_id}  {task.solved}/{task.total}" for task in scores.per_task]
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout)
    print(orjson.dumps(scores.to_json()).decode() if arguments.json else "\n".join(scores.lines()))
    return 0


if __name__ == "__main__":
    run_program(main)
