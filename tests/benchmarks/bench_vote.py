"""Predictions cut, inverted, counted and ranked, and a submission scored: python -m tests.benchmarks vote"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson

from arc_trm.vote import MOST_COST, AskedOutput, Candidate, Predictions, Tally
from data_prep.grid import COLOURS
from submission.attempts import Attempts
from submission.submission_file import write_submission
from tests.arc_trm.plain_vote import plain_ranking, plain_votes, random_predictions, select
from tests.benchmarks.table import Row, median_seconds
from tests.conftest import REPOSITORY

OUTPUTS, PER_OUTPUT = 100, 1000
PLAIN_OUTPUTS = 3
TASKS, SCORED_OUTPUTS = 120, 172


def vote(predictions: Predictions, outputs: int) -> list[list[Candidate]]:
    """The two best candidates of every output."""
    tally = Tally(AskedOutput("task", test) for test in range(outputs))
    tally.add(predictions)
    return [tally.candidates(output, limit=2) for output in range(outputs)]


def plain_vote(predictions: Predictions, outputs: int) -> list[list[str]]:
    """Digests of the two best candidates of every output, one prediction at a time."""
    votes = plain_votes(predictions)
    return [plain_ranking(votes, output)[:2] for output in range(outputs)]


def vote_rows() -> list[Row]:
    rng = np.random.default_rng(0)
    predictions = random_predictions(OUTPUTS, PER_OUTPUT, rng)
    few = select(predictions, np.arange(PLAIN_OUTPUTS * PER_OUTPUT))
    ours = [[candidate.digest for candidate in best] for best in vote(few, PLAIN_OUTPUTS)]
    if ours != plain_vote(few, PLAIN_OUTPUTS):
        raise AssertionError("the two paths disagree about the two best candidates")
    plain = len(few.tokens) / median_seconds(lambda: plain_vote(few, PLAIN_OUTPUTS), repeats=3)
    fast = len(predictions.tokens) / median_seconds(lambda: vote(predictions, OUTPUTS), repeats=7)
    told = replace(few, costs=rng.integers(0, MOST_COST, (*few.tokens.shape, COLOURS), dtype=np.int16))
    cells = len(few.tokens) / median_seconds(lambda: vote(told, PLAIN_OUTPUTS), repeats=3)
    return [
        Row("votes one prediction at a time", f"{PER_OUTPUT} x {PLAIN_OUTPUTS} outputs", plain, "predictions/s"),
        Row(
            "votes cut, inverted, counted",
            f"{PER_OUTPUT} x {OUTPUTS} outputs",
            fast,
            "predictions/s",
            fast / plain,
            "one core, goal 300,000",
        ),
        Row("votes with costs of cells", f"{PER_OUTPUT} x {PLAIN_OUTPUTS} outputs", cells, "predictions/s"),
    ]


def write_files(folder: Path) -> None:
    """A submission of 120 tasks and its solutions, evaluation-shaped: 52 tasks have two outputs."""
    rng = np.random.default_rng(1)
    submission, solutions = {}, {}
    for i in range(TASKS):
        grids = [rng.integers(0, 10, rng.integers(3, 31, 2), dtype=np.uint8) for _ in range(1 + (i < 52))]
        solutions[f"task{i}"] = [grid.tolist() for grid in grids]
        submission[f"task{i}"] = tuple(Attempts(grid.T, grid) for grid in grids)
    write_submission(folder / "submission.json", submission)
    (folder / "solutions.json").write_bytes(orjson.dumps(solutions))


def score_row() -> Row:
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        files = [str(Path(name) / "submission.json"), "--solutions", str(Path(name) / "solutions.json")]
        command = [sys.executable, "-m", "submission.score", *files, "--json"]
        seconds = median_seconds(
            lambda: subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL), repeats=7
        )
    note = "interpreter start included, goal 0.5"
    return Row("score a submission", f"{TASKS} tasks, {SCORED_OUTPUTS} outputs", seconds, "s", None, note)


def run() -> list[Row]:
    """Predictions a second through cut, inversion and vote; seconds to score."""
    return [*vote_rows(), score_row()]
