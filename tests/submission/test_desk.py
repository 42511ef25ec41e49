"""What solving writes: the file that is always valid, votes, summaries."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from arc_trm.vote import Predictions, Tally
from data_prep.files import InputError
from submission import desk as desk_module
from submission.attempts import draft_submission, read_submission
from submission.desk import Desk, make_folder, summary_path
from submission.meta import SubmissionMeta, meta_path, read_meta
from tests.arc_trm.plain_vote import votes_for
from tests.submission.tiny import assert_valid, tiny_tasks

TASKS = tiny_tasks()


def vote_for(output: int, value: int, votes: int = 1) -> Predictions:
    """Votes for a 2 × 3 grid of one colour."""
    return votes_for([(output, np.full((2, 3), value, np.uint8), 0.0)] * votes)


def colours(path: Path, task_id: str, test: int = 0) -> list[int]:
    return [int(grid[0, 0]) for grid in read_submission(path)[task_id][test]]


@contextmanager
def full_disk() -> Iterator[None]:
    """Within this context no file can grow beyond 100 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_file_is_complete_before_there_is_a_vote(tmp_path: Path) -> None:
    desk = Desk(TASKS, tmp_path / "new" / "folder" / "submission.json")
    desk.open()
    assert_valid(desk.out, TASKS)
    assert desk.written is not None
    assert (desk.written.outputs, desk.written.fallback_attempts) == (4, 8)


def test_an_older_submissions_meta_goes_with_it(tmp_path: Path) -> None:
    desk = Desk(TASKS, tmp_path / "submission.json", meta=SubmissionMeta("abc", False, ("a",)))
    meta_path(desk.out).write_text("old")
    desk.open()
    assert read_meta(desk.out) is None
    desk.write()
    assert read_meta(desk.out) == desk.meta


def test_later_votes_add_to_earlier_ones(tmp_path: Path) -> None:
    desk = Desk(TASKS, tmp_path / "submission.json", candidates=tmp_path / "votes.npz")
    desk.open()
    desk.tally.add(vote_for(1, value=5, votes=2))
    desk.write()
    assert colours(desk.out, "b")[0] == 5
    desk.tally.add(vote_for(1, value=6))
    desk.write()
    assert colours(desk.out, "b") == [5, 6]
    desk.tally.add(vote_for(1, value=6, votes=2))
    desk.write()
    assert colours(desk.out, "b") == [6, 5]
    assert (desk.votes, desk.agreement) == (5, 3 / 5)
    stored = draft_submission(TASKS, Tally.load(tmp_path / "votes.npz")).submission
    assert [int(grid[0, 0]) for grid in stored["b"][0]] == [6, 5]
    assert_valid(desk.out, TASKS)


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    desk = Desk(TASKS, tmp_path / "submission.json", writes=False)
    desk.open()
    desk.write()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_last_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(TASKS, tmp_path / "submission.json")
    desk.open()
    before = desk.out.read_bytes()
    desk.tally.add(vote_for(0, value=7))
    with full_disk():
        desk.write()
        assert desk.out.read_bytes() == before
    assert "the last good file stays" in capsys.readouterr().err
    assert len(desk.troubles) == 1
    assert desk.summary()["fallback_attempts"] == 8, "the summary speaks of what is on disk"
    desk.write()
    assert colours(desk.out, "a")[0] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["submission.json"]


def test_a_disk_that_is_full_from_the_start_is_said_at_once(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(InputError, match="cannot write"):
        Desk(TASKS, tmp_path / "submission.json").open()


def test_a_task_whose_fallbacks_fail_gets_a_plain_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = draft_submission

    def failing(tasks, *rest):  # type: ignore[no-untyped-def]
        if [task.task_id for task in tasks] == ["b"]:
            raise ZeroDivisionError("b is odd")
        return real(tasks, *rest)

    monkeypatch.setattr(desk_module, "draft_submission", failing)
    desk = Desk(TASKS, tmp_path / "submission.json")
    desk.open()
    assert_valid(desk.out, TASKS)
    assert desk.troubles == ["task b: fallbacks: ZeroDivisionError: b is odd"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make this folder"):
        make_folder(tmp_path / "file" / "folder")


def test_the_summary_stands_beside_the_submission() -> None:
    assert summary_path(Path("x/submission.json")) == Path("x/submission.summary.json")
