"""One page that shows what was handed in: scores, votes, and every task with its attempts and candidates.

    python -m submission.report submission.json --challenges challenges.json --solutions solutions.json \\
        --candidates candidates.npz --out report.html

The page is a single file without scripts that needs no network; it follows the system's light or dark theme, and
prints. It also shows the summary beside the submission: which checkpoint made it, what that checkpoint knew of the
tasks, and the time. A notebook shows it where the value of a cell is `Inline(Path("report.html"))`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from arc_trm.vote import Candidate, Ranked, Scores, Tally, outputs_of
from data_prep.files import InputError, command_line, refuse_input, run_program, write_atomic
from data_prep.grid import Grid
from data_prep.progress import duration_text
from data_prep.show import PALETTE
from data_prep.tasks import Task, read_tasks
from submission.attempts import Submission
from submission.score import known_scores
from submission.show import comparison, put_together
from submission.submission_file import read_answers, read_summary, remarks, summary_path

ALARMS = ("LEAK", "CONTAMINATED", "UNKNOWN")  # how a remark begins that puts a score in doubt
LEADING = 6  # candidates shown for every output
PAGE = Path(__file__).with_name("page")  # template and style
# How an output can end: in words, and in which colour.
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
    """What a report is made from; only tasks and submission are always there."""

    tasks: Sequence[Task]  # the submission answers just these
    submission: Submission
    ranked: Ranked = field(default_factory=dict)  # candidates of outputs whose votes were recorded
    summary: Mapping[str, Any] = field(default_factory=dict)  # what solving said about itself


class Answer(NamedTuple):
    """One asked output, and what was handed in for it."""

    question: Grid
    truth: Grid | None
    attempts: Sequence[Grid]
    predicted: int  # how many of the attempts, the first ones, are the model's; the others are guesses
    candidates: Sequence[Candidate] | None  # best first; None where votes were not recorded

    @property
    def votes(self) -> int:
        """All votes for this output."""
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


def answers(material: Material, task: Task) -> list[Answer]:
    """What the material says of each output of a task."""
    counts = material.summary.get("predicted_attempts", {}).get(task.task_id, [2] * len(task.tests))
    known = zip(outputs_of([task]), task.tests, material.submission[task.task_id], counts, strict=True)
    return [
        Answer(pair.input, pair.output, attempts, predicted, material.ranked.get(asked))
        for asked, pair, attempts, predicted in known
    ]


def verdict(found: Sequence[Answer]) -> str:
    """Which of VERDICTS holds for a task with these outputs."""
    solved = sum(answer.outcome in ("first", "second") for answer in found)
    if all(answer.outcome == "unknown" for answer in found):
        return "unknown"
    return "solved" if solved == len(found) else "partly" if solved else "unsolved"


# The overview -------------------------------------------------------------------------------------------------------


def overview(material: Material, found: Iterable[Sequence[Answer]]) -> str:
    """Remarks, scores, outcomes and the run."""
    lines = report_remarks(material)
    said = "".join(f"<p{' class=alarm' if line.startswith(ALARMS) else ''}>{escape(line)}</p>" for line in lines)
    notice = f"<div class=notice>{said}</div>" if lines else ""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in run_rows(material))
    outcomes = Counter(answer.outcome for answers in found for answer in answers)
    run = panel("The run", f"<dl>{rows}</dl>") if rows else ""
    return notice + score_tiles(known_scores(material.tasks, material.submission)) + outcome_panel(outcomes) + run


def report_remarks(material: Material) -> list[str]:
    """What a reader of the scores must know, one statement a line."""
    summary, known = material.summary, material.summary.get("known", ())
    lines = remarks(summary)
    parts = [[task for task in material.tasks if (task.task_id in known) is trained] for trained in (True, False)]
    scores = [known_scores(part, material.submission) for part in parts]
    solved = [f"{part.outputs_solved} of {part.outputs_total}" for part in scores if part is not None]
    if len(solved) == 2:
        lines.append(f"solved: {solved[0]} outputs where the demonstrations were trained on, {solved[1]} elsewhere")
    return lines + [f"trouble while solving: {line}" for line in summary.get("troubles", ())]


def panel(title: str, content: str) -> str:
    """A framed part of the page."""
    return f"<div class=panel><h2>{title}</h2>{content}</div>"


def score_tiles(scores: Scores | None) -> str:
    """The three scores."""
    if scores is None:
        return "<p class=notice>The true outputs are not known: there is no score.</p>"
    tiles = (
        ("Outputs", scores.outputs, f"{scores.outputs_solved} of {scores.outputs_total} test outputs solved"),
        ("Task mean", scores.task_mean, f"mean share of solved outputs over {scores.tasks_total} tasks"),
        ("Tasks", scores.tasks, f"{scores.tasks_solved} of {scores.tasks_total} tasks solved entirely"),
    )
    content = (panel(name, f"<p class=figure>{share:.2%}</p><p class=detail>{text}</p>") for name, share, text in tiles)
    return f"<div class=tiles>{''.join(content)}</div>"


def outcome_panel(outcomes: Counter[str]) -> str:
    """How many outputs ended how; a choice shows the tasks with such an output alone."""
    total, bar = outcomes.total(), ""
    choices = '<label><input type=radio name=show id="show-all" checked>all tasks</label>'
    for name, (words, colour) in OUTCOMES.items():
        if count := outcomes[name]:
            bar += f'<span style="flex-grow: {count}; background: {colour}"></span>'
            swatch = f'<span class=swatch style="background: {colour}"></span>'
            choice = f'<input type=radio name=show id="show-{name}">{swatch}{words} <b>{count}</b>'
            choices += f"<label>{choice} ({count / total:.0%})</label>"
    stacked = f"<div class=stacked aria-hidden=true>{bar}</div>"
    return panel(f"Outcome of {total} test outputs", f"{stacked}<div class=legend>{choices}</div>")


def run_rows(material: Material) -> list[tuple[str, str]]:
    """Time by phase, and every other plain figure and word of the summary, as names and texts."""
    seconds = material.summary.get("seconds", {})
    total = sum(seconds.values()) or 1.0
    rows = [(name, f"{duration_text(part)} ({part / total:.0%})") for name, part in seconds.items()]
    for name, value in material.summary.items():
        if isinstance(value, (str, int, float)) and name not in ("checkpoint", "leak"):  # which the remarks name
            rows.append((name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value)))
    return rows


# Tasks --------------------------------------------------------------------------------------------------------------


def task_card(material: Material, task: Task, found: Sequence[Answer]) -> str:
    """A card with small drawings, which opens to show everything about the task."""
    first = found[0]
    second = first.outcome == "second"
    drawings = {"input": first.question, f"attempt {1 + second}": first.attempts[second]}
    drawings |= {"attempt 2": first.attempts[1]} if first.truth is None else {"truth": first.truth}
    thumbs = "".join(
        f"<span class=thumb>{drawing(grid, cell_size(102, grid))}<span>{name}</span></span>"
        for name, grid in drawings.items()
    )
    shares = [answer.candidates[0].votes / answer.votes if answer.candidates else 0.0 for answer in found]
    facts = {
        f"{min(shares):.0%} of votes agree": min(shares) > 0,
        "several test outputs": len(found) > 1,
        "fallback": any(answer.predicted < 2 for answer in found),
        "demonstrations known": task.task_id in material.summary.get("known", ()),
        "contaminated": task.task_id in material.summary.get("trained_on", ()),
    }
    badge = f'<span class="badge {verdict(found)}">{VERDICTS[verdict(found)]}</span>'
    foot = "".join(f"<span>{fact}</span>" for fact, holds in facts.items() if holds)
    head = f"<span class=cardhead><span class=id>{escape(task.task_id)}</span>{badge}</span>"
    summary = f"<summary>{head}<span class=thumbs aria-hidden=true>{thumbs}</span><span class=cardfoot>{foot}</span>"
    learned = material.summary.get("demonstrations", {}).get(task.task_id, {})
    body = _demonstrations(task, learned) + "".join(_output(answer, i, len(found)) for i, answer in enumerate(found))
    classes = " ".join(dict.fromkeys(["card", *(answer.outcome for answer in found)]))
    return f'<details class="{classes}">{summary}</summary>{body}</details>\n'


def _demonstrations(task: Task, learned: Mapping[str, float]) -> str:
    """The pairs, and how well the adaptation had `learned` them."""
    pairs = ""
    for number, pair in enumerate(task.demonstrations, start=1):
        assert pair.output is not None
        cell = cell_size(170, pair.input, pair.output)
        shown = [figure(f"Input {number}", pair.input, cell), figure(f"Output {number}", pair.output, cell)]
        pairs += f"<div class=pair>{'<span aria-hidden=true>→</span>'.join(shown)}</div>"
    figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in learned.items())
    said = f"<p class=detail>when adapted: {escape(figures)}</p>" if figures else ""
    return f"<h3>Demonstrations</h3><div class=pairs>{pairs}</div>{said}"


def _output(answer: Answer, test: int, tests: int) -> str:
    """Input, attempts and truth of one test, and the leading candidates."""
    truth = [] if answer.truth is None else [answer.truth]
    cell = cell_size(220, answer.question, *answer.attempts, *truth)
    figures = [figure("Test input", answer.question, cell)]
    for number, grid in enumerate(answer.attempts, start=1):
        note = "a fallback, not predicted" if number > answer.predicted else ""
        if number == 1 and not note and answer.candidates:
            note = put_together(answer.candidates, grid)
        figures.append(figure(f"Attempt {number}", grid, cell, note, answer.truth))
    figures += [figure("Truth", grid, cell) for grid in truth]
    name = f"Test {test + 1} of {tests}" if tests > 1 else "Test"
    heading = f"<h3>{name}: {OUTCOMES[answer.outcome][0]}</h3>"
    return f"{heading}<div class=pairs>{''.join(figures)}</div>{_candidates(answer)}"


def _candidates(answer: Answer) -> str:
    if answer.candidates is None:
        return ""
    if not answer.candidates:
        return "<p class=notice>No candidate: no prediction held a grid.</p>"
    items = [_candidate(answer, *placed) for placed in enumerate(answer.candidates[:LEADING], start=1)]
    heading = f"Leading {len(items)} of {len(answer.candidates)} candidates, {answer.votes} votes"
    if answer.truth is not None:
        heading += f"; the truth is {f'number {answer.rank}' if answer.rank else 'not among them'}"
    return f"<h4>{heading}</h4><ol class=candidates>{''.join(items)}</ol>"


def _candidate(answer: Answer, place: int, candidate: Candidate) -> str:
    right = place == answer.rank
    names = [f"attempt {i}" for i, grid in enumerate(answer.attempts, 1) if np.array_equal(grid, candidate.grid)]
    badges = "".join(f" <span class=badge>{name}</span>" for name in [*names, *(["✓ truth"] if right else [])])
    facts = (
        f"<p><b>{candidate.votes} votes</b> ({candidate.votes / answer.votes:.1%}){badges}</p>"
        f"<progress value={candidate.votes} max={answer.votes} aria-hidden=true></progress>"
        f"<p>halting probability {candidate.mean_halt:.1%}</p>"
    )
    shown = figure(f"No. {place}", candidate.grid, cell_size(130, candidate.grid))
    return f"<li{' class=right' if right else ''}>{shown}<div class=candidatefacts>{facts}</div></li>"


# Grids as SVG -------------------------------------------------------------------------------------------------------


def cell_size(room: int, *grids: Grid) -> int:
    """The side of a cell in pixels with which the largest of the grids takes about `room` pixels."""
    return max(3, min(28, room // max(max(grid.shape) for grid in grids)))


def drawing(grid: Grid, cell: int, truth: Grid | None = None) -> str:
    """A grid, sharp at every size and on paper; cells that differ from a truth of its size get a cross."""
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


def figure(caption: str, grid: Grid, cell: int, note: str = "", truth: Grid | None = None) -> str:
    """A drawing with its caption, and words for those who cannot see it; how it compares where there is a truth."""
    height, width = grid.shape
    tone = ""
    if truth is not None:
        compared = comparison(grid, truth)
        tone, sign = ("right", "✓") if compared == "right" else ("wrong", "✗")
        note += f"{'; ' if note else ''}{sign} {compared}"
    label = f"{caption}: {'/'.join(''.join(map(str, row)) for row in grid.tolist())}"
    said = f"<figcaption><b>{caption}</b> <span class=detail>{height} × {width}</span></figcaption>"
    drawn = f'<div role=img aria-label="{label}">{drawing(grid, cell, truth)}</div>'
    return f'<figure class="{tone}">{said}{drawn}{f"<p class=note>{note}</p>" if note else ""}</figure>'


# The page -----------------------------------------------------------------------------------------------------------


def render_page(material: Material, title: str) -> str:
    """The whole HTML file."""
    found = [answers(material, task) for task in material.tasks]
    cards = "".join(task_card(material, task, own) for task, own in zip(material.tasks, found, strict=True))
    style, page = ((PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "page.html"))
    return Template(page).substitute(title=escape(title), style=style, overview=overview(material, found), cards=cards)


def write_report(
    submission: Path, challenges: Path, solutions: Path | None, candidates: Path | None, out: Path, title: str
) -> None:
    """Read what the page shows, check that it belongs together, write the page and print a line about it."""
    refuse_input(out, [submission, challenges, solutions, candidates, summary_path(submission)])
    tasks = read_tasks(challenges, solutions)
    ranked = {} if candidates is None else Tally.load(candidates).ranked()
    if candidates is not None and not ranked.keys() & set(outputs_of(tasks)):
        found = f"has votes for none of the {len(tasks)} tasks"
        raise InputError(f"{candidates}: {found}, expected candidates of this submission")
    attempts = read_answers(submission, tasks, challenges)
    page = render_page(Material(tasks, attempts, ranked, read_summary(submission)), title).encode()
    write_atomic(out, page)
    scores = known_scores(tasks, attempts)
    solved = "no known outputs" if scores is None else f"{scores.outputs_solved} of {scores.outputs_total} solved"
    outputs = sum(map(len, attempts.values()))
    print(f"wrote {out}: {len(tasks)} tasks, {outputs} outputs, {solved}, {len(page) / 1e6:.1f} MB")


@dataclass(frozen=True)
class Inline:
    """A page that a notebook shows, in a frame apart; a line instead where there is none."""

    page: Path

    def _repr_html_(self) -> str:
        if not self.page.is_file():
            return f"<p>There is no {escape(self.page.name)}.</p>"
        style, page = "width: 100%; height: 800px; border: 0", escape(self.page.read_text(encoding="utf-8"))
        return f'<iframe sandbox style="{style}" srcdoc="{page}"></iframe>'


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
    arguments.title = arguments.title or arguments.submission.name
    write_report(**vars(arguments))
    return 0


if __name__ == "__main__":
    run_program(main)
