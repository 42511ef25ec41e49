"""The build command: recipes, merges, leaks, wrong input."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.build import main
from data_prep.corpus import pinned_corpus, ruler, ruler_corpus
from data_prep.files import InputError
from data_prep.overlap import pair_digest
from data_prep.store import ArcStore, load
from tests.conftest import run_module
from tests.data_prep.material import as_json, random_task, refused, same_augmentations, verified


@dataclass(frozen=True)
class Files:
    """Task files of a user: five tasks, of which the last three also come without solutions."""

    folder: Path

    def write(self, name: str, value: Any) -> str:
        path = self.folder / name
        path.write_text(json.dumps(value))
        return str(path)

    def tasks(self, name: str, seeds: Sequence[int], hide: bool = False) -> str:
        made = {f"task{seed}": as_json(random_task(seed), hide) for seed in seeds}
        return self.write(name, made)

    def solutions(self, name: str, seeds: Sequence[int]) -> str:
        made = {f"task{seed}": [p["output"] for p in as_json(random_task(seed))["test"]] for seed in seeds}
        return self.write(name, made)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def build(out: Path, *arguments: str, augmentations: int = 3) -> ArcStore:
    assert main(["arc", "--out", str(out), "--augmentations", str(augmentations), *arguments]) == 0
    return load(verified(out))


def test_ones_own_tasks_with_solutions(files: Files, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, solutions = files.tasks("a.json", [1, 2], hide=True), files.solutions("s.json", [1, 2])
    store = build(out, "--source", f"mine={tasks}:{solutions}")
    assert [group.name for group in store.groups] == ["mine/task1", "mine/task2"]
    assert store.pair_training.all()
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    assert capsys.readouterr().out == (
        f"wrote {out}: 2 tasks, 10 training pairs, 0 scored outputs, 8 puzzles, {size:.1f} MB\n"
    )


def test_several_sources_merge_into_one_dataset(files: Files, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = files.tasks("a.json", [1, 2]), files.tasks("b.json", [2, 3])
    scored = files.tasks("c.json", [4], hide=True)
    store = build(out, "--source", f"a={first}", "--source", f"b={again}", "--scored", f"c={scored}")
    assert [group.name for group in store.groups] == ["a/task1", "a/task2", "b/task3", "c/task4"]
    assert [group.scored for group in store.groups] == [False, False, False, True]
    assert [(c["name"], c["version"], c["tasks"]) for c in store.manifest["corpora"]] == [
        ("a", "own", 2),
        ("b", "own", 2),
        ("c", "own", 1),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "merged 1 training tasks that occur twice"
    assert lines[1].startswith(f"wrote {out}: 4 tasks, 18 training pairs, 2 scored outputs, 16 puzzles")


def test_merge_keeps_a_turned_copy_of_a_task(files: Files, out: Path) -> None:
    made = as_json(random_task(1))
    turned = {
        part: [{role: np.rot90(np.array(grid)).tolist() for role, grid in p.items()} for p in made[part][::-1]]
        for part in made
    }
    store = build(out, "--source", f"a={files.write('a.json', {'plain': made, 'turned': turned})}")
    assert len(store.groups) == 2


def test_a_challenges_file_without_solutions(files: Files, out: Path) -> None:
    challenges = files.tasks("challenges.json", [3, 4, 5], hide=True)
    store = build(out, "--scored", f"competition={challenges}")
    assert store.manifest["counts"]["scored_outputs"] == 6
    assert store.manifest["counts"]["training_pairs"] == 9
    assert all(store.output(pair) is None for pair in np.flatnonzero(store.pair_tests >= 0))


@pytest.mark.parametrize("hidden", [False, True])
def test_a_leak_of_ones_own_stops_unless_allowed(
    files: Files, out: Path, hidden: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    training, scored = files.tasks("a.json", [1, 2, 3]), files.tasks("b.json", [1, 3, 4], hide=hidden)
    sources = ["--source", f"a={training}", "--scored", f"b={scored}"]
    said = "2 training tasks contain test pairs that are to stay unseen (--allow-leak builds all the same)"
    with refused(f"{said}: a/task1, a/task3"):
        build(out, *sources)
    assert not out.exists()
    store = build(out, *sources, "--allow-leak")
    assert store.manifest["leak"] == [
        {"training": f"a/task{task}", "pair": pair, "scored": f"b/task{task}"} for task in (1, 3) for pair in (3, 4)
    ]
    assert "LEAK allowed: 2 training tasks contain test pairs that are scored" in capsys.readouterr().out


def test_recipe_arc1_has_the_known_counts_and_leaks(
    conceptarc_dir: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = build(out, "--recipe", "arc1", "--conceptarc", str(conceptarc_dir), augmentations=20)
    counts = store.manifest["counts"]
    # 416 + 1302 pairs of ARC-1 training, 1363 demonstrations of evaluation and 907 pairs of ConceptARC, less two.
    assert counts["groups"] == 960
    assert counts["scored_outputs"] == 419
    assert counts["training_pairs"] == 416 + 1302 + 1363 + 907 - 2
    assert [c["name"] for c in store.manifest["corpora"]] == ["arc1-training", "conceptarc", "arc1-evaluation"]
    assert all(group.scored == (group.corpus == "arc1-evaluation") for group in store.groups)
    assert not store.pair_training[[store.groups[g].scored for g in store.pair_groups] & (store.pair_tests >= 0)].any()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "left out 2 training pairs that equal test pairs to stay unseen: arc1-training/40853293 "
        "(= arc1-evaluation/070dd51e), arc1-training/caa06a1f (= arc1-evaluation/50a16a69)"
    )
    assert store.manifest["leak"] == []
    assert len(store.manifest["left_out"]) == len(lines) == 2


def test_a_recipe_does_without_conceptarc_and_says_so(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = build(out, "--recipe", "arc1-train", augmentations=0)
    assert len(store.groups) == len(store.puzzle_groups) == 400
    assert capsys.readouterr().out.startswith("built without ConceptARC: name its folder with --conceptarc DIR")


def test_pinned_corpora_can_be_named_as_sources(conceptarc_dir: Path, out: Path) -> None:
    store = build(out, "--source", "conceptarc", "--conceptarc", str(conceptarc_dir), augmentations=0)
    assert len(store.groups) == 160
    # Of the 377 two repeat tasks of ARC-1 training, whose leaking pairs the recipe leaves out by itself.
    with pytest.raises(InputError, match="375 training tasks contain test pairs"):
        build(out, "--recipe", "arc1", "--source", "arc2-training", augmentations=0)
    assert len(load(out).groups) == 160


def test_build_says_that_conceptarc_has_other_content_and_takes_it(
    files: Files, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files.folder / "mine" / "Copy").mkdir(parents=True)
    files.write("mine/Copy/Copy1.json", as_json(random_task(1)))
    build(out, "--source", "conceptarc", "--conceptarc", str(files.folder / "mine"))
    assert "not the pinned content of ConceptARC (1 tasks), taken as it is" in capsys.readouterr().out


def test_the_same_command_makes_the_same_dataset(files: Files, out: Path) -> None:
    source = f"a={files.tasks('a.json', [1, 2])}"
    first, second, other = (
        build(out.with_name(f"{seed}{i}"), "--source", source, "--seed", seed) for i, seed in enumerate("556")
    )
    assert first.manifest == second.manifest != other.manifest
    assert all(np.array_equal(array, second.arrays()[name]) for name, array in first.arrays().items())
    assert not same_augmentations(first.puzzle_augmentations, other.puzzle_augmentations)


def test_a_source_path_may_hold_a_colon(files: Files, out: Path) -> None:
    assert len(build(out, "--source", f"a={files.tasks('x:y.json', [1])}").groups) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to build from, expected --recipe, --source or --scored"),
        (["--source", "arc3"], "corpus 'arc3', expected one of arc1-training"),
        (["--source", "conceptarc"], "corpus conceptarc: name its folder with --conceptarc DIR"),
        (["--source", "a/b={a}"], "expected NAME=PATH with a name of letters, digits"),
        (["--source", "a={a}", "--scored", "a={a}"], "corpus a is named twice"),
        (["--source", "a={folder}/nowhere.json"], "nowhere.json: cannot read (No such file or directory)"),
        (["--source", "a={a}:{folder}/nowhere.json"], "nowhere.json: cannot read"),
        (["--source", "a={a}:{a}"], "found an object, expected a list of output grids"),
        (["--source", "a={a}", "--conceptarc", "{folder}/nowhere", "--recipe", "arc1"], "nowhere: no such folder"),
        (["--source", "a={folder}/empty.json"], "empty.json: the file is empty, expected JSON"),
        (["--source", "a={a}", "--out", "{folder}"], "expected a new folder"),
        (["--source", "a={a}", "--out", "{a}"], "is a file, expected a folder"),
        (["--source", "a={a}", "--out", "{a}/below"], "below: cannot write ("),
    ],
)
def test_wrong_input_ends_in_one_clear_line(files: Files, out: Path, arguments: list[str], message: str) -> None:
    (files.folder / "empty.json").touch()
    names = {"folder": files.folder, "a": files.tasks("a.json", [1])}
    with refused(message):
        main(["arc", "--out", str(out), *(text.format(**names) for text in arguments)])
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arc", "--recipe", "arc9", "--out", "x"], "invalid choice: 'arc9'"),
        (["arc", "--recipe", "arc1"], "the following arguments are required: --out"),
        (["arc", "--out", "x", "--augmentations", "-1"], "found '-1', expected a whole number of at least 0"),
        (["arc", "--out", "x", "--seed", "x"], "found 'x', expected a whole number of at least 0"),
        (["chess"], "invalid choice: 'chess'"),
        ([], "required"),
    ],
)
def test_a_wrong_command_line_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_program_reports_errors_in_one_line_and_status_2(files: Files, out: Path) -> None:
    bad = files.write("bad.json", {"train": [{"input": [[1]], "output": [[12]]}], "test": [{"input": [[1]]}]})
    ended = run_module("data_prep.build", "arc", "--source", f"a={bad}", "--out", str(out))
    assert (ended.returncode, ended.stdout) == (2, "")
    expected = f"error: {bad}, train 0 output: found 12 at row 0, column 0, expected a colour 0-9\n"
    assert ended.stderr == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_place_ends_in_one_clear_line(files: Files) -> None:
    locked = files.folder / "locked"
    locked.mkdir(mode=0o555)
    with pytest.raises(InputError, match="Permission denied"):
        main(["arc", "--source", f"a={files.tasks('a.json', [1])}", "--out", str(locked / "data")])


def test_help_names_every_recipe() -> None:
    ended = run_module("data_prep.build", "arc", "--help")
    assert ended.returncode == 0
    names = ("arc1-train:", "arc2-train:", "public:", "--allow-leak")
    assert all(name in ended.stdout for name in names)


def square(side: int) -> dict[str, Any]:
    pair = {"input": [[1] * side] * side, "output": [[2] * side] * side}
    return {"train": [pair, pair], "test": [{"input": pair["input"]}]}


def test_canvas_selects_the_tasks_that_fit(files: Files, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = files.write("a.json", {"small": square(10), "large": square(11), "tiny": square(2)})
    store = build(out, "--scored", f"a={tasks}", "--canvas", "11")
    assert [group.name for group in store.groups] == ["a/small", "a/tiny"]
    assert store.manifest["canvas"] == 11
    assert "took 2 of 3 tasks: those whose visible grids fit a canvas of 11x11" in capsys.readouterr().out


def test_a_canvas_that_no_task_fits_is_refused(files: Files, out: Path) -> None:
    tasks = files.write("a.json", {"large": square(11)})
    with pytest.raises(InputError, match="--canvas 11: none of 1 tasks fits, expected a larger canvas"):
        build(out, "--scored", f"a={tasks}", "--canvas", "11")
    assert not out.exists()


def test_held_out_tasks_alone_are_scored_and_their_test_pairs_train_nothing(out: Path) -> None:
    options = ["--canvas", "11", "--augmentations", "1", "--out", str(out)]
    assert main(["arc", "--recipe", "arc1", "--hold-out", "held-out-11", *options]) == 0
    store = load(out)
    held = [group.task_id for group in store.groups if group.scored]
    tasks = {task.task_id: task for task in pinned_corpus("arc1-training").tasks}
    assert sorted(held) == ruler()["held-out-11"]["tasks"]
    assert store.manifest["held_out"] == ["held-out-11"]
    labels = {text for group in store.groups for text in group.labels}
    shown = {str(pair_digest(pair)) for name in held for pair in tasks[name].demonstrations}
    for name in held:
        assert not {str(pair_digest(pair)) for pair in tasks[name].tests} & labels - shown
    evaluation = [g for g, group in enumerate(store.groups) if group.corpus == "arc1-evaluation"]
    assert len(evaluation) == 77
    assert not store.pair_training[(store.pair_tests >= 0) & np.isin(store.pair_groups, evaluation)].any()


def test_excluded_tasks_and_their_twins_train_nothing(out: Path) -> None:
    options = ["--canvas", "11", "--augmentations", "0", "--out", str(out)]
    main(["arc", "--source", "arc1-training", "--source", "arc2-training", "--exclude", "held-out-11", *options])
    store = load(out)
    listed = ruler_corpus("held-out-11").tasks
    pairs = {pair_digest(pair).pair for task in listed for pair in task.pairs}
    assert not pairs & {label.partition(":")[0] for group in store.groups for label in group.labels}
    # ARC-AGI-2 training holds the same tasks again under the same ids, and without the list they train.
    assert not {task.task_id for task in listed} & {group.task_id for group in store.groups}
    main(["arc", "--source", "arc2-training", *options])
    assert {task.task_id for task in listed} & {group.task_id for group in load(out).groups}
    assert store.manifest["excluded"] == ["held-out-11"]


def test_an_unknown_list_is_refused_with_those_that_there_are(out: Path) -> None:
    with pytest.raises(InputError, match="list 'mine', expected one of held-out-11, unseen-11, unseen-16, unseen-21"):
        main(["arc", "--recipe", "arc1", "--hold-out", "mine", "--out", str(out)])


# Generated pairs ----------------------------------------------------------------------------------------------------


def generated_folder(files: Files, name: str, **tasks: Any) -> Path:
    folder = files.folder / name
    folder.mkdir()
    for task_id, value in tasks.items():
        files.write(f"{name}/{task_id}.json", value)
    return folder


def test_generated_pairs_join_their_tasks(files: Files, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = files.tasks("a.json", [1, 2])
    plain = build(out.with_name("plain"), "--source", f"a={tasks}")
    capsys.readouterr()
    folder = generated_folder(files, "made", task2=as_json(random_task(5)), other=as_json(random_task(6)))
    store = build(out, "--source", f"a={tasks}", "--generated", str(folder))
    assert store.groups == plain.groups
    assert np.array_equal(np.diff(store.group_pairs), [5, 10])
    assert np.array_equal(store.pair_generated, [False] * 10 + [True] * 5)
    source = store.manifest["generated"]
    assert {"source": "made", "tasks": 1, "count": 5, "dropped": 0}.items() <= source.items()
    assert store.training_digests()[:-1] == plain.training_digests()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "left out 1 generated tasks: no task of their name trains here"
    assert lines[1].startswith(f"wrote {out}: 2 tasks, 15 training pairs (5 generated), 0 scored outputs, 8 puzzles")


def test_the_guard_sees_generated_pairs(files: Files, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, scored = files.tasks("a.json", [1, 2, 3]), files.tasks("b.json", [4])
    leaking, shared = as_json(random_task(5)), as_json(random_task(4))
    leaking["train"].append({role: np.rot90(grid).tolist() for role, grid in shared["test"][0].items()})
    twin = as_json(random_task(1))
    twin["train"].append(shared["train"][0])
    files.write("a.json", {**json.loads(Path(training).read_text()), "task1": twin})
    folder = generated_folder(files, "made", task1=as_json(random_task(6)), task2=leaking)
    store = build(out, "--source", f"a={training}", "--scored", f"b={scored}", "--generated", str(folder))
    assert np.array_equal(np.diff(store.group_pairs), [6, 10, 5, 5])
    assert store.manifest["generated"]["dropped"] == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "dropped 1 generated pairs that equal pairs to stay unseen: a/task2",
        "left out the generated pairs of tasks that share a pair with one to stay unseen: a/task1 (= b/task4)",
    ]
    files.write("made/task4.json", as_json(random_task(7)))
    with pytest.raises(
        InputError, match=r"generated pairs for task task4, which is scored \(b/task4\): remove its file"
    ):
        build(out, "--source", f"a={training}", "--scored", f"b={scored}", "--generated", str(folder))


def test_larger_tasks_come_with_their_generated_pairs(
    files: Files, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = files.write("a.json", {"small": square(10), "large": square(11), "huge": square(12)})
    folder = generated_folder(
        files, "made", large=as_json(random_task(1)), small={**square(5), "test": square(11)["train"]}
    )
    store = build(out, "--scored", f"b={files.tasks('b.json', [9])}", "--source", f"a={tasks}", "--canvas", "11",
        "--generated", str(folder))  # fmt: skip
    assert [group.name for group in store.groups] == ["a/small", "a/large"]
    assert np.array_equal(store.pair_generated, [False] * 3 + [True] * 6)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "took 1 of 4 tasks: those whose visible grids fit a canvas of 11x11",
        "took the generated pairs of 1 larger tasks",
        "left out 3 generated pairs larger than the canvas of their task",
    ]
