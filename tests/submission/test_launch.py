"""The launcher starts as many processes as GPUs work, gives a failed start another try, and ends what hangs."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import pytest

from data_prep.files import InputError
from submission import launch
from submission.inputs import RERUN_VARIABLE
from submission.launch import Launch, command, note_bundle, run_printing, working_gpus
from tests.conftest import HANG
from tests.submission.kaggle_layout import make_layout
from tests.submission.tiny import tiny_tasks


def test_several_gpus_get_a_process_each() -> None:
    words, environment = command((0, 1, 3))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1,3"
    assert words[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    assert words[words.index("--num_processes") + 1] == "3"
    assert words[-2:] == ["-m", "submission.solve"]


@pytest.mark.parametrize(("gpus", "visible"), [((), ""), ((2,), "2")])
def test_one_gpu_or_none_needs_no_launcher(gpus: tuple[int, ...], visible: str) -> None:
    words, environment = command(gpus)
    assert words == [sys.executable, "-m", "submission.solve"]
    assert environment["CUDA_VISIBLE_DEVICES"] == visible


def test_gpus_that_cannot_be_tried_do_not_count(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "PROBE", "print('a library says hello'); print('0 2')")
    assert working_gpus() == (0, 2)
    for probe in ("import sys; sys.exit(3)", "import os; os.abort()", "print('nonsense')", "pass"):
        monkeypatch.setattr(launch, "PROBE", probe)
        assert working_gpus() == ()
    monkeypatch.setattr(launch, "PROBE", f"import time; time.sleep({HANG})")
    monkeypatch.setattr(launch, "PROBE_SECONDS", 0.5)
    assert working_gpus() == ()
    assert capfd.readouterr().out.count("note: GPUs could not be tried") == 5


class Runs:
    """Pretends to run commands: each takes so many seconds and ends with a status, and may write its file."""

    def __init__(self, *results: tuple[float, int, bytes | None]) -> None:
        self.results = list(results)
        self.time = 0.0
        self.words: list[Sequence[str]] = []
        self.limits: list[float] = []

    def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
        self.words.append(words)
        self.limits.append(seconds)
        took, status, written = self.results.pop(0)
        self.time += took
        if written is not None:
            out = Path(words[words.index("--out") + 1])
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(written)
        return status

    def budgets(self) -> list[str]:
        return [words[words.index("--time-budget") + 1] for words in self.words]


def start(runs: Runs, out: Path, gpus: Sequence[int] = (0, 1, 2, 3)) -> int:
    return Launch(gpus, ["--seed", "5"], runs.run, lambda: runs.time).solve(out, 100, ["--votes", "7"])


def test_a_good_run_is_the_only_one(tmp_path: Path) -> None:
    runs = Runs((90, 0, b"good"))
    assert start(runs, tmp_path / "s.json") == 0
    [words] = runs.words
    assert {"--seed", "--votes"} <= set(words)
    assert (runs.budgets(), runs.limits) == (["100.000s"], [100 + launch.GRACE])


def test_processes_that_fail_early_are_followed_by_one(tmp_path: Path) -> None:
    runs = Runs((30, 1, b"fallbacks"), (70, 0, b"good"))
    assert start(runs, tmp_path / "s.json") == 0
    assert "accelerate.commands.launch" not in runs.words[1]
    assert runs.budgets() == ["100.000s", "70.000s"]
    assert (tmp_path / "s.json").read_bytes() == b"good"


def test_a_second_failure_leaves_the_first_file(tmp_path: Path) -> None:
    runs = Runs((30, 1, b"first"), (10, 1, b"fallbacks"))
    assert start(runs, tmp_path / "s.json") == 1
    assert (tmp_path / "s.json").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("gpus", "took", "status"),
    [((0, 1), 60, 1), ((0, 1), 10, 143), ((0, 1), 10, -signal.SIGTERM), ((0,), 10, 1), ((), 10, 1)],
)
def test_no_second_try_late_on_request_or_of_a_single_process(
    tmp_path: Path, gpus: tuple[int, ...], took: float, status: int
) -> None:
    runs = Runs((took, status, b"first"))
    assert start(runs, tmp_path / "s.json", gpus) == status
    assert len(runs.words) == 1


# Real processes ---------------------------------------------------------------------------------------------


def test_a_run_is_heard_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, sys; print(os.environ['X'], flush=True); print('bad', file=sys.stderr); sys.exit(7)"
    assert run_printing([sys.executable, "-c", code], {"X": "hello"}, HANG) == 7
    assert capsys.readouterr().out.splitlines() == ["hello", "bad"]


def test_what_hangs_is_ended_with_all_it_started() -> None:
    # The grandchild holds the pipe open: only its end lets the run end.
    code = f"import subprocess, time; subprocess.Popen(['sleep', '{HANG}']); time.sleep({HANG})"
    assert run_printing([sys.executable, "-c", code], {}, 1.5) == -signal.SIGKILL


def test_output_that_is_no_text_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\n')"
    assert run_printing([sys.executable, "-c", code], {}, HANG) == 0
    assert capsys.readouterr().out.startswith("a")


# The program ------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Solving that only pretends, without GPUs."""
    submission = {t.task_id: [{"attempt_1": [[1]], "attempt_2": [[2]]} for _ in t.tests] for t in tiny_tasks(3)}
    made = Runs((1, 0, orjson.dumps(submission)), (1, 0, b"{}"))
    monkeypatch.setattr(launch, "working_gpus", lambda: ())
    monkeypatch.setattr(launch, "Launch", lambda gpus, options: Launch(gpus, options, made.run, lambda: made.time))
    monkeypatch.delenv(RERUN_VARIABLE, raising=False)
    return made


def test_a_rehearsal_solves_and_then_scores_itself(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(3))
    monkeypatch.setenv(launch.OPTIONS_VARIABLE, "--rehearsal-budget 30s --seed 9")
    assert launch.main(["--root", str(tmp_path), "--rehearsal-budget", "5m", "--votes", "3"]) == 0
    solving, rehearsing = runs.words
    assert runs.budgets() == ["30.000s", "30.000s"]
    for words in (solving, rehearsing):
        assert {"--votes", "--seed", "--input", str(tmp_path / "input")} <= set(words)
    assert "--rehearse" not in solving
    assert rehearsing[rehearsing.index("--rehearse") + 1] == "120"
    assert "valid, 3 tasks, 4 outputs" in capsys.readouterr().out
    assert orjson.loads((tmp_path / "working" / "bundle.json").read_bytes())["format"] == "arc-trm-bundle"


def test_the_rerun_solves_alone_and_has_all_the_time(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layout(tmp_path, "2026", tiny_tasks(3))
    monkeypatch.setenv(RERUN_VARIABLE, "1")
    monkeypatch.setenv(launch.ROOT_VARIABLE, str(tmp_path))
    assert launch.main([]) == 0
    assert runs.budgets() == [f"{11.5 * 3600:.3f}s"]


def test_an_invalid_file_is_told(tmp_path: Path, runs: Runs) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(2))
    with pytest.raises(InputError, match="unknown task c"):
        launch.main(["--root", str(tmp_path)])


def test_an_altered_bundle_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_layout(tmp_path, "2025", tiny_tasks(2))
    with (tmp_path / "input" / "arc-trm-bundle" / "LICENCES.txt").open("a") as file:
        file.write("x")
    note_bundle(tmp_path)
    assert "LICENCES.txt: the content differs from the manifest's digest" in capsys.readouterr().out
    assert not (tmp_path / "working" / "bundle.json").exists()


def test_the_probe_is_the_function_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.print_working_gpus.__name__ in launch.PROBE
    launch.print_working_gpus()
    printed = capsys.readouterr().out.split()
    assert printed == [] or os.environ.get("CUDA_VISIBLE_DEVICES") != ""
