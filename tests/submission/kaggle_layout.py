"""Kaggle's folders under a temporary root, and a Python without internet that sees the bundle's wheel alone."""

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.tasks import Task
from submission.package import main as package
from tests.submission.kaggle_image import WITHOUT_THEM
from tests.submission.tiny import make_export, tiny_task, write_challenges, write_solutions

SLUG = "arc-prize-2026-arc-agi-2"
# Where the competition's files and the dataset are mounted: as in 2025, and as in 2026.
LAYOUTS = {
    "2025": (f"input/{SLUG}", "input/arc-trm-bundle"),
    "2026": (f"input/competitions/{SLUG}", "input/datasets/somebody/arc-trm-bundle"),
}
# Run by every Python that starts in the environment below: forbids what Kaggle lacks, and writes down who tries.
LIMITS = """
import os, socket
_connect = socket.socket.connect

def connect(self, address):
    local = self.family == socket.AF_UNIX or str(address[0]).startswith(("127.", "::1", "localhost"))
    if not local:
        with open({log!r}, "a") as log:
            print(address, file=log)
        raise OSError(101, "Network is unreachable")
    return _connect(self, address)

socket.socket.connect = connect
"""


def make_layout(root: Path, layout: str, tasks: Sequence[Task]) -> Path:
    """Mount the competition's files and the bundle of a tiny, untrained export; returns the folder of the files."""
    competition, dataset = (root / place for place in LAYOUTS[layout])
    competition.mkdir(parents=True)
    dataset.parent.mkdir(parents=True, exist_ok=True)
    (root / "working").mkdir()
    rng = np.random.default_rng(11)
    seen, unseen = ([tiny_task(f"{name}{i}", rng, 1 + i % 2) for i in range(3)] for name in ("t", "e"))
    for part, known in (("training", seen), ("evaluation", unseen)):
        write_challenges(competition / f"arc-agi_{part}_challenges.json", known)
        write_solutions(competition / f"arc-agi_{part}_solutions.json", known)
    write_challenges(competition / "arc-agi_test_challenges.json", tasks)
    package(["--checkpoint", str(make_export(root / "run" / "export", seen).parent), "--out", str(dataset)])
    return competition


def make_python(folder: Path) -> Path:
    """A Python that has the packages of this one, but neither this project nor a network; returns its program."""
    venv.create(folder, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Plain paths, so that an editable installation of the project in there does not come along.
    (own / "packages.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    log = str(folder / "network.log")
    # Not as sitecustomize.py: Debian's own Python has one that comes first.
    (own / "kaggle_limits.py").write_text(WITHOUT_THEM + LIMITS.format(log=log))
    (own / "limits.pth").write_text("import kaggle_limits\n")
    kernel = folder / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    python = folder / "bin" / "python"
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": words, "display_name": "Python 3", "language": "python"}))
    return python


def run(python: Path, code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in that Python."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environment}
    return subprocess.run([python, "-c", code], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
