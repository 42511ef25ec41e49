"""Memory and size of importing a published ARC-2 checkpoint at full size: python -m tests.benchmarks import

The file has the names, shapes and types of the published code's weights (n = 4, T = 3, hidden 512, 876,406 puzzles):
1.8 GB, of which only the mean of the table may enter an export. It is imported by the program in a process of its own,
whose peak includes torch, and packed. Fails if import takes over 1.5 GB of memory, or if the bundle has over 40 MB.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from arc_trm.model import RecursiveModel
from arc_trm.presets import preset
from arc_trm.published import KEY_PREFIXES, PUZZLE_TABLE, to_published
from submission import package
from tests.benchmarks.table import Row

PUZZLES = 876_406
MOST_MEMORY, MOST_PACKED = 1.5e9, 40e6  # bytes


def write_published(path: Path) -> None:
    """Write random weights as the published code does: the states that start a recursion in bfloat16, the rest in
    float32, under the names of the compiled loss head.
    """
    model = preset("arc2").model
    assert (model.latent_steps, model.deep_steps, model.hidden) == (4, 3, 512)
    tensors = to_published(model, RecursiveModel(model).state_dict())
    tensors |= {name: tensor.bfloat16() for name, tensor in tensors.items() if name.endswith("_init")}
    tensors[PUZZLE_TABLE] = torch.zeros(PUZZLES, model.puzzle_width)
    torch.save({KEY_PREFIXES[0] + name: tensor.detach() for name, tensor in tensors.items()}, path)


def run() -> list[Row]:
    """Import without --no-table and pack; the peak of memory and the size of the bundle."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own, because a child inherits the peak of its parent.
        writer = multiprocessing.get_context("spawn").Process(target=write_published, args=(folder / "step",))
        writer.start()
        writer.join()
        words = ["import", str(folder / "step"), "arc2", "--out", str(folder / "export")]
        program = subprocess.Popen([sys.executable, "-m", "arc_trm.published", *words], text=True)
        _, status, usage = os.wait4(program.pid, 0)
        peak = usage.ru_maxrss * 1024
        package.main(["--checkpoint", str(folder / "export"), "--out", str(folder / "bundle")])
        packed = sum(path.stat().st_size for path in (folder / "bundle").iterdir())
        size = (folder / "step").stat().st_size
    if status or peak > MOST_MEMORY or packed > MOST_PACKED:
        raise RuntimeError(f"status {status}, {peak / 1e9:.2f} GB of memory, {packed / 1e6:.1f} MB packed")
    note = f"of a file of {size / 1e9:.2f} GB"
    return [
        Row("import, peak memory", f"{PUZZLES:,} puzzles", peak / 1e9, "GB", None, note),
        Row("bundle of it", f"{PUZZLES:,} puzzles", packed / 1e6, "MB", None, note),
    ]
