"""Generated pairs on their way into a dataset: read, guarded up to symmetry, joined to the tasks they belong to."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.corpus import Corpus, merge, pinned_corpus
from data_prep.files import InputError
from data_prep.generated import SOURCE, join, read_generated
from data_prep.store import TaskEntry
from data_prep.tasks import Pair, Task
from tests.data_prep.material import as_json, random_task
from tests.data_prep.test_overlap import COLOURS, hide, recolour, recolour_task

TRAINING = TaskEntry.all_pairs(random_task(1, "a"))
UNSEEN = random_task(2, "asked", corpus="evaluation")


def made(task_id: str, *pairs: Pair) -> Task:
    """A task of generated pairs, of which the last is its test."""
    return Task(task_id, "generated", pairs[:-1], pairs[-1:])


FRESH = random_task(3).pairs  # pairs that equal none of the others


def generated_of(entries: Sequence[TaskEntry]) -> dict[str, tuple[Pair, ...]]:
    return {entry.task.name: entry.generated for entry in entries}


@pytest.mark.parametrize("hidden", [False, True])
@given(element=st.integers(0, 7), colours=COLOURS, which=st.integers(0, 4), place=st.integers(0, 5))
@settings(max_examples=25)
def test_a_generated_pair_that_equals_an_unseen_one_is_dropped(
    hidden: bool, element: int, colours: list[int], which: int, place: int
) -> None:
    unseen = hide(UNSEEN) if hidden else UNSEEN
    pairs = [*FRESH]
    pairs.insert(place, recolour(UNSEEN.pairs[which], element, colours))
    joined = join([TRAINING], [made("a", *pairs)], [random_task(4), unseen], ())
    assert generated_of(joined.entries) == {"own/a": FRESH}
    assert (joined.dropped, joined.twins, joined.strangers) == ({"own/a": 1}, {}, 0)


@given(element=st.integers(0, 7), colours=COLOURS, which=st.integers(0, 4))
@settings(max_examples=25)
def test_a_generated_task_leaves_if_its_namesake_shares_a_pair_with_an_unseen_task(
    element: int, colours: list[int], which: int
) -> None:
    own = TRAINING.task.pairs[which]
    twin = replace(UNSEEN, demonstrations=(*UNSEEN.demonstrations, recolour(own, element, colours)))
    other = TaskEntry.all_pairs(random_task(5, "b"))
    joined = join([TRAINING, other], [made("a", *FRESH), made("b", *FRESH)], [twin], ())
    assert generated_of(joined.entries) == {"own/a": (), "own/b": FRESH}
    assert (joined.dropped, joined.twins, joined.strangers) == ({}, {"own/a": "evaluation/asked"}, 0)


def test_a_twin_is_found_by_pairs_that_do_not_train() -> None:
    partly = replace(TRAINING, training=(True, True, True, True, False))
    turned = recolour_task(TRAINING.task, 3, [1, 0, *range(2, 10)], task_id="twin")
    twin = replace(turned, demonstrations=turned.tests[1:], tests=UNSEEN.tests)
    assert join([partly], [made("a", *FRESH)], [twin], ()).twins == {"own/a": "own/twin"}


def test_pairs_join_the_first_training_task_of_their_name_and_change_nothing_else() -> None:
    again = TaskEntry.all_pairs(random_task(6, "a", corpus="other"))
    scored = TaskEntry.demonstrations_only(UNSEEN)
    joined = join([TRAINING, again, scored], [made("a", *FRESH), made("stranger", *FRESH)], [UNSEEN], ())
    assert generated_of(joined.entries) == {"own/a": FRESH, "other/a": (), "evaluation/asked": ()}
    assert tuple(replace(entry, generated=()) for entry in joined.entries) == (TRAINING, again, scored)
    assert joined.strangers == 1


def test_generated_pairs_for_a_scored_task_are_refused_and_for_one_held_out_left_out() -> None:
    entries, task = [TRAINING, TaskEntry.demonstrations_only(UNSEEN)], made("asked", *FRESH)
    with pytest.raises(InputError) as caught:
        join(entries, [task], [UNSEEN], ())
    message = "generated pairs for task asked, which is scored (evaluation/asked): remove its file"
    assert str(caught.value) == message
    joined = join(entries, [task], [UNSEEN], {"evaluation/asked"})
    assert not any(generated_of(joined.entries).values())
    assert joined.strangers == 1


def test_twins_among_the_real_tasks_are_found() -> None:
    training, evaluation = (pinned_corpus(name) for name in ("arc1-training", "arc1-evaluation"))
    held = {task.task_id: task for task in training.tasks}["8be77c9e"]
    others = replace(training, tasks=tuple(task for task in training.tasks if task is not held))
    merged = merge([others], [evaluation, Corpus("held", "", (held,))])
    generated = [made(name, *FRESH) for name in ("40853293", "8be77c9e", "c9e6f938", "007bbfb7")]
    joined = join(merged.entries, generated, [*evaluation.tasks, held], {held.name})
    assert [name for name, pairs in generated_of(joined.entries).items() if pairs] == ["arc1-training/007bbfb7"]
    assert joined.twins == {
        "arc1-training/40853293": "arc1-evaluation/070dd51e",
        "arc1-training/c9e6f938": "arc1-training/8be77c9e",
    }
    assert joined.strangers == 1


def write(folder: Path, *tasks: Task) -> None:
    folder.mkdir(exist_ok=True)
    for task in tasks:
        (folder / f"{task.task_id}.json").write_text(json.dumps(as_json(task)))


def test_any_folder_of_task_files_is_read(tmp_path: Path) -> None:
    write(tmp_path / "mine", made("a", *FRESH), made("b", *FRESH[:2]))
    tasks, facts = read_generated(tmp_path / "mine")
    assert [(task.name, len(task.pairs)) for task in tasks] == [("generated/a", 5), ("generated/b", 2)]
    digest = facts["digest"]
    assert facts == {"source": "mine", "digest": digest}
    said = {"source": "x", "version": "1", "seed": 5, "pairs": 2}
    (tmp_path / "mine" / SOURCE).write_text(json.dumps({"format": "arc-trm-generated", **said}))
    assert read_generated(tmp_path / "mine")[1] == {**said, "digest": digest}
    write(tmp_path / "mine", made("b", *FRESH[1:3]))
    assert read_generated(tmp_path / "mine")[1]["digest"] != digest


@pytest.mark.parametrize("text", ["[]", '{"format": "arc-trm-dataset"}'])
def test_a_wrong_description_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, made("a", *FRESH))
    (tmp_path / SOURCE).write_text(text)
    with pytest.raises(InputError, match=r"source\.manifest: not the description of generated pairs"):
        read_generated(tmp_path)
    with pytest.raises(InputError, match=r"nowhere: cannot read \(No such file or directory\)"):
        read_generated(tmp_path / "nowhere")
