"""What a Kaggle notebook finds: files, by what they contain, for /kaggle/input has had two layouts; and the rerun."""

import os
from collections.abc import Iterator
from pathlib import Path

from data_prep.files import InputError, read_json

KAGGLE_INPUT = Path("/kaggle/input")
# Folders of a layout: /kaggle/input/competitions/<slug>/file, /kaggle/input/datasets/<owner>/<slug>/folder/file.
DEPTH = 6
RERUN_VARIABLE = "KAGGLE_IS_COMPETITION_RERUN"


def is_rerun() -> bool:
    """Whether this is the competition's scored rerun, on the hidden tasks."""
    return bool(os.environ.get(RERUN_VARIABLE))


def find_challenges(root: Path, name: str = "arc-agi_test_challenges.json") -> Path:
    """The file of challenges to solve below `root`; raises InputError unless there is just one."""
    return _only(list(_files(root, name)), root, name, "--challenges")


def find_export(root: Path) -> Path:
    """The folder of an exported checkpoint below `root`; raises InputError unless there is just one."""
    found = []
    for path in _files(root, "export.json"):
        value = read_json(path)
        if isinstance(value, dict) and value.get("format") == "arc-trm-export":
            found.append(path.parent)
    return _only(found, root, "export.json of a checkpoint", "--checkpoint")


def find_solved(root: Path) -> list[tuple[Path, Path]]:
    """Pairs of challenges and their solutions below `root`, the evaluation set first."""
    pairs = []
    for part in ("evaluation", "training"):
        for challenges in _files(root, f"arc-agi_{part}_challenges.json"):
            solutions = challenges.with_name(f"arc-agi_{part}_solutions.json")
            if solutions.is_file():
                pairs.append((challenges, solutions))
    return pairs


def _files(root: Path, name: str) -> Iterator[Path]:
    """Files of that name at most DEPTH folders below `root`, in sorted order."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        if len(Path(folder).relative_to(root).parts) >= DEPTH:
            folders.clear()
        if name in files:
            yield Path(folder, name)


def _only(found: list[Path], root: Path, what: str, option: str) -> Path:
    if len(found) != 1:
        places = ", ".join(map(str, found[:3])) or "none"
        raise InputError(f"{option} is not given, and {root} should hold one {what}: found {places}")
    return found[0]
