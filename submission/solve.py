"""Solve tasks with an exported model before a deadline, and write the submission.

    python -m submission.solve --challenges challenges.json --checkpoint runs/arc1 --time-budget 10m
    python -m submission.solve --challenges my_task.json --checkpoint runs/arc1
    python -m submission.solve --rehearse --checkpoint runs/arc1 --time-budget 1h [--fold 1/5]
    python -m submission.solve --plan --profile competition --gpus 4 --rate 200 --challenges ... --checkpoint ...
    accelerate launch -m submission.solve ...     any of these on several GPUs

The file is there at once, with fallbacks, and is written anew, whole, after every pass of votes: whatever happens, the
last one stays. `--challenges` takes Kaggle's file, one task, or a folder of tasks; where it or `--checkpoint` is
missing, what is mounted below --input is searched by content.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arc_trm.vote import Ranked
from data_prep import files
from data_prep.files import InputError, refuse_input, standing_json, write_atomic
from data_prep.program import run_program
from data_prep.progress import duration_text
from data_prep.tasks import Task, read_tasks, write_tasks
from submission.attempts import Submission
from submission.budget import RunClock, watchdog
from submission.inputs import choose_rehearsal, find_challenges, find_exports, is_rerun, scale
from submission.report import show_attempts
from submission.score import known_scores
from submission.settings import Settings, read_solve_arguments
from submission.submission_file import SubmissionFile, read_submission, remarks

MOST_SHOWN = 20  # own tasks whose attempts are printed at the end


def main(argv: Sequence[str] | None = None, watched: bool = True) -> int:
    """Read, write fallbacks, solve, report; the exit status. `watched`: end the whole process when it hangs."""
    clock = RunClock()
    arguments = read_solve_arguments(argv, __doc__)
    refuse_clashes(arguments)
    clock.budget = arguments.time_budget
    settings = Settings.read(arguments)
    with clock.phase("set-up"):
        checkpoints = arguments.checkpoint or find_exports(arguments.input)
        tasks, mode = choose_tasks(arguments, checkpoints)
        file = SubmissionFile(tasks, arguments.out, arguments.candidates, is_first_process(), {"mode": mode})
        if arguments.plan:
            from submission.session import show_plan

            show_plan(file, checkpoints, settings, clock, arguments.rate, arguments.gpus)
            return 0
        # Where there is no such checkpoint, fallbacks must not replace an older submission.
        replaces = all(standing_json(checkpoint, "export") for checkpoint in checkpoints) or not arguments.out.exists()
        if replaces and not (arguments.resume and file.goes_on()):
            keep_older(arguments.out)
            file.open()
    with watchdog(clock, lambda: leave(file, clock)) if watched else nullcontext():
        with clock.phase("set-up"):
            # Not before, because importing torch takes seconds.
            from submission.session import solve
        try:
            solve(file, checkpoints, settings, clock, arguments.resume)
        except InputError:
            if file.written is not None and not file.votes + file.least_votes:
                print(f"note: {file.path} is complete and valid, but holds fallbacks alone", file=sys.stderr)
            raise
        given = arguments.challenges
        # A user's own few, not a competition's.
        if file.written is not None and given is not None and (given.is_dir() or len(tasks) == 1):
            print(show_attempts(file.tasks[:MOST_SHOWN], file.written.submission, file.tally.ranked()) + "\n")
        report(file, clock)
    return int(file.facts.get("status", 0))


@dataclass(frozen=True)
class Solved:
    """The two attempts at every output, every candidate for it, best first, and what the summary says of the run."""

    attempts: Submission
    candidates: Ranked
    summary: dict[str, Any]


def solve_tasks(
    tasks: Sequence[Task],
    checkpoint: Path,
    out: Path = Path("submission.json"),
    *,
    settings: Settings | None = None,
    time_budget: float = 600.0,
) -> Solved:
    """Solve tasks with the export or run folder at `checkpoint` in at most `time_budget` seconds.

    For notebooks and other programs: the same work as the command's, without its watchdog. The submission stands at
    `out` from the beginning, with its summary beside it; an older one is kept. `settings` are the options of the
    command. Raises InputError where there is no task, no export, or none that fits.
    """
    if not tasks:
        raise InputError("found no task to solve, expected some")
    from submission.session import solve  # not before, because importing torch takes seconds

    file = SubmissionFile(tasks, out, facts={"mode": "solving tasks of a program"})
    keep_older(out)
    file.open()
    solve(file, [checkpoint], settings or Settings(), RunClock(time_budget))
    assert file.written is not None
    return Solved(file.written.submission, file.tally.ranked(), file.summary())


def refuse_clashes(arguments: argparse.Namespace) -> None:
    """Raise InputError for an option that would do nothing without another or beside it, or write over a file."""
    for name, needed in (
        ("rate", "plan"),
        ("gpus", "rate"),  # the speed of other GPUs than this machine's cannot be measured
        ("allow_seen", "rehearse"),
        ("fold", "rehearse"),
    ):
        if getattr(arguments, name) and not getattr(arguments, needed):
            raise InputError(f"--{name.replace('_', '-')}: is for --{needed}, expected that too")
    if arguments.plan and arguments.resume:
        raise InputError("--plan: is for a run from its beginning, expected no --resume")
    out, candidates = arguments.out, arguments.candidates
    if candidates is not None and candidates.resolve() == out.resolve():
        raise InputError(f"--candidates {candidates}: is the file of --out too, expected another one")
    for path in filter(None, (out, candidates)):
        refuse_input(path, [arguments.challenges])


def keep_older(out: Path) -> None:
    """Keep the submission that stands at `out` beside it; raises InputError where another kind of file stands there."""
    if not out.is_file() or not is_first_process():
        return
    try:
        read_submission(out)
    except InputError as error:
        raise InputError(f"{out}: holds no submission, expected one or no file there ({error})") from error
    previous = out.with_name(f"{out.stem}.previous{out.suffix}")
    write_atomic(previous, out.read_bytes())
    print(f"note: the older {out.name} is kept as {previous.name}", file=sys.stderr)


def is_first_process() -> bool:
    """Whether this is the process that writes; known before torch is."""
    return os.environ.get("RANK", "0") == "0"


def choose_tasks(arguments: argparse.Namespace, checkpoints: Sequence[Path]) -> tuple[Sequence[Task], str]:
    """The tasks to solve, and a line about what they are; the competition's rerun is never a rehearsal."""
    if arguments.rehearse and not is_rerun():
        if arguments.challenges is not None:
            raise InputError("--rehearse chooses its own tasks, expected no --challenges")
        # Reading an export takes torch.
        from arc_trm.checkpoint import read_export

        exports, seconds = [read_export(checkpoint) for checkpoint in checkpoints], arguments.time_budget
        # A plan wants tasks of the hidden ones' shape, seen or not.
        lines = [] if arguments.plan else [line for export in exports for line in export.training_tasks]
        known = all(export.training_known for export in exports)
        part = arguments.fold or (1, 1)
        count, root = arguments.rehearse, arguments.input
        tasks, said = choose_rehearsal(lines, count, root, known, arguments.allow_seen, part)
        if is_first_process() and not arguments.plan:
            files.make_folder(arguments.out.parent)
            # For submission.score and submission.report.
            write_tasks(tasks, arguments.out.parent, f"{arguments.out.stem}.")
        return tasks, f"{said}; {scale(len(tasks), seconds)}"
    path = arguments.challenges or find_challenges(arguments.input)
    return read_tasks(path), f"{'the competition rerun, ' if is_rerun() else ''}solving {path}"


def leave(file: SubmissionFile, clock: RunClock) -> None:
    """Write and report before the watchdog ends the process."""
    if clock.limits:
        file.trouble("compiling took too long; --resume goes on without")
    else:
        file.trouble("the time was over before the program had ended: something hung, or --time-budget is too short")
    file.write()
    report(file, clock)


def report(file: SubmissionFile, clock: RunClock) -> None:
    """Print how it went, write the summary, and score where the outputs are known."""
    if not file.writes or file.written is None:
        return
    file.note(seconds={name: round(seconds, 2) for name, seconds in clock.phases.items()})
    scores = known_scores(file.tasks, file.written.submission)
    if scores is not None and scores.tasks_total < len(file.tasks):
        scores = None  # of a part alone it would mislead
    if scores is not None:
        file.note(scores=scores.to_json())
    with file.tolerated("summary"):
        file.write_summary()
    lines = remarks(file.facts)
    lines.append(f"agreement of the votes {file.agreement:.1%}, {file.votes} votes")
    if file.votes < file.least_votes:
        lines.append(f"the file keeps the {file.least_votes} votes of an earlier process")
    lines.append("time: " + ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in clock.phases.items()))
    lines += [f"trouble: {trouble}" for trouble in file.troubles]
    lines += [] if scores is None else scores.lines()
    did = "wrote" if file.votes >= file.least_votes else "kept"
    print("\n".join([*lines, f"{did} {file.path}: {file.written.summary}"]), flush=True)


if __name__ == "__main__":
    run_program(main)
