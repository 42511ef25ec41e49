"""What the machine can do, found by doing it, and the table that says so."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from arc_trm.checkpoint import read_export
from arc_trm.config import ModelConfig
from data_prep.files import InputError
from submission.budget import RunClock
from submission.session import chosen_precision, leave_broken_gpu, table
from submission.settings import Settings
from submission.submission_file import SubmissionFile
from tests.submission.tiny import make_export, tiny_tasks


@pytest.mark.parametrize(("asked", "faster", "chosen"), [
    ("auto", True, "bf16"), ("auto", False, "fp32"), ("fp16", True, "fp16"),
])  # fmt: skip
def test_the_precision_is_the_one_that_training_would_take(
    monkeypatch: pytest.MonkeyPatch, asked: str, faster: bool, chosen: str
) -> None:
    monkeypatch.setattr("arc_trm.device.bf16_is_faster", lambda model: faster)
    assert chosen_precision(Settings(precision=asked), ModelConfig(), Accelerator(cpu=True)) == chosen


def test_the_table_is_short_and_names_everything(tmp_path: Path) -> None:
    file = SubmissionFile(tiny_tasks(), tmp_path / "submission.json", facts={"mode": "solving x"})
    export = read_export(make_export(tmp_path / "export", trained=tiny_tasks(2)))
    generated = ("generated {}",)
    export = replace(export, training_tasks=export.training_tasks + generated)
    staged = replace(export, facts=export.facts | {"stages": [{"steps": 7}, {"steps": 5}]})
    lines = table(Accelerator(cpu=True), "bf16", file, [export, staged], Settings(), RunClock(600)).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "mode", "checkpoint", "checkpoint", "recursion", "recursion", "device", "memory", "disk", "challenges", "time",
        "software",
    ]  # fmt: skip
    assert lines[1].endswith("0.01 million weights, unknown steps on 2 tasks")
    assert lines[2].endswith("0.01 million weights, 7 + 5 steps on 2 tasks")
    assert lines[3].endswith(", as trained")
    assert lines[5] == "device      1 process on cpu, bf16"
    assert lines[8].endswith("3 tasks, 4 outputs, 33% of the tasks with several")
    assert lines[9].endswith("10m00s, 11.0s of them in reserve")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_does_not_work_gives_way_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "")
    monkeypatch.setenv("WORLD_SIZE", "1")
    leave_broken_gpu()
    assert os.environ["ACCELERATE_USE_CPU"] == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    leave_broken_gpu()
    assert os.environ["ACCELERATE_USE_CPU"] == "true"
    assert capsys.readouterr().err.startswith("note: cuda:0 is there but does not work (")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="no operation works there"):
        leave_broken_gpu()
