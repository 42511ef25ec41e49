"""One process, two and four do the same: losses, rows, votes, checkpoints; when one fails, none waits for ever."""

from pathlib import Path

import orjson
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from arc_trm import run
from tests.arc_trm.process_runs import CURVES, FACTS, WIDE, everything
from tests.arc_trm.training import losses, snapshot, tiny_trainer
from tests.conftest import run_module

Folders = dict[int, Path]
SEVERAL = (2, 4)
pytestmark = pytest.mark.slow  # all of them, so that they stay together and share what is made once


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Where one process and where several have left what they did."""
    places = {count: tmp_path_factory.mktemp(f"processes{count}") for count in (1, *SEVERAL)}
    everything(places[1], Accelerator(cpu=True))
    for count in SEVERAL:
        launched = run_module("tests.several_processes", str(count), "tests.arc_trm.process_runs", str(places[count]))
        assert launched.returncode == 0, launched.stdout + launched.stderr
        assert (places[count] / "processes").read_text() == str(count)
    return places


def both(folders: Folders, name: str, count: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What one process has left, and what several have."""
    one, several = (load_file(folders[number] / f"{name}.safetensors") for number in (1, count))
    assert one.keys() == several.keys()
    return one, several


@pytest.mark.parametrize("name", [name for name, (_, _, double) in CURVES.items() if double] + ["arc", "resumed"])
@pytest.mark.parametrize("count", SEVERAL)
def test_in_float64_everything_is_the_same(folders: Folders, name: str, count: int) -> None:
    one, two = both(folders, name, count)
    for key, tensor in one.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(two[key], tensor, rtol=1e-9, atol=1e-12, msg=key)
        else:
            assert torch.equal(two[key], tensor), key
    assert one["puzzle_table"].dtype == torch.float64
    assert one["puzzle_table"].abs().max() > 0.01


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-4), ("bf16", 2e-2), ("fp16", 2e-2)])
@pytest.mark.parametrize("count", SEVERAL)
def test_the_loss_curve_is_the_same_to_the_error_of_its_arithmetic(
    folders: Folders, name: str, tolerance: float, count: int
) -> None:
    one, two = both(folders, name, count)
    torch.testing.assert_close(two["curve"], one["curve"], rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", ["pieces", "compiled"])
@pytest.mark.parametrize("count", SEVERAL)
def test_pieces_and_compiled_on_several_processes_are_the_whole_on_one(folders: Folders, name: str, count: int) -> None:
    found, expected = both(folders, name, count)[1], both(folders, "sizes", count)[0]
    for tensor in ("puzzle_table", "curve"):
        torch.testing.assert_close(found[tensor], expected[tensor], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["full", "windows", "one"])
def test_the_votes_are_the_same_to_the_byte(folders: Folders, name: str) -> None:
    assert len({(folder / f"{name}.npz").read_bytes() for folder in folders.values()}) == 1


def test_a_run_stopped_and_resumed_by_two_reports_what_one_does_that_was_never_stopped(folders: Folders) -> None:
    trainer = tiny_trainer(WIDE, (3, 5), double=True)
    curve = losses(trainer, 12)
    means = [sum(curve[start : start + 4]) / 4 for start in (0, 4, 8)]
    for folder in folders.values():
        lines = [orjson.loads(line) for line in (folder / "run" / "metrics.jsonl").read_bytes().splitlines()]
        assert [line["step"] for line in lines] == [4, 8, 12]
        assert [line["train/loss"] for line in lines] == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("writer", [1, *SEVERAL])
def test_a_checkpoint_of_any_is_resumed_by_one(folders: Folders, writer: int) -> None:
    trainer = tiny_trainer(WIDE, (3, 5), double=True)
    out = folders[writer] / "run"
    assert run.begin(trainer, run.Start(out, resume=True), FACTS) == "resuming at step 12"
    ended = tiny_trainer(WIDE, (3, 5), double=True)
    losses(ended, 12)
    mine, theirs = snapshot(trainer)[0], snapshot(ended)[0]
    different = [n for n in mine if not torch.allclose(mine[n].double(), theirs[n].double(), rtol=1e-9, atol=1e-12)]
    assert not [name for name in different if not name.startswith("metric")]
