"""torch.compile where the toolchain allows it, eager with one clear line where it does not."""

import importlib.util
import shutil
import sys

import torch
import torch._dynamo
from torch import nn

# A model has one graph for every canvas size, with and without gradient, and one for every batch size of evaluation.
GRAPHS = 64


def missing_toolchain(device: torch.device) -> str | None:
    """What torch.compile lacks for `device`, or None: a C++ compiler on a CPU, Triton on a GPU."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton is not installed"
    compilers = ("g++", "c++", "clang++")
    return None if any(map(shutil.which, compilers)) else "there is no C++ compiler"


def compile_or_explain(model: nn.Module, device: torch.device, backend: str = "inductor") -> nn.Module:
    """`model` compiled with static shapes, a graph per canvas size; itself, with a line on stderr, if it cannot be."""
    lacking = missing_toolchain(device)
    if lacking is not None:
        print(f"note: running without torch.compile: {lacking}", file=sys.stderr)
        return model
    print("note: compiling; the first steps take up to a minute for every canvas size", file=sys.stderr)
    torch._dynamo.config.recompile_limit = GRAPHS
    return torch.compile(model, dynamic=False, fullgraph=True, backend=backend)  # type: ignore[return-value]
