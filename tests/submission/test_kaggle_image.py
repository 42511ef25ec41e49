"""A submission needs nothing that Kaggle's image lacks: neither a package, nor another version, nor newer syntax.

These tests read the sources; test_solve_processes solves in a Python that lacks the same.
"""

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import REPOSITORY
from tests.submission.kaggle_image import (
    IMAGE,
    PACKAGES,
    PROGRAMS,
    Import,
    outside_imports,
    problems,
    source_file,
)
from tests.test_project import requirements, text_of

PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]


def test_a_submission_needs_what_the_image_has() -> None:
    found = outside_imports(REPOSITORY)
    assert problems(found, requirements(PROJECT)) == []
    assert {"torch", "numpy", "accelerate", "orjson", "safetensors", "tqdm"} <= {item.name for item in found}


def test_torch_brings_jinja2() -> None:
    assert any(re.fullmatch(r"jinja2\b[^;]*", wanted) for wanted in importlib.metadata.requires("torch") or ())


def test_the_image_is_what_the_project_admits() -> None:
    ranges = {**requirements(PROJECT), "python": PROJECT["requires-python"]}
    refused = [name for name, present in IMAGE.items() if not SpecifierSet(ranges[name]).contains(present)]
    assert refused == []


def write_project(root: Path, **files: str) -> Path:
    for package_name in PACKAGES:
        (root / package_name).mkdir()
        (root / package_name / "__init__.py").touch()
    for program in PROGRAMS:
        root.joinpath(*program.split(".")).with_suffix(".py").touch()
    for name, text in files.items():
        root.joinpath(*name.split("__")).with_suffix(".py").write_text(text)
    return root


@pytest.mark.parametrize(
    "source",
    [
        "import rich.console",
        "from rich import print",
        "try:\n    import rich\nexcept ImportError:\n    rich = None",
        "class A:\n    import rich",
        "def f():\n    import rich",
        "def f():\n    class A:\n        import rich",
        "async def f():\n    from rich.x import y",
    ],
)
def test_a_package_that_kaggle_lacks_is_found(tmp_path: Path, source: str) -> None:
    root = write_project(tmp_path, submission__solve="from arc_trm import deep", arc_trm__deep=source)
    assert outside_imports(root) == [Import("rich", "arc_trm.deep")]
    assert problems(outside_imports(root), {}) == ["arc_trm.deep: imports rich, which Kaggle's image lacks"]


def test_what_is_only_for_type_checkers_or_out_of_reach_does_not_count(tmp_path: Path) -> None:
    checked = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich\nelse:\n    import tqdm"
    root = write_project(tmp_path, submission__solve=checked, submission__show="import rich")
    assert [item.name for item in outside_imports(root)] == ["tqdm"]


def test_a_package_of_another_version_is_found() -> None:
    [line] = problems([Import("torch", "arc_trm.x")], {"torch": ">=2.11,<3"})
    assert line == f"arc_trm.x: needs torch >=2.11,<3, Kaggle's image has {IMAGE['torch']}"


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no module submission.launch in"):
        outside_imports(tmp_path, ["submission.launch"])


def test_every_source_is_python_of_the_image() -> None:
    """No syntax newer than the oldest Python that the project promises."""
    paths = [path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py")]
    assert len(paths) > 50
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 11))


def test_modules_are_found_by_name() -> None:
    assert source_file(REPOSITORY, "submission") == REPOSITORY / "submission" / "__init__.py"
    assert source_file(REPOSITORY, "submission.solve") == REPOSITORY / "submission" / "solve.py"
    assert source_file(REPOSITORY, "submission.solve.main") is None
