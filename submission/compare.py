"""Compare rankings on stored candidates whose solutions are known.

    python -m submission.compare candidates.npz --challenges challenges.json --solutions solutions.json

The candidates are what `submission.solve --candidates` wrote. A row is a ranking, or two as in `count/priors`: the
first chooses attempt 1, the second attempt 2. pass@1 and pass@2 count outputs whose solution is among the first one or
two candidates; the three scores are those of the submission, in which fallbacks fill what candidates leave. `against`
says how many outputs the row solves that the first row does not, and the other way round.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.files import InputError, run_program
from data_prep.grid import Grid
from data_prep.tasks import Task, read_tasks
from submission.attempts import Draft, draft_submission
from submission.ranking import RANKINGS, WANT_LIKELIHOOD, find_ranking
from submission.score import Scores, score, score_ranked
from submission.vote import Tally, outputs_of


@dataclass(frozen=True, eq=False)
class Result:
    """What one ranking, or one for each attempt, makes of the candidates."""

    name: str
    pass_1: float
    pass_2: float
    scores: Scores
    solved: tuple[bool, ...]  # of every output: whether a candidate among the attempts solves it


def compare(tasks: Sequence[Task], tally: Tally, names: Sequence[str]) -> list[Result]:
    """The results of rankings named `first` or `first/second` on tasks with known outputs, in that order."""
    return [evaluate(tasks, tally, name) for name in names]


def evaluate(tasks: Sequence[Task], tally: Tally, name: str) -> Result:
    """The result of one ranking or pair of rankings; raises InputError for a name that is none."""
    first, _, second = name.partition("/")
    for part in (first, second or first):
        find_ranking(part)
    draft = draft_submission(tasks, tally, first, second or None)
    solutions = solutions_of(tasks)
    predicted = draft.predictions()
    return Result(
        name,
        score_ranked(predicted, solutions, k=1).outputs,
        score_ranked(predicted, solutions, k=2).outputs,
        score(draft.submission, solutions),
        solved_outputs(draft, solutions),
    )


def solutions_of(tasks: Sequence[Task]) -> dict[str, list[Grid]]:
    """The outputs of all tests; raises InputError for a task that hides one."""
    for task in tasks:
        if any(pair.output is None for pair in task.tests):
            raise InputError(f"task {task.task_id}: its output is not known, expected --solutions that hold it")
    return {task.task_id: [pair.output for pair in task.tests if pair.output is not None] for task in tasks}


def solved_outputs(draft: Draft, solutions: dict[str, list[Grid]]) -> tuple[bool, ...]:
    """Of every output, in order, whether a candidate among its attempts is the solution."""
    predicted = draft.predictions()
    return tuple(
        any(np.array_equal(grid, solution) for grid in grids)
        for task_id, outputs in solutions.items()
        for grids, solution in zip(predicted[task_id], outputs, strict=True)
    )


def lines(results: Sequence[Result]) -> list[str]:
    """The table, a line a result, under a heading."""
    width = max(len("ranking"), *(len(result.name) for result in results))
    titles = ("pass@1", "pass@2", "outputs", "task_mean", "tasks")
    table = [f"{'ranking':{width}}" + "".join(f"{title:>11}" for title in titles) + "    against"]
    for result in results:
        scores = result.scores
        figures = (result.pass_1, result.pass_2, scores.outputs, scores.task_mean, scores.tasks)
        gained, lost = gains(results[0], result)
        text = "".join(f"{figure:11.2%}" for figure in figures)
        table.append(f"{result.name:{width}}{text}{f'+{gained} -{lost}':>11}")
    return table


def gains(baseline: Result, result: Result) -> tuple[int, int]:
    """(gained, lost): outputs that only `result` solves, and outputs that only the baseline does."""
    pairs = list(zip(baseline.solved, result.solved, strict=True))
    return sum(b > a for a, b in pairs), sum(a > b for a, b in pairs)


def default_names(tally: Tally) -> tuple[str, ...]:
    """The count, the other rankings that these candidates allow, and each of those for attempt 2 alone."""
    baseline, *others = [name for name in RANKINGS if tally.measured or name not in WANT_LIKELIHOOD]
    return (baseline, *others, *(f"{baseline}/{other}" for other in others))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    tasks = read_tasks(arguments.challenges, arguments.solutions)
    tally = Tally.load(arguments.candidates)
    if tally.outputs != outputs_of(tasks):
        raise InputError(
            f"{arguments.candidates}: candidates for {len(tally.outputs)} outputs, expected the "
            f"{len(outputs_of(tasks))} of {arguments.challenges}, in its order"
        )
    results = compare(tasks, tally, arguments.rankings or default_names(tally))
    print("\n".join(lines(results)))
    if not tally.measured:
        print(f"without {', '.join(sorted(WANT_LIKELIHOOD))}: these candidates have no log-probabilities")
    print(f"compared {len(results)} rankings on {len(tasks)} tasks, {len(tally.outputs)} outputs")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("candidates", metavar="CANDIDATES", type=Path, help="the votes that --candidates wrote (.npz)")
    parser.add_argument("--challenges", metavar="PATH", type=Path, required=True, help="the tasks that were solved")
    parser.add_argument("--solutions", metavar="FILE", type=Path, help="their outputs, where the tasks hide them")
    parser.add_argument("--rankings", metavar="NAME", nargs="+", help=f"some of {', '.join(RANKINGS)}, or two: a/b")
    return parser


if __name__ == "__main__":
    run_program(main)
