"""What the report page shows, as plain JSON values: tasks, attempts, candidates, scores, calibration.

A grid is one text: a digit a cell, rows parted by "/".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arc_trm.vote import AskedOutput, Candidate, Scores, Tally, grid_key
from data_prep.grid import DIHEDRALS, IDENTITY, Augmentation, Grid
from data_prep.tasks import Task
from submission.attempts import Attempts, Submission
from submission.score import score

Json = dict[str, Any]
NAMES_SHOWN = 12  # augmentations listed by name with a candidate; all of them are counted
BINS = 10
# Fields of a summary that the page shows in their own places.
SHOWN_ELSEWHERE = {
    "seconds",
    "scores",
    "checkpoint",
    "leak",
    "trained_on",
    "predicted_attempts",
    "troubles",
}
LONG = 12  # entries of an object that are counted rather than shown


@dataclass(frozen=True, eq=False)
class Material:
    """Everything a report may be made from; only tasks and submission are always there."""

    tasks: Sequence[Task]  # the submission answers just these
    submission: Submission
    tally: Tally | None = None
    remarks: Sequence[str] = ()  # what must be known before believing a score
    summary: Mapping[str, Any] | None = None  # what solving said about itself
    films: Sequence[Mapping[str, Any]] = ()
    leading: int = 6  # candidates shown for every output


def report_data(material: Material, title: str) -> Json:
    """The whole page's data."""
    tally = material.tally
    numbers = {} if tally is None else {output: number for number, output in enumerate(tally.outputs)}
    tasks = [_task_data(task, material, numbers) for task in material.tasks]
    outputs = [output for task in tasks for output in task["outputs"]]
    scores = known_scores(material)
    return {
        "title": title,
        "scores": None if scores is None else scores.to_json(),
        "remarks": _remarks(material),
        "outcomes": dict(Counter(output["outcome"] for output in outputs)),
        "calibration": None if tally is None else calibration(outputs),
        "phases": _phases(material.summary or {}),
        "summary": summary_rows({k: v for k, v in (material.summary or {}).items() if k not in SHOWN_ELSEWHERE}),
        "films": list(material.films),
        "tasks": tasks,
    }


def known_scores(material: Material) -> Scores | None:
    """The scores over the tasks whose outputs are all known; None where there is no such task."""
    known = {
        task.task_id: [pair.output for pair in task.tests if pair.output is not None]
        for task in material.tasks
        if all(pair.output is not None for pair in task.tests)
    }
    return score({name: material.submission[name] for name in known}, known) if known else None


def _remarks(material: Material) -> list[str]:
    """What a reader must know before believing a figure."""
    troubles = (material.summary or {}).get("troubles") or []
    return [*material.remarks, *(f"trouble while solving: {line}" for line in troubles)]


def grid_text(grid: Grid) -> str:
    """`077/770` for [[0, 7, 7], [7, 7, 0]]."""
    return "/".join("".join(map(str, row)) for row in grid.tolist())


def _optional(grid: Grid | None) -> str | None:
    return None if grid is None else grid_text(grid)


def _task_data(task: Task, material: Material, numbers: Mapping[AskedOutput, int]) -> Json:
    outputs = []
    for test, (pair, attempts) in enumerate(zip(task.tests, material.submission[task.task_id], strict=True)):
        number = numbers.get(AskedOutput(task.task_id, test))
        votes = _votes_data(material, number, pair.output)
        outputs.append(
            {
                "input": grid_text(pair.input),
                "truth": _optional(pair.output),
                "attempts": [grid_text(grid) for grid in attempts],
                "outcome": _outcome(attempts, pair.output, votes),
                "fallbacks": _fallbacks(material, number, task.task_id, test),
                **votes,
            }
        )
    demonstrations = [[grid_text(pair.input), _optional(pair.output)] for pair in task.demonstrations]
    return {"id": task.task_id, "demonstrations": demonstrations, "outputs": outputs}


def _fallbacks(material: Material, number: int | None, task_id: str, test: int) -> list[int]:
    """The attempts (0, 1) that no candidate backs; without candidates those of which the summary says so."""
    if material.tally is not None and number is not None:
        keys = {candidate.key for candidate in material.tally.candidates(number)}
        return [i for i, grid in enumerate(material.submission[task_id][test]) if grid_key(grid) not in keys]
    predicted = (material.summary or {}).get("predicted_attempts")
    counts = predicted.get(task_id) if isinstance(predicted, Mapping) else None
    return [i for i in (0, 1) if i >= counts[test]] if isinstance(counts, list) and test < len(counts) else []


def _outcome(attempts: Attempts, truth: Grid | None, votes: Json) -> str:
    """Where the right grid went: first, second, ranked (a candidate that was not handed in), missed, or unknown."""
    if truth is None:
        return "unknown"
    for name, grid in zip(("first", "second"), attempts, strict=True):
        if np.array_equal(grid, truth):
            return name
    return "ranked" if votes.get("rank") else "missed"


def _votes_data(material: Material, number: int | None, truth: Grid | None) -> Json:
    """Leading candidates, votes cast, rank of the truth, and which views answered."""
    if material.tally is None or number is None:
        return {}
    candidates = material.tally.candidates(number)
    answering = {augmentation for candidate in candidates for augmentation in candidate.augmentations}
    return {
        "total": material.tally.total(number),
        "distinct": len(candidates),
        "rank": None if truth is None else rank_of(candidates, truth),
        "answering": _views_data(answering),
        "candidates": [_candidate_data(candidate) for candidate in candidates[: material.leading]],
    }


def rank_of(candidates: Sequence[Candidate], truth: Grid) -> int | None:
    """Place of the true grid among the ranked candidates (1 is best); None: absent."""
    keys = [candidate.key for candidate in candidates]
    return 1 + keys.index(grid_key(truth)) if grid_key(truth) in keys else None


def _candidate_data(candidate: Candidate) -> Json:
    return {
        "grid": grid_text(candidate.grid),
        "votes": candidate.votes,
        "halting": round(candidate.mean_halt, 4),
        "views": _views_data(candidate.augmentations),
    }


def _views_data(augmentations: Collection[Augmentation]) -> Json | None:
    """How many augmented views these are, by dihedral element, the first few by name; None when not recorded."""
    if not augmentations:
        return None
    names = sorted(f"t{one.dihedral} {''.join(map(str, one.permutation))}" for one in augmentations)
    elements = Counter(one.dihedral for one in augmentations)
    return {
        "count": len(names),
        "dihedrals": [elements[element] for element in range(len(DIHEDRALS))],
        "identity": IDENTITY in augmentations,
        "names": names[:NAMES_SHOWN],
    }


# Overview -----------------------------------------------------------------------------------------------------------


def calibration(outputs: Iterable[Json]) -> dict[str, list[Json]]:
    """How often the leading candidate is right where it has so many votes, or such a mean halting probability.

    Ten bins of equal width each; only outputs with candidates and a known truth count. Empty lists: none of them.
    """
    judged = [output for output in outputs if output.get("candidates") and output["truth"] is not None]
    right = [output["rank"] is not None and output["candidates"][0]["grid"] == output["truth"] for output in judged]
    votes = [output["candidates"][0]["votes"] / output["total"] for output in judged]
    halting = [output["candidates"][0]["halting"] for output in judged]
    return {"votes": _binned(votes, right), "halting": _binned(halting, right)}


def _binned(shares: Sequence[float], right: Sequence[bool]) -> list[Json]:
    if not shares:
        return []
    values, solved = np.array(shares), np.array(right)
    places = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    return [
        {
            "from": place / BINS,
            "to": (place + 1) / BINS,
            "outputs": int((places == place).sum()),
            "mean": round(float(values[places == place].mean()), 4) if (places == place).any() else None,
            "solved": int(solved[places == place].sum()),
        }
        for place in range(BINS)
    ]


def _phases(summary: Mapping[str, Any]) -> list[list[Any]]:
    """[name, seconds] of every phase that solving timed."""
    seconds = summary.get("seconds")
    if not isinstance(seconds, Mapping):
        return []
    return [[name, value] for name, value in seconds.items() if isinstance(value, (int, float))]


def summary_rows(summary: Mapping[str, Any], prefix: str = "") -> list[list[Any]]:
    """Every figure and word of a summary as [name, value]; nested names are joined by " · ", long lists counted."""
    rows: list[list[Any]] = []
    for name, value in summary.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping) and len(value) > LONG:
            rows.append([label, f"{len(value)} entries"])
        elif isinstance(value, Mapping):
            rows += summary_rows(value, f"{label} · ")
        elif isinstance(value, list):
            words = [str(item) for item in value]
            rows.append([label, ", ".join(words) if len(words) <= 5 else f"{len(words)} entries"])
        elif value is not None:
            rows.append([label, value])
    return rows
