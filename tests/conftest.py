"""Fixtures and settings shared by the whole suite: `make test`, or `python -m pytest tests/test_x.py -n 0`."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from data_prep import progress

# Two test workers share two cores, and a sum in one order gives the same digits wherever the suite runs. Set
# before anything imports torch, and inherited by the programs that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Examples are the same in every run and have no time limit: a test must not fail because a machine is busy.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# More and other examples, when looking for trouble: HYPOTHESIS_PROFILE=search make test
hypothesis.settings.register_profile(
    "search",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

REPOSITORY = Path(__file__).resolve().parents[1]
# Seconds after which a program or a thread that is waited for counts as hanging. No test waits for a time to pass, and
# none fails because a machine is slow.
HANG = 3600.0
# A time budget for runs that other limits end: no machine needs so long.
ENDLESS = "24h"


@dataclass
class Clock:
    """Time passes only where the tests say so."""

    time: float

    def __call__(self) -> float:
        return self.time


def run_module(*words: str) -> "subprocess.CompletedProcess[str]":
    """`python -m` with these words, in the repository."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG, check=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: a worker that has nothing left takes over from the end, where only short ones are."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one, for tests that flush hundreds of small files."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="quick.") as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system takes more rights than these tests have")
    yield place
    # Lazily, since tensors that were read are maps of their files for as long as anything holds them.
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(autouse=True)
def no_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program prints must not depend on how long the suite has run; test_progress has a clock of its own."""
    monkeypatch.setattr(progress, "_last_line", math.inf)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of published facts beside the repository; tests that need it skip where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "golden").is_dir():
        pytest.skip("the folder ../shared with golden numbers and ConceptARC is not on this machine")
    return folder


@pytest.fixture(scope="session")
def conceptarc_dir(shared_dir: Path) -> Path:
    """ConceptARC's corpus folder (160 task files)."""
    folder = shared_dir / "data" / "ConceptARC" / "corpus"
    if not folder.is_dir():
        pytest.skip("ConceptARC is not on this machine")
    return folder
