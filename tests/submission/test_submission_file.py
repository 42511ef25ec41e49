"""The files that solving writes: a submission that is always valid, votes, summaries."""

from pathlib import Path

import numpy as np
import pytest

from arc_trm.vote import Predictions, Tally
from data_prep.files import InputError
from submission import submission_file as file_module
from submission.attempts import draft_submission
from submission.submission_file import SubmissionFile, read_submission, read_summary, remarks, summary_path
from tests.arc_trm.plain_vote import votes_for
from tests.kills import full_disk
from tests.submission.tiny import assert_valid, tiny_tasks

TASKS = tiny_tasks()


def vote_for(output: int, value: int, votes: int = 1) -> Predictions:
    """Votes for a 2 × 3 grid of one colour."""
    return votes_for([(output, np.full((2, 3), value, np.uint8), 0.0)] * votes)


def colours(path: Path, task_id: str, test: int = 0) -> list[int]:
    return [int(grid[0, 0]) for grid in read_submission(path)[task_id][test]]


def test_the_file_is_complete_before_there_is_a_vote(tmp_path: Path) -> None:
    file = SubmissionFile(TASKS, tmp_path / "new" / "folder" / "submission.json")
    file.open()
    assert_valid(file.path, TASKS)
    assert file.written is not None
    assert (file.written.outputs, file.written.fallback_attempts) == (4, 8)


def test_an_older_submissions_summary_goes_with_it(tmp_path: Path) -> None:
    file = SubmissionFile(TASKS, tmp_path / "submission.json", facts={"checkpoint": "abc", "trained_on": ["a"]})
    summary_path(file.path).write_text("old")
    file.open()
    assert read_summary(file.path) == {}
    file.write()
    written = read_summary(file.path)
    assert (written["checkpoint"], written["trained_on"], written["outputs"]) == ("abc", ["a"], 4)


def test_later_votes_add_to_earlier_ones(tmp_path: Path) -> None:
    file = SubmissionFile(TASKS, tmp_path / "submission.json", candidates=tmp_path / "votes.npz")
    file.open()
    file.tally.add(vote_for(1, value=5, votes=2))
    file.write()
    assert colours(file.path, "b")[0] == 5
    file.tally.add(vote_for(1, value=6))
    file.write()
    assert colours(file.path, "b") == [5, 6]
    file.tally.add(vote_for(1, value=6, votes=2))
    file.write()
    assert colours(file.path, "b") == [6, 5]
    assert (file.votes, file.agreement) == (5, 3 / 5)
    stored = draft_submission(TASKS, Tally.load(tmp_path / "votes.npz")).submission
    assert [int(grid[0, 0]) for grid in stored["b"][0]] == [6, 5]
    assert_valid(file.path, TASKS)


def test_a_file_with_more_votes_stays_until_there_are_as_many(tmp_path: Path) -> None:
    first = SubmissionFile(TASKS, tmp_path / "submission.json")
    first.open()
    first.tally.add(vote_for(0, value=5, votes=3))
    first.write()
    before = first.path.read_bytes()
    again = SubmissionFile(TASKS, first.path)
    assert again.goes_on()
    assert again.written is not None
    assert again.written.fallback_attempts == 7
    again.tally.add(vote_for(0, value=7, votes=2))
    again.write()
    assert first.path.read_bytes() == before
    assert read_summary(first.path)["votes"] == 3
    again.tally.add(vote_for(0, value=7))
    again.write()
    assert colours(first.path, "a")[0] == 7


def test_a_file_of_fallbacks_or_of_other_tasks_is_none_to_go_on_with(tmp_path: Path) -> None:
    file = SubmissionFile(TASKS, tmp_path / "submission.json")
    assert not file.goes_on()
    file.open()
    assert not file.goes_on()
    file.write()
    assert not file.goes_on()
    file.tally.add(vote_for(0, value=5))
    file.write()
    assert not SubmissionFile(TASKS[1:], file.path).goes_on()
    assert SubmissionFile(TASKS, file.path).goes_on()
    summary = summary_path(file.path)
    summary.write_text(summary.read_text().replace('"votes": 1,', '"votes": "some",'))
    assert not SubmissionFile(TASKS, file.path).goes_on()


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    file = SubmissionFile(TASKS, tmp_path / "submission.json", writes=False)
    file.open()
    file.write()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_last_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = SubmissionFile(TASKS, tmp_path / "submission.json")
    file.open()
    before = file.path.read_bytes()
    file.tally.add(vote_for(0, value=7))
    with full_disk():
        file.write()
        assert file.path.read_bytes() == before
    assert "the last good file stays" in capsys.readouterr().err
    assert len(file.troubles) == 1
    assert file.summary()["fallback_attempts"] == 8, "the summary speaks of what is on disk"
    file.write()
    assert colours(file.path, "a")[0] == 7
    assert {path.name for path in tmp_path.iterdir()} == {"submission.json", "submission.summary.json"}


def test_a_disk_that_is_full_from_the_start_is_said_at_once(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(InputError, match="cannot write"):
        SubmissionFile(TASKS, tmp_path / "submission.json").open()


def test_a_task_whose_fallbacks_fail_gets_a_plain_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = draft_submission

    def failing(tasks, *rest):  # type: ignore[no-untyped-def]
        if [task.task_id for task in tasks] == ["b"]:
            raise ZeroDivisionError("b is odd")
        return real(tasks, *rest)

    monkeypatch.setattr(file_module, "draft_submission", failing)
    file = SubmissionFile(TASKS, tmp_path / "submission.json")
    file.open()
    assert_valid(file.path, TASKS)
    assert file.troubles == ["task b: fallbacks: ZeroDivisionError: b is odd"]


# The summary ------------------------------------------------------------------------------------------------


def test_remarks_say_only_what_the_summary_says() -> None:
    assert remarks({}) == []
    assert remarks({"checkpoint": "c"}) == ["checkpoint c"]


def test_early_votes_stay_until_their_output_has_another_vote() -> None:
    file = SubmissionFile(TASKS, Path("nowhere.json"))
    file.tally.add(vote_for(0, 3, votes=2))
    file.tally.add(vote_for(1, 4))
    file.tally.make_provisional()
    empty = vote_for(0, 5)
    empty.tokens[:] = 0  # an empty cut has no vote
    file.tally.add(empty)
    assert [file.tally.total(output) for output in (0, 1)] == [2, 1]
    file.tally.add(vote_for(0, 6))
    file.tally.add(vote_for(0, 7))
    assert [file.tally.total(output) for output in (0, 1)] == [2, 1]
    assert {int(candidate.grid[0, 0]) for candidate in file.tally.candidates(0)} == {6, 7}
