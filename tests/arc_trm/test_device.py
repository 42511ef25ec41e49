"""What a process sets up: Accelerate, and how it keeps its memory."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from arc_trm.device import make_accelerator, peak_memory
from data_prep.files import InputError

# Fills and frees 64 MB twice; prints how many new pages the second time took.
PROGRAM = """
import resource, sys
from arc_trm.device import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    bytearray(2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = fill()
print(fill() - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_used_again_without_the_system() -> None:
    def new_pages(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
        return int(done.stdout)

    assert new_pages("keep") < 100
    assert new_pages("return") > 1000


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


def test_processes_that_do_not_hold_the_whole_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(InputError, match=r"Accelerate's configuration: found FSDP, expected processes alone"):
        make_accelerator("none", tmp_path)
