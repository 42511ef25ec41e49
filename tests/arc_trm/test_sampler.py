"""The stream of examples: published rule, pure function of (seed, step, slots), and rows for evaluation."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arc_trm.sampler import Rows, Sampler, evaluation_rows, fixed_batches, voting_views
from data_prep.grid import DIHEDRAL_KEEPS_SHAPE
from data_prep.store import ArcStore, TaskEntry, build_store
from tests.arc_trm.arc_stores import augmented_shapes, mixed_store, random_task
from tests.data_prep.material import same_augmentations

STORE = mixed_store()
EPOCH = int(STORE.pair_training.sum())  # examples of one pass over STORE


def columns(rows: Rows, store: ArcStore = STORE) -> np.ndarray:
    """puzzle, pair, row and column of every example [4, n], after making sure that the view is the puzzle's."""
    assert same_augmentations(rows.augmentations, store.puzzle_augmentations[rows.puzzles])
    return np.stack([rows.puzzles, rows.pairs, rows.top, rows.left])


def arrays(rows: Rows) -> dict[str, np.ndarray]:
    """All arrays of the examples by name."""
    return {name: array for name, array in vars(rows).items() if name != "augmentations"} | vars(rows.augmentations)


def turned(rows: Rows) -> np.ndarray:
    """Whether each example exchanges height and width."""
    return ~np.array(DIHEDRAL_KEEPS_SHAPE)[rows.augmentations.dihedrals]


def epoch_rows(sampler: Sampler, epoch: int) -> Rows:
    """The examples of one epoch; the sampler's batch is exactly an epoch."""
    assert sampler.batch_size == sampler.examples_per_epoch
    return sampler.rows(epoch, slice(None))


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 10**6),
    batch=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_slices_of_ranks_make_up_the_batch(seed: int, step: int, batch: int, cuts: list[int]) -> None:
    edges = sorted([0, batch, *(min(cut, batch) for cut in cuts)])
    slices = [slice(first, last) for first, last in pairwise(edges)]
    whole = Sampler(STORE, seed=seed, batch_size=batch).rows(step, slice(None))
    ranks = [Sampler(STORE, seed=seed, batch_size=batch).rows(step, slots) for slots in slices]
    assert len(whole) == batch
    np.testing.assert_array_equal(columns(whole), np.concatenate([columns(rank) for rank in ranks], axis=1))


@given(batch=st.integers(1, 60), step=st.integers(0, 3000))
def test_batches_cut_one_stream_and_need_no_earlier_step(batch: int, step: int) -> None:
    single = Sampler(STORE, seed=5, batch_size=1)
    stream = [columns(single.rows(step * batch + slot, slice(None))) for slot in range(batch)]
    walked = Sampler(STORE, seed=5, batch_size=batch)
    for earlier in range(max(0, step - 3), step):
        walked.rows(earlier, slice(None))
    jumped = Sampler(STORE, seed=5, batch_size=batch)
    jumped.rows(step + 10**5, slice(None))
    for sampler in (walked, jumped):
        np.testing.assert_array_equal(columns(sampler.rows(step, slice(None))), np.concatenate(stream, axis=1))


@pytest.mark.parametrize("planned", [1, 8192])
def test_an_epoch_shows_every_group_once_through_one_puzzle(planned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arc_trm.sampler.PLANNED_EXAMPLES", planned)
    sampler = Sampler(STORE, seed=1, batch_size=EPOCH)
    orders, puzzles = set(), set()
    for epoch in (0, 1, 2, 743, 744, 10**9):
        rows = epoch_rows(sampler, epoch)
        groups = STORE.pair_groups[rows.pairs]
        changes = np.flatnonzero(np.diff(groups)) + 1
        visits = np.split(np.arange(EPOCH), changes)
        assert sorted(groups[visit[0]] for visit in visits) == [0, 1, 3, 4]
        for visit in visits:
            expected = np.flatnonzero(STORE.pair_training & (STORE.pair_groups == groups[visit[0]]))
            assert sorted(rows.pairs[visit]) == expected.tolist()
            assert len(set(rows.puzzles[visit])) == 1
            assert STORE.puzzle_groups[rows.puzzles[visit[0]]] == groups[visit[0]]
        orders.add(tuple(rows.pairs))
        puzzles.add(tuple(sorted(set(rows.puzzles))))
    assert len(orders) == 6
    assert len(puzzles) > 1


@pytest.mark.parametrize("side", [30, 24])
def test_one_example_a_visit_stays_at_the_origin_and_the_others_inside(side: int) -> None:
    groups = np.array([0, 3, 4])
    size = 3 + 5 + 2
    sampler = Sampler(STORE, seed=2, batch_size=size, groups=groups, side=side)
    border = 0 if side == 30 else 1  # in a smaller window the EOS border stays inside
    furthest: dict[tuple[int, ...], np.ndarray] = {}
    for epoch in range(300):
        rows = epoch_rows(sampler, epoch)
        moved = (rows.top > 0) | (rows.left > 0)
        for group in groups:
            here = STORE.pair_groups[rows.pairs] == group
            assert moved[here].sum() <= here.sum() - 1
        for i in range(size):
            shape = augmented_shapes(STORE, int(rows.puzzles[i]), int(rows.pairs[i])).max(axis=0)
            placement = np.array([rows.top[i], rows.left[i]])
            room = side - border - shape
            assert (placement >= 0).all()
            assert (placement <= room).all()
            key = (*shape.tolist(),)
            furthest[key] = np.maximum(furthest.get(key, 0), placement)
    # 150 or more draws of at most 28 places reach the last one in both directions for most shapes.
    reached = [np.array_equal(place, side - border - np.array(shape)) for shape, place in furthest.items()]
    assert np.mean(reached) > 0.5


def test_which_example_stays_at_the_origin_is_independent_of_its_turn() -> None:
    sampler = Sampler(STORE, seed=0, batch_size=5, groups=np.array([3]))
    visits = [epoch_rows(sampler, epoch) for epoch in range(2000)]
    stays = np.array([(rows.top == 0) & (rows.left == 0) for rows in visits])
    turns = stays.mean(axis=0)
    assert (stays.sum(axis=1) >= 1).all()
    np.testing.assert_allclose(turns, 0.2, atol=0.04)  # four standard deviations
    pairs = np.array([rows.pairs for rows in visits])
    first = np.bincount(pairs[:, 0] - pairs.min(), minlength=5) / 2000
    np.testing.assert_allclose(first, 0.2, atol=0.04)


def test_puzzles_are_drawn_evenly() -> None:
    sampler = Sampler(STORE, seed=0, batch_size=5, groups=np.array([3]))
    drawn = [epoch_rows(sampler, epoch).puzzles[0] for epoch in range(4000)]
    first, last = STORE.group_puzzles[3:5]
    shares = np.bincount(np.array(drawn) - first, minlength=last - first) / 4000
    assert len(shares) == 8
    np.testing.assert_allclose(shares, 1 / 8, atol=0.02)


def test_seeds_give_different_streams() -> None:
    first, second = (columns(Sampler(STORE, seed=s, batch_size=64).rows(0, slice(None))) for s in (0, 1))
    assert not np.array_equal(first, second)


def fresh(**settings: Any) -> Sampler:
    return Sampler(STORE, seed=5, fresh_views=True, **settings)


def test_fresh_views_are_a_pure_function_of_seed_step_and_slot() -> None:
    whole = fresh(batch_size=23).rows(41, slice(None))
    parts = [fresh(batch_size=23).rows(41, slots) for slots in (slice(0, 5), slice(5, 6), slice(6, 23))]
    for name, array in arrays(whole).items():
        np.testing.assert_array_equal(np.concatenate([arrays(part)[name] for part in parts]), array)


def test_every_example_gets_a_view_of_its_own_and_stays_inside() -> None:
    rows = fresh(batch_size=8000).rows(0, slice(None))
    np.testing.assert_allclose(np.bincount(rows.augmentations.dihedrals, minlength=8) / 8000, 1 / 8, atol=0.02)
    assert (np.sort(rows.augmentations.permutations, axis=1) == np.arange(10)).all()
    assert (rows.augmentations.permutations[:, 0] == 0).all()
    assert len(np.unique(rows.augmentations.permutations, axis=0)) > 7000
    for colour in range(1, 10):
        np.testing.assert_allclose(np.bincount(rows.augmentations.permutations[:, colour])[1:] / 8000, 1 / 9, atol=0.02)
    shapes = STORE.pair_shapes[rows.pairs].astype(np.int64).reshape(-1, 2, 2).max(axis=1)
    shapes = np.where(turned(rows)[:, None], shapes[:, ::-1], shapes)
    assert (np.stack([rows.top, rows.left], axis=1) + shapes <= 30).all()
    # The puzzle of an example that has a view of its own is the task itself.
    np.testing.assert_array_equal(rows.puzzles, STORE.group_puzzles[STORE.pair_groups[rows.pairs]])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_examples_keeps_its_own_colours_and_nothing_else_changes(share: float) -> None:
    some, none = (fresh(batch_size=8000, own_colours=each).rows(3, slice(None)) for each in (share, 0.0))
    kept = (some.augmentations.permutations == np.arange(10)).all(axis=1)
    np.testing.assert_allclose(kept.mean(), share, atol=0.02)
    np.testing.assert_array_equal(some.augmentations.permutations[~kept], none.augmentations.permutations[~kept])
    for name in ("puzzles", "pairs", "top", "left", "dihedrals"):
        np.testing.assert_array_equal(arrays(some)[name], arrays(none)[name])
    # Whether colours are kept says nothing about the dihedral element.
    if kept.any():
        counts = np.bincount(some.augmentations.dihedrals[kept], minlength=8)
        np.testing.assert_allclose(counts / kept.sum(), 1 / 8, atol=0.03)


def test_a_long_run_keeps_no_more_than_two_plans_and_draws_none_twice() -> None:
    sampler = Sampler(STORE, seed=0, batch_size=4001)
    for step in range(20):
        sampler.rows(step, slice(None))
        assert sampler._kept_plan.cache_info().currsize <= 2
    planned = sampler._epochs_per_plan * sampler.examples_per_epoch
    assert sampler._kept_plan.cache_info().misses == -(-20 * 4001 // planned)


def test_golden_stream() -> None:
    # Square grids with ten colours: neither limits nor the number of puzzles depend on drawn augmentations.
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, name, [((n, n), (n, n))] * n, [((n, n), None)]) for n, name in ((5, "a"), (7, "b"))]
    store = build_store([TaskEntry.demonstrations_only(task) for task in tasks], 10, seed=0)
    rows = Sampler(store, seed=2**63 + 17, batch_size=13).rows(10**7, slice(2, 9))
    assert columns(rows, store).tolist() == GOLDEN


GOLDEN = [
    [18, 18, 18, 18, 18, 18, 16],
    [7, 11, 9, 6, 8, 10, 8],
    [5, 0, 21, 22, 18, 22, 18],
    [22, 0, 20, 12, 13, 21, 9],
]  # puzzles, pairs, rows, columns


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="no training pair in 1 groups"):
        Sampler(STORE, seed=0, batch_size=4, groups=np.array([2]))
    with pytest.raises(ValueError, match=r"own/b: .* side 21"):
        Sampler(STORE, seed=0, batch_size=4, side=21)


def test_evaluation_asks_every_test_of_the_scored_groups_in_order() -> None:
    shuffled = replace(STORE, pair_tests=STORE.pair_tests.copy())
    first = STORE.group_pairs[1]
    shuffled.pair_tests[first + 1 : first + 4] = [2, 0, 1]
    rows = evaluation_rows(shuffled, augmentations=3)
    # Groups 1, 2 and 4 are scored and have 3, 1 and 1 tests.
    np.testing.assert_array_equal(STORE.pair_groups[rows.pairs], np.repeat([1, 1, 1, 2, 4], 3))
    np.testing.assert_array_equal(shuffled.pair_tests[rows.pairs], np.repeat([0, 1, 2, 0, 0], 3))
    starts = STORE.group_puzzles[STORE.pair_groups[rows.pairs]]
    np.testing.assert_array_equal(rows.puzzles - starts, np.tile([0, 1, 2], 5))
    assert not rows.top.any()
    assert not rows.left.any()


def test_evaluation_takes_the_puzzles_there_are() -> None:
    scored = tuple(replace(group, scored=number in (0, 3)) for number, group in enumerate(STORE.groups))
    for augmentations in (None, 8, 99):
        rows = evaluation_rows(replace(STORE, groups=scored), augmentations=augmentations)
        np.testing.assert_array_equal(STORE.pair_groups[rows.pairs], np.repeat([0, 3], 8))
        np.testing.assert_array_equal(rows.puzzles, np.r_[0:8, 24:32])
    assert (STORE.pair_tests[rows.pairs] == 0).all()
    nothing_scored = replace(STORE, groups=tuple(replace(group, scored=False) for group in STORE.groups))
    assert len(evaluation_rows(nothing_scored)) == 0
    assert list(fixed_batches(evaluation_rows(nothing_scored), 4)) == []


def test_views_that_vote_begin_with_the_eight_in_own_colours_and_stay_inside() -> None:
    rows, numbers = voting_views(STORE, 403, own_colours=0.3, seed=5)
    asked = evaluation_rows(STORE, augmentations=1)
    np.testing.assert_array_equal(rows.pairs, np.repeat(asked.pairs, 403))
    np.testing.assert_array_equal(rows.puzzles, np.repeat(asked.puzzles, 403))
    np.testing.assert_array_equal(numbers, np.tile(np.arange(403), len(asked)))
    kept = (rows.augmentations.permutations == np.arange(10)).all(axis=1)
    plain = numbers < 8
    np.testing.assert_array_equal(rows.augmentations.dihedrals[plain], numbers[plain])
    assert kept[plain].all()
    assert not rows.top[plain].any()
    assert not rows.left[plain].any()
    np.testing.assert_allclose(kept[~plain].mean(), 0.3, atol=0.04)
    # Every visible grid keeps its border inside the canvas of its task, and reaches its edge somewhere.
    for pair in asked.pairs:
        group = STORE.pair_groups[pair]
        members = STORE.pair_groups == group
        shapes = STORE.pair_shapes[members].astype(np.int64).reshape(-1, 2, 2)
        shapes[STORE.pair_tests[members] >= 0, 1] = 0
        height, width = shapes.max(axis=(0, 1))
        mine = rows[np.flatnonzero(rows.pairs == pair)]
        ends = mine.top + np.where(turned(mine), width, height), mine.left + np.where(turned(mine), height, width)
        assert max(map(np.max, ends)) == max(STORE.groups[group].side - 1, height, width)
        assert min(mine.top.min(), mine.left.min()) == 0
    again, _ = voting_views(STORE, 11, own_colours=0.3, seed=5)
    for name, array in arrays(rows[np.flatnonzero(numbers < 11)]).items():
        np.testing.assert_array_equal(arrays(again)[name], array)
    others, _ = voting_views(STORE, 403, own_colours=0.3, seed=6)
    assert not np.array_equal(others.augmentations.permutations, rows.augmentations.permutations)


@pytest.mark.parametrize("size", [1, 4, 5, 15, 16])
def test_fixed_batches_repeat_the_last_row_and_say_how_many_count(size: int) -> None:
    rows = evaluation_rows(STORE, augmentations=3)
    batches = list(fixed_batches(rows, size))
    assert all(len(batch) == size for batch, _ in batches)
    joined = np.concatenate([columns(batch[:valid]) for batch, valid in batches], axis=1)
    np.testing.assert_array_equal(joined, columns(rows))
    last, valid = batches[-1]
    np.testing.assert_array_equal(columns(last)[:, valid:], np.repeat(columns(rows)[:, -1:], size - valid, axis=1))


# The mixed rule -------------------------------------------------------------------------------------------------------


def mixed(batch: int, seed: int = 3, **options: Any) -> Sampler:
    return Sampler(STORE, seed=seed, batch_size=batch, mixed=True, **options)


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 10**6),
    batch=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    fresh=st.booleans(),
)
def test_slices_of_ranks_make_up_the_mixed_batch(
    seed: int, step: int, batch: int, cuts: list[int], fresh: bool
) -> None:
    edges = sorted([0, batch, *(min(cut, batch) for cut in cuts)])
    whole = mixed(batch, seed, fresh_views=fresh).rows(step, slice(None))
    parts = [mixed(batch, seed, fresh_views=fresh).rows(step, slice(a, b)) for a, b in pairwise(edges)]
    for name, array in arrays(whole).items():
        np.testing.assert_array_equal(array, np.concatenate([arrays(part)[name] for part in parts]))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_pass_of_the_mixed_rule_takes_every_task_once_and_all_its_pairs_in_time(fresh: bool) -> None:
    trains = np.unique(STORE.pair_groups[STORE.pair_training])
    sampler = mixed(len(trains), fresh_views=fresh)
    passes = [sampler.rows(step, slice(None)) for step in range(300)]
    for rows in passes:
        assert sorted(STORE.pair_groups[rows.pairs]) == trains.tolist()
        np.testing.assert_array_equal(STORE.puzzle_groups[rows.puzzles], STORE.pair_groups[rows.pairs])
    together = Rows.joined(passes)
    pairs, counts = np.unique(together.pairs, return_counts=True)
    np.testing.assert_array_equal(pairs, np.flatnonzero(STORE.pair_training))
    sizes = np.bincount(STORE.pair_groups[pairs])[STORE.pair_groups[pairs]]
    expected = 300 / sizes  # within five standard deviations of a binomial count
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()
    if not fresh:
        puzzles = np.unique(together.puzzles)
        np.testing.assert_array_equal(puzzles, np.flatnonzero(np.isin(STORE.puzzle_groups, trains)))


def test_a_fifth_of_the_mixed_examples_and_those_that_cannot_move_stand_at_the_corner() -> None:
    rows = mixed(4000).rows(0, slice(None))
    corner = (rows.top == 0) & (rows.left == 0)
    assert 0.17 < corner.mean() < 0.25
    shapes = [augmented_shapes(STORE, *which) for which in zip(rows.puzzles, rows.pairs, strict=True)]
    ends = np.stack([rows.top, rows.left], axis=1) + np.array(shapes).max(1)
    assert ends.max() == 30


def with_generated(count: int) -> ArcStore:
    """Two tasks of two own pairs, the second without a share, and `count` generated pairs for the first."""
    rng = np.random.default_rng(5)
    entries = [TaskEntry.all_pairs(random_task(rng, name, [((3, 5), (2, 7))] * 2, [])) for name in "ab"]
    made = random_task(rng, "a", [((7, 2), (3, 3))] * count, []).demonstrations
    return build_store([replace(entries[0], generated=made), entries[1]], 0, seed=0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_a_tasks_examples_are_generated_pairs(share: float) -> None:
    store = with_generated(11)
    rows = Sampler(store, seed=2, batch_size=4000, mixed=True, generated=share).rows(0, slice(None))
    groups, made = store.pair_groups[rows.pairs], store.pair_generated[rows.pairs]
    assert not made[groups == 1].any()
    assert abs(made[groups == 0].mean() - share) < 0.05
    assert len(np.unique(rows.pairs[made])) == 11 * (share > 0)
    assert len(np.unique(rows.pairs[~made])) == (4 if share < 1 else 2)


def test_generated_pairs_want_the_mixed_rule() -> None:
    with pytest.raises(ValueError, match=r"generated pairs need train\.sampling mixed"):
        Sampler(with_generated(3), seed=0, batch_size=7)
