"""Show what was handed in: scores, votes, and every task with its attempts and candidates, as a page or as text.

    python -m submission.report submission.json --challenges challenges.json --solutions solutions.json \\
        --candidates candidates.npz --out report.html
    python -m submission.report submission.json 00576224 --challenges challenges.json --text

The page is a single file without scripts that needs no network; it follows the system's light or dark theme, and
prints. It also shows the summary beside the submission: which checkpoint made it, what that checkpoint knew of the
tasks, and the time. A notebook shows it where the value of a cell is `Inline(Path("report.html"))`. As text, grids are
coloured on a terminal, and digits elsewhere or with NO_COLOR set.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from arc_trm.vote import Candidate, Ranked, Tally, outputs_of
from data_prep.corpus import pick
from data_prep.files import InputError, refuse_input, write_atomic
from data_prep.grid import Grid
from data_prep.program import command_line, run_program
from data_prep.progress import duration_text
from data_prep.show import PALETTE, beside, render
from data_prep.tasks import Task, read_tasks
from submission.attempts import Submission
from submission.score import known_scores
from submission.submission_file import read_answers, read_summary, remarks, summary_path

ALARMS = ("LEAK", "CONTAMINATED", "UNKNOWN")  # first words of remarks that put a score in doubt
LEADING = 6  # candidates shown for every output
PAGE = Path(__file__).with_name("page")  # template and style
# The outcomes of an output: text and colour.
OUTCOMES = {
    "first": ("solved by attempt 1", "#1f9d4d"),
    "second": ("solved by attempt 2", "#7cc576"),
    "ranked": ("predicted, but not handed in", "#e2a72e"),
    "missed": ("not solved", "#c9564c"),
    "unknown": ("output not known", "#8b959f"),
}
VERDICTS = {"solved": "✓ solved", "partly": "◐ partly solved", "unsolved": "✗ not solved", "unknown": "not known"}


@dataclass(frozen=True, eq=False)
class Material:
    """The data of a report; candidates and summary may be missing."""

    tasks: Sequence[Task]
    submission: Submission
    ranked: Ranked = field(default_factory=dict)  # candidates of outputs whose votes were recorded
    summary: Mapping[str, Any] = field(default_factory=dict)  # written by the run that solved the tasks


class Answer(NamedTuple):
    """One asked output, and the attempts at it."""

    question: Grid
    truth: Grid | None
    attempts: Sequence[Grid]
    predicted: int  # number of attempts, the first ones, that the model predicted; the others are guesses
    candidates: Sequence[Candidate] | None  # best first; None if votes were not recorded

    @property
    def votes(self) -> int:
        """The number of votes for this output."""
        return sum(candidate.votes for candidate in self.candidates or ())

    @property
    def rank(self) -> int | None:
        """The place of the truth among the candidates, from 1."""
        if self.truth is None:
            return None
        places = enumerate(self.candidates or (), start=1)
        return next((place for place, candidate in places if np.array_equal(candidate.grid, self.truth)), None)

    @property
    def outcome(self) -> str:
        """One of OUTCOMES."""
        if self.truth is None:
            return "unknown"
        for name, grid in zip(("first", "second"), self.attempts, strict=True):
            if np.array_equal(grid, self.truth):
                return name
        return "ranked" if self.rank else "missed"

    @property
    def known_grids(self) -> list[Grid]:
        """The attempts and the truth, if it is known."""
        return [*self.attempts, *([] if self.truth is None else [self.truth])]

    def badges(self, grid: Grid) -> list[str]:
        """Return the roles of a candidate: `attempt 1`, `attempt 2`, `✓ truth`."""
        roles = zip(("attempt 1", "attempt 2", "✓ truth"), self.known_grids, strict=False)
        return [role for role, other in roles if np.array_equal(grid, other)]

    def own_votes(self, grid: Grid) -> int:
        """Return the number of votes for `grid`."""
        return sum(candidate.votes for candidate in self.candidates or () if np.array_equal(candidate.grid, grid))

    def consensus(self, number: int) -> str:
        """Return, for example, `put together from 8 of 13 votes`, those for grids of the attempt's size.

        The text is empty for the second attempt, for a grid that got votes itself, and for a size without votes.
        """
        grid = self.attempts[number]
        same = sum(candidate.votes for candidate in self.candidates or () if candidate.grid.shape == grid.shape)
        if number or not same or self.own_votes(grid):
            return ""
        return f"put together from {same} of {self.votes} votes"


def answers(material: Material, task: Task) -> list[Answer]:
    """Return an Answer for each output of a task."""
    counts = material.summary.get("predicted_attempts", {}).get(task.task_id, [2] * len(task.tests))
    known = zip(outputs_of([task]), task.tests, material.submission[task.task_id], counts, strict=True)
    return [
        Answer(pair.input, pair.output, attempts, predicted, material.ranked.get(asked))
        for asked, pair, attempts, predicted in known
    ]


def verdict(found: Sequence[Answer]) -> str:
    """Return the key in VERDICTS for a task with these outputs."""
    solved = sum(answer.outcome in ("first", "second") for answer in found)
    if all(answer.outcome == "unknown" for answer in found):
        return "unknown"
    return "solved" if solved == len(found) else "partly" if solved else "unsolved"


def comparison(grid: Grid, truth: Grid) -> str:
    """Return `right`, `6 of 36 cells differ` or `4 × 4 instead of 6 × 6`."""
    if grid.shape != truth.shape:
        return f"{grid.shape[0]} × {grid.shape[1]} instead of {truth.shape[0]} × {truth.shape[1]}"
    wrong = int(np.count_nonzero(grid != truth))
    return f"{wrong} of {truth.size} cells differ" if wrong else "right"


def report_remarks(material: Material) -> list[str]:
    """Return the remarks that a reader of the scores needs, one line each."""
    summary, known = material.summary, material.summary.get("known", ())
    lines = remarks(summary)
    parts = [[task for task in material.tasks if (task.task_id in known) is trained] for trained in (True, False)]
    scores = [known_scores(part, material.submission) for part in parts]
    solved = [f"{part.outputs_solved} of {part.outputs_total}" for part in scores if part is not None]
    if len(solved) == 2:
        lines.append(f"solved: {solved[0]} outputs where the demonstrations were trained on, {solved[1]} elsewhere")
    return lines + [f"trouble while solving: {line}" for line in summary.get("troubles", ())]


def run_rows(material: Material) -> list[tuple[str, str]]:
    """Return names and texts of the summary's time by phase, numbers and texts."""
    seconds = material.summary.get("seconds", {})
    total = sum(seconds.values()) or 1.0
    rows = [(name, f"{duration_text(part)} ({part / total:.0%})") for name, part in seconds.items()]
    for name, value in material.summary.items():
        if isinstance(value, (str, int, float)) and name not in ("checkpoint", "leak"):  # the remarks name these
            rows.append((name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value)))
    return rows


# As text ------------------------------------------------------------------------------------------------------------


def show_attempts(tasks: Sequence[Task], submission: Submission, ranked: Ranked | None = None) -> str:
    """Return input, attempts and truth of every test next to each other, below their votes and mistakes."""
    material = Material(tasks, submission, ranked or {})
    tests = ((task, number, answer) for task in tasks for number, answer in enumerate(answers(material, task)))
    return "\n\n".join(_show_test(*test) for test in tests)


def _show_test(task: Task, test: int, answer: Answer) -> str:
    lines, grids = [f"{task.task_id}, test {test}"], {"input": answer.question}
    for number, grid in enumerate(answer.attempts):
        facts = []
        if answer.candidates is not None:
            own = answer.own_votes(grid)
            share = f"{own / answer.votes:.0%} of {answer.votes} votes" if own else ""
            facts.append(share or answer.consensus(number) or "a guess")
        facts += [] if answer.truth is None else [comparison(grid, answer.truth)]
        lines += [f"attempt {number + 1}: {', '.join(facts)}"] if facts else []
        grids[f"attempt {number + 1}"] = grid
    if answer.truth is not None:
        grids["truth"] = answer.truth
    return "\n".join([*lines, beside([f"{name}\n{render(grid)}" for name, grid in grids.items()])])


# As a page ----------------------------------------------------------------------------------------------------------


def render_page(material: Material, title: str) -> str:
    """Return the whole HTML file, page/page.html filled in."""
    # Here, because only the page needs it; torch brings it along.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = [(task, answers(material, task)) for task in material.tasks]
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        title=title,
        tasks=found,
        counts=Counter(answer.outcome for _, own in found for answer in own),
        scores=known_scores(material.tasks, material.submission),
        remarks=report_remarks(material),
        run=run_rows(material),
        learned=material.summary.get("demonstrations", {}),
        facts_of=lambda task, own: task_facts(material, task, own),
        **{"outcomes": OUTCOMES, "verdicts": VERDICTS, "alarms": ALARMS, "most_candidates": LEADING},
        **{"verdict_of": verdict, "comparison": comparison, "cell_size": cell_size, "drawing": drawing},
    )


def task_facts(material: Material, task: Task, found: Sequence[Answer]) -> list[str]:
    """Return the facts in the last line of a task's card."""
    agreeing = min(answer.candidates[0].votes / answer.votes if answer.candidates else 0.0 for answer in found)
    facts = {
        f"{agreeing:.0%} of votes agree": agreeing > 0,
        "several test outputs": len(found) > 1,
        "fallback": any(answer.predicted < 2 for answer in found),
        "demonstrations known": task.task_id in material.summary.get("known", ()),
        "contaminated": task.task_id in material.summary.get("trained_on", ()),
    }
    return [fact for fact, holds in facts.items() if holds]


def cell_size(room: int, *grids: Grid) -> int:
    """Return the side of a cell in pixels with which the largest of the grids takes about `room` pixels."""
    return max(3, min(28, room // max(max(grid.shape) for grid in grids)))


def drawing(grid: Grid, cell: int, truth: Grid | None = None) -> str:
    """Return a grid as SVG, with a cross on cells that differ from a truth of the same size."""
    height, width = grid.shape
    colours, counts = np.unique(grid, return_counts=True)
    below, *others = colours[np.argsort(-counts, kind="stable")].tolist()  # the most common colour below the others
    parts = [f'<rect width="100%" height="100%" fill="{PALETTE[below]}"/>']
    for colour in others:
        # A line of width 1 through the middle of a cell fills it.
        path = "".join(f"M{column} {row + 0.5}h1" for row, column in np.argwhere(grid == colour).tolist())
        parts.append(f'<path d="{path}" stroke="{PALETTE[colour]}"/>')
    parts.append('<rect width="100%" height="100%" fill="url(#cells)"/>')  # lines between cells: see page.html
    if truth is not None and truth.shape == grid.shape and (wrong := np.argwhere(grid != truth)).size:
        cross = "".join(f"M{column + 0.25} {row + 0.25}l.5 .5m0 -.5l-.5 .5" for row, column in wrong.tolist())
        parts += [f'<path class="{name}" d="{cross}"/>' for name in ("cross under", "cross")]
    size = f'viewBox="0 0 {width} {height}" width="{width * cell}" height="{height * cell}"'
    return f'<svg class="grid" {size}>{"".join(parts)}</svg>'


@dataclass(frozen=True)
class Inline:
    """A page that a notebook shows in a frame of its own, or a line if there is none."""

    page: Path

    def _repr_html_(self) -> str:
        if not self.page.is_file():
            return f"<p>There is no {escape(self.page.name)}.</p>"
        style, page = "width: 100%; height: 800px; border: 0", escape(self.page.read_text(encoding="utf-8"))
        return f'<iframe sandbox style="{style}" srcdoc="{page}"></iframe>'


# Programs -----------------------------------------------------------------------------------------------------------


def read_material(
    submission: Path, challenges: Path, solutions: Path | None, candidates: Path | None, names: Sequence[str] = ()
) -> Material:
    """Read the data of a report on the named tasks (none: all); raises InputError if it does not belong together."""
    tasks = read_tasks(challenges, solutions)
    ranked = {} if candidates is None else Tally.load(candidates).ranked()
    if candidates is not None and not ranked.keys() & set(outputs_of(tasks)):
        found = f"has votes for none of the {len(tasks)} tasks"
        raise InputError(f"{candidates}: {found}, expected candidates of this submission")
    attempts = read_answers(submission, tasks, challenges)
    chosen = [task for name in names for task in pick(tasks, name, str(challenges))]
    return Material(chosen or tasks, attempts, ranked, read_summary(submission))


def write_report(
    submission: Path,
    challenges: Path,
    solutions: Path | None,
    candidates: Path | None,
    out: Path,
    title: str,
    names: Sequence[str] = (),
) -> None:
    """Write the page and print a line about it; raises InputError as `read_material` does."""
    refuse_input(out, [submission, challenges, solutions, candidates, summary_path(submission)])
    material = read_material(submission, challenges, solutions, candidates, names)
    page = render_page(material, title).encode()
    write_atomic(out, page)
    scores = known_scores(material.tasks, material.submission)
    solved = "no known outputs" if scores is None else f"{scores.outputs_solved} of {scores.outputs_total} solved"
    outputs = sum(len(task.tests) for task in material.tasks)
    print(f"wrote {out}: {len(material.tasks)} tasks, {outputs} outputs, {solved}, {len(page) / 1e6:.1f} MB")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page or print the text, and return the exit status."""
    parser = command_line("submission.report", __doc__)
    add = parser.add_argument
    add("submission", metavar="SUBMISSION", type=Path, help="the submission.json to show")
    add("names", metavar="TASK_ID", nargs="*", help="tasks to show (all)")
    add("--challenges", metavar="FILE", type=Path, required=True, help="the tasks it answers: a file or a folder")
    add("--solutions", metavar="FILE", type=Path, help="the known outputs, for scores and differences")
    add("--candidates", metavar="FILE", type=Path, help="the votes that were saved while solving (.npz)")
    add("--title", metavar="TEXT", help="heading of the page (default: the name of SUBMISSION)")
    add("--text", action="store_true", help="print the attempts instead of writing a page")
    add("--out", metavar="FILE", type=Path, default=Path("report.html"), help="the page to write (report.html)")
    arguments = parser.parse_intermixed_args(argv)
    given = arguments.submission, arguments.challenges, arguments.solutions, arguments.candidates
    if arguments.text:
        material = read_material(*given, arguments.names)
        print(show_attempts(material.tasks, material.submission, material.ranked or None))
    else:
        write_report(*given, arguments.out, arguments.title or arguments.submission.name, arguments.names)
    return 0


if __name__ == "__main__":
    run_program(main)
