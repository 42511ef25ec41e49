"""Fixtures shared by the whole suite."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


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
