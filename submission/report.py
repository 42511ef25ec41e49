"""One page that shows what was handed in: scores, votes, and every task with its attempts and candidates.

    python -m submission.report submission.json --challenges challenges.json --solutions solutions.json \\
        --candidates candidates.npz --out report.html

The page is a single file that needs no network; it follows the system's light or dark theme, and prints. It also shows
the summary beside the submission: which checkpoint made it, what that checkpoint knew of the tasks, and the time.
"""

import argparse
import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from arc_trm.vote import AskedOutput, Tally
from data_prep.files import InputError, command_line, refuse_input, run_program, write_atomic
from data_prep.grid import Grid
from data_prep.progress import duration_text
from data_prep.show import PALETTE
from data_prep.tasks import Task, read_tasks
from submission.attempts import Submission, read_answers
from submission.score import known_scores
from submission.submission_file import read_summary, remarks, summary_path

Json = dict[str, Any]
# Concatenated in this order: each may use what stands before it.
SCRIPTS = ("grids.js", "tasks.js", "page.js")
LEADING = 6  # candidates shown for every output


@dataclass(frozen=True, eq=False)
class Material:
    """What a report is made from; only tasks and submission are always there."""

    tasks: Sequence[Task]  # the submission answers just these
    submission: Submission
    tally: Tally | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)  # what solving said about itself


def report_data(material: Material, title: str) -> Json:
    """All that the page shows, as JSON values; a grid is one text, a digit a cell, rows parted by "/"."""
    summary = material.summary
    scores = known_scores(material.tasks, material.submission)
    return {
        "title": title,
        "scores": None if scores is None else scores.to_json(),
        "remarks": [
            *remarks(summary),
            *_scores_apart(material.tasks, material.submission, summary.get("known", ())),
            *(f"trouble while solving: {line}" for line in summary.get("troubles", ())),
        ],
        "run": run_rows(summary),
        "tasks": [_task_data(task, material) for task in material.tasks],
        "palette": PALETTE,
    }


def _scores_apart(tasks: Sequence[Task], submission: Submission, known: Sequence[str]) -> list[str]:
    """Outputs solved of the tasks whose demonstrations the checkpoint knew, and of the others, if there are both."""
    parts = [[task for task in tasks if (task.task_id in known) is wanted] for wanted in (True, False)]
    scores = [known_scores(part, submission) for part in parts]
    solved = [f"{part.outputs_solved} of {part.outputs_total}" for part in scores if part is not None]
    if len(solved) < 2:
        return []
    return [f"solved: {solved[0]} outputs where the demonstrations were trained on, {solved[1]} elsewhere"]


def grid_text(grid: Grid | None) -> str | None:
    """`077/770` for [[0, 7, 7], [7, 7, 0]]."""
    return None if grid is None else b"/".join(row.tobytes() for row in grid + np.uint8(ord("0"))).decode()


def _task_data(task: Task, material: Material) -> Json:
    return {
        "id": task.task_id,
        "known": task.task_id in material.summary.get("known", ()),
        "contaminated": task.task_id in material.summary.get("trained_on", ()),
        "demonstrations": [[grid_text(pair.input), grid_text(pair.output)] for pair in task.demonstrations],
        "outputs": [_output_data(task, test, material) for test in range(len(task.tests))],
    }


def _output_data(task: Task, test: int, material: Material) -> Json:
    truth = grid_text(task.tests[test].output)
    attempts = [grid_text(grid) for grid in material.submission[task.task_id][test]]
    votes = _votes_data(material, AskedOutput(task.task_id, test), attempts, truth)
    counts = material.summary.get("predicted_attempts", {}).get(task.task_id)
    if truth is None:
        outcome = "unknown"
    elif truth in attempts:
        outcome = ("first", "second")[attempts.index(truth)]
    else:
        outcome = "ranked" if votes.get("rank") else "missed"
    return {
        "input": grid_text(task.tests[test].input),
        "truth": truth,
        "attempts": attempts,
        "outcome": outcome,
        "fallbacks": [] if counts is None else list(range(counts[test], 2)),
        **votes,
    }


def _votes_data(material: Material, output: AskedOutput, attempts: Sequence[str | None], truth: str | None) -> Json:
    """The leading candidates, how many there are, and the place of the truth among them; empty where not recorded."""
    if material.tally is None or output not in material.tally.outputs:
        return {}
    candidates = material.tally.candidates(material.tally.outputs.index(output))
    grids = [grid_text(candidate.grid) for candidate in candidates]
    return {
        "total": sum(candidate.votes for candidate in candidates),
        "distinct": len(candidates),
        "rank": grids.index(truth) + 1 if truth in grids else None,
        "fallbacks": [i for i, grid in enumerate(attempts) if grid not in grids],
        "candidates": [
            {"grid": grid, "votes": candidate.votes, "halting": round(candidate.mean_halt, 4)}
            for grid, candidate in zip(grids[:LEADING], candidates, strict=False)
        ],
    }


def run_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Time by phase, and every other plain figure and word of a summary, as names and texts."""
    seconds = summary.get("seconds", {})
    total = sum(seconds.values()) or 1.0
    rows = [(name, f"{duration_text(part)} ({part / total:.0%})") for name, part in seconds.items()]
    for name, value in summary.items():
        if isinstance(value, (str, int, float)) and name not in ("checkpoint", "leak"):  # which the remarks name
            rows.append((name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value)))
    return rows


# The page -----------------------------------------------------------------------------------------------------------


def render_page(data: Json) -> str:
    """The whole HTML file for `report_data`'s values."""
    page = resources.files("submission") / "page"
    script = "\n".join(page.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = page.joinpath("page.css").read_text(encoding="utf-8")
    fields = {
        "title": html.escape(data["title"]),
        "style": style,
        "script": script,
        # Only this script and this style are allowed, so no code in a task id can run.
        "policy": f"default-src 'none'; script-src {_source_hash(script)}; style-src {_source_hash(style)}",
        # JSON that cannot end the script element that holds it.
        "data": re.sub("[&<>]", lambda sign: f"\\u{ord(sign[0]):04x}", orjson.dumps(data).decode()),
    }
    template = page.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda name: fields[name[1]], template)


def _source_hash(text: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Files --------------------------------------------------------------------------------------------------------------


def read_material(arguments: argparse.Namespace) -> Material:
    """Everything that the command line names and what stands beside the submission, checked against each other."""
    tasks = read_tasks(arguments.challenges, arguments.solutions)
    submission = read_answers(arguments.submission, tasks, arguments.challenges)
    return Material(
        tasks,
        submission,
        None if arguments.candidates is None else _read_tally(arguments.candidates, tasks),
        read_summary(arguments.submission) or {},
    )


def _read_tally(path: Path, tasks: Sequence[Task]) -> Tally:
    tally = Tally.load(path)
    if not {output.task_id for output in tally.outputs} & {task.task_id for task in tasks}:
        raise InputError(
            f"{path}: has votes for none of the {len(tasks)} tasks, expected candidates of this submission"
        )
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; the exit status."""
    parser = command_line("submission.report", __doc__)
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to show")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks it answers: a file or a folder")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs, for scores and differences")
    add("--candidates", metavar="FILE", type=Path, help="the votes that were saved while solving (.npz)")
    add("--title", metavar="TEXT", help="heading of the page (default: the name of SUBMISSION)")
    add("--out", metavar="FILE", type=Path, default=Path("report.html"), help="the page to write (report.html)")
    arguments = parser.parse_args(argv)
    inputs = (arguments.submission, arguments.challenges, arguments.solutions, arguments.candidates)
    refuse_input(arguments.out, [*inputs, summary_path(arguments.submission)])
    material = read_material(arguments)
    page = render_page(report_data(material, arguments.title or arguments.submission.name)).encode()
    write_atomic(arguments.out, page)
    scores = known_scores(material.tasks, material.submission)
    solved = "no known outputs" if scores is None else f"{scores.outputs_solved} of {scores.outputs_total} solved"
    outputs = sum(map(len, material.submission.values()))
    print(f"wrote {arguments.out}: {len(material.tasks)} tasks, {outputs} outputs, {solved}, {len(page) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    run_program(main)
