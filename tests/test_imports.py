"""Imports only go left: data_prep <- arc_trm <- submission <- notebooks."""

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

ROOMS = ("data_prep", "arc_trm", "submission", "notebooks")
# Voting and scoring need no tensors: a submission is scored in a blink, and on any machine.
# Nor does pushing, and Kaggle's client is loaded only where it is used.
TORCH_FREE = ("arc_trm.vote", "submission.attempts", "submission.score", "submission.kaggle")
# What a room must not know, and why: data_prep describes grids without tensors; only the training program
# has tyro, so that a submission runs with what Kaggle's image has.
FORBIDDEN = {"data_prep": ("torch", "accelerate", "tyro"), "submission": ("tyro",)}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports, also inside functions or by import_module("…"); "." when relative.

    `from package import name` yields "package.name" as well, because the name may be a module.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=level) if level > 0:
                yield "."
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether `module` is one of the packages or lies inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def violations(path: str, source: str) -> list[str]:
    """One line for every import in the file at `path` (relative to the repository) that points right."""
    room = path.split("/")[0]
    right = (*ROOMS[ROOMS.index(room) + 1 :], "notebooks", "tests")
    found = []
    for module in sorted(set(imported_modules(ast.parse(source, path)))):
        if module == ".":
            found.append(f"{path}: a relative import; name the package")
        elif within(module, right):
            found.append(f"{path}: {room} imports {module}")
        elif within(module, FORBIDDEN.get(room, ())):
            found.append(f"{path}: {room} must not know {module}")
    return found


def notebook_source(path: Path) -> str:
    """The code cells of a notebook as one program, without lines that only Jupyter understands."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code").split("\n")
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    """(path relative to the repository, code) of every program file and notebook in the four rooms."""
    for room in ROOMS:
        for path in sorted((repository / room).rglob("*.py")):
            yield path.relative_to(repository).as_posix(), path.read_text(encoding="utf-8")
        for path in sorted((repository / room).rglob("*.ipynb")):
            yield path.relative_to(repository).as_posix(), notebook_source(path)


def all_violations(repository: Path) -> list[str]:
    return [line for path, source in sources(repository) for line in violations(path, source)]


def test_no_import_points_right() -> None:
    assert all_violations(REPOSITORY) == []


def sorted_modules(sources: Iterable[tuple[str, str]]) -> list[str]:
    """The modules, each after all that it imports; raises CycleError where imports, also late ones, go in a circle."""
    trees = {path.removesuffix(".py").replace("/", "."): ast.parse(code) for path, code in sources}
    graph = {
        name: [other for other in trees if other != name and any(within(m, (other,)) for m in imported_modules(tree))]
        for name, tree in trees.items()
    }
    return list(graphlib.TopologicalSorter(graph).static_order())


def test_imports_do_not_go_in_circles() -> None:
    assert len(sorted_modules(sources(REPOSITORY))) > 50


def test_a_circle_inside_functions_is_found() -> None:
    circle = [("a/b.py", "from a import c"), ("a/c.py", "def late():\n    from a.b import name")]
    with pytest.raises(graphlib.CycleError):
        sorted_modules(circle)


def test_all_rooms_are_looked_at() -> None:
    seen = {path.split("/")[0] for path, _ in sources(REPOSITORY)}
    assert {"data_prep", "arc_trm", "submission"} <= seen


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("data_prep/x.py", "import arc_trm.model", "data_prep imports arc_trm.model"),
        ("data_prep/x.py", "from submission import score", "data_prep imports submission.score"),
        ("data_prep/x.py", "def f():\n    import torch.nn", "data_prep must not know torch.nn"),
        ("arc_trm/x.py", "from submission.score import main", "arc_trm imports submission.score.main"),
        ("arc_trm/x.py", "if x:\n    import submission", "arc_trm imports submission"),
        ("arc_trm/train.py", "import submission.solve", "arc_trm imports submission.solve"),
        ("arc_trm/published.py", "import tests.golden.models", "arc_trm imports tests.golden.models"),
        ("submission/x.py", "from notebooks import cells", "submission imports notebooks.cells"),
        ("submission/x.py", "from tests.conftest import X", "submission imports tests.conftest.X"),
        ("submission/x.py", "import tyro", "submission must not know tyro"),
        ("data_prep/x.py", "from . import grid", "a relative import"),
        ("data_prep/x.py", "importlib.import_module('arc_trm')", "data_prep imports arc_trm"),
        ("data_prep/x.py", "__import__('torch')", "data_prep must not know torch"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, source: str, expected: str) -> None:
    planted = tmp_path / path
    planted.parent.mkdir()
    planted.write_text(source)
    [line] = all_violations(tmp_path)
    assert line.startswith(f"{path}: {expected}")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("submission/x.py", "import arc_trm.model, data_prep.grid, torch"),
        ("arc_trm/x.py", "from data_prep import grid\nimport torch, tyro, submissions"),
    ],
)
def test_an_allowed_import_is_not_found(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_a_planted_violation_in_a_notebook_is_found(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["import tests"]},
        {"cell_type": "code", "source": ["%pip install x\n", "import submission\n", "import tests.conftest"]},
    ]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "x.ipynb").write_text(json.dumps({"cells": cells}))
    assert all_violations(tmp_path) == ["notebooks/x.ipynb: notebooks imports tests.conftest"]


def modules_loaded_by(modules: list[str], path: Path) -> set[str]:
    """The names of all modules loaded once a fresh interpreter in folder `path` has imported `modules`."""
    code = f"import sys\nfor name in {modules}: __import__(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize("module", TORCH_FREE)
def test_voting_and_scoring_load_no_torch(module: str) -> None:
    assert not {"torch", "accelerate", "kaggle"} & modules_loaded_by([module], REPOSITORY)


def test_data_prep_loads_no_torch() -> None:
    modules = [f"data_prep.{path.stem}" for path in sorted((REPOSITORY / "data_prep").glob("[!_]*.py"))]
    assert not {"torch", "accelerate"} & modules_loaded_by(modules, REPOSITORY)


def test_a_planted_import_of_torch_is_seen(tmp_path: Path) -> None:
    (tmp_path / "innocent.py").write_text("import culprit")
    (tmp_path / "culprit.py").write_text("import torch")
    (tmp_path / "torch.py").write_text("")
    assert "torch" in modules_loaded_by(["innocent"], tmp_path)
