"""What a process sets up: Accelerate, and how it keeps its memory."""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from arc_trm import device
from arc_trm.config import ModelConfig
from arc_trm.device import bf16_is_faster, make_accelerator, peak_memory, resolve_precision
from data_prep.files import InputError
from submission.budget import COMPILE_LIMIT

# Fills and frees 64 MB twice, as it is and then with freed memory kept; prints how many new pages the second time took.
PROGRAM = """
import resource
from arc_trm.device import keep_freed_memory

def fill():
    bytearray(2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def new_pages():
    first = fill()
    return fill() - first

print(new_pages())
assert keep_freed_memory()
print(new_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_used_again_without_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    returned, kept = map(int, done.stdout.split())
    assert returned > 1000
    assert kept < 100


def test_the_peak_is_of_this_process_and_never_falls() -> None:
    before = peak_memory(torch.device("cpu"))
    tensor = torch.ones(2**24)
    during = peak_memory(torch.device("cpu"))
    del tensor
    assert 0.05 < before <= during
    assert peak_memory(torch.device("cpu")) >= during


def test_the_users_configuration_does_not_choose_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    for state in (AcceleratorState, PartialState):
        state._reset_state()
    accelerator = make_accelerator("none", tmp_path)
    assert accelerator.mixed_precision == "no"


def test_processes_wait_for_one_that_compiles(tmp_path: Path) -> None:
    handler = make_accelerator("none", tmp_path).init_handler
    assert handler is not None
    assert handler.timeout == device.PATIENCE > timedelta(seconds=COMPILE_LIMIT)


@pytest.mark.parametrize("said", [
    "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "[enforce fail at ...] can't allocate memory",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
])  # fmt: skip
def test_a_lack_of_memory_is_known_by_what_libraries_say_too(said: str) -> None:
    assert device.out_of_memory(RuntimeError(said))
    assert not device.out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_processes_that_do_not_hold_the_whole_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(InputError, match=r"Accelerate's configuration: found FSDP, expected processes alone"):
        make_accelerator("none", tmp_path)


# A GPU that is there -----------------------------------------------------------------------------------------------


@pytest.fixture
def second_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs are counted and this process has the second, but this torch has no kernels for them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")


@pytest.mark.usefixtures("second_gpu")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has kernels for GPUs")
def test_a_gpu_that_does_not_work_ends_in_one_line_that_says_how_to_use_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as refusal:
        make_accelerator("none", tmp_path)
    said = "cuda:1 is there but does not work (Torch not compiled with CUDA enabled); ACCELERATE_USE_CPU=true makes"
    assert str(refusal.value).startswith(said)
    monkeypatch.delenv("LOCAL_RANK")  # of the process group that nobody starts here
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert make_accelerator("none", tmp_path).device.type == "cpu"


@pytest.mark.usefixtures("second_gpu")
def test_a_gpu_that_computes_wrongly_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.ones
    monkeypatch.setattr(device.torch, "ones", lambda *shape, device: real(*shape) * 2)
    with pytest.raises(InputError, match=r"cuda:1 is there but does not work \(it multiplies wrongly\)"):
        make_accelerator("none", tmp_path)


# Arithmetic ----------------------------------------------------------------------------------------------------------

MODEL = ModelConfig(hidden=16, heads=2, seq_len=9, prefix=2, puzzle_width=3, layers=1)


@pytest.mark.parametrize(
    ("product", "network", "faster"),
    [((1.0, 1.0), (0.7, 1.0), True), ((1.0, 1.0), (0.9, 1.0), False), ((90.0, 1.0), (0.1, 1.0), False)],
    ids=["faster", "hardly faster", "emulated"],
)
@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_a_cpu_takes_bf16_where_the_models_own_work_is_faster_in_it(
    monkeypatch: pytest.MonkeyPatch,
    mixer: str,
    product: tuple[float, float],
    network: tuple[float, float],
    faster: bool,
) -> None:
    seconds = iter((*product, *network))

    def timed(work: Callable[[], object]) -> float:
        work()
        return next(seconds)

    monkeypatch.setattr(device, "best_seconds", timed)
    bf16_is_faster.cache_clear()
    accelerator = Accelerator(cpu=True)
    expected = torch.bfloat16 if faster else torch.float32
    model = replace(MODEL, mixer=mixer)  # type: ignore[arg-type]
    assert resolve_precision("auto", model, accelerator) == expected
    assert resolve_precision("auto", model, accelerator) == expected, "measured once"
    assert resolve_precision("fp16", model, accelerator) == torch.float16
    bf16_is_faster.cache_clear()


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), torch.bfloat16), ((7, 5), torch.float16)])
def test_a_gpu_has_bf16_from_compute_capability_8(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = cast(Accelerator, SimpleNamespace(device=torch.device("cuda"), num_processes=2))
    assert resolve_precision("auto", MODEL, gpu) == dtype


LEAVING = """
import os, sys
from pathlib import Path
from arc_trm.device import make_accelerator
accelerator = make_accelerator("none", Path())
import torch._dynamo  # as the first step of an optimiser does
accelerator.wait_for_everyone()
threads = lambda: {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")}
before = threads()
accelerator.end_training()
print(*sorted(before), "|", *sorted(threads()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the names of threads from /proc")
def test_no_thread_of_the_process_group_is_left_when_training_has_ended() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVING],
            env=os.environ | group | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for process in processes:
        before, after = process.communicate()[0].split("|")
        assert process.returncode == 0
        assert "gloo" in before
        assert "gloo" not in after
