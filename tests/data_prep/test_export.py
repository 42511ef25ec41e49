"""Public tasks as the two files of a competition."""

from pathlib import Path

import pytest

from data_prep.export import main
from data_prep.files import InputError
from data_prep.tasks import read_tasks
from tests.data_prep.test_build import Files


def test_a_corpus_becomes_challenges_and_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "b"
    assert main(["arc1-evaluation", "00576224", "009d5c81", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}: challenges.json and solutions.json of 2 tasks\n"
    hidden = read_tasks(out / "challenges.json")
    assert [task.task_id for task in hidden] == ["00576224", "009d5c81"]
    assert all(pair.output is None for task in hidden for pair in task.tests)
    whole = read_tasks(out / "challenges.json", out / "solutions.json")
    assert all(pair.output is not None for task in whole for pair in task.tests)


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "solutions.json").write_text("mine")
    with pytest.raises(InputError, match=r"solutions\.json: exists, expected another --out"):
        main(["arc1-evaluation", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["solutions.json"]


def test_hidden_outputs_cannot_be_written(tmp_path: Path) -> None:
    files = Files(tmp_path)
    tasks = files.tasks("a.json", [1], hide=True)
    with pytest.raises(InputError, match="task1: hides an output, expected tasks whose outputs are known"):
        main([tasks, "--out", str(tmp_path / "out")])
