"""Solve tasks with an exported model before a deadline, and write the submission.

    python -m submission.solve --challenges challenges.json --checkpoint runs/arc1 --time-budget 10m
    accelerate launch -m submission.solve ...     the same on several GPUs

The file is there at once, with fallbacks, and is written anew, whole, after every pass of votes: whatever happens, the
last one stays. `--challenges` takes Kaggle's file, one task, or a folder of tasks.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from data_prep.files import run_program, write_atomic
from data_prep.grid import Grid
from data_prep.tasks import read_tasks
from submission.desk import Desk, summary_path
from submission.plan import TimePlan, duration, duration_text
from submission.score import Scores, score
from submission.settings import Settings, add_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Read, write fallbacks, solve, report; the exit status."""
    plan = TimePlan()
    arguments = parser().parse_args(argv)
    plan.budget = arguments.time_budget
    settings = Settings.read(arguments)
    desk = Desk(
        read_tasks(arguments.challenges),
        arguments.out,
        arguments.candidates,
        settings.ranking,
        writes=os.environ.get("RANK", "0") == "0",
    )
    with plan.phase("set-up"):
        desk.open()
        # Not before, because importing torch takes seconds.
        from submission.session import solve
    facts = solve(desk, arguments.checkpoint, settings, plan)
    if desk.writes:
        report(desk, plan, facts, arguments.summary or summary_path(arguments.out))
    return 0


def report(desk: Desk, plan: TimePlan, facts: dict[str, Any], path: Path) -> None:
    """Say how it went, the same as JSON at `path`, and the score where the outputs are known."""
    assert desk.written is not None
    scores = known_score(desk)
    summary = desk.summary() | facts | {"seconds": {name: round(s, 2) for name, s in plan.phases.items()}}
    if scores is not None:
        summary["scores"] = scores.to_json()
    write_atomic(path, orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    if desk.meta is not None:
        for line in desk.meta.lines():
            print(line)
    print(f"agreement of the votes {summary['agreement']:.1%}, {summary['votes']} votes")
    print("time: " + ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in plan.phases.items()))
    if scores is not None:
        print("\n".join(scores.lines()))
    print(f"wrote {desk.out}: {desk.written.summary}")


def known_score(desk: Desk) -> Scores | None:
    """The score of the written file where every test output is known, else None."""
    solutions: dict[str, list[Grid]] = {}
    for task in desk.tasks:
        solutions[task.task_id] = [pair.output for pair in task.tests if pair.output is not None]
        if len(solutions[task.task_id]) < len(task.tests):
            return None
    assert desk.written is not None
    return score(desk.written.submission, solutions)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m submission.solve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--challenges", metavar="PATH", type=Path, required=True, help="Kaggle's file, one task file, or a folder")
    add("--checkpoint", metavar="DIR", type=Path, required=True, help="a run folder or an export")
    add("--out", metavar="FILE", type=Path, default=Path("submission.json"), help="the submission (submission.json)")
    add("--time-budget", metavar="TIME", type=duration, default=duration("10m"), help="such as 11h30m or 90s (10m)")
    add("--candidates", metavar="FILE", type=Path, help="also keep all votes in this file (.npz)")
    add("--summary", metavar="FILE", type=Path, help="the summary as JSON (submission.summary.json beside --out)")
    add_settings(made)
    return made


if __name__ == "__main__":
    run_program(main)
