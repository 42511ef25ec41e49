"""Golden numbers of the ARC data side: tokens, augmentations, digests, and grids cut out of predicted tokens."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.canvas import Placement, encode, placement_limits
from data_prep.grid import INVERSE_DIHEDRAL, Grid, dihedral, grid_digest
from data_prep.tasks import Pair, Task, task_digest
from tests.data_prep.material import decode, named_augmentation, puzzle_name
from tests.golden.comparison import Report


def read_tokens(text: str) -> NDArray[np.uint8]:
    """The token sequence written as one hexadecimal digit a token."""
    return np.array([int(digit, 16) for digit in text], dtype=np.uint8)


def read_rows(rows: list[str]) -> Grid:
    """The grid written as one string of digits a row; no rows are the 0×0 grid."""
    cells = [[int(digit) for digit in row] for row in rows]
    return np.array(cells, dtype=np.uint8).reshape(len(rows), len(rows[0]) if rows else 0)


def check_grids(facts: Mapping[str, Any]) -> Report:
    """Compare all of a golden `arc_data` file but its votes."""
    report = Report("arc_data")
    for check in (_tokenise, _dihedral, _augmentations, _digests, _cuts):
        check(report, facts)
    return report


def _tokenise(report: Report, facts: Mapping[str, Any]) -> None:
    for i, one in enumerate(facts["tokenise"]):
        grids = {name: read_rows(one[name]) for name in ("input", "output")}
        placement = Placement(one["pad_r"], one["pad_c"])
        for name, grid in grids.items():
            expected = read_tokens(one[f"{name}_seq"])
            tokens = encode(grid, placement, math.isqrt(len(expected)))
            report.add("tokens of a placed grid", f"tokenise {i} {name}", tokens, expected)
            report.same("grid at its placement", f"tokenise {i} {name}", _cut(tokens, placement), one[name])
        if "offset_limits_exclusive" in one:
            side = math.isqrt(len(one["input_seq"]))
            limits = placement_limits(grids["input"].shape, grids["output"].shape, side)
            report.same("limits of a placement", f"tokenise {i}", list(limits), one["offset_limits_exclusive"])


def _dihedral(report: Report, facts: Mapping[str, Any]) -> None:
    golden = facts["dihedral"]
    grid = read_rows(golden["grid"])
    report.same("inverse dihedral elements", "dihedral", list(INVERSE_DIHEDRAL), golden["inverse_tid"])
    for element, (turned, back) in enumerate(zip(golden["transforms"], golden["inverse_of_grid"], strict=True)):
        report.same("dihedral elements", f"element {element}", rows_of(dihedral(grid, element)), turned)
        inverse = dihedral(grid, INVERSE_DIHEDRAL[element])
        report.same("dihedral elements, undone", f"element {element}", rows_of(inverse), back)


def _augmentations(report: Report, facts: Mapping[str, Any]) -> None:
    for one in facts["augmentation"]:
        name, grid = one["name"], read_rows(one["grid"])
        task_id, augmentation = named_augmentation(name)
        report.same("task behind a puzzle name", name, task_id, one["orig_name"])
        report.same("puzzle names", name, puzzle_name(task_id, augmentation), name)
        report.same("augmented grids", name, rows_of(augmentation.apply(grid)), one["augmented"])
        report.same("augmentations undone", name, rows_of(augmentation.inverse().apply(grid)), one["inverse_of_grid"])


def _digests(report: Report, facts: Mapping[str, Any]) -> None:
    for i, one in enumerate(facts["hashes"]["grids"]):
        report.same("grid digests", f"hashes, grid {i}", grid_digest(read_rows(one["grid"])), one["hash"])
    for i, one in enumerate(facts["hashes"]["puzzles"]):
        roles = [tuple(Pair(read_rows(a), read_rows(b)) for a, b in one[role]) for role in ("train", "test")]
        report.same("task digests", f"hashes, puzzle {i}", task_digest(Task("", "", *roles)), one["hash"])


def _cuts(report: Report, facts: Mapping[str, Any]) -> None:
    for one in facts["crop"]:
        grid = decode_golden(one["seq"])
        report.same("grids cut out of predictions", one["note"], [] if grid is None else rows_of(grid), one["grid"])
        # An empty cut is no grid here, so it has no digest either.
        if grid is not None:
            report.same("digests of cut grids", one["note"], grid_digest(grid), one["sha256"])


def decode_golden(text: str) -> Grid | None:
    """The grid that our cutter finds in a sequence of tokens written as text."""
    return decode(read_tokens(text), side=math.isqrt(len(text)))


def _cut(tokens: NDArray[np.uint8], placement: Placement) -> list[str] | None:
    grid = decode(tokens, placement, math.isqrt(len(tokens)))
    return None if grid is None else rows_of(grid)


def rows_of(grid: Grid) -> list[str]:
    """One string of digits a row, as golden files write grids."""
    return ["".join(map(str, row)) for row in grid.tolist()]
