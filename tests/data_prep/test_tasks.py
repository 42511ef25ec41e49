"""Reading tasks in every layout; one line for every wrong file."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep.files import InputError
from data_prep.tasks import Pair, Task, read_solutions, read_tasks, task_digest
from tests.data_prep.material import as_json, random_task, refused, same_task, task

TASKS = [random_task(seed, f"task{seed}") for seed in range(3)]
SOLUTIONS = {made.task_id: [one.output.tolist() for one in made.tests if one.output is not None] for made in TASKS}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_task_digest_ignores_order_and_roles_but_not_content() -> None:
    made = TASKS[0]
    turned = Task("other", "elsewhere", made.pairs[3:][::-1], made.pairs[:3][::-1])
    assert task_digest(turned) == task_digest(made) != task_digest(TASKS[1])
    hidden = task("t", made.demonstrations, [Pair(one.input, None) for one in made.tests])
    assert task_digest(hidden) != task_digest(made)


@pytest.mark.parametrize("folder", ["training", "Concept{}"])
def test_read_tasks_reads_a_folder_of_task_files_or_of_such_folders(tmp_path: Path, folder: str) -> None:
    for i, made in reversed(list(enumerate(TASKS))):
        write(tmp_path / "all" / folder.format(i) / f"{made.task_id}.json", as_json(made))
    (tmp_path / "all" / "readme.md").write_text("no task")
    found = read_tasks(tmp_path / "all", corpus="mine")
    assert [task.corpus for task in found] == ["mine"] * 3
    assert all(map(same_task, found, TASKS))


def test_read_tasks_reads_challenges_with_and_without_solutions(tmp_path: Path) -> None:
    # Not in alphabetical order: the order of the file counts.
    order = [TASKS[2], TASKS[0], TASKS[1]]
    challenges = write(tmp_path / "challenges.json", {made.task_id: as_json(made, hide=True) for made in order})
    solutions = write(tmp_path / "solutions.json", SOLUTIONS)
    hidden = read_tasks(challenges)
    assert [made.task_id for made in hidden] == [made.task_id for made in order]
    assert all(one.output is None for made in hidden for one in made.tests)
    assert all(map(same_task, read_tasks(challenges, solutions), order))


def test_read_tasks_reads_a_table_with_outputs_and_a_single_task(tmp_path: Path) -> None:
    table = write(tmp_path / "all.json", {made.task_id: as_json(made) for made in TASKS})
    assert all(map(same_task, read_tasks(table), TASKS))
    assert all(map(same_task, read_tasks(table, write(tmp_path / "s.json", SOLUTIONS)), TASKS))
    single = write(tmp_path / "task1.json", as_json(TASKS[1]))
    assert same_task(read_tasks(single)[0], TASKS[1])


def test_read_tasks_takes_a_table_whose_task_is_called_train_for_a_table(tmp_path: Path) -> None:
    table = write(tmp_path / "table.json", {"train": as_json(TASKS[0]), "test": as_json(TASKS[1])})
    assert [made.task_id for made in read_tasks(table)] == ["train", "test"]


GOOD = as_json(TASKS[0])
SHOWN = [{"input": [[1]], "output": [[2]]}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "task.json: the file is empty, expected JSON"),
        ("  \n", "task.json: the file is empty, expected JSON"),
        ("{'train'", "task.json: not JSON"),
        ("\x00\x01", "task.json: not JSON"),
        ([], "task.json: found an empty list, expected one task or {task_id: task, ...}"),
        (3, "task.json: found 3, expected one task"),
        ({}, "task.json: no task found"),
        ({"a": 3}, "task a: found 3, expected a task with 'train' and 'test'"),
        ({"train": SHOWN}, "found fields ['train'], expected a task with 'train' and 'test'"),
        ({"train": SHOWN, "test": []}, "task.json, test: found an empty list, expected a list of at least one pair"),
        ({"train": [], "test": SHOWN}, "task.json, train: found an empty list"),
        ({"train": SHOWN, "test": [3]}, "task.json, test 0: found 3 without 'input'"),
        ({"train": SHOWN, "test": [{"output": [[1]]}]}, "task.json, test 0: found an object without 'input'"),
        ({"train": [{"input": [[1]]}], "test": SHOWN}, "train 0: a demonstration without 'output'"),
        ({"a": {"train": SHOWN, "test": [{"input": [[1, 2], [3]]}]}}, "task a, test 0 input: row 1 has 1 cells"),
        ({"train": SHOWN, "test": [{"input": [[12]]}]}, "test 0 input: found 12 at row 0, column 0, expected a colour"),
        ({"train": SHOWN, "test": [{"input": [[0] * 31] * 31}]}, "test 0 input: 31 x 31 cells, expected at most 30"),
        ({"train": [{"input": [[1]], "output": [[1.5]]}], "test": SHOWN}, "train 0 output: found 1.5 at row 0"),
    ],
)
def test_read_tasks_refuses_a_bad_file_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    for part in (message, str(path)):
        with refused(part):
            read_tasks(path)


@pytest.mark.parametrize(
    ("solutions", "message"),
    [
        ({**SOLUTIONS, "task9": [[[1]]]}, "challenges.json: lacks task9, expected the same tasks as in"),
        ({"task9": [[[1]]]}, "solutions.json: lacks task0 and 2 more, expected the same tasks as in"),
        ({**SOLUTIONS, "task1": [[[1]]]}, "solutions.json: task task1 has 1 outputs, expected 2"),
        ({**SOLUTIONS, "task1": [[[1]], [[1, 2], [3]]]}, "task task1, output 1: row 1 has 1 cells"),
        ({**SOLUTIONS, "task1": []}, "task task1: found an empty list, expected a list of output grids"),
        ([], "solutions.json: found an empty list, expected {task_id: [grid, ...], ...}"),
    ],
)
def test_read_tasks_refuses_solutions_of_other_tasks(tmp_path: Path, solutions: Any, message: str) -> None:
    challenges = write(tmp_path / "challenges.json", {made.task_id: as_json(made, hide=True) for made in TASKS})
    with refused(message):
        read_tasks(challenges, write(tmp_path / "solutions.json", solutions))


def test_read_tasks_refuses_solutions_that_contradict_the_tasks(tmp_path: Path) -> None:
    table = write(tmp_path / "all.json", {made.task_id: as_json(made) for made in TASKS})
    wrong = {**SOLUTIONS, "task2": [[[1]], SOLUTIONS["task2"][1]]}
    with pytest.raises(InputError, match="task task2, output 0 differs from the task's own output"):
        read_tasks(table, write(tmp_path / "s.json", wrong))


def test_read_tasks_refuses_missing_files_and_repeated_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read_tasks(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="no task found"):
        read_tasks(tmp_path)
    for folder in ("a", "b"):
        write(tmp_path / folder / "task0.json", GOOD)
    with pytest.raises(InputError, match="task task0 occurs twice"):
        read_tasks(tmp_path)


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", "\N{ZERO WIDTH SPACE}"])
def test_read_tasks_refuses_names_that_cannot_be_printed(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "tasks.json", {name: as_json(TASKS[0])})
    with pytest.raises(InputError, match=r"found the task name .*, expected printable letters"):
        read_tasks(file)


def test_a_task_given_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    one = json.dumps(as_json(TASKS[0]))
    file = tmp_path / "tasks.json"
    file.write_text(f'{{"a": {one}, "a": {one}}}')
    with pytest.raises(InputError, match="a occurs twice"):
        read_tasks(file)
    file.write_text('{"a": [[[1]]], "a": [[[2]]]}')
    with pytest.raises(InputError, match="a occurs twice"):
        read_solutions(file)


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are no text")
def test_a_file_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "corpus")
    Path(os.fsdecode(os.fsencode(tmp_path / "corpus") + b"/\xff.json")).write_text(json.dumps(as_json(TASKS[0])))
    with pytest.raises(InputError, match=r"task name .*udcff"):
        read_tasks(tmp_path)
