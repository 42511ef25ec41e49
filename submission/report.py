"""One page that shows what was handed in: scores, votes, and every task with its attempts and candidates.

    python -m submission.report submission.json --challenges challenges.json --solutions solutions.json \\
        --candidates candidates.npz --out report.html

The page is a single file without network access; it opens in any browser, in light and dark, and prints.
"""

import argparse
import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from arc_trm.vote import AskedOutput, Tally
from data_prep.files import InputError, refuse_input, run_program, write_atomic
from data_prep.grid import DIHEDRALS
from data_prep.tasks import Task, read_tasks
from data_prep.terminal import PALETTE
from submission.attempts import Submission, check_complete, read_submission
from submission.film_file import read_film
from submission.report_data import Material, known_scores, report_data
from submission.submission_file import read_summary, remarks

# Concatenated in this order: each may use what stands before it.
SCRIPTS = ("grids.js", "charts.js", "film.js", "tasks.js", "page.js")
# The published order of the eight elements, in words.
ORIENTATIONS = (
    "as given",
    "turned left",
    "turned half",
    "turned right",
    "mirrored left-right",
    "mirrored up-down",
    "transposed",
    "transposed the other way",
)
assert len(ORIENTATIONS) == len(DIHEDRALS)


def render_page(data: Mapping[str, Any]) -> str:
    """The whole HTML file for `report_data`'s values."""
    page = resources.files("submission") / "page"
    script = "\n".join(page.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = page.joinpath("page.css").read_text(encoding="utf-8")
    constants = {"palette": PALETTE, "orientations": ORIENTATIONS}
    fields = {
        "title": html.escape(str(data["title"])),
        "style": style,
        "script": script,
        # Only this very script and style may run: a task id can carry no code, whatever it is.
        "policy": f"default-src 'none'; script-src {_source_hash(script)}; style-src {_source_hash(style)}",
        "data": _embedded_json({**data, **constants}),
    }
    parts = page.joinpath("page.html").read_text(encoding="utf-8").split("{{")
    filled = (fields[name] + rest for name, rest in (part.split("}}", 1) for part in parts[1:]))
    return parts[0] + "".join(filled)


def _source_hash(text: str) -> str:
    """What a content security policy calls an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded_json(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element that holds it."""
    text = orjson.dumps(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def read_material(arguments: argparse.Namespace) -> Material:
    """Everything the command line names, read and checked against each other."""
    named = (arguments.submission, arguments.challenges, arguments.solutions, arguments.candidates)
    refuse_input(arguments.out, [*named, *arguments.film])
    tasks = read_tasks(arguments.challenges, arguments.solutions)
    submission = read_submission(arguments.submission)
    expected = {task.task_id: len(task.tests) for task in tasks}
    check_complete(arguments.submission, submission, expected, arguments.challenges)
    candidates, summary = arguments.candidates, read_summary(arguments.submission)
    return Material(
        tasks,
        submission,
        None if candidates is None else _read_tally(candidates, tasks),
        remarks(summary or {}),
        summary,
        [_checked_film(path, submission) for path in arguments.film],
        arguments.leading,
    )


def _read_tally(path: Path, tasks: Sequence[Task]) -> Tally:
    tally = Tally.load(path)
    known = {AskedOutput(task.task_id, test) for task in tasks for test in range(len(task.tests))}
    if not known & set(tally.outputs):
        raise InputError(f"{path}: speaks of none of the {len(tasks)} tasks; is that another set?")
    return tally


def _checked_film(path: Path, submission: Submission) -> dict[str, Any]:
    film = read_film(path)
    if film["task_id"] not in submission:
        raise InputError(f"{path}: a film of task {film['task_id']}, which the submission does not have")
    return film


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected 1 to 100")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m submission.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to show")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks it answers: a file or a folder")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs, for scores and differences")
    add("--candidates", metavar="FILE", type=Path, help="the votes that were saved while solving (.npz)")
    add("--film", metavar="FILE", type=Path, action="append", default=[], help="a film of python -m submission.film")
    add("--leading", metavar="N", type=_count, default=6, help="candidates shown for every test output (6)")
    add("--title", metavar="TEXT", help="heading of the page (default: the name of SUBMISSION)")
    add("--out", metavar="FILE", type=Path, default=Path("report.html"), help="the page to write (report.html)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; the exit status."""
    arguments = _parser().parse_args(argv)
    material = read_material(arguments)
    page = render_page(report_data(material, arguments.title or arguments.submission.name)).encode()
    write_atomic(arguments.out, page)
    scores = known_scores(material)
    solved = "no known outputs" if scores is None else f"{scores.outputs_solved} of {scores.outputs_total} solved"
    outputs = sum(map(len, material.submission.values()))
    print(f"wrote {arguments.out}: {len(material.tasks)} tasks, {outputs} outputs, {solved}, {len(page) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    run_program(main)
