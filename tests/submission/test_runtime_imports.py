"""What runs on Kaggle can be imported where the packages that Kaggle may lack are absent."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.submission.kaggle_layout import BLOCKED

BLOCK = f"""
import importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec.__func__
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None:
        None if name.split(".")[0] in {BLOCKED!r} else find(cls, name, path, target)
)
"""
RUNTIME = (
    "submission.launch",
    "submission.likelihood",
    "submission.predict",
    "submission.score",
    "submission.session",
    "submission.solve",
)


def import_blocked(*modules: str) -> subprocess.CompletedProcess[str]:
    code = f"{BLOCK}\nfor name in {modules}: __import__(name)\nprint(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_submission_needs_none_of_them() -> None:
    ran = import_blocked(*RUNTIME)
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert {"torch", *RUNTIME} <= loaded
    assert not loaded & set(BLOCKED)


@pytest.mark.parametrize("module", ["tyro", "arc_trm.train"])
def test_the_block_blocks(module: str) -> None:
    assert "No module named 'tyro'" in import_blocked(module).stderr
