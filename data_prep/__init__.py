"""Grids, tasks, augmentations, canvases and datasets; never imports torch.

Every program imports this package first, so it refuses a Python in which the project cannot run.
"""

import sys
from importlib.util import find_spec

REQUIRED = ("numpy", "orjson", "tqdm", "torch", "safetensors", "accelerate")


def check_python() -> None:
    """Raise ImportError if Python is too old or a required package is missing; a program prints the line and exits."""
    if sys.hexversion < 0x030B0000:
        problem = f"found Python {sys.version.split()[0]}, expected 3.11 or newer"
    elif missing := [name for name in REQUIRED if find_spec(name) is None]:
        names = ", ".join(missing)
        problem = f"{sys.executable} lacks {names}; install the project: `make install`, then .venv/bin/python"
    else:
        return
    if sys.argv[0] != "-m":  # which it is while `python -m` looks for the program
        raise ImportError(problem)
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)


check_python()
