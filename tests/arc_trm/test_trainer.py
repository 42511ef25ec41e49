"""The training step and its state: the same numbers whatever the pieces, and nothing lost between two lives."""

import gc
import json
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from arc_trm import trainer as trainer_module
from arc_trm.batches import Batch, Part
from arc_trm.checkpoint import bit_digest
from arc_trm.config import RunConfig
from arc_trm.device import free_memory, rows_at_once
from arc_trm.presets import PRESETS
from arc_trm.sampler import exploration
from arc_trm.trainer import NonFiniteLoss, Trainer, Work, initial_model, share_out
from data_prep.files import InputError
from tests.arc_trm.golden_losses import FILE, RUNS, TOLERANCES, curve
from tests.arc_trm.training import (
    TINY,
    ToySource,
    differing,
    identical,
    in_pieces,
    lively_model,
    losses,
    snapshot,
    tiny_trainer,
    with_settings,
)
from tests.conftest import Clock

SIDES = (3, 5)


# Exploration --------------------------------------------------------------------------------------------------------


def test_exploration_has_its_probability_and_its_range() -> None:
    draws = np.concatenate([exploration(3, step, 64, 0.25, 7) for step in range(500)])
    counts = Counter(draws.tolist())
    assert counts.keys() == {0, *range(2, 8)}
    assert 0.74 < counts[0] / len(draws) < 0.76
    assert all(0.9 < counts[least] * 6 / (0.25 * len(draws)) < 1.1 for least in range(2, 8))


def test_explorations_of_neighbouring_steps_share_nothing() -> None:
    one, two = (exploration(5, step, 1024, 0.5, 16) for step in (100, 101))
    for shift in range(-16, 17):
        agreement = np.mean(np.roll(one, shift) == two)
        assert agreement < 0.35, f"shift {shift}: {agreement:.0%} equal, chance is 27 %"


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(1, 9), st.floats(0, 1), st.integers(1, 16))
def test_exploration_is_a_function_of_its_arguments(
    seed: int, step: int, slots: int, probability: float, most: int
) -> None:
    draws = exploration(seed, step, slots, probability, most)
    assert draws.dtype == np.int32
    assert draws.shape == (slots,)
    assert draws.max() <= most
    assert np.array_equal(draws, exploration(seed, step, slots, probability, most))


# The same numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", [(5,), SIDES])
def test_a_seed_gives_the_same_bits_in_every_run(sides: tuple[int, ...]) -> None:
    one, two = tiny_trainer(sides=sides), tiny_trainer(sides=sides)
    assert losses(one, 20) == losses(two, 20)
    assert not differing(snapshot(one), snapshot(two))
    other = tiny_trainer(replace(TINY, seed=6), sides)
    assert losses(other, 3) != losses(tiny_trainer(sides=sides), 3)


def test_building_a_trainer_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    Trainer(TINY, [Part(ToySource(1), 8)], Accelerator(cpu=True), 20)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(initial_model(TINY).initial, initial_model(TINY).initial)


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_curve_is_the_golden_one(name: str) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert curve(name) == pytest.approx(golden, rel=TOLERANCES[name])


def test_the_golden_runs_halt_early_and_late() -> None:
    trainer = tiny_trainer()
    for _ in range(20):
        trainer.train_step()
    steps = trainer.read_metrics()["supervision_steps"]
    assert 1.2 < steps < TINY.halting.max_supervision_steps - 0.2


@pytest.mark.parametrize("halvings", [1, 2])
@pytest.mark.parametrize("sides", [(5,), SIDES])
def test_gradient_accumulation_equals_one_large_batch(halvings: int, sides: tuple[int, ...]) -> None:
    config = with_settings(TINY, train={"batch_size": 16})
    whole = tiny_trainer(config, sides, double=True)
    pieces = in_pieces(tiny_trainer(config, sides, double=True), halvings)
    assert len(pieces.work) == 2**halvings * len(whole.work)
    assert losses(pieces, 20) == pytest.approx(losses(whole, 20), rel=1e-12)
    assert_close(pieces, whole)


def assert_close(one: Trainer, two: Trainer) -> None:
    """Equal to the error of float64; halting and whole numbers exactly."""
    first, second = one.state_dict()[0], two.state_dict()[0]
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, second[name], rtol=1e-9, atol=1e-12, msg=name)
        else:
            assert torch.equal(tensor, second[name]), name


def test_slots_that_cannot_be_shared_are_refused() -> None:
    three = cast(Accelerator, SimpleNamespace(num_processes=3, process_index=1))
    assert share_out([Part(ToySource(1), 3), Part(ToySource(1), 6)], three, TINY.model) == [
        Work(Part(ToySource(1), 3), slice(1, 2), 0), Work(Part(ToySource(1), 6), slice(2, 4), 3)
    ]  # fmt: skip
    assert [work.draws for work in share_out([Part(ToySource(1), 3), Part(ToySource(1), 6)], three, TINY.model)] == [
        slice(1, 2), slice(5, 7)
    ]  # fmt: skip
    with pytest.raises(InputError, match="8 slots cannot be shared evenly by 3 processes"):
        share_out([Part(ToySource(1), 8)], three, TINY.model)


# Memory that runs out -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Narrow(ToySource):
    """A source that memory allows at most `most` slots of at once, from step `since` on."""

    most: int = 2
    since: int = 0

    def offer(self, step: int, slots: slice) -> Batch:
        if step >= self.since and slots.stop - slots.start > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().offer(step, slots)


def two_sources(large: ToySource) -> Trainer:
    parts = [Part(ToySource(5, 3), 2), Part(large, 6)]
    return Trainer(TINY, parts, Accelerator(cpu=True), 20, lively_model(TINY).double())


def test_work_is_halved_before_the_first_step_until_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    plain, narrow = two_sources(ToySource(5, 5)), two_sources(Narrow(5, 5))
    before = snapshot(narrow)
    plain.fit_memory()
    narrow.fit_memory()
    assert [work.local for work in plain.work] == [slice(0, 2), slice(0, 6)]
    assert [work.local for work in narrow.work] == [
        slice(0, 2), slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 6)
    ], "those of the small canvas stay"  # fmt: skip
    assert not differing(snapshot(narrow), before)
    assert all(p.grad is None for p in narrow.model.parameters())
    assert losses(narrow, 20) == pytest.approx(losses(plain, 20), rel=1e-12)
    assert_close(narrow, plain)
    notes = capsys.readouterr().err.splitlines()
    assert notes == [f"note: out of memory, going on with {pieces} micro-batches a step" for pieces in (3, 5)]


def test_fitting_leaves_room_for_the_moments_that_the_first_step_makes() -> None:
    alive: list[int] = []

    @dataclass(frozen=True)
    class Counting(ToySource):
        def offer(self, step: int, slots: slice) -> Batch:
            gc.collect()
            tensors = {id(t): t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)}.values()
            shape = trainer.model.token_embedding.shape
            alive.append(sum(t.shape == shape for t in tensors if t.grad_fn is None))
            return super().offer(step, slots)

    trainer = Trainer(TINY, [Part(Counting(5), 8)], Accelerator(cpu=True), 20)
    trainer.fit_memory()
    fitted = alive[0]
    trainer.train_step()
    trainer.train_step()
    assert alive[-1] == fitted == 2 * alive[-2], "weight and average, and as many moments"


def test_garbage_is_collected_before_the_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    free_memory(torch.device("cuda"))
    assert done == ["collected", "emptied"]


def test_no_piece_of_work_has_a_tensor_of_more_elements_than_32_bits_count() -> None:
    config = PRESETS["arc1"].model
    # 916 positions of a SwiGLU that is 1536 wide, gate beside up.
    assert rows_at_once(config, 900) == (2**31 - 1) // (916 * 3072) == 763
    assert rows_at_once(PRESETS["sudoku"].model, 81) < 2**31 / (2 * 512 * 97)
    parts = [Part(ToySource(5, 30), 768), Part(ToySource(5, 11), 768)]
    pieces = share_out(parts, Accelerator(cpu=True), config)
    assert [(piece.part is parts[0], piece.local) for piece in pieces] == [
        (True, slice(0, 384)), (True, slice(384, 768)), (False, slice(0, 768))
    ]  # fmt: skip


def test_speed_counts_the_time_in_which_other_processes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(trainer_module.time, "monotonic", clock)
    trainer = tiny_trainer()
    step = trainer.train_step
    for _ in range(2):
        clock.time += 1000  # an evaluation, say
        for _ in range(5):
            step()
            clock.time += 0.5
            trainer.agreed(False)
            clock.time += 3.5  # the others are late
        assert trainer.read_metrics()["examples_per_second"] == pytest.approx(trainer.batch_size / 4)


def test_memory_that_runs_out_later_ends_the_training() -> None:
    trainer = two_sources(Narrow(5, 5, since=3))
    trainer.fit_memory()
    with pytest.raises(torch.OutOfMemoryError):
        losses(trainer, 4)
    assert trainer.step == 3


def test_memory_for_not_even_one_slot_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="a single example does not fit into cpu's memory"):
        two_sources(Narrow(5, 5, most=0)).fit_memory()


# Replicas ------------------------------------------------------------------------------------------------------------


def test_a_digest_depends_on_every_bit_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arc_trm.checkpoint.WORDS_AT_ONCE", 5)
    tensors = [torch.randn(3, 7), torch.randn(2).double()]
    digest = bit_digest(tensors)
    assert torch.equal(digest, bit_digest([tensor.clone() for tensor in tensors]))
    for tensor in tensors:
        words = tensor.view(torch.int32).flatten()
        for place in range(len(words)):
            for bit in (0, 17, 31):
                words[place] ^= torch.tensor(1 << bit).int()
                assert not torch.equal(digest, bit_digest(tensors))
                words[place] ^= torch.tensor(1 << bit).int()
    assert torch.equal(digest, bit_digest(tensors))
    for moved in (tensors[0].roll(1), tensors[0].T.contiguous()):
        assert not torch.equal(digest, bit_digest([moved, tensors[1]]))


# State --------------------------------------------------------------------------------------------------------------

MEMBERS: dict[str, RunConfig] = {
    "plain": TINY,
    "no average": with_settings(TINY, train={"ema": 0.0}),
    "adamw": with_settings(TINY, train={"optimiser": "adamw"}),
    "q-learning": with_settings(TINY, halting={"rule": "q_learning", "continue_loss": True}),
    "two networks": with_settings(TINY, model={"answer_layers": 1}),
    "many latents": with_settings(TINY, model={"recursion": "multi_scale_latent"}),
    "rows owned by tasks": with_settings(TINY, model={"embedding_rows": "task", "prefix": 14}),
    "muon": with_settings(TINY, train={"optimiser": "muon"}),
    "bf16": with_settings(TINY, train={"precision": "bf16"}),
    "fp16": with_settings(TINY, train={"precision": "fp16"}),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_restored_trainer_goes_on_bit_by_bit(name: str) -> None:
    config = MEMBERS[name]
    first = tiny_trainer(config, SIDES)
    for _ in range(7):  # two of them since metrics were read
        first.train_step()
        if first.step == 5:
            first.read_metrics()
    saved = snapshot(first)
    second = tiny_trainer(replace(config, seed=config.seed), SIDES)
    losses(second, 3)
    second.load_state_dict(*saved)
    assert not differing(snapshot(second), saved)
    for trainer in (first, second):
        trainer.train_step()
    metrics = [trainer.read_metrics() for trainer in (first, second)]
    timeless = [{k: v for k, v in m.items() if k not in ("examples_per_second", "peak_memory_gb")} for m in metrics]
    assert timeless[0] == timeless[1]
    assert losses(first, 5) == losses(second, 5)
    assert not differing(snapshot(first), snapshot(second))


def test_pieces_of_work_may_change_between_two_lives() -> None:
    config = with_settings(TINY, train={"batch_size": 16})
    whole = tiny_trainer(config, SIDES, double=True)
    losses(whole, 7)
    pieces = in_pieces(tiny_trainer(config, SIDES, double=True), 2)
    pieces.load_state_dict(*snapshot(whole))
    assert not differing(snapshot(pieces), snapshot(whole))
    assert losses(pieces, 8) == pytest.approx(losses(whole, 8), rel=1e-12)
    assert_close(pieces, whole)


def test_a_run_goes_on_in_another_precision() -> None:
    first = tiny_trainer(with_settings(TINY, train={"precision": "bf16"}))
    losses(first, 5)
    second = tiny_trainer(TINY)
    second.load_state_dict(*snapshot(first))
    losses(second, 2)
    assert {part.dtype for work in second.work for part in work.carry.state} == {torch.float32}  # type: ignore[union-attr]


@pytest.mark.parametrize("faster", [False, True])
def test_a_measured_precision_stays_that_of_the_run_whatever_is_measured_later(
    monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    config = with_settings(TINY, train={"precision": "auto"})
    monkeypatch.setattr("arc_trm.device.bf16_is_faster", lambda model: faster)
    first = tiny_trainer(config)
    assert first.dtype == (torch.bfloat16 if faster else torch.float32)
    losses(first, 5)
    monkeypatch.setattr("arc_trm.device.bf16_is_faster", lambda model: not faster)
    second = tiny_trainer(config)
    second.load_state_dict(*snapshot(first))
    assert second.dtype == first.dtype
    assert losses(second, 3) == losses(first, 3)


@pytest.mark.parametrize("sides", [(5,), (3, 4, 5), (4, 5)])
def test_slots_of_another_layout_start_anew(sides: tuple[int, ...]) -> None:
    first = tiny_trainer(sides=SIDES)
    losses(first, 5)
    second = tiny_trainer(sides=sides)
    second.load_state_dict(*snapshot(first))
    assert all(work.carry is None for work in second.work)
    losses(second, 2)
    assert second.step == 7


def test_an_average_that_no_checkpoint_kept_starts_at_the_weights() -> None:
    first = tiny_trainer(MEMBERS["no average"])
    losses(first, 5)
    second = tiny_trainer()
    losses(second, 2)
    second.load_state_dict(*snapshot(first))
    assert second.ema is not None
    assert all(map(identical, second.ema.averages, (p.detach() for p in first.model.parameters())))


def test_weights_of_another_size_are_refused_by_name() -> None:
    first = tiny_trainer(with_settings(TINY, model={"hidden": 16}))
    with pytest.raises(InputError, match=r"halting_head.weight has the shape \[2, 16\], this model's has \[2, 12\]"):
        tiny_trainer().load_state_dict(*snapshot(first))


# The embedding table ------------------------------------------------------------------------------------------------


def test_the_table_is_nobodys_parameter_and_held_once() -> None:
    trainer = tiny_trainer()
    losses(trainer, 3)
    table = trainer.embedding.table
    moments = [value for state in trainer.optimiser.state.values() for value in state.values()]
    assert trainer.ema is not None
    owned = [*trainer.model.parameters(), *trainer.model.buffers(), *trainer.ema.averages, *moments]
    assert table.data_ptr() not in {tensor.data_ptr() for tensor in owned}
    assert table.shape not in {tensor.shape for tensor in owned}
    assert not table.requires_grad
    tensors = trainer.state_dict()[0]
    assert [name for name, tensor in tensors.items() if tensor.shape == table.shape] == ["puzzle_table"]
    assert tensors["puzzle_table"] is table


def test_the_state_copies_no_weights() -> None:
    trainer = tiny_trainer()
    losses(trainer, 3)
    kept = {t.data_ptr() for t in (*trainer.model.state_dict().values(), *trainer.ema.averages)}  # type: ignore[union-attr]
    named = {t.data_ptr() for name, t in trainer.state_dict()[0].items() if name.startswith(("model/", "ema/"))}
    assert named == kept


# Precision ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_and_stays_finite(precision: str) -> None:
    trainer = tiny_trainer(with_settings(TINY, train={"precision": precision}))
    curve = losses(trainer, 20)
    trainer.check_finite()
    assert sum(curve[-5:]) < 0.9 * sum(curve[:5])
    # The first steps of fp16 may overflow and be left out, until its scale fits.
    assert sum(curve) == pytest.approx(sum(losses(tiny_trainer(), 20)), rel=0.1)


def test_a_step_that_overflows_fp16_moves_nothing() -> None:
    trainer = tiny_trainer(with_settings(TINY, train={"precision": "fp16"}))
    losses(trainer, 3)
    before = snapshot(trainer)[0]
    trainer.scaler.update(2.0**60)
    trainer.train_step()
    after = trainer.state_dict()[0]
    still = [n for n in before if n.startswith(("model/", "optimiser/", "puzzle_table"))]
    assert all(identical(before[name], after[name]) for name in still)
    assert trainer.scaler.get_scale() < 2.0**60


def test_everything_is_float64_on_request() -> None:
    trainer = tiny_trainer(double=True)
    losses(trainer, 3)
    kinds = {tensor.dtype for tensor in trainer.state_dict()[0].values() if tensor.is_floating_point()}
    assert kinds == {torch.float64, torch.float32}  # float32: the optimiser's count of steps
    assert trainer.embedding.table.dtype == torch.float64


# What is seen -------------------------------------------------------------------------------------------------------


def test_metrics_are_means_over_the_steps_since_the_last_reading() -> None:
    every, once = tiny_trainer(), tiny_trainer()
    single = []
    for _ in range(6):
        every.train_step()
        single.append(every.read_metrics())
        once.train_step()
    together = once.read_metrics()
    for name in ("loss", "token_loss", "halting_loss", "embedding_norm"):
        assert together[name] == pytest.approx(np.mean([metrics[name] for metrics in single]))
    assert together["lr"] == single[-1]["lr"] > single[0]["lr"]
    assert {"exact_accuracy", "token_accuracy", "halting_accuracy", "supervision_steps"} <= together.keys()
    assert together["examples_per_second"] > 0
    assert together["peak_memory_gb"] > 0.05
    assert once.read_metrics() == {}


def test_speed_after_a_resume_counts_only_the_steps_of_this_life(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1.0  # asked before the first step and when metrics are read
        return clock[0]

    monkeypatch.setattr("arc_trm.trainer.time.monotonic", tick)
    first, second = tiny_trainer(), tiny_trainer()
    for _ in range(3):
        first.train_step()
    second.load_state_dict(*snapshot(first))
    second.train_step()
    assert second.read_metrics()["examples_per_second"] == 8 / 1.0
    first.train_step()
    assert first.read_metrics()["examples_per_second"] == 4 * 8 / 3.0


def test_the_embedding_norm_is_that_of_the_rows_in_work() -> None:
    trainer = tiny_trainer()
    losses(trainer, 4)
    trainer.embedding.table.fill_(2.0)
    trainer.train_step()
    assert trainer.read_metrics()["embedding_norm"] == pytest.approx(2.0 * 17**0.5)


def test_accuracies_are_missing_while_no_sequence_has_ended() -> None:
    config = with_settings(TINY, halting={"rule": "never"})
    trainer = Trainer(config, [Part(ToySource(5), 8)], Accelerator(cpu=True), 20)
    trainer.train_step()
    assert not {"exact_accuracy", "supervision_steps"} & trainer.read_metrics().keys()
    for _ in range(2):
        trainer.train_step()
    assert trainer.read_metrics()["supervision_steps"] == 3


@pytest.mark.parametrize("broken", ["weights", "table"])
def test_broken_weights_are_found_before_the_loss_shows_them(broken: str) -> None:
    trainer = tiny_trainer()
    losses(trainer, 4)
    trainer.check_finite()
    tensor = trainer.model.token_embedding if broken == "weights" else trainer.embedding.table
    with torch.no_grad():
        tensor[1, 2] = float("inf")
    with pytest.raises(NonFiniteLoss, match="step 4: loss or weights are not finite at learning rate"):
        trainer.check_finite()


def test_warm_up_takes_at_most_its_share_and_the_trunk_may_stand_still() -> None:
    trainer = tiny_trainer(with_settings(TINY, train={"steps": 20, "warmup_steps": 100, "lr_min_ratio": 1.0}))
    rates = []
    for trainer.step in range(1, 5):
        rates.append(trainer.rates())
    assert np.array(rates) == pytest.approx(np.outer([0.5, 1, 1, 1], [0.003, 0.01]))
    trainer.step, trainer.trunk_factor = 0, 0.0
    before = snapshot(trainer)[0]
    losses(trainer, 2)
    after = trainer.state_dict()[0]
    assert all(identical(before[name], after[name]) for name in before if name.startswith("model/"))
    assert not identical(before["puzzle_table"], after["puzzle_table"])
