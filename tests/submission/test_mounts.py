"""Finding challenges and checkpoints below a folder of mounts."""

from pathlib import Path

import pytest

from data_prep.files import InputError
from submission.mounts import find_challenges, find_export, find_solved
from tests.submission.tiny import make_export, tiny_tasks, write_challenges, write_solutions

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
    assert find_export(tmp_path) == dataset
    assert [(a.name, b.name) for a, b in find_solved(tmp_path)] == [
        ("arc-agi_evaluation_challenges.json", "arc-agi_evaluation_solutions.json"),
        ("arc-agi_training_challenges.json", "arc-agi_training_solutions.json"),
    ]


def test_nothing_mounted_is_said_in_one_line(tmp_path: Path) -> None:
    for find in (find_challenges, find_export):
        for root in (tmp_path, tmp_path / "missing"):
            with pytest.raises(InputError, match=r"is not given, and .* should hold one .*: found none"):
                find(root)
    assert find_solved(tmp_path) == []


def test_two_exports_are_not_guessed_between(tmp_path: Path) -> None:
    make_export(tmp_path / "a")
    make_export(tmp_path / "b")
    with pytest.raises(InputError, match=f"found {tmp_path / 'a'}, {tmp_path / 'b'}"):
        find_export(tmp_path)
