"""Challenges and checkpoints are found where they are mounted; a rehearsal has the competition's shape."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.files import InputError
from data_prep.store import TaskEntry, build_store
from data_prep.tasks import Task
from submission import inputs
from submission.inputs import (
    affordable,
    choose_rehearsal,
    distinct,
    find_challenges,
    find_exports,
    public_tasks,
    scale,
)
from tests.submission.tiny import MODEL, make_export, tiny_task, tiny_tasks, write_challenges, write_solutions

LAYOUTS = {
    "2025": ("arc-prize-2025", "my-export/arc-trm/export"),
    "2026": ("competitions/arc-prize-2026-arc-agi-2", "datasets/someone/my-export/export"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_found_in_both_layouts(tmp_path: Path, layout: str) -> None:
    competition, dataset = (tmp_path / place for place in LAYOUTS[layout])
    competition.mkdir(parents=True)
    for part in ("test", "evaluation", "training"):
        write_challenges(competition / f"arc-agi_{part}_challenges.json", tiny_tasks())
    for part in ("evaluation", "training"):
        write_solutions(competition / f"arc-agi_{part}_solutions.json", tiny_tasks())
    make_export(dataset)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "export.json").write_text('{"format": "something else"}')
    assert find_challenges(tmp_path) == competition / "arc-agi_test_challenges.json"
    assert find_exports(tmp_path) == [dataset]
    corpora = [f"arc-agi_{part}_challenges" for part in ("evaluation", "training") for _ in tiny_tasks()]
    assert [task.corpus for task in public_tasks(tmp_path)] == corpora


@pytest.mark.parametrize("competition", ["arc-prize-2025", "competitions/arc-prize-2026-arc-agi-2"])
def test_the_competitions_own_file_wins(tmp_path: Path, competition: str) -> None:
    name = "arc-agi_test_challenges.json"
    for folder in (competition, "aaa-copies", "datasets/me/copies"):
        (tmp_path / folder).mkdir(parents=True)
        write_challenges(tmp_path / folder / name, tiny_tasks())
    assert find_challenges(tmp_path) == tmp_path / competition / name
    (tmp_path / competition / name).unlink()
    with pytest.raises(InputError, match="should hold one"):
        find_challenges(tmp_path)


def test_nothing_mounted_is_said_in_one_line(tmp_path: Path) -> None:
    for find in (find_challenges, find_exports):
        for root in (tmp_path, tmp_path / "missing"):
            with pytest.raises(InputError, match=r"is not given, and .* should hold one .*: found none"):
                find(root)


def test_all_exports_are_found_and_each_once(tmp_path: Path) -> None:
    make_export(tmp_path / "b")
    make_export(tmp_path / "copy")
    other = make_export(tmp_path / "a" / "deeper", model=replace(MODEL, hidden=24))
    third = make_export(tmp_path / "third", model=replace(MODEL, hidden=32))
    for kind in ("json", "safetensors"):  # as in a bundle
        (third / f"export.{kind}").rename(tmp_path / "b" / f"export2.{kind}")
    assert find_exports(tmp_path) == [other, tmp_path / "b", tmp_path / "b" / "export2.json"]


# Rehearsal --------------------------------------------------------------------------------------------------


def tasks_of(corpus: str, count: int, seed: int) -> list[Task]:
    """Every third task asks for two outputs."""
    rng = np.random.default_rng(seed)
    return [tiny_task(f"{corpus}{i:02}", rng, tests=1 + (i % 3 == 0), corpus=corpus) for i in range(count)]


EVALUATION, TRAINING = tasks_of("e", 11, seed=1), tasks_of("t", 13, seed=2)


def lines_of(tasks: list[Task]) -> tuple[str, ...]:
    return build_store([TaskEntry.all_pairs(task) for task in tasks], 0, 0).training_digests()


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path / "competitions" / "arc-prize"
    folder.mkdir(parents=True)
    for part, tasks in (("training", TRAINING), ("evaluation", EVALUATION)):
        write_challenges(folder / f"arc-agi_{part}_challenges.json", tasks)
        write_solutions(folder / f"arc-agi_{part}_solutions.json", tasks)
    return tmp_path


def names(tasks: list[Task]) -> list[str]:
    return [task.task_id for task in tasks]


def test_an_unseen_evaluation_set_comes_first(mounted: Path) -> None:
    chosen, said = choose_rehearsal((), 5, mounted)
    assert names(chosen) == ["e00", "e01", "e02", "e03", "e04"]
    assert sum(len(task.tests) > 1 for task in chosen) == 2, "40 % of them"
    assert all(pair.output is not None for task in chosen for pair in task.tests)
    assert said.startswith("rehearsal on 5 public tasks, 2 of them with several outputs, none of which")


def test_tasks_that_the_checkpoint_knows_are_left_out(mounted: Path) -> None:
    chosen, said = choose_rehearsal(lines_of(EVALUATION + TRAINING[:7]), 100, mounted)
    assert said.startswith("rehearsal on 6 public tasks")
    assert names(chosen) == names(TRAINING[7:])


def test_demonstrations_that_were_trained_on_count_as_known(mounted: Path) -> None:
    shown = build_store([TaskEntry.demonstrations_only(task) for task in EVALUATION], 0, 0).training_digests()
    assert {name[0] for name in names(choose_rehearsal(shown, 5, mounted)[0])} == {"t"}


def test_folds_share_no_task_and_have_the_same_shape(mounted: Path) -> None:
    folds = [choose_rehearsal((), 5, mounted, part=(number, 3))[0] for number in (1, 2, 3)]
    assert len({name for fold in folds for name in names(fold)}) == 15
    assert [sum(len(task.tests) > 1 for task in fold) for fold in folds] == [2, 2, 2]
    with pytest.raises(InputError, match=r"--fold 25/25: there are 24 tasks, expected one or more for each"):
        choose_rehearsal((), 5, mounted, part=(25, 25))


def test_a_rehearsal_has_the_time_of_the_rerun_for_each_task() -> None:
    assert [affordable(seconds) for seconds in (30, 1200, 11.75 * 3600)] == [1, 7, 240]
    expected = (
        "scale: 1/20 of the rerun's tasks and puzzles, 1/40 of its time; a task has 1m28s, 0.5 of what it has there"
    )
    assert scale(12, 11.75 * 3600 / 40) == expected


def test_a_checkpoint_that_knows_everything_is_contaminated(mounted: Path) -> None:
    lines = lines_of(EVALUATION + TRAINING)
    with pytest.raises(InputError, match=r"trained on every public task, expected .* arc2-train.*--allow-seen"):
        choose_rehearsal(lines, 5, mounted)
    chosen, said = choose_rehearsal(lines, 5, mounted, allow_seen=True)
    assert names(chosen) == ["e00", "e01", "e02", "e03", "e04"]
    assert said.startswith("CONTAMINATED")


def test_where_all_demonstrations_are_known_tasks_with_unseen_test_outputs_come_first(mounted: Path) -> None:
    entries = [TaskEntry.demonstrations_only(task) for task in EVALUATION[3:]]
    lines = lines_of(EVALUATION[:3] + TRAINING) + build_store(entries, 0, 0).training_digests()
    with pytest.raises(InputError, match="trained on every public task"):
        choose_rehearsal(lines, 5, mounted)
    chosen, said = choose_rehearsal(lines, 5, mounted, allow_seen=True)
    assert len(chosen) == 5
    assert not {"e00", "e01", "e02"} & set(names(chosen))
    assert {name[0] for name in names(chosen)} == {"e"}
    assert said.endswith("on whose demonstrations the checkpoint was trained: no score for hidden tasks")
    assert choose_rehearsal(lines, 5, mounted, known=False, allow_seen=True)[1].startswith("UNKNOWN")


def test_what_a_checkpoint_does_not_say_is_unknown(mounted: Path) -> None:
    _, said = choose_rehearsal((), 5, mounted, known=False)
    assert said.startswith("UNKNOWN rehearsal on 5 public tasks")
    # What is known of several checkpoints is left out all the same.
    both, _ = choose_rehearsal(lines_of(EVALUATION + TRAINING[:7]), 100, mounted, known=False)
    assert names(both) == names(TRAINING[7:])


def test_without_mounted_files_the_package_serves(tmp_path: Path) -> None:
    pool = list(distinct(public_tasks(tmp_path)))
    assert len({task.task_id for task in pool}) == len(pool)
    assert {task.corpus for task in pool} == set(inputs.CORPORA)
    chosen = inputs._shaped(pool, 120)
    assert sum(len(task.tests) > 1 for task in chosen) == 49


@pytest.mark.parametrize(("count", "several"), [(1, 0), (3, 1), (8, 3), (12, 5), (24, 9), (99, 9)])
def test_the_shape_is_the_evaluation_sets(count: int, several: int) -> None:
    pool = [*EVALUATION, *TRAINING]
    chosen = inputs._shaped(pool, count)
    assert len(chosen) == min(count, 24)
    assert len(set(names(chosen))) == len(chosen)
    assert sum(len(task.tests) > 1 for task in chosen) == several


def test_a_repeated_task_is_taken_once() -> None:
    twin = Task("other name", "u", EVALUATION[0].demonstrations, EVALUATION[0].tests)
    assert list(distinct([*EVALUATION[:2], twin, EVALUATION[1]])) == EVALUATION[:2]
