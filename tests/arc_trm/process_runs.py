"""What any number of processes must do alike: python -m tests.several_processes 2 tests.arc_trm.process_runs FOLDER

The tests do the same in one process and compare. Everything shares one launch, because starting processes takes longer
than all of it.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch._dynamo.utils import counters

from arc_trm import run
from arc_trm.batches import arc_data
from arc_trm.config import RunConfig
from arc_trm.metrics import MetricLog
from arc_trm.predict import Voter, outputs_of_store
from arc_trm.sampler import evaluation_rows
from arc_trm.trainer import NonFiniteLoss, Trainer, UnequalReplicas
from arc_trm.vote import Tally
from data_prep.files import InputError
from tests.arc_trm.arc_stores import mixed_store
from tests.arc_trm.training import (
    TINY,
    in_pieces,
    lively_model,
    losses,
    step_clock,
    tiny_trainer,
    trained_on,
    with_settings,
)

STEPS = 12
WIDE = with_settings(TINY, train={"batch_size": 16, "steps": STEPS}, log={"checkpoint_minutes": 5.0, "every": 4})
# Name: (configuration, canvas sides, float64)
CURVES: dict[str, tuple[RunConfig, tuple[int, ...], bool]] = {
    "float32": (WIDE, (5,), False),
    "float64": (WIDE, (5,), True),
    "sizes": (WIDE, (3, 5), True),
    "pieces": (WIDE, (3, 5), True),
    "compiled": (WIDE, (3, 5), True),
    "q-learning": (with_settings(WIDE, halting={"rule": "q_learning", "continue_loss": True}), (5,), True),
    "bf16": (with_settings(WIDE, train={"precision": "bf16"}), (5,), False),
    "fp16": (with_settings(WIDE, train={"precision": "fp16"}), (5,), False),
}
ARC = with_settings(
    TINY,
    model={"vocab_size": 12, "seq_len": 900, "latent_steps": 1, "deep_steps": 1},
    halting={"max_supervision_steps": 2},
    train={"batch_size": 16, "canvas": "sizes", "steps": 4},
)
FACTS = {"data_digest": "d"}


def keep(folder: Path, name: str, trainer: Trainer, curve: list[float]) -> None:
    """Write a curve and the state that it led to; collective."""
    tensors, _ = trainer.state_dict()
    if trainer.accelerator.is_main_process:
        save_file(tensors | {"curve": torch.tensor(curve, dtype=torch.float64)}, folder / f"{name}.safetensors")


def curves(folder: Path, accelerator: Accelerator) -> None:
    """Train on toy examples."""
    for name, (config, sides, double) in CURVES.items():
        torch._dynamo.reset()
        counters.clear()
        trainer = in_pieces(
            tiny_trainer(config, sides, double, accelerator, compiled=name == "compiled"), int(name == "pieces")
        )
        graphs = counters["stats"]["unique_graphs"]
        keep(folder, name, trainer, losses(trainer, STEPS))
        # With and without gradient for each canvas size, on however many processes; nothing is ever compiled again.
        assert graphs == (2 * len(sides) if name == "compiled" else 0), name
        assert counters["stats"]["unique_graphs"] == graphs, name


def arc_trainer(accelerator: Accelerator) -> Trainer:
    data = arc_data(mixed_store(), ARC, accelerator.device)
    return Trainer(ARC, data.parts, accelerator, 4, lively_model(ARC).double())


def arc(folder: Path, accelerator: Accelerator) -> None:
    """Train on tasks, on every canvas size, and let the tasks' puzzles vote; no batch comes out even."""
    trainer = arc_trainer(accelerator)
    keep(folder, "arc", trainer, losses(trainer, 4))
    store = mixed_store()
    outputs, asked = outputs_of_store(store)
    for name, windows, size in (("full", False, 5), ("windows", True, 3), ("one", False, 1)):
        rows = evaluation_rows(store, augmentations=2)
        tally = Tally(outputs)
        settled: list[int] = []
        with trainer.averaged():
            assert Voter(store, asked, size, accelerator, windows).vote(
                trainer.predictor(), rows, tally, settled.append
            )
        assert sum(settled) == len(rows)
        if accelerator.is_main_process:
            tally.save(folder / f"{name}.npz")


def saved_and_resumed(folder: Path, accelerator: Accelerator) -> None:
    """Stop in the middle because the last process wants to, and go on to the end in another life."""
    for life in ("first", "second"):
        trainer = tiny_trainer(WIDE, (3, 5), double=True, accelerator=accelerator)
        run.begin(trainer, run.Start(folder / "run", resume=True), FACTS)
        log = MetricLog(accelerator, folder / "run", WIDE, trainer.step)
        if life == "first":
            last = accelerator.process_index == accelerator.num_processes - 1
            deadline, clock = (7 * 60.0 if last else math.inf), step_clock(trainer)
            trainer.train(folder / "run", FACTS, None, log, deadline, clock)
            assert trainer.step == 7
        else:
            assert trainer.step == 7
            assert trainer.train(folder / "run", FACTS, None, log) == "finished"
            run.export(trainer, folder / "run" / "export", trained_on(()), FACTS)
            keep(folder, "resumed", trainer, [])


def failing(folder: Path, accelerator: Accelerator) -> None:
    """What goes wrong in one process ends the work of all, and none of them waits for ever."""
    trainer = tiny_trainer(WIDE, accelerator=accelerator)
    trainer.train_step()
    mine = accelerator.is_main_process
    expect(InputError if mine else SystemExit, lambda: trainer.save(Path("/dev/null/nowhere"), FACTS))
    if not mine or accelerator.num_processes == 1:
        trainer._sums["loss"] = trainer._sums["loss"] * float("nan")
    expect(NonFiniteLoss, lambda: trainer.save(folder / "broken", FACTS))
    expect(NonFiniteLoss, trainer.read_metrics)
    if accelerator.num_processes > 1:
        trainer = tiny_trainer(WIDE, accelerator=accelerator)
        trainer.train_step()
        if not mine:  # one bit of one number
            trainer.embedding.table.view(torch.int32)[3, 4] ^= 1
        expect(UnequalReplicas, lambda: trainer.save(folder / "broken", FACTS))
    assert not (folder / "broken").exists()
    apart = folder / f"apart{accelerator.process_index}"
    other = tiny_trainer(WIDE, accelerator=accelerator)
    other.step = accelerator.process_index
    if accelerator.num_processes > 1:
        expect(InputError, lambda: run.begin(other, run.Start(apart), FACTS))
        odd = with_settings(WIDE, train={"batch_size": 15})
        expect(InputError, lambda: tiny_trainer(odd, accelerator=accelerator))


def expect(kind: type[BaseException], call: Callable[[], object]) -> None:
    """`call` must raise an exception of this kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


def weights_start_equal(accelerator: Accelerator) -> None:
    """All processes begin with the weights of the first, whatever they were built with."""
    model = lively_model(replace(WIDE, seed=accelerator.process_index))
    trainer = Trainer(WIDE, tiny_trainer(accelerator=accelerator).parts, accelerator, STEPS, model)
    mine = torch.cat([tensor.flatten() for tensor in trainer.model.state_dict().values()])
    first = torch.cat([tensor.flatten() for tensor in lively_model(replace(WIDE, seed=0)).state_dict().values()])
    assert torch.equal(mine, first)


def everything(folder: Path, accelerator: Accelerator) -> None:
    """All of it, in as many processes as there are."""
    curves(folder, accelerator)
    arc(folder, accelerator)
    saved_and_resumed(folder, accelerator)
    failing(folder, accelerator)
    weights_start_equal(accelerator)


if __name__ == "__main__":
    torch.set_num_threads(1)
    processes = Accelerator(cpu=True)
    everything(Path(sys.argv[1]), processes)
    if processes.is_main_process:
        (Path(sys.argv[1]) / "processes").write_text(str(processes.num_processes))
    processes.end_training()
