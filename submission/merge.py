"""Merge another solver's submission with ours: attempt 1 is theirs, attempt 2 is ours if it differs from it.

    python -m submission.merge theirs.json ours.json --challenges challenges.json --out submission.json
    python -m submission.merge theirs.json ours.json --candidates a.npz --candidates b.npz --challenges … --out …

Where ours equals theirs, attempt 2 is their second one. `--candidates`, for several runs of ours, adds up their votes,
which then choose our attempt at every output that has votes.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arc_trm.vote import Tally, outputs_of
from data_prep.files import InputError, refuse_input
from data_prep.program import command_line, run_program
from data_prep.tasks import Task, read_tasks
from submission.attempts import Attempts, Submission, draft_submission
from submission.submission_file import read_answers, summary_path, write_submission


def merge(theirs: Submission, ours: Submission) -> Submission:
    """Return their attempt 1 and our attempt 1, or their attempt 2 where these two are equal.

    Both submissions answer the same outputs.
    """
    return {
        task_id: tuple(_merged(*attempts) for attempts in zip(outputs, ours[task_id], strict=True))
        for task_id, outputs in theirs.items()
    }


def _merged(theirs: Attempts, ours: Attempts) -> Attempts:
    same = np.array_equal(theirs.attempt_1, ours.attempt_1)
    return Attempts(theirs.attempt_1, theirs.attempt_2 if same else ours.attempt_1)


def choose_by_votes(ours: Submission, tasks: Sequence[Task], candidates: Sequence[Path]) -> Submission:
    """Return our attempts, chosen anew by the votes of all files at every output that has votes.

    Raises InputError if a file holds the votes of other tasks.
    """
    total = Tally(outputs_of(tasks))
    for path in candidates:
        tally = Tally.load(path)
        if tally.outputs != total.outputs:
            found = f"votes for {len(tally.outputs)} outputs"
            raise InputError(f"{path}: {found}, expected votes for the {len(total.outputs)} of --challenges")
        total.absorb(tally)
    draft = draft_submission(tasks, total)
    return {
        task_id: tuple(
            new if predicted else old
            for new, old, predicted in zip(outputs, ours[task_id], draft.predicted_attempts[task_id], strict=True)
        )
        for task_id, outputs in draft.submission.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Merge two submissions and return the exit status."""
    parser = command_line("submission.merge", __doc__)
    add = parser.add_argument
    add("theirs", metavar="THEIRS", type=Path, help="the submission whose attempt 1 is kept")
    add("ours", metavar="OURS", type=Path, help="the submission that gives attempt 2")
    add("--challenges", metavar="PATH", type=Path, required=True, help="the tasks; both must answer exactly these")
    several = "votes of a run of ours, as solving's --candidates wrote them; several times: they add up"
    add("--candidates", metavar="FILE", type=Path, action="append", default=[], help=several)
    add("--out", metavar="FILE", type=Path, required=True, help="the submission to write")
    arguments = parser.parse_args(argv)
    refuse_input(arguments.out, [arguments.theirs, arguments.ours, arguments.challenges, *arguments.candidates])
    tasks = read_tasks(arguments.challenges)
    theirs, ours = (read_answers(path, tasks, arguments.challenges) for path in (arguments.theirs, arguments.ours))
    ours = choose_by_votes(ours, tasks, arguments.candidates) if arguments.candidates else ours
    merged = merge(theirs, ours)
    summary_path(arguments.out).unlink(missing_ok=True)  # of an older submission
    write_submission(arguments.out, merged)
    pairs = [pair for task_id in merged for pair in zip(merged[task_id], ours[task_id], strict=True)]
    own = sum(np.array_equal(attempts.attempt_2, answer.attempt_1) for attempts, answer in pairs)
    print(f"wrote {arguments.out}: {len(merged)} tasks, {len(pairs)} outputs, attempt 2 ours at {own} of them")
    return 0


if __name__ == "__main__":
    run_program(main)
