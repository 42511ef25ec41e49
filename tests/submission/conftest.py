"""What the tests of solving have in common."""

import pytest

from submission import hardware
from tests.submission.tiny import SMALL_ARITHMETIC


@pytest.fixture(autouse=True)
def small_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests solve, and each would first try what the machine can do."""
    monkeypatch.setattr(hardware, "try_arithmetic", SMALL_ARITHMETIC)
