"""No file in arc_trm/ may carry the name of a module that something else means to import.

`accelerate launch arc_trm/train.py` puts arc_trm/ itself first on sys.path: a file types.py in it would be
what every library gets that says `import types`.
"""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.test_project import canonical, pins


def dependency_modules() -> set[str]:
    """Top-level module names of all the distributions that constraints.txt pins."""
    pinned = set(pins((REPOSITORY / "constraints.txt").read_text(encoding="utf-8")))
    return {
        module
        for module, distributions in packages_distributions().items()
        if pinned & {canonical(name) for name in distributions}
    }


def shadowing_names(folder: Path) -> list[str]:
    """Files and packages directly in `folder` that would hide a standard module, a dependency or a room."""
    rooms = {"arc_trm", "data_prep", "submission", "tests"}
    taken = set(sys.stdlib_module_names) | dependency_modules() | rooms
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}
    return sorted((modules - {"__init__", "__main__"}) & taken)


def test_no_module_of_arc_trm_shadows_another() -> None:
    assert shadowing_names(REPOSITORY / "arc_trm") == []


@pytest.mark.parametrize("name", ["types", "random", "logging", "torch", "numpy", "yaml", "tqdm", "data_prep"])
def test_a_planted_name_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").touch()
    (tmp_path / "supervision.py").touch()
    (tmp_path / "__init__.py").touch()
    assert shadowing_names(tmp_path) == [name]


def test_a_planted_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "__init__.py").touch()
    assert shadowing_names(tmp_path) == ["queue"]
