"""Golden votes: predictions in feeding order, and how the published code ranked and scored them.

Three differences are meant and taken into account. Candidates that tie in count and mean halting probability keep their
feeding order there and go by digest here, so tied ranks are compared as sets. A prediction of nothing but PAD is a
0×0 grid there that takes a rank, and no candidate here. An output without predictions is left out there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from arc_trm.vote import AskedOutput, Predictions, Tally
from data_prep.grid import Grid, grid_digest
from tests.data_prep.material import named_augmentation, together
from tests.golden.comparison import Report
from tests.golden.grids import decode_golden, read_tokens, rows_of

EMPTY: Grid = np.zeros((0, 0), dtype=np.uint8)
# Mean halting probabilities closer than this tie: they are sums of float32 numbers.
TIE = 1e-6

Cells = tuple[tuple[int, ...], ...]


class Standing(NamedTuple):
    """A grid that was voted for, with its votes and their mean halting probability."""

    cells: Cells
    votes: int
    mean_halt: float


def check_votes(facts: Mapping[str, Any]) -> Report:
    """Compare inverted predictions, their order, the two attempts and pass@K with a golden vote."""
    report = Report("arc_data")
    predictions, results = facts["vote"]["predictions"], facts["vote"]["results"]
    for prediction in predictions:
        name = prediction["aug_name"]
        report.same("inverted predictions", name, rows_of(_original(prediction, "pred_seq")), prediction["pred_grid"])
        report.same("known puzzle names", name, name in facts["vote"]["identifiers"], True)
    _state(report, predictions, facts["vote"]["state"])
    outputs = [AskedOutput(result["task"], i) for result in results for i in range(len(result["tests"]))]
    voters = _voters(report, predictions, results)
    standings = _standings(voters, outputs)
    for result in results:
        _attempts(report, result, standings)
    _pass_at(report, facts["vote"]["metrics"], results, standings)
    return report


def _original(prediction: Mapping[str, Any], field: str) -> Grid:
    """The grid in a prediction's tokens, in the frame of its task; 0×0 where there is none."""
    grid = decode_golden(prediction[field])
    augmentation = named_augmentation(prediction["aug_name"])[1]
    return EMPTY if grid is None else augmentation.inverse().apply(grid)


def _probability(prediction: Mapping[str, Any]) -> float:
    return 1 / (1 + math.exp(-prediction["q_halt_logit"]))


def _state(report: Report, predictions: Sequence[Mapping[str, Any]], golden: Sequence[Mapping[str, Any]]) -> None:
    """Compare what was fed in: per task and input the digests and halting probabilities."""
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for one in predictions:
        fed = found.setdefault((one["task"], grid_digest(_original(one, "input_seq"))), [])
        fed.append((grid_digest(_original(one, "pred_seq")), _probability(one)))
    for one in golden:
        ours = found.pop((one["task"], one["input_hash"]), [])
        where = f"vote state of {one['task']}"
        report.same("digests of predictions", where, [d for d, _ in ours], [d for d, _ in one["preds"]])
        report.add("halting probabilities", where, [p for _, p in ours], [p for _, p in one["preds"]])
    report.same("inputs predicted for", "vote state", sorted(found), [])


def _voters(
    report: Report, predictions: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> list[tuple[AskedOutput, Mapping[str, Any]]]:
    """The predictions whose input is a test input of their task, with the output that they speak of."""
    tests = {(r["task"], _cells(test["input"])): i for r in results for i, test in enumerate(r["tests"])}
    voters = []
    for one in predictions:
        test = tests.get((one["task"], _cells(_original(one, "input_seq").tolist())))
        expected = one["test"] if one["matches_test_input"] else None
        report.same("test inputs recognised", one["aug_name"], test, expected)
        if test is not None:
            voters.append((AskedOutput(one["task"], test), one))
    return voters


def _standings(
    voters: Sequence[tuple[AskedOutput, Mapping[str, Any]]], outputs: Sequence[AskedOutput]
) -> dict[AskedOutput, list[Standing]]:
    """What was voted for, best first, by output; votes for the empty grid are put in where they would rank."""
    if not voters:
        return {output: [] for output in outputs}
    predictions = Predictions(
        tokens=np.stack([read_tokens(one["pred_seq"]) for _, one in voters]),
        halting=np.array([_probability(one) for _, one in voters], dtype=np.float32),
        outputs=np.array([outputs.index(output) for output, _ in voters], dtype=np.int32),
        augmentations=together([named_augmentation(one["aug_name"])[1] for _, one in voters]),
    )
    tally = Tally(outputs)
    tally.add(predictions)
    standings = {
        output: [Standing(_cells(c.grid.tolist()), c.votes, c.mean_halt) for c in tally.candidates(number)]
        for number, output in enumerate(outputs)
    }
    empty: dict[AskedOutput, list[float]] = {}
    for output, one in voters:
        if decode_golden(one["pred_seq"]) is None:
            empty.setdefault(output, []).append(_probability(one))
    for output, halting in empty.items():
        standings[output].append(Standing((), len(halting), sum(halting) / len(halting)))
        standings[output].sort(key=lambda standing: (-standing.votes, -standing.mean_halt))
    return standings


def _attempts(report: Report, result: Mapping[str, Any], standings: Mapping[AskedOutput, list[Standing]]) -> None:
    """Compare the golden ranked lists of a task with our standings."""
    predicted = [i for i in range(len(result["tests"])) if standings[AskedOutput(result["task"], i)]]
    for field in sorted(name for name in result if name.startswith("attempts")):
        report.same("outputs with predictions", result["task"], len(result[field]), len(predicted))
        for i, golden in zip(predicted, result[field], strict=False):
            # Missing attempts are filled with the first; candidates themselves are distinct.
            grids = list(dict.fromkeys(_cells(grid) for grid in golden.values()))
            complete = len(grids) < len(golden)
            misplaced = _misplaced(standings[AskedOutput(result["task"], i)], grids, complete)
            report.put("ranked attempts, ties as sets", f"{result['task']} test {i}, {field}", misplaced, 0.0)


def _tied(standings: Sequence[Standing]) -> Iterator[list[Standing]]:
    """Runs of standings that tie in votes and mean halting probability."""
    run: list[Standing] = []
    for standing in standings:
        if run and (standing.votes != run[-1].votes or abs(standing.mean_halt - run[-1].mean_halt) > TIE):
            yield run
            run = []
        run.append(standing)
    if run:
        yield run


def _misplaced(standings: Sequence[Standing], golden: list[Cells], complete: bool) -> int:
    """Golden ranks whose grid is not among those that hold the rank here, and ranks that only one side has."""
    wrong, rank = 0, 0
    for run in _tied(standings):
        cells = {standing.cells for standing in run}
        wrong += sum(grid not in cells for grid in golden[rank : rank + len(run)])
        rank += len(run)
    missing = len(golden) - rank if complete else max(0, len(golden) - rank)
    return wrong + abs(missing)


def _pass_at(
    report: Report,
    golden: Mapping[str, float],
    results: Sequence[Mapping[str, Any]],
    standings: Mapping[AskedOutput, list[Standing]],
) -> None:
    """Compare pass@K: the mean over tasks of the share of outputs right within K ranks, between worst and best ties."""
    for name, expected in golden.items():
        k = int(name.rpartition("@")[2])
        best, worst = [], []
        for result in results:
            ranks = [
                _rank(standings[AskedOutput(result["task"], i)], _cells(test["output"]))
                for i, test in enumerate(result["tests"])
            ]
            best.append(float(np.mean([first <= k for first, _ in ranks])))
            worst.append(float(np.mean([last <= k for _, last in ranks])))
        error = max(0.0, float(np.mean(worst)) - expected, expected - float(np.mean(best)))
        report.put("pass@K, ties either way", name, error, TIE)


def _rank(standings: Sequence[Standing], truth: Cells) -> tuple[float, float]:
    """(first, last) rank that the true grid can hold among its ties; infinite where nobody voted for it."""
    rank = 0
    for run in _tied(standings):
        if any(standing.cells == truth for standing in run):
            return rank + 1, rank + len(run)
        rank += len(run)
    return math.inf, math.inf


def _cells(grid: Sequence[Sequence[int]]) -> Cells:
    return tuple(tuple(row) for row in grid)
