"""Batches made by index arithmetic equal the plain numpy reference, on every window and for every augmentation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.batches import ArcBatches, ArcSource, Batch, Source, sources_by_side
from arc_trm.sampler import Rows, evaluation_rows
from data_prep.canvas import CANVAS_SIDES, COLOUR_OFFSET, EOS, IGNORE_LABEL, VOCAB_SIZE, Placement
from data_prep.store import ArcStore, TaskEntry, build_store, load, save
from tests.arc_trm.arc_stores import augmented_shapes, every_dihedral, mixed_store, random_task
from tests.data_prep.material import Augmentation, encode_example

STORE = mixed_store()


def reference(store: ArcStore, rows: Rows, side: int) -> Batch:
    """The examples of `rows`, one after the other."""
    examples = [
        encode_example(
            store.input(pair), store.output(pair), Augmentation.of(store, puzzle), Placement(row, column), side
        )
        for puzzle, pair, row, column in zip(
            rows.puzzles.tolist(), rows.pairs.tolist(), rows.top.tolist(), rows.left.tolist(), strict=True
        )
    ]
    inputs, labels = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*examples, strict=True))
    return Batch(inputs.int(), labels, torch.from_numpy(rows.puzzles))


def assert_equal(batch: Batch, expected: Batch) -> None:
    assert (batch.inputs.dtype, batch.labels.dtype, batch.puzzle_ids.dtype) == (torch.int32, torch.int32, torch.int64)
    assert batch.inputs.is_contiguous()
    assert batch.labels.is_contiguous()
    for name in ("inputs", "labels", "puzzle_ids"):
        assert torch.equal(getattr(batch, name), getattr(expected, name)), name


@st.composite
def stores_and_rows(draw: st.DrawFn) -> tuple[ArcStore, Rows, int]:
    """Two tasks under all eight dihedral elements, at the corners and at a random place of the window."""
    side = draw(st.sampled_from([*CANVAS_SIDES, 7]))
    sides = st.integers(1, side) | st.just(side)
    shapes = st.tuples(st.tuples(sides, sides), st.none() | st.tuples(sides, sides))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tasks = [random_task(rng, name, [], draw(st.lists(shapes, min_size=1, max_size=3))) for name in "ab"]
    store = build_store([TaskEntry.all_pairs(task) for task in tasks], 0, seed=0)
    store = every_dihedral(store, [0, *draw(st.permutations(range(1, 10)))])
    rows = [
        (puzzle, pair, *placement)
        for puzzle, group in enumerate(store.puzzle_groups.tolist())
        for pair in np.flatnonzero(store.pair_groups == group).tolist()
        for placement in places(side - augmented_shapes(store, puzzle, pair).max(axis=0), rng)
    ]
    order = rng.permutation(len(rows))
    return store, Rows.of_puzzles(store, *np.array(rows, np.int64)[order].T), side


def places(room: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
    row, column = room.tolist()
    return [(0, 0), (0, column), (row, 0), (row, column), tuple(rng.integers(0, room + 1).tolist())]


@given(stores_and_rows())
def test_batches_equal_the_reference(case: tuple[ArcStore, Rows, int]) -> None:
    store, rows, side = case
    batches = ArcBatches(store, "cpu", side)
    assert batches.seq_len == side**2
    assert_equal(batches.make(rows), reference(store, rows, side))


def test_offered_examples_equal_the_reference() -> None:
    source = ArcSource(STORE, seed=3, batch_size=61, device="cpu")
    for step in (0, 1, 10**6):
        rows = source.sampler.rows(step, slice(7, 53))
        assert_equal(source.offer(step, slice(7, 53)), reference(STORE, rows, 30))


def test_rows_owned_by_tasks_come_with_the_view_they_are_shown_in() -> None:
    source = ArcSource(STORE, seed=3, batch_size=61, device="cpu", task_rows=True)
    assert source.num_puzzles == len(STORE.groups)
    rows, batch = source.sampler.rows(7, slice(7, 53)), source.offer(7, slice(7, 53))
    assert batch.views is not None
    np.testing.assert_array_equal(batch.puzzle_ids, STORE.pair_groups[rows.pairs])
    np.testing.assert_array_equal(batch.views[:, 0], rows.augmentations.dihedrals)
    np.testing.assert_array_equal(batch.views[:, 1:], rows.augmentations.permutations + COLOUR_OFFSET)
    for i, pair in enumerate(rows.pairs.tolist()):
        augmentation = Augmentation.of_row(rows.augmentations, i)
        placement = Placement(int(rows.top[i]), int(rows.left[i]))
        inputs, labels = encode_example(STORE.input(pair), STORE.output(pair), augmentation, placement)
        np.testing.assert_array_equal(batch.inputs[i], inputs)
        np.testing.assert_array_equal(batch.labels[i], labels)


def test_evaluation_has_labels_only_where_the_output_is_known() -> None:
    rows = evaluation_rows(STORE)
    batch = ArcBatches(STORE, "cpu").make(rows)
    assert_equal(batch, reference(STORE, rows, 30))
    known = STORE.pair_offsets[rows.pairs, 1] >= 0
    assert 0 < known.sum() < len(rows)
    np.testing.assert_array_equal((batch.labels != IGNORE_LABEL).any(dim=1).numpy(), known)


def test_a_stored_dataset_gives_the_same_batches(tmp_path: Path) -> None:
    save(STORE, tmp_path / "data")
    fresh, stored = (
        ArcSource(store, seed=3, batch_size=61, device="cpu").offer(2, slice(None))
        for store in (STORE, load(tmp_path / "data"))
    )
    assert_equal(stored, fresh)


def test_some_groups_give_the_same_examples_as_all() -> None:
    groups = np.array([3, 0])
    source = ArcSource(STORE, seed=3, batch_size=31, device="cpu", side=21, groups=groups)
    rows = source.sampler.rows(5, slice(None))
    assert set(STORE.pair_groups[rows.pairs]) == {0, 3}
    assert_equal(source.offer(5, slice(None)), reference(STORE, rows, 21))


def test_batches_do_not_share_memory_with_their_rows() -> None:
    rows = evaluation_rows(STORE)
    before = rows.puzzles.copy()
    ArcBatches(STORE, "cpu").make(rows).puzzle_ids.zero_()
    np.testing.assert_array_equal(rows.puzzles, before)


def test_grids_beyond_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match="a 23 x 29 grid does not fit a canvas of side 21"):
        ArcBatches(STORE, "cpu", side=21)
    with pytest.raises(ValueError, match="task own/d: a 17 x 3 grid does not fit a canvas of side 16"):
        ArcBatches(STORE, "cpu", side=16, groups=np.array([0, 3]))
    ArcBatches(STORE, "cpu", side=16, groups=np.array([0, 4]))


def test_a_hidden_output_beyond_the_window_has_no_labels() -> None:
    rng = np.random.default_rng(0)
    task = random_task(rng, "a", [((3, 5), (5, 3))], [((5, 7), (2, 13)), ((7, 5), (3, 2))])
    store = build_store([TaskEntry.demonstrations_only(task)], 5, seed=0)
    rows = evaluation_rows(store)
    batch = ArcBatches(store, "cpu", side=11).make(rows)
    asked = (batch.labels != IGNORE_LABEL).any(dim=1).numpy()
    np.testing.assert_array_equal(asked, store.pair_tests[rows.pairs] == 1)
    with pytest.raises(ValueError, match="2 x 13"):
        ArcBatches(build_store([TaskEntry.all_pairs(task)], 5, seed=0), "cpu", side=11)


def test_a_source_says_what_the_model_must_know() -> None:
    source: Source = ArcSource(STORE, seed=0, batch_size=5, device="cpu", side=30)
    assert (source.vocab_size, source.seq_len, source.num_puzzles) == (VOCAB_SIZE, 900, len(STORE.puzzle_groups))
    assert source.vocab_size == COLOUR_OFFSET + 10


@pytest.mark.parametrize(("batch_size", "multiple"), [(4, 1), (5, 1), (61, 1), (768, 1), (35, 7), (768, 16)])
def test_canvas_sizes_share_the_slots(batch_size: int, multiple: int) -> None:
    sources = sources_by_side(STORE, seed=0, batch_size=batch_size, device="cpu", multiple=multiple)
    assert [source.side for source in sources] == [11, 16, 21, 30]
    shares = np.array([source.batch_size for source in sources])
    examples = np.array([source.sampler.examples_per_epoch for source in sources])
    assert examples.tolist() == [3, 2, 5, 1]  # the third group has nothing to train on
    assert shares.sum() == batch_size
    assert (shares >= multiple).all()
    assert not (shares % multiple).any()
    assert (abs(shares - batch_size * examples / examples.sum()) <= 1.5 * multiple).all()
    for source in sources:
        assert source.num_puzzles == len(STORE.puzzle_groups)
        batch = source.offer(2, slice(None))
        assert batch.inputs.shape == (source.batch_size, source.side**2)
        rows = source.sampler.rows(2, slice(None))
        assert {STORE.groups[group].side for group in STORE.pair_groups[rows.pairs]} == {source.side}
        assert (batch.inputs == EOS).any(dim=1).all()


def test_canvas_sizes_draw_different_numbers_from_one_seed() -> None:
    first, again, other = (
        [source.sampler.seed for source in sources_by_side(STORE, seed=seed, batch_size=9, device="cpu")]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert len({*first, *other}) == 8


@pytest.mark.parametrize(("batch_size", "multiple"), [(3, 1), (12, 4), (18, 4), (8, 0)])
def test_slots_that_cannot_be_shared_are_refused(batch_size: int, multiple: int) -> None:
    message = f"{batch_size} slots cannot be shared among 4 canvas sizes in multiples of {multiple}"
    with pytest.raises(ValueError, match=message):
        sources_by_side(STORE, seed=0, batch_size=batch_size, device="cpu", multiple=multiple)


def test_canvas_sizes_need_something_to_train_on() -> None:
    untrained = replace(STORE, pair_training=np.zeros_like(STORE.pair_training))
    with pytest.raises(ValueError, match="among 0 canvas sizes"):
        sources_by_side(untrained, seed=0, batch_size=8, device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_makes_the_same_batches() -> None:
    on_cpu, on_gpu = (ArcSource(STORE, seed=3, batch_size=61, device=device) for device in ("cpu", "cuda"))
    for step in range(5):
        made = {name: column.cpu() for name, column in on_gpu.offer(step, slice(None)).columns().items()}
        assert_equal(Batch(**made), on_cpu.offer(step, slice(None)))
