"""One process and two do the same: losses, rows, votes, checkpoints; and when one fails, none waits for ever."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from arc_trm import run
from tests.arc_trm.process_runs import CURVES, FACTS, WIDE, everything
from tests.arc_trm.training import losses, snapshot, tiny_trainer
from tests.conftest import HANG, REPOSITORY

Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Where one process and where two have left what they did."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    with subprocess.Popen(
        [*torchrun, "-m", "tests.arc_trm.process_runs", str(two)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launched:
        everything(one, Accelerator(cpu=True))
        said, _ = launched.communicate(timeout=HANG)
    assert launched.returncode == 0, said
    assert (two / "processes").read_text() == "2"
    return one, two


def both(folders: Folders, name: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    one, two = (load_file(folder / f"{name}.safetensors") for folder in folders)
    assert one.keys() == two.keys()
    return one, two


@pytest.mark.parametrize("name", [name for name, (_, _, double) in CURVES.items() if double] + ["arc", "resumed"])
def test_in_float64_everything_is_the_same(folders: Folders, name: str) -> None:
    one, two = both(folders, name)
    for key, tensor in one.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(two[key], tensor, rtol=1e-9, atol=1e-12, msg=key)
        else:
            assert torch.equal(two[key], tensor), key
    assert one["puzzle_table"].dtype == torch.float64
    assert one["puzzle_table"].abs().max() > 0.01


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-4), ("bf16", 2e-2), ("fp16", 2e-2)])
def test_the_loss_curve_is_the_same_to_the_error_of_its_arithmetic(
    folders: Folders, name: str, tolerance: float
) -> None:
    one, two = both(folders, name)
    torch.testing.assert_close(two["curve"], one["curve"], rtol=tolerance, atol=0)


def test_pieces_on_two_processes_are_the_whole_on_one(folders: Folders) -> None:
    torch.testing.assert_close(
        both(folders, "pieces")[1]["puzzle_table"], both(folders, "sizes")[0]["puzzle_table"], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("name", ["full", "windows", "one"])
def test_the_votes_are_the_same_to_the_byte(folders: Folders, name: str) -> None:
    one, two = ((folder / f"{name}.npz").read_bytes() for folder in folders)
    assert one == two


def test_a_run_stopped_and_resumed_by_two_reports_what_one_does_that_was_never_stopped(folders: Folders) -> None:
    trainer = tiny_trainer(WIDE, (3, 5), double=True)
    curve = losses(trainer, 12)
    means = [sum(curve[start : start + 4]) / 4 for start in (0, 4, 8)]
    for folder in folders:
        lines = [orjson.loads(line) for line in (folder / "run" / "metrics.jsonl").read_bytes().splitlines()]
        assert [line["step"] for line in lines] == [4, 8, 12]
        assert [line["train/loss"] for line in lines] == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("writer", [0, 1])
def test_a_checkpoint_of_either_is_resumed_by_one(folders: Folders, writer: int) -> None:
    trainer = tiny_trainer(WIDE, (3, 5), double=True)
    out = folders[writer] / "run"
    assert run.begin(trainer, run.Start(out, resume=True), FACTS["data_digest"]) == "resuming at step 12"
    ended = tiny_trainer(WIDE, (3, 5), double=True)
    losses(ended, 12)
    mine, theirs = snapshot(trainer)[0], snapshot(ended)[0]
    different = [n for n in mine if not torch.allclose(mine[n].double(), theirs[n].double(), rtol=1e-9, atol=1e-12)]
    assert not [name for name in different if not name.startswith("metric")]
