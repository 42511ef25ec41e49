"""Merging two submissions: theirs first, ours second, votes of several runs of ours added up."""

from pathlib import Path

import numpy as np
import pytest

from arc_trm.vote import Tally, outputs_of
from data_prep.files import InputError
from submission import merge
from submission.attempts import Attempts
from submission.submission_file import read_submission, summary_path, write_submission
from tests.arc_trm.plain_vote import votes_for
from tests.submission.tiny import assert_valid, tiny_tasks, write_challenges

TASKS = tiny_tasks(3)  # four outputs: the second task asks for two
OUTPUTS = outputs_of(TASKS)


def grid(colour: int) -> np.ndarray:
    return np.full((2, 3), colour, np.uint8)


def write(path: Path, colours: list[tuple[int, int]]) -> Path:
    """A submission whose attempts are grids of one colour, an entry of `colours` for each output."""
    submission: dict[str, tuple[Attempts, ...]] = {}
    for output, pair in zip(OUTPUTS, colours, strict=True):
        submission[output.task_id] = (*submission.get(output.task_id, ()), Attempts(*map(grid, pair)))
    write_submission(path, submission)
    return path


def colours(path: Path) -> list[tuple[int, int]]:
    outputs = [attempts for task in read_submission(path).values() for attempts in task]
    return [(int(first[0, 0]), int(second[0, 0])) for first, second in outputs]


def votes(path: Path, *cast: tuple[int, int, int]) -> Path:
    """A candidates file with (output, colour, number of votes)."""
    tally = Tally(OUTPUTS)
    tally.add(votes_for([(output, grid(colour), 0.0) for output, colour, count in cast for _ in range(count)]))
    tally.save(path)
    return path


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    theirs = write(tmp_path / "theirs.json", [(1, 2), (3, 4), (5, 6), (7, 8)])
    ours = write(tmp_path / "ours.json", [(1, 9), (4, 3), (6, 0), (7, 7)])
    challenges = write_challenges(tmp_path / "challenges.json", TASKS)
    return [str(theirs), str(ours), "--challenges", str(challenges), "--out", str(tmp_path / "out.json")]


def test_attempt_2_is_ours_where_it_differs_from_their_first(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    summary_path(out).write_text("of an older submission")
    assert merge.main(words) == 0
    assert colours(out) == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert_valid(out, TASKS)
    assert capsys.readouterr().out == f"wrote {out}: 3 tasks, 4 outputs, attempt 2 ours at 2 of them\n"
    assert not summary_path(out).exists()
    write(tmp_path / "ours.json", [(2, 9), (3, 9), (9, 5), (0, 7)])
    assert merge.main(words) == 0
    assert colours(out) == [(1, 2), (3, 4), (5, 9), (7, 0)]


def test_the_votes_of_several_runs_add_up(words: list[str], tmp_path: Path) -> None:
    first = votes(tmp_path / "a.npz", (0, 5, 3), (0, 6, 2), (3, 4, 1))
    second = votes(tmp_path / "b.npz", (0, 6, 2), (1, 3, 1))
    out = tmp_path / "out.json"
    assert merge.main([*words, "--candidates", str(first)]) == 0
    assert colours(out) == [(1, 5), (3, 4), (5, 6), (7, 4)], "ours.json answers where there are no votes"
    assert merge.main([*words, "--candidates", str(first), "--candidates", str(second)]) == 0
    assert colours(out) == [(1, 6), (3, 4), (5, 6), (7, 4)]


def test_costs_of_cells_add_up() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(2):
        tally = Tally(OUTPUTS[:1])
        tally.restore(
            {
                **{name: np.zeros(0, np.int64) for name in ("outputs", "votes", "halting", "key_lengths")},
                "keys": np.zeros(0, np.uint8),
                "cell_outputs": np.zeros(1, np.int64),
                "cell_shapes": np.array([[2, 3]]),
                "cell_costs": rng.integers(0, 4096, 60, dtype=np.int32),
            }
        )
        parts.append(tally)
    expected = sum(part.columns()["cell_costs"] for part in parts)
    parts[0].absorb(parts[1])
    np.testing.assert_array_equal(parts[0].columns()["cell_costs"], expected)
    with pytest.raises(ValueError, match="a tally of 4 outputs, expected our 1"):
        parts[0].absorb(Tally(OUTPUTS))


def test_bad_input_is_one_line_and_leaves_the_older_file(words: list[str], tmp_path: Path) -> None:
    merge.main(words)
    before = (tmp_path / "out.json").read_bytes()
    Tally(OUTPUTS[:2]).save(tmp_path / "other.npz")
    with pytest.raises(InputError, match=r"other.npz: votes for 2 outputs, expected votes for the 4 of --challenges$"):
        merge.main([*words, "--candidates", str(tmp_path / "other.npz")])
    with pytest.raises(InputError, match=r"theirs.json"):
        merge.main([*words[:-1], words[0]])
    write_submission(tmp_path / "ours.json", {"a": (Attempts(grid(1), grid(2)),)})
    with pytest.raises(InputError, match=r"ours.json: lacks task b and 1 more, expected all tasks of"):
        merge.main(words)
    (tmp_path / "theirs.json").write_text("[]")
    with pytest.raises(InputError, match=r"theirs.json: found"):
        merge.main(words)
    assert (tmp_path / "out.json").read_bytes() == before
