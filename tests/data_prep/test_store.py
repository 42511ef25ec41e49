"""The dataset on disk: round trips, atomic saves, refused folders."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.canvas import choose_side
from data_prep.files import InputError, read_manifest, refuse_foreign
from data_prep.overlap import trained_on
from data_prep.store import ARC_ARRAYS, ArcStore, TaskEntry, build_store, load, open_store, save
from data_prep.tasks import Pair, pairs_digest, task_digest
from tests.data_prep.material import (
    IDENTITY,
    Augmentation,
    grid,
    pair,
    random_task,
    refused,
    same_augmentations,
    task,
    verified,
)

HIDDEN = replace(random_task(2, "hidden"), tests=(Pair(grid(["123"]), None), Pair(grid(["4"]), None)))
ENTRIES = (
    TaskEntry.all_pairs(random_task(0, "whole")),
    TaskEntry.demonstrations_only(random_task(1, "asked", corpus="other")),
    TaskEntry.demonstrations_only(HIDDEN),
    TaskEntry(random_task(3, "partly"), (True, False, True, False, True), scored=False),
)


@pytest.fixture(scope="module")
def store() -> ArcStore:
    return build_store(ENTRIES, augmentations=13, seed=7, manifest={"recipe": "test"})


def check_equal(a: ArcStore, b: ArcStore) -> None:
    assert a.groups == b.groups
    for name, array in a.arrays().items():
        assert array.dtype == b.arrays()[name].dtype
        assert np.array_equal(array, b.arrays()[name])


def test_every_grid_comes_back(store: ArcStore) -> None:
    pairs = [(g, i, p) for g, entry in enumerate(ENTRIES) for i, p in enumerate(entry.task.pairs)]
    assert len(pairs) == len(store.pair_groups)
    for index, (group, i, wanted) in enumerate(pairs):
        assert store.pair_groups[index] == group
        assert store.group_pairs[group] + i == index
        assert store.pair_tests[index] == (i - 3 if i >= 3 else -1)
        assert store.pair_training[index] == ENTRIES[group].training[i]
        assert np.array_equal(store.input(index), wanted.input)
        output = store.output(index)
        assert (output is None) == (wanted.output is None)
        if output is not None and wanted.output is not None:
            assert np.array_equal(output, wanted.output)


def test_group_puzzles_point_at_the_puzzles_of_each_group(store: ArcStore) -> None:
    assert np.array_equal(np.diff(store.group_puzzles), [14] * 4)
    assert np.array_equal(store.puzzle_groups, np.repeat(np.arange(4), 14))
    for group, start in enumerate(store.group_puzzles[:-1]):
        assert store.puzzle_groups[start] == group
        assert Augmentation.of(store, start) == IDENTITY
        assert Augmentation.of(store, start + 1) != IDENTITY


def test_groups_describe_their_tasks(store: ArcStore) -> None:
    assert [group.name for group in store.groups] == ["own/whole", "other/asked", "own/hidden", "own/partly"]
    assert [group.scored for group in store.groups] == [False, True, True, False]
    assert [group.digest for group in store.groups] == [task_digest(entry.task) for entry in ENTRIES]
    assert [group.side for group in store.groups] == [choose_side(entry.visible) for entry in ENTRIES]
    assert [len(group.labels) for group in store.groups] == [5, 3, 3, 3]
    assert len(store.training_digests()) == 4


def test_the_manifest_counts(store: ArcStore) -> None:
    assert store.manifest["counts"] == {
        "groups": 4,
        "pairs": 20,
        "puzzles": 56,
        "training_pairs": 5 + 3 + 3 + 3,
        "generated_pairs": 0,
        "scored_outputs": 4,
    }
    facts = {"kind": "arc", "seed": 7, "augmentations": 13, "recipe": "test", "leak": [], "canvas_side": 30}
    assert facts.items() <= store.manifest.items()


def test_the_side_and_the_puzzles_do_not_depend_on_hidden_outputs() -> None:
    shown = random_task(1, "asked")
    large = replace(shown, tests=tuple(Pair(p.input, np.full((30, 30), 9, np.uint8)) for p in shown.tests))
    hidden = replace(shown, tests=tuple(Pair(p.input, None) for p in shown.tests))
    stores = [build_store([TaskEntry.demonstrations_only(t)], 50, 0) for t in (shown, large, hidden)]
    for other in stores[1:]:
        assert other.groups[0].side == stores[0].groups[0].side
        assert same_augmentations(other.puzzle_augmentations, stores[0].puzzle_augmentations)


def test_a_label_larger_than_the_rest_widens_the_side() -> None:
    made = random_task(1)
    wide = replace(made, tests=(Pair(made.tests[0].input, np.zeros((2, 17), np.uint8)),))
    assert build_store([TaskEntry.demonstrations_only(wide)], 0, 0).groups[0].side == 16
    assert build_store([TaskEntry.all_pairs(wide)], 0, 0).groups[0].side == 21


def test_a_task_gets_the_same_puzzles_in_every_company(store: ArcStore) -> None:
    alone = build_store(ENTRIES[1:2], 13, 7)
    assert same_augmentations(alone.puzzle_augmentations, store.puzzle_augmentations[14:28])
    other_seed = build_store(ENTRIES[1:2], 13, 8)
    assert not same_augmentations(alone.puzzle_augmentations, other_seed.puzzle_augmentations)


def test_build_store_draws_fewer_puzzles_if_fewer_exist() -> None:
    small = task("small", [pair(["010", "101", "010"], ["1"])], [pair(["1"], None)])
    built = build_store([TaskEntry.demonstrations_only(small), ENTRIES[0]], 100, 0)
    assert np.array_equal(built.group_puzzles, [0, 9, 110])


def test_build_store_refuses_no_task_repeated_tasks_and_labels_without_output() -> None:
    with pytest.raises(InputError, match="no task to build a dataset from"):
        build_store([], 1, 0)
    with pytest.raises(InputError, match="own/whole occurs twice"):
        build_store([ENTRIES[0], ENTRIES[0]], 1, 0)
    with pytest.raises(ValueError, match="own/hidden: a pair without output cannot train"):
        build_store([TaskEntry(HIDDEN, (True,) * 5, scored=False)], 1, 0)


def test_a_store_survives_the_disk_without_copying(store: ArcStore, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    save(store, folder)
    loaded = load(verified(folder))
    check_equal(loaded, store)
    assert store.manifest.items() <= loaded.manifest.items()
    assert all(isinstance(array, np.memmap) for array in loaded.arrays().values())
    assert sorted(loaded.manifest["digests"]) == sorted([f"{name}.npy" for name in ARC_ARRAYS] + ["groups.json"])
    opened = open_store(folder)
    assert isinstance(opened, ArcStore)
    check_equal(opened, store)
    assert [entry.name for entry in folder.parent.iterdir()] == ["data"]


def test_saving_replaces_the_older_dataset_as_a_whole(store: ArcStore, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()  # an empty folder may be taken
    save(store, folder)
    before = load(folder)
    other = build_store(ENTRIES[:1], 3, 0)
    save(other, folder)
    check_equal(load(verified(folder)), other)
    check_equal(before, store)  # who had it open keeps reading the old content
    assert len(list(folder.iterdir())) == len(ARC_ARRAYS) + 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_a_failed_save_leaves_the_older_dataset(
    store: ArcStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    save(store, folder)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(InputError, match="No space left on device"):
            save(build_store(ENTRIES[:1], 3, 0), folder)
    original = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda a, b: full() if b == folder and ".new-" in str(a) else original(a, b))
        with pytest.raises(InputError, match="cannot write"):
            save(build_store(ENTRIES[:1], 3, 0), folder)
    check_equal(load(verified(folder)), store)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_a_folder_of_something_else_is_never_touched(store: ArcStore, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, expected a new folder or an older dataset"):
        save(store, tmp_path)
    with pytest.raises(InputError, match="is a file, expected a folder"):
        save(store, tmp_path / "notes.txt")
    with pytest.raises(InputError, match="cannot write"):
        save(store, tmp_path / "notes.txt" / "below")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_verify_digests_finds_a_changed_file(store: ArcStore, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    save(store, folder)
    damage(folder / "cells.npy")
    load(folder)
    with pytest.raises(InputError, match="the content differs from the manifest's digest"):
        load(verified(folder))


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "cells.npy").unlink(), "cells.npy: cannot read"),
        (lambda f: (f / "cells.npy").write_bytes(b"x"), "cells.npy: cannot read"),
        (lambda f: (f / "cells.npy").write_bytes(b""), "cells.npy: cannot read"),
        (lambda f: np.save(f / "cells.npy", np.zeros(3, np.int8)), "found int8[3], expected uint8[3]"),
        (lambda f: np.save(f / "pair_tests.npy", np.zeros(3, np.int16)), "found int16[3], expected int16[20]"),
        (lambda f: np.save(f / "pair_tests.npy", np.zeros((20, 2), np.int16)), "found int16[20, 2], expected"),
        (lambda f: np.save(f / "group_pairs.npy", np.zeros(4, np.int32)), "found int32[4], expected int32[5]"),
        (lambda f: (f / "groups.json").write_text("[{}]"), "groups.json: not the groups of a dataset"),
        (lambda f: (f / "groups.json").write_text("[3]"), "groups.json: not the groups of a dataset"),
        (lambda f: (f / "manifest.json").write_text("3"), "manifest.json: not the manifest of a dataset"),
        (lambda f: (f / "manifest.json").unlink(), "no dataset, expected a folder that"),
        (lambda f: edit_manifest(f, version=99), "manifest.json: dataset version 99, expected 2"),
        (lambda f: edit_manifest(f, format="zip"), "manifest.json: not the manifest of a dataset"),
        (lambda f: edit_manifest(f, kind="chess"), "manifest.json: dataset of kind chess, expected arc"),
    ],
)
def test_load_refuses_what_is_no_dataset(store: ArcStore, tmp_path: Path, break_it: object, message: str) -> None:
    folder = tmp_path / "data"
    save(store, folder)
    break_it(folder)  # type: ignore[operator]
    with refused(message):
        load(folder)


def test_the_manifest_can_be_read_alone(store: ArcStore, tmp_path: Path) -> None:
    save(store, tmp_path / "data")
    assert read_manifest(tmp_path / "data", ["arc", "maze"])["counts"]["groups"] == 4
    with pytest.raises(InputError, match="dataset of kind arc, expected maze or sudoku"):
        read_manifest(tmp_path / "data", ["maze", "sudoku"])


def test_saving_replaces_nothing_but_a_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(InputError, match=r"holds manifest\.json, expected a new folder"):
        refuse_foreign(folder)
    (folder / "manifest.json").write_text('{"format": "arc-trm-dataset", "digests": {"cells.npy": ""}}')
    refuse_foreign(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, expected a new folder or an older dataset"):
        refuse_foreign(folder)


def test_a_task_is_named_by_its_demonstrations_in_any_order() -> None:
    first, other = random_task(3, "first"), random_task(4, "last")
    shuffled = replace(first, task_id="other", demonstrations=first.demonstrations[::-1], tests=other.tests)
    entries = [TaskEntry.all_pairs(first), TaskEntry.demonstrations_only(shuffled), TaskEntry.all_pairs(other)]
    names = build_store(entries, 3, seed=0).demonstration_digests()
    assert names[0] == names[1] != names[2]
    assert names[2] == pairs_digest(other.demonstrations)


# Generated pairs ----------------------------------------------------------------------------------------------------


def square(side: int, colour: int = 1) -> Pair:
    return Pair(np.full((side, 2), colour, np.uint8), np.full((3, side), colour, np.uint8))


GENERATED = tuple(pair for seed in (11, 12, 13) for pair in random_task(seed).demonstrations)


def test_generated_pairs_follow_those_of_their_task_and_train(tmp_path: Path) -> None:
    entries = [replace(entry, generated=GENERATED[:count]) for entry, count in zip(ENTRIES, (7, 0, 0, 2), strict=True)]
    built = build_store(entries, 13, 7)
    save(built, tmp_path / "data")
    built = load(verified(tmp_path / "data"))
    assert np.array_equal(np.diff(built.group_pairs), [12, 5, 5, 7])
    for group, entry in enumerate(entries):
        first, end = built.group_pairs[group : group + 2].tolist()
        own = first + len(entry.task.pairs)
        assert np.array_equal(built.pair_generated[first:end], [False] * 5 + [True] * (end - own))
        assert np.array_equal(built.pair_training[first:end], [*entry.training, *[True] * (end - own)])
        assert np.array_equal(built.pair_tests[first:end], [-1, -1, -1, 0, 1, *[-1] * (end - own)])
        for index, wanted in zip(range(own, end), entry.generated, strict=True):
            assert np.array_equal(built.input(index), wanted.input)
            assert np.array_equal(built.output(index), wanted.output)
    counts = built.manifest["counts"]
    assert (counts["pairs"], counts["training_pairs"], counts["generated_pairs"]) == (29, 23, 9)


def test_generated_pairs_change_nothing_about_their_task(store: ArcStore) -> None:
    built = build_store([replace(entry, generated=GENERATED) for entry in ENTRIES], 13, 7)
    assert built.groups == store.groups
    assert built.demonstration_digests() == store.demonstration_digests()
    assert [list(map(len, (task.demonstrations, task.tests))) for task in built.tasks()] == [[3, 2]] * 4
    assert [task_digest(task) for task in built.tasks()] == [task_digest(task) for task in store.tasks()]
    assert np.array_equal(built.puzzle_groups, store.puzzle_groups)
    assert same_augmentations(built.puzzle_augmentations, store.puzzle_augmentations)


def test_a_task_too_large_for_a_canvas_comes_with_its_generated_pairs_that_fit() -> None:
    large = task("large", [square(19)] * 2, [square(18)])
    entry = replace(TaskEntry.all_pairs(large), generated=(square(7), square(12), square(15), square(10)))
    assert entry.on_canvas(21) == entry
    small = entry.on_canvas(11)
    assert small is not None
    assert [pair.input.shape[0] for pair in small.generated] == [7, 10]
    built = build_store([small, ENTRIES[0]], 0, 0)
    assert np.array_equal(np.diff(built.group_pairs), [2, 5])
    assert np.array_equal(built.pair_generated, [True] * 2 + [False] * 5)
    assert (built.groups[0].side, built.groups[0].labels) == (11, ())
    assert built.demonstration_digests() == (
        pairs_digest(large.demonstrations),
        pairs_digest(ENTRIES[0].task.demonstrations),
    )
    assert len(built.training_digests()) == 1, "no own pair of the large task trains"
    middle = entry.on_canvas(16)
    assert middle is not None
    assert [pair.input.shape[0] for pair in middle.generated] == [7, 12, 15, 10]
    assert build_store([middle], 0, 0).groups[0].side == 16
    assert replace(entry, generated=(square(12),)).on_canvas(11) is None
    assert TaskEntry.all_pairs(large).on_canvas(16) is None


def test_pairs_larger_than_the_canvas_of_their_own_task_are_left_out() -> None:
    entry = TaskEntry.all_pairs(task("small", [square(7)] * 2, [square(5)]))
    placed = replace(entry, generated=(square(10), square(11))).on_canvas(30)
    assert placed is not None
    assert (placed.side, [pair.input.shape[0] for pair in placed.generated]) == (11, [10])


def test_an_export_gets_one_line_about_all_generated_pairs(store: ArcStore) -> None:
    facts = {"source": "x", "version": "1", "seed": 5, "settings": {"pairs": 9}, "tasks": 4, "count": 36, "digest": "d"}
    entries = [replace(entry, generated=GENERATED) for entry in ENTRIES]
    lines = build_store(entries, 13, 7, {"generated": facts}).training_digests()
    assert lines[:-1] == store.training_digests()
    word, _, described = lines[-1].partition(" ")
    assert (word, json.loads(described)) == ("generated", facts)
    asked = [entry.task for entry in ENTRIES] + [random_task(11)]
    assert trained_on(asked, lines) == trained_on(asked, store.training_digests())
