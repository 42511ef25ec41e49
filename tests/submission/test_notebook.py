"""The notebook runs as it is, offline, from the bundle alone, under both layouts, as rehearsal and as rerun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from submission.package import NOTEBOOK
from submission.submission_file import read_submission
from tests.conftest import ENDLESS, HANG, REPOSITORY
from tests.submission.kaggle_layout import make_layout, make_python, run
from tests.submission.tiny import assert_valid, tiny_tasks

PATH = REPOSITORY / "notebooks" / NOTEBOOK
BUDGETS = f"--time-budget {ENDLESS} --rehearsal-budget {ENDLESS}"
QUICKLY = "--model.deep-steps 1 --halting.max-supervision-steps 2 --train.no-compile"
OPTIONS = f"{BUDGETS} --rehearsal-tasks 3 --augmentations 6 --train.batch-size 4 --train.steps 3 {QUICKLY}"


def cells() -> list[dict[str, Any]]:
    return json.loads(PATH.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_is_short_and_clean() -> None:
    assert len(cells()) <= 5
    for cell in cells():
        assert len(cell["source"]) <= 12
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_notebook_calls_and_does_not_decide() -> None:
    words = {word for cell in cells() if cell["cell_type"] == "code" for word in "".join(cell["source"]).split()}
    assert not words & {"if", "for", "while", "def", "class", "try:", "lambda"}


# Run in another process, because a client of Jupyter leaves sockets open.
EXECUTE = f"""
import sys, nbformat, nbclient
path, folder, executed = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
try:
    nbclient.NotebookClient(notebook, timeout={HANG}, resources={{"metadata": {{"path": folder}}}}).execute()
finally:
    nbformat.write(notebook, executed)
"""


def execute(root: Path, python: Path, **environment: str) -> str:
    """Run the bundle's notebook with that Python in ROOT/working; returns what it printed."""
    [path] = (root / "input").rglob(NOTEBOOK)
    words = [sys.executable, "-W", "ignore", "-c", EXECUTE, path, root / "working", root / "executed.ipynb"]
    kept = ("PATH", "LANG", "TMPDIR", "OMP_NUM_THREADS")
    clean = {name: os.environ[name] for name in kept if name in os.environ}
    clean |= {"HOME": str(root), "JUPYTER_PATH": str(python.parents[1] / "share" / "jupyter")}
    clean |= {"ARC_TRM_KAGGLE_ROOT": str(root), "ARC_TRM_OPTIONS": OPTIONS, **environment}
    ran = subprocess.run(words, env=clean, capture_output=True, text=True, check=False, timeout=HANG)
    assert ran.returncode == 0, ran.stderr
    executed = json.loads((root / "executed.ipynb").read_text(encoding="utf-8"))
    outputs = (output for cell in executed["cells"] for output in cell.get("outputs", []))
    # What a cell prints, and its value as the notebook shows it.
    shown = (output.get("text") or output["data"].get("text/html", "") for output in outputs)
    return "".join("".join(text) for text in shown)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "rerun"), [("2025", False), ("2026", True)])
def test_the_notebook_runs(tmp_path: Path, layout: str, rerun: bool) -> None:
    tasks = tiny_tasks(3)
    make_layout(tmp_path, layout, tasks)
    python = make_python(tmp_path / "python")
    printed = execute(tmp_path, python, **({"KAGGLE_IS_COMPETITION_RERUN": "1"} if rerun else {}))
    out = tmp_path / "working" / "submission.json"
    assert_valid(out, tasks)
    assert "valid, 3 tasks, 4 outputs" in printed
    summary = orjson.loads(out.with_name("submission.summary.json").read_bytes())
    assert summary["votes"] > 0, printed
    assert summary["troubles"] == []
    assert ("not the rerun" in printed) != rerun
    rehearsal = tmp_path / "working" / "rehearsal" / "submission.json"
    assert rehearsal.exists() != rerun
    if not rerun:
        # Those of the evaluation set; the export knows the training set.
        assert set(read_submission(rehearsal)) == {"e0", "e1", "e2"}
        assert "none of its test outputs was a training label of the checkpoint" in printed
        score, page = printed.index("outputs    "), printed.index("<iframe sandbox")
        assert printed.index("plan      ") < printed.index("plan / fact: ") < score < page
    else:
        assert printed.endswith("<p>There is no report.html.</p>")
    assert (tmp_path / "working" / "bundle.json").is_file()
    assert not (python.parents[1] / "network.log").exists()


def test_the_python_of_these_tests_has_no_project_and_no_network(tmp_path: Path) -> None:
    python = make_python(tmp_path / "python")
    missing = run(python, "import submission", tmp_path)
    assert "No module named 'submission'" in missing.stderr
    assert "No module named 'tyro'" in run(python, "import tyro", tmp_path).stderr
    # Torch is not imported here, which takes seconds: the notebook above does it.
    found = "import orjson; from importlib.util import find_spec; assert find_spec('torch')"
    assert run(python, found, tmp_path).returncode == 0
    refused = run(python, "import socket; socket.create_connection(('192.0.2.1', 80), 5)", tmp_path)
    assert "Network is unreachable" in refused.stderr
    assert "192.0.2.1" in (tmp_path / "python" / "network.log").read_text()
