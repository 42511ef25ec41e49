"""What the machine can do, found by doing it, and the table that says so."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from arc_trm.checkpoint import read_export
from arc_trm.config import ModelConfig
from data_prep.files import InputError
from submission import hardware
from submission.hardware import Arithmetic, chosen_precision, own_device, table, try_arithmetic
from submission.plan import TimePlan
from submission.settings import Settings
from submission.submission_file import SubmissionFile
from tests.submission.tiny import make_export, tiny_tasks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_cpu_works_in_float32() -> None:
    found = try_arithmetic(CPU, size=64, repeats=1)
    assert found.works
    assert found.seconds["fp32"] > 0


def test_a_gpu_that_is_not_there_fails_by_trying() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = try_arithmetic(GPU, size=64, repeats=1)
    assert not found.works
    assert set(found.failures) == {"bf16", "fp16", "fp32"}
    assert own_device() == CPU


@pytest.mark.parametrize(("asked", "faster", "chosen"), [
    ("auto", True, "bf16"), ("auto", False, "fp32"), ("fp16", True, "fp16"),
])  # fmt: skip
def test_the_precision_is_the_one_that_training_would_take(
    monkeypatch: pytest.MonkeyPatch, asked: str, faster: bool, chosen: str
) -> None:
    monkeypatch.setattr("arc_trm.device.bf16_is_faster", lambda model: faster)
    assert chosen_precision(Settings(precision=asked), ModelConfig(), Accelerator(cpu=True)) == chosen


def test_wrong_results_are_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hardware._work
    monkeypatch.setattr(hardware, "_work", lambda v: real(v) * (1.5 if v.dtype == torch.bfloat16 else 1))
    found = try_arithmetic(CPU, size=64, repeats=1)
    assert set(found.seconds) == {"fp32"}
    assert "wrong results (off by 50" in found.failures["bf16"]


def test_the_table_is_short_and_names_everything(tmp_path: Path) -> None:
    arithmetic = Arithmetic(CPU, {"fp32": 0.012}, {"bf16": "no such kernel"})
    file = SubmissionFile(tiny_tasks(), tmp_path / "submission.json")
    export = read_export(make_export(tmp_path / "export", trained=tiny_tasks(2)))
    lines = table([arithmetic], file, [export], TimePlan(600), "solving x").splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "mode", "checkpoint", "cpu", "memory", "disk", "challenges", "time", "software",
    ]  # fmt: skip
    assert lines[1].endswith("0.01 million weights, unknown steps on 2 tasks")
    assert lines[2].endswith("fp32 12 ms, bf16 fails (no such kernel)")
    assert lines[5].endswith("3 tasks, 4 outputs, 33% of the tasks with several")
    assert lines[6].endswith("10m00s, 11.0s of them in reserve")


def test_a_device_on_which_nothing_works_gives_way_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "own_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "")
    found = hardware.usable_arithmetic()
    assert [str(arithmetic.device) for arithmetic in found] == ["cpu", "cuda:0"]
    assert found[0].works
    assert not found[1].works
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="no operation works there"):
        hardware.usable_arithmetic()
