"""The three functions for notebooks and other programs, as their page shows them."""

from pathlib import Path

import orjson
import pytest

from data_prep.files import InputError
from data_prep.store import load
from data_prep.tasks import read_solutions, write_tasks
from submission.score import score
from submission.settings import Settings
from submission.solve import Solved, solve_tasks
from submission.submission_file import read_submission
from tests.data_prep.material import as_json
from tests.submission.tiny import assert_valid, make_export, tiny_tasks
from tests.test_documentation import blocks
from tests.test_project import text_of

TASKS = tiny_tasks()
[EXAMPLE] = [body for language, body in blocks(text_of("docs/solving.md")) if language == "python"]


def test_the_example_builds_solves_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("my_tasks", "evaluation"):
        (tmp_path / folder).mkdir()
    (tmp_path / "my_tasks" / "a.json").write_bytes(orjson.dumps(as_json(TASKS[0])))
    write_tasks(TASKS, tmp_path / "evaluation")
    make_export(tmp_path / "runs" / "arc1" / "export")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(EXAMPLE, names)
    assert len(load("data/own").groups) == 1
    solved = names["solved"]
    assert isinstance(solved, Solved)
    assert_valid(tmp_path / "submission.json", TASKS)
    written = read_submission("submission.json")
    assert str(solved.attempts) == str(written)
    assert [tuple(output) for output in solved.candidates] == [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    assert all(sum(one.votes for one in several) == 16 for several in solved.candidates.values())
    assert (solved.summary["votes"], solved.summary["adaptation_steps"]) == (64, 20)
    scores = score(written, read_solutions("evaluation/solutions.json"))
    assert "\n".join(scores.lines()) in capsys.readouterr().out
    assert scores == names["scores"]


def test_a_missing_checkpoint_is_an_input_error_and_keeps_the_older_submission(tmp_path: Path) -> None:
    out = tmp_path / "submission.json"
    out.write_text("precious")
    with pytest.raises(InputError, match="found no task to solve"):
        solve_tasks([], tmp_path / "nowhere", out)
    with pytest.raises(InputError, match="holds no submission"):
        solve_tasks(TASKS, tmp_path / "nowhere", out, settings=Settings(steps=0))
    assert out.read_text() == "precious"
    with pytest.raises(InputError, match="no checkpoint here"):
        solve_tasks(TASKS, tmp_path / "nowhere", tmp_path / "new.json", settings=Settings(steps=0))
