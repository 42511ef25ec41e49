"""A training step on a device that is not the CPU, without one: PyTorch's meta device.

Its tensors have shapes and no numbers. Whatever would make a GPU wait (reading a number on the CPU, a shape that
depends on one) raises there, and so does an operation between it and the CPU.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator

from arc_trm.batches import ArcSource, BoardSource, Part, Source, sources_by_side
from arc_trm.presets import PRESETS, override
from arc_trm.supervision import HALTING_RULES
from arc_trm.trainer import Trainer
from submission.adapt import TaskFigures
from tests.arc_trm.arc_stores import mixed_store
from tests.arc_trm.test_boards import maze_store, sudoku_store

META = torch.device("meta")
SMALL: dict[str, dict[str, Any]] = {
    "model": {"hidden": 24, "heads": 2, "puzzle_width": 11, "expansion": 1.0, "latent_steps": 2, "deep_steps": 2},
    "train": {"batch_size": 12, "warmup_steps": 2},
}
ARC_MEMBERS = ("arc1", "arc1-hrm", "arc1-direct", "arc1-mlp", "arc1-singlez", "arc1-multiz", "arc1-paper", "arc1-tiny")


def meta_accelerator() -> Accelerator:
    """One process on the meta device, as far as a trainer looks at it."""
    return cast(
        Accelerator,
        SimpleNamespace(
            device=META,
            num_processes=1,
            process_index=0,
            is_main_process=True,
            no_sync=lambda _: nullcontext(),
            reduce=lambda tensor, how: tensor,
        ),
    )


def trainer_on_meta(name: str, sources: list[Source], precision: str = "bf16") -> Trainer:
    """A small trainer of the preset, its slots shared evenly by the sources."""
    first = sources[0]
    config = override(PRESETS[name], SMALL)
    config = override(config, {"model": {"vocab_size": first.vocab_size}, "train": {"precision": precision}})
    if len(sources) == 1:
        config = override(config, {"model": {"seq_len": first.seq_len}})
    slots = config.train.batch_size // len(sources)
    return Trainer(config, [Part(source, slots) for source in sources], meta_accelerator(), 10)


def devices_after_three_steps(trainer: Trainer) -> set[torch.device]:
    """Train without reading a number, and say where carry, weights, rows and metrics are then."""
    for _ in range(3):
        trainer.train_step()
    carries = [work.carry for work in trainer.work if work.carry is not None]
    assert len(carries) == len(trainer.work)
    tensors = [part for carry in carries for part in (*carry.state, carry.halted, carry.steps)]
    tensors += [trainer.embedding.table, *trainer.model.parameters(), *trainer._sums.values()]
    return {tensor.device for tensor in tensors}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ARC_MEMBERS)
def test_no_member_waits_for_the_device_within_a_step(name: str, precision: str) -> None:
    task_rows = PRESETS[name].model.embedding_rows == "task"
    source = ArcSource(mixed_store(), seed=3, batch_size=12, device=META, task_rows=task_rows)
    assert devices_after_three_steps(trainer_on_meta(name, [source], precision)) == {META}


def test_no_canvas_size_waits_for_the_device() -> None:
    sources = sources_by_side(mixed_store(), seed=3, batch_size=12, device=META, multiple=3)
    assert len(sources) == 4
    assert devices_after_three_steps(trainer_on_meta("arc1", list(sources))) == {META}


def test_the_figures_of_tasks_wait_for_no_device() -> None:
    store = mixed_store()
    trainer = trainer_on_meta("arc1", [ArcSource(store, seed=3, batch_size=12, device=META)])
    figures = TaskFigures(store, trainer)
    assert devices_after_three_steps(trainer) == {figures.sums().device} == {META}


@pytest.mark.parametrize("store", [sudoku_store(), maze_store()], ids=["sudoku", "maze"])
def test_sudokus_and_mazes_are_made_on_the_device(store: Any) -> None:
    source = BoardSource(store, seed=3, batch_size=12, device=META)
    assert devices_after_three_steps(trainer_on_meta(store.kind, [source])) == {META}


def test_predictions_do_not_wait_for_the_device() -> None:
    source = ArcSource(mixed_store(), seed=3, batch_size=12, device=META)
    trainer = trainer_on_meta("arc1", [source])
    batch = source.offer(0, slice(0, 5))
    assert trainer.predictor().answer(batch).tokens.device == META


@pytest.mark.parametrize("reading", ["a number", "the CPU"])
def test_the_check_can_fail(reading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(output: Any) -> torch.Tensor:
        if reading == "a number" and output.halt_logits.sum().item() > 0:
            raise AssertionError
        return output.halt_logits > torch.zeros(len(output.halt_logits))

    monkeypatch.setitem(HALTING_RULES, "correctness", rule)
    source = ArcSource(mixed_store(), seed=3, batch_size=12, device=META)
    with pytest.raises(RuntimeError, match=r"meta|device"):
        trainer_on_meta("arc1", [source]).train_step()
