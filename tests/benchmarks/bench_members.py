"""Training steps of the presets beside the published code and the matrix peak: python -m tests.benchmarks members

On a CPU the sizes are those at which the published code was measured on two cores, on a GPU the published batch. The
matrix peak is measured right before each row, with one product of two square matrices in the same precision.
"""

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from arc_trm.config import ModelConfig
from arc_trm.device import PRECISIONS, peak_memory
from arc_trm.layers import swiglu_width
from arc_trm.presets import PRESETS, Overrides, override
from tests.benchmarks.bench_training import GPU, PUBLISHED_BATCH, accelerator, rate, trainer_of, with_batch
from tests.benchmarks.table import Row

# Heads as `arc1-small` has them; how many the published code was measured with is not recorded.
NARROW: Overrides = {"model": {"hidden": 128, "puzzle_width": 128, "heads": 4}}
# Preset, changes, batch on a CPU, and the published code's examples/s there: eager fp32, compiled fp32, eager bf16.
MEMBERS: Sequence[tuple[str, Overrides, int, tuple[float, float, float]]] = (
    ("arc1", {}, 2, (0.38, 0.39, 0.58)),
    ("arc1", NARROW, 16, (2.6, 2.9, 3.6)),
    ("sudoku", {}, 32, (2.8, 3.0, 6.3)),
    ("sudoku", NARROW, 128, (18.5, 20.2, 36.8)),
)


def example_flops(model: ModelConfig) -> int:
    """Multiplications and additions of one example's supervision step, F (n + 1) (T + 2) for TRM.

    F is one forward pass; T - 1 recursions go forward only, the last also backward, which counts twice.
    """
    length, d = model.prefix + model.seq_len, model.hidden
    features = 3 * length * d * swiglu_width(d, model.expansion)
    attention = 4 * length * d**2 + 2 * length**2 * d
    positions = 3 * d * length * swiglu_width(length, model.expansion)
    network = 2 * model.layers * (features + (attention if model.mixer == "attention" else positions))
    return network * (model.latent_steps + 1) * (model.deep_steps + 2)


def matrix_peak(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second in a product of two square matrices, the best of 30."""
    size = 8192 if GPU else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(31):
        start = time.perf_counter()
        (left @ right)[0, 0].item()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times[1:])


def measure(name: str, changes: Overrides, batch: int, precision: str, compiled: bool) -> tuple[float, float, float]:
    """Examples/s, the matrix peak before that in operations/s, and the process's peak memory in GB.

    0 examples/s if the network does not compile here.
    """
    device = accelerator().device
    config = with_batch(override(PRESETS[name], changes), batch, precision)
    peak = matrix_peak(PRECISIONS[precision], device)
    trainer = trainer_of(config)
    if compiled and not trainer.compile():
        return 0.0, peak, peak_memory(device)
    return rate(trainer), peak, peak_memory(device)


def member_rows(name: str, changes: Overrides, batch: int, published: tuple[float, float, float]) -> list[Row]:
    """Fp32 and bf16, eager and compiled, each in a process of its own; ratios to eager fp32."""
    model = override(PRESETS[name], changes).model
    theirs = dict(zip((("fp32", "eager"), ("fp32", "compiled"), ("bf16", "eager")), published, strict=True))
    rows = list[Row]()
    for precision, mode in itertools.product(("fp32", "bf16"), ("eager", "compiled")):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            asked = pool.submit(measure, name, changes, batch, precision, mode == "compiled")
            figure, peak, memory = asked.result()
        note = f"{figure * example_flops(model) / peak:.0%} of {peak / 1e12:.3g} TFLOP/s, {memory:.1f} GB peak"
        if not GPU and (precision, mode) in theirs:
            note += f", published code {theirs[precision, mode]}"
        size = f"hidden {model.hidden}, {model.seq_len} tokens, batch {PUBLISHED_BATCH if GPU else batch}"
        ratio = figure / rows[0].figure if rows else None
        rows.append(Row(f"step {name} {precision} {mode}", size, figure, "examples/s", ratio, note))
    return rows


def run() -> list[Row]:
    """Examples a second of whole training steps."""
    return [row for member in MEMBERS for row in member_rows(*member)]
