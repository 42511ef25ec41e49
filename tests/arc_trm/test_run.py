"""A run on disk: what it reports, how it stops, what it refuses, and that resuming changes nothing."""

import gc
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import save_file

from arc_trm import checkpoint, run
from arc_trm import trainer as trainer_module
from arc_trm.batches import Batch, Part
from arc_trm.checkpoint import (
    STATE,
    RowNames,
    checkpoint_folders,
    read_export,
    read_folder,
    read_newest_checkpoint,
    write_folder,
)
from arc_trm.config import RunConfig
from arc_trm.device import make_accelerator
from arc_trm.metrics import MetricLog
from arc_trm.trainer import Evaluate, NonFiniteLoss, Trainer
from data_prep.augment import Augmentations
from data_prep.files import InputError
from tests.arc_trm.kill_runs import remains
from tests.arc_trm.training import (
    PUZZLES,
    TINY,
    ToySource,
    differing,
    identical,
    lively_model,
    snapshot,
    step_clock,
    tiny_trainer,
    trained_on,
    with_settings,
)

FACTS = {"recipe": "toy", "data_digest": "d1"}


def start(
    out: Path, config: RunConfig = TINY, trainer: Trainer | None = None, **asked: Any
) -> tuple[Trainer, MetricLog]:
    """A begun run; `asked` are fields of Start, or `naming` and `facts`."""
    names, facts = asked.pop("naming", None), asked.pop("facts", FACTS)
    accelerator = make_accelerator(config.log.track, out)
    trainer = trainer or tiny_trainer(config, accelerator=accelerator)
    trainer.names = names or trainer.names
    run.begin(trainer, run.Start(out, **asked), facts)
    return trainer, MetricLog(accelerator, out, config, trainer.step)


def go(
    out: Path, config: RunConfig = TINY, evaluate: Evaluate | None = None, trainer: Trainer | None = None, **asked: Any
) -> tuple[Trainer, str]:
    """One life of a run, to its end; returns the trainer and why it ended."""
    deadline, facts = asked.pop("deadline", math.inf), asked.get("facts", FACTS)
    trainer, log = start(out, config, trainer, **asked)
    reason = trainer.train(out, facts, evaluate, log, deadline, step_clock(trainer))
    run.export(trainer, out / "export", trained_on(("digest",)), facts)
    trainer.accelerator.end_training()
    return trainer, reason


def lines(out: Path) -> list[dict[str, float]]:
    return [orjson.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]


def score(trainer: Trainer) -> dict[str, float]:
    with trainer.averaged():
        return {"evaluation/outputs": float(trainer.model.token_embedding.detach().sum())}


@dataclass(frozen=True)
class Disturbed(ToySource):
    """Does something when a step is offered its rows."""

    step: int = 0
    disturb: Callable[[], object] = lambda: None

    def offer(self, step: int, slots: slice) -> Batch:
        if step == self.step:
            self.disturb()
        return super().offer(step, slots)


def disturbed(step: int, disturb: Callable[[], object], config: RunConfig = TINY) -> Trainer:
    """A tiny trainer that does something in the middle of step `step` + 1."""
    trainer = tiny_trainer(config)
    [work], [part] = trainer.work, trainer.parts
    work.part = trainer.parts[0] = Part(Disturbed(part.source.seed, step=step, disturb=disturb), part.slots)  # type: ignore[attr-defined]
    return trainer


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


# A whole run --------------------------------------------------------------------------------------------------------


def test_a_run_leaves_checkpoints_reports_and_an_export(tmp_path: Path) -> None:
    trainer, reason = go(tmp_path, evaluate=score)
    assert reason == "finished"
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000014", "step-00000020"]
    assert [(line["step"], "train/loss" in line) for line in lines(tmp_path)] == [
        (5, True), (10, True), (15, True), (20, True), (20, False),
    ]  # fmt: skip
    wanted = {
        "loss", "exact_accuracy", "token_accuracy", "supervision_steps", "halting_accuracy", "lr", "puzzle_lr",
        "embedding_norm", "examples_per_second", "peak_memory_gb",
    }  # fmt: skip
    assert {f"train/{name}" for name in wanted} <= lines(tmp_path)[0].keys()
    found = read_newest_checkpoint(tmp_path, print)
    assert found is not None
    tensors, facts = found
    assert facts["step"] == 20
    assert facts["recipe"] == "toy"
    assert facts["config"]["train"]["lr"] == TINY.train.lr
    assert all(identical(tensors[name], tensor) for name, tensor in snapshot(trainer)[0].items())
    export = read_export(tmp_path)
    assert trainer.ema is not None
    names = [name for name, _ in trainer.model.named_parameters()]
    assert all(identical(export.weights[n], a) for n, a in zip(names, trainer.ema.averages, strict=True))
    assert identical(export.puzzle_mean, trainer.embedding.table.mean(0))
    assert (export.facts["steps"], export.facts["recipe"], export.training_tasks) == (20, "toy", ("digest",))
    assert orjson.loads((tmp_path / "config.json").read_bytes())["seed"] == TINY.seed


def test_no_step_is_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def write(out: Path, step: int, *rest: Any) -> None:
        written.append(step)
        checkpoint.write_checkpoint(out, step, *rest)

    monkeypatch.setattr(trainer_module, "write_checkpoint", write)
    go(tmp_path, with_settings(TINY, log={"checkpoint_minutes": 5.0, "evaluate_every": 10}), score)
    go(tmp_path, with_settings(TINY, log={"checkpoint_minutes": 5.0, "evaluate_every": 10}), score, resume=True)
    assert written == [5, 10, 15, 20]


def test_a_finished_run_that_is_resumed_does_nothing_again(tmp_path: Path) -> None:
    go(tmp_path, evaluate=score)
    before = remains(tmp_path)
    assert go(tmp_path, evaluate=score, resume=True)[1] == "finished"
    assert remains(tmp_path) == before


# Stopping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 6, 12, 19])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_goes_on_as_if_there_had_been_none(
    tmp_path: Path, step: int, number: signal.Signals
) -> None:
    go(tmp_path / "whole", evaluate=score)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    broken = tmp_path / "broken"
    stopped, reason = go(broken, evaluate=score, trainer=disturbed(step, lambda: os.kill(os.getpid(), number)))
    assert reason == "stopped by a signal"
    assert stopped.step == step + 1
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert read_export(broken).facts["steps"] == step + 1
    go(broken, evaluate=score, resume=True)
    assert comparable(broken) == comparable(tmp_path / "whole")


def comparable(out: Path) -> dict[str, Any]:
    """What a run leaves, its last checkpoint alone: where the others lie depends on where it was stopped."""
    left = remains(out)
    return {name: value for name, value in left.items() if "step-" not in name or "step-00000020" in name}


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, [1, 5, 10, 15, 20]), (2.0, list(range(1, 21)))])
def test_processes_on_gpus_are_asked_at_reports_or_where_steps_are_slow_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    """So that a launcher that waits half a minute sees the checkpoint."""
    trainer, log = start(tmp_path)
    asked: list[int] = []
    real = trainer.each_agreed

    def each_agreed(*mine: bool) -> tuple[bool, ...]:
        asked.append(trainer.step)
        return real(*mine)

    monkeypatch.setattr(Trainer, "asking_waits", True)
    monkeypatch.setattr(trainer, "each_agreed", each_agreed)
    trainer.train(tmp_path, FACTS, None, log, now=lambda: seconds * trainer.step)
    assert asked[: len(expected)] == expected


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # what that is depends on how the tests were started
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, trainer=disturbed(3, twice))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_cuts_an_evaluation_short_and_it_is_made_up_for(tmp_path: Path) -> None:
    config = with_settings(TINY, log={"evaluate_every": 8})
    go(tmp_path / "whole", config, score)

    def patient(trainer: Trainer) -> dict[str, float]:
        terminate()
        return {} if trainer.should_stop() else score(trainer)

    broken = tmp_path / "broken"
    trainer, reason = go(broken, config, patient)
    assert (trainer.step, reason) == (8, "stopped by a signal")
    assert [line["step"] for line in lines(broken)] == [5]
    go(broken, config, score, resume=True)
    assert comparable(broken) == comparable(tmp_path / "whole")


def test_a_checkpoint_lies_before_every_evaluation(tmp_path: Path) -> None:
    def killed(trainer: Trainer) -> dict[str, float]:
        raise MemoryError

    with pytest.raises(MemoryError):
        go(tmp_path, with_settings(TINY, log={"evaluate_every": 4}), killed)
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-00000004"]


# Failing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 5])
def test_a_broken_loss_stops_the_run_and_is_never_saved(tmp_path: Path, every: int) -> None:
    config = with_settings(TINY, log={"every": every})
    trainer = disturbed(15, lambda: poison(trainer), config)
    with pytest.raises(
        NonFiniteLoss,
        match=r"step (16: the loss is nan at learning rate 0\.00115|20: the loss is nan at learning rate 0\.0009)",
    ):
        go(tmp_path, config, trainer=trainer)
    assert run.last_good(trainer, tmp_path) == f"the last good checkpoint is {tmp_path}/checkpoints/step-00000014"
    found = read_newest_checkpoint(tmp_path, print)
    assert found is not None
    assert found[1]["step"] == 14
    assert all(t.isfinite().all() for name, t in found[0].items() if not name.startswith("metric"))
    assert not (tmp_path / "export").exists()


@torch.no_grad()
def poison(trainer: Trainer) -> None:
    trainer.model.token_embedding[1, 2] = float("nan")


def test_broken_weights_are_not_saved_though_the_loss_was_good(tmp_path: Path) -> None:
    config = with_settings(TINY, log={"every": 100})
    trainer, _ = start(tmp_path, config)
    for _ in range(3):
        trainer.train_step()
    with torch.no_grad():
        trainer.embedding.table[3, 4] = float("nan")
    with pytest.raises(NonFiniteLoss, match="step 3: loss or weights are not finite"):
        trainer.save(tmp_path, FACTS)
    assert checkpoint_folders(tmp_path) == []
    assert run.last_good(trainer, tmp_path) == "no checkpoint was written before"


def test_a_full_disk_ends_the_run_in_one_line_with_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if "step-00000014" in str(path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(InputError, match=r"step-00000014: cannot write \(.*No space left on device\)"):
        go(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    monkeypatch.undo()
    go(tmp_path / "whole")
    go(tmp_path, resume=True)
    assert {n: v for n, v in comparable(tmp_path).items() if "whole" not in n} == comparable(tmp_path / "whole")


def test_a_report_that_cannot_be_written_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode == "ab":
            raise OSError(28, "No space left on device")
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(InputError, match=r"metrics\.jsonl: cannot write \(No space left on device\)"):
        go(tmp_path)


@pytest.mark.parametrize("fails", [
    lambda: torch.empty(1 << 50), lambda: np.empty(1 << 60, np.uint8), lambda: raise_(torch.OutOfMemoryError("CUDA")),
])  # fmt: skip
def test_running_out_of_memory_says_what_to_lower(tmp_path: Path, fails: Callable[[], object]) -> None:
    accelerator = make_accelerator("none", tmp_path)
    said = r"out of memory on cpu: switch model.activation_checkpointing on or lower train.batch_size \(now 8\)"
    with pytest.raises(InputError, match=said), run.explained_memory(TINY, accelerator.device):
        fails()


def raise_(error: Exception) -> None:
    raise error


def test_other_errors_are_not_called_a_lack_of_memory(tmp_path: Path) -> None:
    accelerator = make_accelerator("none", tmp_path)
    with pytest.raises(RuntimeError, match="shapes"), run.explained_memory(TINY, accelerator.device):
        raise RuntimeError("shapes differ")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/run: cannot make this folder \(Not a directory\)"):
        start(tmp_path / "file" / "run")


# Resuming -----------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    go(tmp_path)
    before = remains(tmp_path)
    with pytest.raises(InputError, match="already holds a run; add --resume to go on with it, or choose another --out"):
        start(tmp_path)
    assert remains(tmp_path) == before


def test_resuming_where_nothing_was_saved_yet_starts_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step":5,"train/loss":1.0}\n{"step":10,"tra')
    (tmp_path / ".metrics.jsonl.abc").touch()
    (tmp_path / ".config.json.abc").touch()
    trainer, _ = go(tmp_path, resume=True)
    assert trainer.step == 20
    assert [line["step"] for line in lines(tmp_path)] == [5, 10, 15, 20]
    assert not list(tmp_path.glob(".*"))


def test_all_checkpoints_broken_is_no_reason_to_start_anew(tmp_path: Path) -> None:
    go(tmp_path)
    for folder in checkpoint_folders(tmp_path):
        os.truncate(folder / "state.safetensors", 100)
    with pytest.raises(InputError, match="none of its 2 checkpoints is whole"):
        start(tmp_path, resume=True)


def test_a_broken_checkpoint_is_refused_by_name_and_the_one_before_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    os.truncate(tmp_path / "broken" / "checkpoints" / "step-00000020" / "state.safetensors", 1000)
    trainer, _ = start(tmp_path / "broken", resume=True)
    assert trainer.step == 14
    assert "note: refused a checkpoint: " in capsys.readouterr().err
    go(tmp_path / "broken", resume=True)
    assert remains(tmp_path / "broken") == remains(tmp_path / "whole")


CHANGES: dict[str, tuple[RunConfig, str]] = {
    "learning rate": (with_settings(TINY, train={"lr": 0.5}), "train.lr: 0.003, now 0.5"),
    "steps": (with_settings(TINY, train={"steps": 30}), "train.steps: 20, now 30; planned steps: 20, now 30"),
    "halting": (with_settings(TINY, halting={"rule": "never"}), "halting.rule: 'correctness', now 'never'"),
    "seed": (replace(TINY, seed=6), "seed: 5, now 6"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_are_refused_by_name_unless_allowed(tmp_path: Path, name: str) -> None:
    go(tmp_path)
    config, said = CHANGES[name]
    with pytest.raises(InputError) as refusal:
        start(tmp_path, config, resume=True)
    assert str(refusal.value) == f"{tmp_path}: differs from the run to resume ({said}); add --allow-changes to go on"
    trainer, _ = go(tmp_path, config, resume=True, allow_changes=True)
    assert trainer.step == config.train.steps
    # From here on the new settings are those of the run.
    if config.train.steps > 20:
        start(tmp_path, config, resume=True)


def test_what_is_only_reported_and_what_costs_memory_may_change(tmp_path: Path) -> None:
    go(tmp_path)
    start(tmp_path, with_settings(TINY, log={"every": 2, "checkpoint_minutes": 3.0}), resume=True)
    leaner = with_settings(TINY, model={"activation_checkpointing": True})
    trainer, _ = start(tmp_path, leaner, resume=True)
    assert trainer.step == 20


def test_a_checkpoint_without_a_newer_setting_had_its_default(tmp_path: Path) -> None:
    go(tmp_path)
    newest = checkpoint_folders(tmp_path)[-1]
    tensors, facts = read_folder(newest, STATE)
    del facts["config"]["model"]["positions"]
    write_folder(newest, STATE, tensors, facts)
    start(tmp_path, resume=True)
    facts["config"]["model"]["layers"] = "two"
    write_folder(newest, STATE, tensors, facts)
    with pytest.raises(InputError, match=r"the configuration of the checkpoint\.model\.layers: found 'two'"):
        start(tmp_path, resume=True)


def test_a_model_of_another_size_is_refused_even_when_changes_are_allowed(tmp_path: Path) -> None:
    go(tmp_path)
    config = with_settings(TINY, model={"layers": 2})
    with pytest.raises(InputError, match=r"model\.layers: 1, now 2"):
        start(tmp_path, config, resume=True)
    for changes in ({"layers": 2}, {"prefix": 4}, {"puzzle_width": 13}):
        with pytest.raises(InputError, match=f"holds another model \\({next(iter(changes))}: .*, now"):
            start(tmp_path, with_settings(TINY, model=changes), resume=True, allow_changes=True)


def test_another_optimiser_starts_without_the_moments_of_the_old_one(tmp_path: Path) -> None:
    go(tmp_path)
    config = with_settings(TINY, train={"optimiser": "muon", "steps": 23})
    trainer, _ = start(tmp_path, config, resume=True, allow_changes=True)
    assert trainer.step == 20
    assert not trainer.optimiser.state
    trainer.train_step()


def naming(puzzles: list[int]) -> RowNames:
    """Puzzles of one group, told apart by their number as permutation."""
    augmentations = Augmentations.identity(len(puzzles))
    augmentations.permutations[:, 9] = puzzles
    return RowNames(("toy/a",), np.zeros(len(puzzles), np.int32), augmentations)


def trainer_of(puzzles: int) -> Trainer:
    source = ToySource(5, num_puzzles=puzzles)
    return Trainer(TINY, [Part(source, 8)], make_accelerator("none", Path()), 20, lively_model(TINY))


def test_other_data_are_refused_unless_allowed_and_then_keep_known_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = start(tmp_path, naming=naming(list(range(PUZZLES))))
    for _ in range(9):
        first.train_step()
    first.save(tmp_path, FACTS)
    grown = [13, *range(PUZZLES - 1, -1, -1), 12]
    more = {"recipe": "toys", "data_digest": "d2"}
    with pytest.raises(InputError, match=r"\(the dataset \(recipe: 'toy', now 'toys'\)\); add --allow-changes"):
        start(tmp_path, trainer=trainer_of(13), naming=naming(grown), facts=more, resume=True)
    with pytest.raises(InputError, match=r"\(the dataset \(its content\)\)"):
        start(tmp_path, trainer=trainer_of(13), naming=naming(grown), facts=FACTS | {"data_digest": "d3"}, resume=True)
    second = trainer_of(13)
    asked: dict[str, Any] = {"naming": naming(grown), "facts": more, "resume": True, "allow_changes": True}
    start(tmp_path, trainer=second, **asked)
    old, new = first.embedding.table, second.embedding.table
    assert torch.equal(new[1:12], old.flip(0))
    assert torch.equal(new[[0, 12]], old.mean(0).expand(2, -1))
    assert all(work.carry is None for work in second.work)
    assert second.step == 9
    # Killed before its first checkpoint, the run still knows which rows the old one holds.
    third = trainer_of(13)
    start(tmp_path, trainer=third, **asked)
    assert torch.equal(third.embedding.table, new)
    go(tmp_path, trainer=third, **asked)
    fourth = trainer_of(13)
    start(tmp_path, trainer=fourth, naming=naming(grown), facts=more, resume=True)
    assert not differing(snapshot(third), snapshot(fourth))


# Starting from an export --------------------------------------------------------------------------------------------


def test_a_run_starts_from_an_export(tmp_path: Path) -> None:
    first, _ = go(tmp_path / "first")
    for place in ("first", "first/export"):
        second, _ = start(tmp_path / place.replace("/", "-") / "second", init_from=tmp_path / place)
        assert second.step == 0
        assert first.ema is not None
        assert second.ema is not None
        weights = [parameter.detach() for parameter in second.model.parameters()]
        assert all(map(identical, weights, first.ema.averages))
        assert all(map(identical, second.ema.averages, first.ema.averages))
        mean = first.embedding.table.mean(0)
        assert torch.equal(second.embedding.table, mean.expand(PUZZLES, -1))
        assert second.optimiser.state == {}


def test_named_rows_come_along_with_an_export_and_unknown_ones_start_from_the_mean(tmp_path: Path) -> None:
    config = with_settings(TINY, model={"embedding_rows": "task", "prefix": 14})
    first = tiny_trainer(config)
    first.names = RowNames.of_owners("abcdefghijk")
    go(tmp_path / "first", trainer=first)
    second = tiny_trainer(config)
    second.names = RowNames.of_owners("xkwbyzvutsr")
    start(tmp_path / "second", trainer=second, init_from=tmp_path / "first")
    mean, table = first.embedding.table.mean(0), second.embedding.table
    for number, name in enumerate("xkwbyzvutsr"):
        row = first.embedding.table["abcdefghijk".index(name)].half().float() if name in "kb" else mean
        assert torch.equal(table[number], row)
    # Rows of the other tasks stay behind these, through a resumption and into the next export.
    go(tmp_path / "second", trainer=second)
    resumed = tiny_trainer(config)
    resumed.names = RowNames.of_owners("xkwbyzvutsr")
    go(tmp_path / "second", trainer=resumed, resume=True)
    for known in (second, resumed):
        assert known.names is not None
        assert known.names.owners == tuple("xkwbyzvutsr" + "acdefghij")
    kept = read_export(tmp_path / "second")
    assert kept.puzzle_names == tuple("xkwbyzvutsr" + "acdefghij")
    assert kept.puzzle_table is not None
    for place, name in enumerate("acdefghij", start=PUZZLES):
        assert torch.equal(kept.puzzle_table[place], first.embedding.table["abcdefghijk".index(name)].half())
    third = tiny_trainer(config)  # knows no names: all rows start from the mean
    start(tmp_path / "third", trainer=third, init_from=tmp_path / "first")
    assert torch.equal(third.embedding.table, mean.expand(PUZZLES, -1))


def test_a_deeper_recursion_may_start_from_an_export_another_size_not(tmp_path: Path) -> None:
    go(tmp_path / "first")
    start(
        tmp_path / "deeper",
        with_settings(TINY, model={"latent_steps": 3, "deep_steps": 1}),
        init_from=tmp_path / "first",
    )
    wider = with_settings(TINY, model={"hidden": 16, "puzzle_width": 13})
    with pytest.raises(InputError) as refusal:
        start(tmp_path / "wider", wider, init_from=tmp_path / "first")
    assert str(refusal.value) == "the export's model differs: hidden: 12, now 16; puzzle_width: 17, now 13"
    with pytest.raises(InputError, match="nowhere: no checkpoint here, expected an export folder"):
        start(tmp_path / "third", init_from=tmp_path / "nowhere")


def test_a_convolution_may_be_added_to_an_export_and_begins_without_effect(tmp_path: Path) -> None:
    go(tmp_path / "first")
    convolution = with_settings(TINY, model={"convolution": True})
    second, _ = start(tmp_path / "second", convolution, init_from=tmp_path / "first")
    first = read_export(tmp_path / "first").weights
    added = {name: weight for name, weight in second.model.state_dict().items() if name not in first}
    assert set(added) == {f"net.blocks.{i}.mix_neighbours.weight" for i in range(TINY.model.layers)}
    assert not any(weight.any() for weight in added.values())
    assert all(torch.equal(second.model.state_dict()[name], weight) for name, weight in first.items())
    go(tmp_path / "third", convolution, init_from=tmp_path / "first")
    weights = read_export(tmp_path / "third").weights
    assert all(weights[name].any() for name in added)
    with pytest.raises(InputError, match="the export's model differs: convolution: True, now False"):
        start(tmp_path / "fourth", init_from=tmp_path / "third")


def test_a_resumed_run_does_not_start_from_its_export_again(tmp_path: Path) -> None:
    go(tmp_path / "first")
    _, reason = go(tmp_path / "second", init_from=tmp_path / "first", deadline=0.0)
    assert reason == "out of time"
    second, _ = start(tmp_path / "second", init_from=tmp_path / "first", resume=True)
    assert second.step == 1


# Reports ------------------------------------------------------------------------------------------------------------


def test_reports_of_steps_that_are_done_again_are_dropped(tmp_path: Path) -> None:
    accelerator = make_accelerator("none", tmp_path)
    log = MetricLog(accelerator, tmp_path, TINY, 0)
    for step in (2, 4, 6):
        log.add({"train/loss": step / 7}, step)
        log.add({"evaluation/tasks": step / 11}, step)
    log.add({}, 6)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "cut')
    again = MetricLog(accelerator, tmp_path, TINY, 4)
    assert [line["step"] for line in lines(tmp_path)] == [2, 2, 4, 4]
    assert again.scores == {"step": 4, "evaluation/tasks": 4 / 11}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_tensorboard_shows_every_step_once_although_the_run_was_resumed(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = with_settings(TINY, log={"track": "tensorboard", "every": 2})
    go(tmp_path, config)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000020")  # as if killed after step 18
    go(tmp_path, config, resume=True)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert {"train/loss", "train/embedding_norm", "train/lr"} <= set(events.Tags()["scalars"])
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert shown == [(line["step"], pytest.approx(line["train/loss"])) for line in lines(tmp_path)]


def test_a_tracker_that_is_not_installed_is_done_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_settings(TINY, train={"steps": 1}, log={"track": "wandb"})
    assert go(tmp_path, config)[1] == "finished"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("note: wandb is not installed, going on without it")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells what is mapped on Linux alone")
def test_a_resumed_run_holds_no_file_of_its_checkpoint(tmp_path: Path) -> None:
    go(tmp_path)
    trainer, _ = start(tmp_path, resume=True)
    gc.collect()
    assert trainer.step == 20
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
